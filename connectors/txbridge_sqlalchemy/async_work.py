"""SQLAlchemy's greenlet, in which the transactions of work.py run on an event loop, too.

Code in a greenlet blocks nothing: where its driver waits, the task waits. When a task is cancelled, the code gets
CancelledError there, and SQLAlchemy rolls back. If a statement was running, it throws the connection away, so that no
other task gets it with an open transaction. Only the outcome of a cancelled COMMIT is unknown; the table has it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, util
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session

from txbridge.errors import UsageError
from txbridge_sqlalchemy.work import Opener, refuse_two_databases

AsyncDatabase = AsyncEngine | async_sessionmaker[Any]

#: Awaits, in the task that has started the greenlet. SQLAlchemy 2.0 has it by another name.
await_: Callable[[Awaitable[Any]], Any] = getattr(util, "await_", None) or util.await_only


def async_opener(database: AsyncDatabase, other: str) -> Opener:
    """See `opener`; for a greenlet. SQLAlchemy shields the end of each block from cancellation."""
    if not isinstance(database, AsyncEngine | async_sessionmaker):
        raise UsageError(
            f"database must be an AsyncEngine or an async_sessionmaker, not {type(database).__name__} "
            f"({other} takes an Engine or a sessionmaker)"
        )
    if isinstance(database, async_sessionmaker):
        refuse_two_databases(database.kw, AsyncConnection)

    @contextmanager
    def open_async() -> Iterator[tuple[Any, Connection | Session]]:
        given: AsyncConnection | AsyncSession
        given = database.connect() if isinstance(database, AsyncEngine) else database()
        await_(given.__aenter__())
        try:
            if isinstance(given, AsyncSession):
                # Kept as long as the transaction: releases of SQLAlchemy before 2.0.40 cannot make it again, when the
                # function calls `get_transaction`.
                _transaction = await_(given.begin())
                yield given, given.sync_session
            else:
                assert given.sync_connection is not None
                yield given, given.sync_connection
        finally:
            await_(given.__aexit__(None, None, None))

    return open_async
