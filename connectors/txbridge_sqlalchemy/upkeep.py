"""Upkeep of txbridge's tables: their statements as text, and a purge that keeps its locks short."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Engine, Table, delete, func, select
from sqlalchemy.engine import Dialect
from sqlalchemy.schema import CreateIndex, CreateTable, ExecutableDDLElement

from txbridge.client.barrier_purge import PurgedTable
from txbridge_sqlalchemy.row import ask


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

    def delete_rows(self, start: int, before: int, state: str | None) -> int:
        with self.engine.begin() as connection:
            return connection.execute(delete(self.table).where(*self._range(start, before, state))).rowcount

    def count_rows(self, start: int, before: int, state: str | None) -> int:
        counted = select(func.count()).select_from(self.table).where(*self._range(start, before, state))
        with self.engine.connect() as connection:
            return int(ask(connection, counted).scalar_one())

    def _range(self, start: int, before: int, state: str | None) -> list[ColumnElement[Any]]:
        columns = self.table.c
        within: list[ColumnElement[Any]] = [columns.created_at >= start, columns.created_at < before]
        return within if state is None else [*within, columns.state == state]
