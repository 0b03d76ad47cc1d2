"""Upkeep of txbridge's tables: their statements as text, and a purge that keeps its locks short."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from sqlalchemy import Delete, Engine, Table, delete, select, tuple_
from sqlalchemy.engine import Dialect
from sqlalchemy.schema import CreateIndex, CreateTable, ExecutableDDLElement

from txbridge.client.message import now_ms
from txbridge.errors import UsageError

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine


def ddl_of(table: Table, dialect: Dialect) -> str:
    """The statements that create the table and its indexes."""
    indexes = sorted(table.indexes, key=lambda index: str(index.name))
    statements: tuple[ExecutableDDLElement, ...] = (CreateTable(table), *map(CreateIndex, indexes))
    return "".join(f"{str(statement.compile(dialect=dialect)).strip()};\n" for statement in statements)


def purge_table(engine: Engine, table: Table, older_than: timedelta, batch: int) -> int:
    """Delete rows by their `created_at`, oldest first; returns how many."""
    statement = _delete_oldest(table, older_than, batch)
    total = 0
    while True:
        # Two purges at the same time may choose the same rows. The second one deletes fewer, and leaves the rest to the
        # first.
        with engine.begin() as connection:
            deleted = connection.execute(statement).rowcount
        total += deleted
        if deleted < batch:
            return total


async def async_purge_table(engine: AsyncEngine, table: Table, older_than: timedelta, batch: int) -> int:
    """`purge_table` on an event loop. A cancelled call leaves whole batches deleted."""
    statement = _delete_oldest(table, older_than, batch)
    total = 0
    while True:
        async with engine.begin() as connection:
            deleted = (await connection.execute(statement)).rowcount
        total += deleted
        if deleted < batch:
            return total


def _delete_oldest(table: Table, older_than: timedelta, batch: int) -> Delete:
    """One statement for a batch of any size: keys as parameters have a limit in every driver and database."""
    if older_than <= timedelta(0) or batch < 1:
        raise UsageError(f"older_than and batch must be positive, not {older_than} and {batch}")
    before = now_ms() - older_than // timedelta(milliseconds=1)
    key, created_at = table.primary_key.columns, table.c.created_at
    oldest = select(*key).where(created_at < before).order_by(created_at).limit(batch).subquery()
    # MySQL takes a LIMIT, and the table of the DELETE itself, only in a subquery of a subquery.
    return delete(table).where(tuple_(*key).in_(select(oldest)))
