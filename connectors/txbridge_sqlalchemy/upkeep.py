"""Upkeep of txbridge's tables: their statements as text, and a purge that keeps its locks short."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, Select, Table, delete, select, tuple_
from sqlalchemy.engine import Dialect, Row
from sqlalchemy.schema import CreateIndex, CreateTable, ExecutableDDLElement

from txbridge.errors import UsageError
from txbridge_sqlalchemy.row import now_ms

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine


def ddl_of(table: Table, dialect: Dialect) -> str:
    """The statements that create the table and its indexes."""
    indexes = sorted(table.indexes, key=lambda index: str(index.name))
    statements: tuple[ExecutableDDLElement, ...] = (CreateTable(table), *map(CreateIndex, indexes))
    return "".join(f"{str(statement.compile(dialect=dialect)).strip()};\n" for statement in statements)


def purge_table(engine: Engine, table: Table, older_than: timedelta, batch: int) -> int:
    """Delete rows by their `created_at`, oldest first; returns how many."""
    oldest = _oldest(table, older_than, batch)
    deleted = 0
    while True:
        # Reading and deleting are two transactions, so that SQLite never has to turn a reader into a writer. Another
        # purge may delete a row in between without harm. Rows are never changed.
        with engine.connect() as connection:
            keys = connection.execute(oldest).all()
        if not keys:
            return deleted
        with engine.begin() as connection:
            deleted += _delete(connection, table, keys)


async def async_purge_table(engine: AsyncEngine, table: Table, older_than: timedelta, batch: int) -> int:
    """`purge_table` on an event loop. A cancelled call leaves whole batches deleted."""
    oldest = _oldest(table, older_than, batch)
    deleted = 0
    while True:
        async with engine.connect() as connection:
            keys = (await connection.execute(oldest)).all()
        if not keys:
            return deleted
        async with engine.begin() as connection:
            deleted += await connection.run_sync(_delete, table, keys)


def _oldest(table: Table, older_than: timedelta, batch: int) -> Select[Any]:
    if older_than <= timedelta(0) or batch < 1:
        raise UsageError(f"older_than and batch must be positive, not {older_than} and {batch}")
    before = now_ms() - older_than // timedelta(milliseconds=1)
    created_at = table.c.created_at
    return select(*table.primary_key.columns).where(created_at < before).order_by(created_at).limit(batch)


def _delete(connection: Connection, table: Table, keys: Sequence[Row[Any]]) -> int:
    columns = list(table.primary_key.columns)
    if len(columns) == 1:
        return connection.execute(delete(table).where(columns[0].in_([key[0] for key in keys]))).rowcount
    return connection.execute(delete(table).where(tuple_(*columns).in_([tuple(key) for key in keys]))).rowcount
