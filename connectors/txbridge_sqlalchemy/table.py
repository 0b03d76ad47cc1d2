"""The table of the outcomes of transactions, and its upkeep."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from sqlalchemy import BigInteger, Column, Engine, Index, MetaData, String, Table
from sqlalchemy.engine import Dialect

from txbridge.client.barrier import creation_time
from txbridge_sqlalchemy.row import Row
from txbridge_sqlalchemy.upkeep import async_purge_table, ddl_of, purge_table

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

#: For Alembic and the like: `target_metadata = [Base.metadata, txbridge_sqlalchemy.metadata]`.
metadata = MetaData()

transactions = Table(
    "txbridge_transactions",
    metadata,
    # 128 bits as hexadecimal digits; or `barrier`, whose state is the identity of the table.
    Column("id", String(32), primary_key=True),
    Column("state", String(16), nullable=False),
    # Milliseconds since 1970-01-01 UTC, as everywhere in txbridge: the same in every database, whatever its time zone.
    Column("created_at", BigInteger, nullable=False),
)
# For purge, which would read the whole table at every batch without it.
Index("txbridge_transactions_created_at", transactions.c.created_at)

#: Twice `transaction_max_age` (72 h), because a discarded message that is resumed has that time again, plus the 30 days
#: for which it can be resumed.
PURGE_AFTER = timedelta(days=36)


def row_of(transaction_id: str, state: str) -> Row:
    """The row of a transaction in this state, or of the identity of the table."""
    values = {"id": transaction_id, "state": state, "created_at": creation_time(transaction_id)}
    return Row(transactions, values)


def create_table(engine: Engine) -> None:
    """Create `txbridge_transactions` and its index, unless the table exists."""
    metadata.create_all(engine)


def ddl(dialect: Dialect) -> str:
    """The statements that create the table, as text for a migration by hand: `ddl(engine.dialect)`."""
    return ddl_of(transactions, dialect)


def purge(engine: Engine, older_than: timedelta = PURGE_AFTER, *, batch: int = 1_000) -> int:
    """Delete rows that no check can need any more, and return how many. Run it once a day or so, from anywhere.

    A row that is missing means "rolled back" to a check. So a row must outlive every check of its message, and every
    process that is paused before its local transaction. Deleting it too early loses a committed message.

    Args:
        engine: of the database with the table.
        older_than: at least twice the worker's `transaction_max_age` and the retention of TRANS_CHECK_MAX_TIME_TOPIC,
            from which a message can be resumed. The default fits their defaults.
        batch: rows of one database transaction. Small batches keep locks short, and do not stop other writers of
            SQLite.

    Raises:
        UsageError: `older_than` or `batch` is not positive.

    """
    return purge_table(engine, transactions, older_than, batch)


async def async_purge(engine: AsyncEngine, older_than: timedelta = PURGE_AFTER, *, batch: int = 1_000) -> int:
    """`purge` for an AsyncEngine."""
    return await async_purge_table(engine, transactions, older_than, batch)
