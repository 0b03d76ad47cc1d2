"""The table of the outcomes of transactions, and the upkeep of txbridge's tables: a purge keeps its locks short."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Engine,
    Index,
    MetaData,
    String,
    Table,
    delete,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import IntegrityError
from sqlalchemy.schema import CreateIndex, CreateTable, ExecutableDDLElement
from sqlalchemy.util import greenlet_spawn

from txbridge.client.barrier import NEVER_PURGED, PURGED_ROW, creation_time
from txbridge.client.barrier_purge import (
    PURGE_AFTER,
    PURGE_BATCH,
    PurgedBarrierTable,
    PurgedTable,
    mark_of,
    require_least_age,
)
from txbridge_sqlalchemy.row import Row, ask

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

#: For Alembic and the like: `target_metadata = [Base.metadata, txbridge_sqlalchemy.metadata]`.
metadata = MetaData()

transactions = Table(
    "txbridge_transactions",
    metadata,
    # 128 bits as hexadecimal digits; or `barrier`, whose state is the identity of the table; or `purged`, the mark of
    # the last purge (ms).
    Column("id", String(32), primary_key=True),
    Column("state", String(16), nullable=False),
    # The birth of the message, in milliseconds since 1970-01-01 UTC: the same in every database and time zone.
    Column("created_at", BigInteger, nullable=False),
)
# For purge, which would read the whole table at every batch without it.
Index("txbridge_transactions_created_at", transactions.c.created_at)


def ddl_of(table: Table, dialect: Dialect) -> str:
    """The statements that create the table and its indexes."""
    indexes = sorted(table.indexes, key=lambda index: str(index.name))
    statements: tuple[ExecutableDDLElement, ...] = (CreateTable(table), *map(CreateIndex, indexes))
    return "".join(f"{str(statement.compile(dialect=dialect)).strip()};\n" for statement in statements)


class SqlPurgedTable(PurgedTable):
    """A table with a column `created_at` in the database of an engine."""

    def __init__(self, engine: Engine, table: Table) -> None:
        self.engine = engine
        self.table = table

    def find_time(self, start: int, before: int, skipped: int) -> int | None:
        created_at = self.table.c.created_at
        times = select(created_at).where(*self._range(start, before, None)).order_by(created_at)
        with self.engine.connect() as connection:
            found: int | None = ask(connection, times.offset(skipped).limit(1)).scalar()
        return found

    def delete_rows(self, start: int, before: int, kept: str | None) -> int:
        with self.engine.begin() as connection:
            return connection.execute(delete(self.table).where(*self._range(start, before, kept))).rowcount

    def count_rows(self, start: int, before: int, kept: str | None) -> int:
        counted = select(func.count()).select_from(self.table).where(*self._range(start, before, kept))
        with self.engine.connect() as connection:
            return int(ask(connection, counted).scalar_one())

    def _range(self, start: int, before: int, kept: str | None) -> list[ColumnElement[Any]]:
        columns = self.table.c
        within: list[ColumnElement[Any]] = [columns.created_at >= start, columns.created_at < before]
        return within if kept is None else [*within, columns.state != kept]


def row_of(transaction_id: str, state: str, born: int | None) -> Row:
    """The row of a transaction whose message has this birth (ms), or one of the table's own."""
    return Row(transactions, {"id": transaction_id, "state": state, "created_at": creation_time(born)})


def create_table(engine: Engine) -> None:
    """Create `txbridge_transactions` and its index, unless the table exists."""
    metadata.create_all(engine)


def ddl(dialect: Dialect) -> str:
    """The statements that create the table, as text for a migration by hand: `ddl(engine.dialect)`."""
    return ddl_of(transactions, dialect)


class OutcomeTable(SqlPurgedTable, PurgedBarrierTable):
    """`txbridge_transactions` for a purge."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine, transactions)

    def find_newest(self) -> int | None:
        newest = func.max(transactions.c.created_at)
        with self.engine.connect() as connection:
            return ask(connection, select(newest).where(transactions.c.created_at < NEVER_PURGED)).scalar()

    def raise_mark(self, mark: int) -> None:
        new, ours = mark_of(mark), transactions.c.id == PURGED_ROW
        with self.engine.connect() as connection:
            current = connection.execute(select(transactions.c.state).where(ours)).scalar()
        if current is None:
            # Of two purges that find none, one fails, and has the row of the other.
            with suppress(IntegrityError), self.engine.begin() as connection:
                values = {"id": PURGED_ROW, "state": new, "created_at": NEVER_PURGED}
                connection.execute(insert(transactions).values(values))
                return
        if current is None or current < new:
            with self.engine.begin() as connection:
                connection.execute(update(transactions).where(ours, transactions.c.state < new).values(state=new))


def purge(engine: Engine, older_than: timedelta = PURGE_AFTER, *, batch: int = PURGE_BATCH) -> int:
    """Delete old rows, and return how many. Run it once a day or so, from anywhere: `txbridge purge` does it, too.

    It is safe at any time, and any number may run at once: docs/sqlalchemy.md. A check of a message whose row may be
    deleted is answered "unknown", and a person has to decide. Keys (`once`) go with the rows of their transactions.

    Args:
        engine: of the database with the table.
        older_than: age of the messages, an hour at least, counted from the newest row. By default the retention of the
            half topic (7 days) and a day.
        batch: rows of one database transaction. Small ones keep locks short.

    """
    require_least_age(older_than)
    return OutcomeTable(engine).purge_rows(older_than, batch)


async def async_purge(engine: AsyncEngine, older_than: timedelta = PURGE_AFTER, *, batch: int = PURGE_BATCH) -> int:
    """`purge` for an AsyncEngine. A cancelled call leaves whole batches deleted."""
    return await greenlet_spawn(partial(purge, engine.sync_engine, older_than, batch=batch))
