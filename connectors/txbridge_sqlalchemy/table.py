"""The table that holds what became of each transaction, and its upkeep."""

from __future__ import annotations

import time
from datetime import timedelta

from sqlalchemy import BigInteger, Column, Engine, Index, MetaData, String, Table, delete, select
from sqlalchemy.engine import Dialect
from sqlalchemy.schema import CreateIndex, CreateTable

from txbridge.errors import UsageError

COMMITTED = "committed"
ROLLED_BACK = "rolled back"

#: For Alembic and the like: `target_metadata = [Base.metadata, txbridge_sqlalchemy.metadata]`.
metadata = MetaData()

transactions = Table(
    "txbridge_transactions",
    metadata,
    # 128 bits as hexadecimal digits.
    Column("id", String(32), primary_key=True),
    Column("state", String(16), nullable=False),
    # Milliseconds since 1970-01-01 UTC, as everywhere in txbridge: the same in every database, whatever its time zone.
    Column("created_at", BigInteger, nullable=False),
)
# For purge, which would read the whole table at every batch without it.
_created_at_index = Index("txbridge_transactions_created_at", transactions.c.created_at)

#: `transaction_max_age` (72 h) twice, because a discarded message that is resumed has that time again, and the 30 days
#: for which it can be resumed.
PURGE_AFTER = timedelta(days=36)


def now_ms() -> int:
    """As in `created_at`."""
    return time.time_ns() // 1_000_000


def create_table(engine: Engine) -> None:
    """Create `txbridge_transactions` and its index, unless the table is there."""
    metadata.create_all(engine)


def ddl(dialect: Dialect) -> str:
    """The statements that create the table, as text for a migration by hand: `ddl(engine.dialect)`."""
    statements = (CreateTable(transactions), CreateIndex(_created_at_index))
    return "".join(f"{str(statement.compile(dialect=dialect)).strip()};\n" for statement in statements)


def purge(engine: Engine, older_than: timedelta = PURGE_AFTER, *, batch: int = 1_000) -> int:
    """Delete rows that no check can need any more; returns how many. Run it once a day or so, from anywhere.

    A row that is missing means "rolled back" to a check. So it must outlive every check of its message, and every
    process that stands still before its local transaction: deleting too early loses a message that was committed.

    Args:
        engine: of the database with the table.
        older_than: at least twice the worker's `transaction_max_age` and the retention of TRANS_CHECK_MAX_TIME_TOPIC,
            from which a message can be resumed. The default fits theirs.
        batch: rows of one database transaction. Small ones keep locks short and other writers of SQLite going.

    Raises:
        UsageError: `older_than` or `batch` is not positive.

    """
    if older_than <= timedelta(0) or batch < 1:
        raise UsageError(f"older_than and batch must be positive, not {older_than} and {batch}")
    before = now_ms() - older_than // timedelta(milliseconds=1)
    oldest = select(transactions.c.id).where(transactions.c.created_at < before).order_by(transactions.c.created_at)
    deleted = 0
    while True:
        # Read and deleted in two transactions, so that SQLite never has to turn a reader into a writer. A row that
        # another purge has deleted in between is no harm; nobody changes a row.
        with engine.connect() as connection:
            ids = connection.execute(oldest.limit(batch)).scalars().all()
        if not ids:
            return deleted
        with engine.begin() as connection:
            deleted += connection.execute(delete(transactions).where(transactions.c.id.in_(ids))).rowcount
