"""Test of a database's rollback, made once before the first transaction that matters."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection

from txbridge.errors import UsageError
from txbridge_sqlalchemy.hidden_transaction import guard_pool
from txbridge_sqlalchemy.row import Row
from txbridge_sqlalchemy.work import Opener, begin

_T = TypeVar("_T")


def probe_id() -> str:
    """A unique id for the row of a probe."""
    return f"probe {secrets.token_hex(8)}"


def probe(open_one: Opener, row: Row, look: Callable[[Connection], _T]) -> _T:
    """Write the row and roll it back. Return the result of `look` in that transaction. UsageError if the row stays."""
    with begin(open_one, row.table) as work:
        guard_pool(work.connection)
        seen = look(work.connection)
        work.write_row(row)
        work.transaction.rollback()
    with begin(open_one, row.table) as work:
        stays = row.is_there(work.connection)
        if stays:
            row.delete_row(work.connection)
    if stays:
        raise UsageError(
            f"a row of {row.table.name} was still there after a rollback: the connections commit every statement by "
            "themselves (AUTOCOMMIT), or the table does not support transactions. Give an engine whose transactions "
            "can be rolled back"
        )
    return seen
