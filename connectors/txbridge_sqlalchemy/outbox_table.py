"""The outbox: a table of messages that a relay sends, and the table of the relay's state beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Self

from sqlalchemy import BigInteger, Column, Engine, Index, Integer, LargeBinary, MetaData, String, Table, Text, text
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import Dialect
from sqlalchemy.sql.elements import quoted_name
from sqlalchemy.sql.schema import SchemaConst

from txbridge_sqlalchemy.table import ddl_of

#: Separate from `metadata`: an application that only writes to an outbox needs no table of transactions.
outbox_metadata = MetaData()

outbox = Table(
    "txbridge_outbox",
    outbox_metadata,
    # SQLite counts only a column of this very type by itself.
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("topic", String(249), nullable=False),
    Column("key", LargeBinary),
    # MySQL's BLOB ends at 64 KiB, its TEXT too.
    Column("value", LargeBinary().with_variant(mysql.LONGBLOB, "mysql", "mariadb")),
    Column("headers", Text().with_variant(mysql.MEDIUMTEXT, "mysql", "mariadb")),
    Column("partition", Integer),
    # Milliseconds since 1970-01-01 UTC, as everywhere in txbridge.
    Column("timestamp", BigInteger),
    Column("deliver_at", BigInteger),
    Column("created_at", BigInteger, nullable=False),
    # A million rows that are not due cost the others nothing.
    Index(
        "txbridge_outbox_due",
        "deliver_at",
        "id",
        postgresql_where=text("deliver_at IS NOT NULL"),
        sqlite_where=text("deliver_at IS NOT NULL"),
    ),
    # SQLite must not give the number of a deleted row again, which a relay may still have in mind.
    sqlite_autoincrement=True,
)

#: A column in the template of a topic.
IN_BRACES = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, kw_only=True)
class OutboxTable:
    """An outbox table of an application: its name, and which columns hold the parts of a message.

    `for_txbridge` describes a table of txbridge's own layout, and `for_debezium` one that Debezium has served.

    Args:
        name: The name of the table.
        schema: Its schema. None is the default of the connection.
        id: The column that identifies a row: the primary key, or one with a unique index.
        topic: The real topic, with names of columns in braces: `{topic}`, or `outbox.event.{aggregatetype}`.
        value: The column of the message's value.
        key: The column of its key, or None.
        headers: The column of its headers as JSON, or None. They are a list of pairs, or an object.
        header_columns: Names of further headers, and the columns of their values.
        partition: The column of the partition of the real topic, or None.
        timestamp: The column of the message's timestamp (ms, or a time), or None.
        deliver_at: The column of the earliest time of delivery (ms, or a time), or None.
        created_at: The column of the time at which a row was written (ms, or a time), or None. Metrics show the age of
            the oldest row.
        order: The column by whose values rows are delivered. It must grow from row to row, be NOT NULL, and should have
            an index. Rows with one value come in the order of their INSERTs. None takes the id if it is a number. If
            not, docs/outbox.md has the order.
        where: A condition in SQL for the rows that are to be sent, such as `kind <> 'draft'`; None for all.
        mark: The column that says of a row that it was sent, and is NULL before. Then rows are kept, and this column is
            set to the time, or to true. None: rows that were sent are deleted.

    """

    name: str
    schema: str | None = None
    id: str = "id"
    topic: str
    value: str
    key: str | None = None
    headers: str | None = None
    header_columns: Mapping[str, str] = field(default_factory=dict)
    partition: str | None = None
    timestamp: str | None = None
    deliver_at: str | None = None
    created_at: str | None = None
    order: str | None = None
    where: str | None = None
    mark: str | None = None

    @classmethod
    def for_txbridge(cls, name: str = outbox.name, schema: str | None = None) -> Self:
        """A table of txbridge's own layout, which `create_outbox` creates and an Outbox writes to."""
        return cls(
            name=name,
            schema=schema,
            topic="{topic}",
            value="value",
            key="key",
            headers="headers",
            partition="partition",
            timestamp="timestamp",
            deliver_at="deliver_at",
            created_at="created_at",
        )

    @classmethod
    def for_debezium(
        cls,
        name: str = "outboxevent",
        schema: str | None = None,
        *,
        topic: str = "outbox.event.{aggregatetype}",
        id: str = "id",  # noqa: A002  the field's name
        key: str = "aggregateid",
        value: str = "payload",
        order: str | None = None,
        header_columns: Mapping[str, str] | None = None,
    ) -> Self:
        """A table as Debezium's EventRouter expects it, with the records that it makes by default.

        It has the columns `id`, `aggregatetype`, `aggregateid`, `type` and `payload`; the arguments give others. The
        header `id` has the id, and the value is `payload` as text. `header_columns` adds what
        `table.fields.additional.placement` has added, such as `{"eventType": "type"}`.
        """
        headers = {"id": id, **(header_columns or {})}
        return cls(
            name=name, schema=schema, topic=topic, id=id, key=key, value=value, header_columns=headers, order=order
        )

    @property
    def is_ours(self) -> bool:
        """Whether the table has txbridge's layout, whatever its name."""
        return self == OutboxTable.for_txbridge(self.name, self.schema)

    @property
    def topic_columns(self) -> list[str]:
        """The columns of which the topic is made."""
        return IN_BRACES.findall(self.topic)

    @property
    def metadata(self) -> MetaData:
        """What `create_outbox` creates, for a migration tool. Beside a table of the application only the state."""
        return _metadata_of(self.name, self.schema, self.is_ours)

    @property
    def state(self) -> Table:
        """The table of the relay's state beside this one: who works, and which batch was the last."""
        return next(table for table in self.metadata.sorted_tables if table.name == _state_name(self.name))

    @property
    def rows(self) -> Table:
        """The table itself, if it has txbridge's layout."""
        return next(table for table in self.metadata.sorted_tables if table.name == self.name)


