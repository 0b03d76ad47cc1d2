"""A row of txbridge that is written in the same transaction as the application's data."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Delete, Executable, Insert, Result, Select, Table
from sqlalchemy.exc import StatementError


@dataclass(frozen=True, slots=True)
class Row:
    """Statements that insert the row, find it again, and delete it by its key."""

    table: Table
    insert: Insert
    found: Select[Any]
    delete: Delete


def now_ms() -> int:
    """Milliseconds since 1970-01-01 UTC, as in `created_at`."""
    return time.time_ns() // 1_000_000


def ask(connection: Connection, statement: Executable) -> Result[Any]:
    """Execute a statement of txbridge. An error does not show its parameters: the id is the right to decide."""
    try:
        return connection.execute(statement)
    except StatementError as error:
        error.hide_parameters = True
        raise
