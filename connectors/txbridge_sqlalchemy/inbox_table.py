"""The table of the records that a consumer has worked on, and its upkeep."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from sqlalchemy import BigInteger, Column, Engine, Index, Integer, MetaData, String, Table
from sqlalchemy.engine import Dialect
from sqlalchemy.util import greenlet_spawn

from txbridge.client.barrier_purge import PURGE_BATCH
from txbridge.client.message import now_ms
from txbridge_sqlalchemy.record_name import RecordName
from txbridge_sqlalchemy.row import Row
from txbridge_sqlalchemy.upkeep import SqlPurgedTable, ddl_of

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

#: Separate from `metadata`: a consumer needs no table of transactions, and a producer needs no inbox.
inbox_metadata = MetaData()

#: Longest name of a consumer, in characters.
MAX_CONSUMER = 100

inbox = Table(
    "txbridge_inbox",
    inbox_metadata,
    Column("consumer", String(MAX_CONSUMER), primary_key=True),
    # A transaction id; or topic (at most 249 characters), partition, offset and time of a record that has none.
    Column("source", String(320), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    # Milliseconds since 1970-01-01 UTC, as everywhere in txbridge.
    Column("created_at", BigInteger, nullable=False),
)
# For the purge.
Index("txbridge_inbox_created_at", inbox.c.created_at)


def inbox_row(consumer: str, name: RecordName) -> Row:
    """The row of a record that this consumer works on."""
    return Row(inbox, {"consumer": consumer, "source": name.source, "number": name.number, "created_at": now_ms()})


def create_inbox_table(engine: Engine) -> None:
    """Create `txbridge_inbox` and its index, unless the table exists."""
    inbox_metadata.create_all(engine)


def inbox_ddl(dialect: Dialect) -> str:
    """The statements that create the table, as text for a migration by hand: `inbox_ddl(engine.dialect)`."""
    return ddl_of(inbox, dialect)


def purge_inbox(engine: Engine, older_than: timedelta, *, batch: int = PURGE_BATCH) -> int:
    """Delete rows of records that cannot be read again, and return how many. Run it once a day or so, from anywhere.

    Args:
        engine: of the database with the table.
        older_than: longer than the retention of the real topics, and longer than any time by which a consumer group is
            reset. A record that is read after its row is deleted has its effect again.
        batch: rows of one database transaction. Small batches keep locks short, and do not stop other writers of
            SQLite.

    Raises:
        UsageError: `older_than` or `batch` is not positive.

    """
    return SqlPurgedTable(engine, inbox).purge_rows(older_than, batch)


async def async_purge_inbox(engine: AsyncEngine, older_than: timedelta, *, batch: int = PURGE_BATCH) -> int:
    """`purge_inbox` for an AsyncEngine. A cancelled call leaves whole batches deleted."""
    return await greenlet_spawn(partial(purge_inbox, engine.sync_engine, older_than, batch=batch))
