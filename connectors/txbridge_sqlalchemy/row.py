"""A row of ours, which is written in the same transaction as the application's."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Delete, Executable, Insert, Result, Select, Table
from sqlalchemy.exc import StatementError


@dataclass(frozen=True, slots=True)
class Row:
    """How it is written, found again with exactly its values, and deleted by its key."""

    table: Table
    insert: Insert
    found: Select[Any]
    delete: Delete


def now_ms() -> int:
    """As in `created_at`."""
    return time.time_ns() // 1_000_000


def ask(connection: Connection, statement: Executable) -> Result[Any]:
    """Execute one of our statements. An error does not show its parameters: the id is the right to decide."""
    try:
        return connection.execute(statement)
    except StatementError as error:
        error.hide_parameters = True
        raise
