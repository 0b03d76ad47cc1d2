"""The outbox: a table of messages that a relay sends, and the table of the relays' lanes beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Self

from sqlalchemy import BigInteger, Column, Engine, Integer, LargeBinary, MetaData, String, Table, Text
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import Dialect
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
            an index. None takes the id if it is a number. If not, docs/outbox.md has the order.
        where: A condition in SQL for the rows that are to be sent, such as `published_at IS NULL`; None for all.

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
        order: str | None = None,
        header_columns: Mapping[str, str] | None = None,
    ) -> Self:
        """A table as Debezium's EventRouter expects it, with the records that it makes by default.

        It has the columns `id`, `aggregatetype`, `aggregateid`, `type` and `payload`. The topic is
        `outbox.event.<aggregatetype>`, the key `aggregateid`, and the value `payload` as text. The header `id` has the
        id. `header_columns` adds what `table.fields.additional.placement` has added, such as `{"eventType": "type"}`.
        """
        return cls(
            name=name,
            schema=schema,
            topic="outbox.event.{aggregatetype}",
            key="aggregateid",
            value="payload",
            header_columns={"id": "id", **(header_columns or {})},
            order=order,
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
        """What `create_outbox` creates, for a migration tool. Of a table of the application only the lanes."""
        return _metadata_of(self.name, self.schema, self.is_ours)

    @property
    def lanes(self) -> Table:
        """The table of the relays' lanes beside this one: which batch of each lane was the last."""
        return next(table for table in self.metadata.sorted_tables if table.name == _lanes_name(self.name))

    @property
    def rows(self) -> Table:
        """The table itself, if it has txbridge's layout."""
        return next(table for table in self.metadata.sorted_tables if table.name == self.name)


def _lanes_name(name: str) -> str:
    return f"{name}_lanes"


@cache
def _metadata_of(name: str, schema: str | None, is_ours: bool) -> MetaData:
    made = outbox_metadata if (name, schema, is_ours) == (outbox.name, None, True) else MetaData()
    if is_ours and made is not outbox_metadata:
        outbox.to_metadata(made, name=name, schema=schema or SchemaConst.RETAIN_SCHEMA)
    Table(
        _lanes_name(name),
        made,
        Column("lane", Integer, primary_key=True, autoincrement=False),
        # Of the last batch. Null before the first one.
        Column("transaction_id", String(32)),
        Column("half_partition", Integer),
        Column("half_offset", BigInteger),
        schema=schema,
    )
    return made


#: The outbox of txbridge, whose lanes are in `outbox_metadata` from the start.
OUR_OUTBOX = OutboxTable.for_txbridge()
outbox_lanes = OUR_OUTBOX.lanes


def create_outbox(engine: Engine, table: OutboxTable = OUR_OUTBOX) -> None:
    """Create `txbridge_outbox` and `txbridge_outbox_lanes`, unless they exist.

    Beside a table of the application, given as `table`, only the table of the lanes is created.
    """
    table.metadata.create_all(engine)


def outbox_ddl(dialect: Dialect, table: OutboxTable = OUR_OUTBOX) -> str:
    """The statements that create what `create_outbox` creates, as text for a migration by hand."""
    return "".join(ddl_of(one, dialect) for one in table.metadata.sorted_tables)
