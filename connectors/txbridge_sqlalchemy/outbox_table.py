"""The outbox: a table of messages that a relay sends, and the table of the relays' lanes beside it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from sqlalchemy import BigInteger, Column, Engine, Integer, LargeBinary, MetaData, String, Table, Text
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import Dialect

from txbridge_sqlalchemy.upkeep import ddl_of

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

_COLUMN = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, kw_only=True)
class OutboxTable:
    """An outbox table: its name, and the columns that hold the parts of a message.

    Without arguments it is `txbridge_outbox`. With them it describes a table that an application has already.

    Args:
        name: The name of the table.
        schema: Its schema. None is the default of the connection.
        id: The column that identifies a row: the primary key, or one with a unique index.
        topic: The real topic, with names of columns in braces: `{topic}`, or `outbox.event.{aggregatetype}`.
        key: The column of the message's key, or None.
        value: The column of the message's value.
        headers: The column of the headers as JSON, or None.
        partition: The column of the partition of the real topic, or None.
        timestamp: The column of the message's timestamp (ms), or None.
        deliver_at: The column of the earliest time of delivery (ms), or None.
        created_at: The column of the time at which a row was written, or None. Metrics show the age of the oldest.

    """

    name: str = outbox.name
    schema: str | None = None
    id: str = "id"
    topic: str = "{topic}"
    key: str | None = "key"
    value: str = "value"
    headers: str | None = "headers"
    partition: str | None = "partition"
    timestamp: str | None = "timestamp"
    deliver_at: str | None = "deliver_at"
    created_at: str | None = "created_at"

    @property
    def topic_columns(self) -> list[str]:
        """The columns of which the topic is made."""
        return _COLUMN.findall(self.topic)

    @property
    def lanes(self) -> Table:
        """The table of the relays' lanes beside this outbox."""
        return _lanes_of(self.name, self.schema)


@cache
def _lanes_of(name: str, schema: str | None) -> Table:
    """The state of each lane: the last transaction in which a relay sent rows of it. One row for each lane."""
    return Table(
        f"{name}_lanes",
        outbox_metadata if (name, schema) == (outbox.name, None) else MetaData(),
        Column("lane", Integer, primary_key=True, autoincrement=False),
        Column("transaction_id", String(32)),
        Column("half_partition", Integer),
        Column("half_offset", BigInteger),
        schema=schema,
    )


#: The outbox of txbridge.
OUR_OUTBOX = OutboxTable()
# Part of `outbox_metadata` from the start.
outbox_lanes = OUR_OUTBOX.lanes


def create_outbox(engine: Engine, table: OutboxTable = OUR_OUTBOX) -> None:
    """Create `txbridge_outbox` and `txbridge_outbox_lanes`, unless they exist.

    Of a table of the application, given as `table`, only the table of lanes is created.
    """
    table.lanes.metadata.create_all(engine)


def outbox_ddl(dialect: Dialect, table: OutboxTable = OUR_OUTBOX) -> str:
    """The statements that create what `create_outbox` creates, as text for a migration by hand."""
    return "".join(ddl_of(one, dialect) for one in table.lanes.metadata.sorted_tables)