def _state_name(name: str) -> str:
    return f"{name}_relay"


@cache
def _metadata_of(name: str, schema: str | None, is_ours: bool) -> MetaData:
    made = outbox_metadata if (name, schema, is_ours) == (outbox.name, None, True) else MetaData()
    if is_ours and made is not outbox_metadata:
        copied = outbox.to_metadata(made, name=name, schema=schema or SchemaConst.RETAIN_SCHEMA)
        for index in copied.indexes:
            index.name = quoted_name(f"{name}_due", None)
    Table(
        _state_name(name),
        made,
        # Always 1: there is one row.
        Column("id", Integer, primary_key=True, autoincrement=False),
        # 64 random bits. A copy of the database needs one of its own.
        Column("identity", String(16), nullable=False),
        # The relay that works. Null: it has ended, and all rows that it has sent are deleted.
        Column("owner", String(32)),
        # The last batch whose rows are deleted.
        Column("batch", BigInteger, nullable=False),
        # From where the progress names the batches behind it, in Kafka.
        Column("topic_id", String(32)),
        Column("partition", Integer),
        Column("position", BigInteger),
        schema=schema,
    )
    return made


#: The outbox of txbridge, whose relay's state is in `outbox_metadata` from the start.
OUR_OUTBOX = OutboxTable.for_txbridge()
outbox_state = OUR_OUTBOX.state


def create_outbox(engine: Engine, table: OutboxTable = OUR_OUTBOX) -> None:
    """Create `txbridge_outbox` and `txbridge_outbox_relay`, unless they exist.

    Beside a table of the application, given as `table`, only the table of the relay's state is created.
    """
    table.metadata.create_all(engine)


def outbox_ddl(dialect: Dialect, table: OutboxTable = OUR_OUTBOX) -> str:
    """The statements that create what `create_outbox` creates, as text for a migration by hand."""
    return "".join(ddl_of(one, dialect) for one in table.metadata.sorted_tables)
