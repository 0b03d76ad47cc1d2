"""SQLAlchemy's greenlet, in which the transactions of work.py and an inbox run on an event loop, too.

Code in a greenlet blocks nothing: where its driver waits, the task waits. When a task is cancelled, the code gets
CancelledError there, and SQLAlchemy rolls back. If a statement was running, it throws the connection away, so that no
other task gets it with an open transaction. Only the outcome of a cancelled COMMIT is unknown; the table has it.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, TypeVar, cast, overload

from sqlalchemy import Connection, util
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session
from sqlalchemy.util import greenlet_spawn

from txbridge.errors import UsageError
from txbridge_sqlalchemy.inbox import Inbox
from txbridge_sqlalchemy.work import Opener, refuse_two_databases

AsyncDatabase = AsyncEngine | async_sessionmaker[Any]

#: Awaits, in the task that has started the greenlet. SQLAlchemy 2.0 has it by another name.
await_: Callable[[Awaitable[Any]], Any] = getattr(util, "await_", None) or util.await_only
_S = TypeVar("_S", bound=AsyncSession)
_G = TypeVar("_G")


def async_opener(database: AsyncDatabase, other: str) -> Opener:
    """See `opener`; for a greenlet."""
    if isinstance(database, AsyncEngine):
        return partial(_open_connection, database)
    if not isinstance(database, async_sessionmaker):
        raise UsageError(
            f"database must be an AsyncEngine or an async_sessionmaker, not {type(database).__name__} "
            f"({other} takes an Engine or a sessionmaker)"
        )
    refuse_two_databases(database.kw, AsyncConnection)
    return partial(_open_session, database)


@contextmanager
def _open_connection(engine: AsyncEngine) -> Iterator[tuple[Any, Connection]]:
    # Opened and closed in this greenlet. AsyncConnection would start another one and a task for it, which takes a fifth
    # of the processor time of a transaction.
    with engine.sync_engine.connect() as plain:
        yield AsyncConnection(engine, plain), plain


@contextmanager
def _open_session(factory: async_sessionmaker[Any]) -> Iterator[tuple[Any, Session]]:
    given: AsyncSession = factory()
    await_(given.__aenter__())
    try:
        # Kept as long as the transaction: releases of SQLAlchemy before 2.0.40 cannot make it again, when the function
        # calls `get_transaction`.
        _transaction = await_(given.begin())
        yield given, given.sync_session
    finally:
        # SQLAlchemy shields this from cancellation.
        await_(given.__aexit__(None, None, None))


class AsyncInbox(Generic[_G]):
    """Inbox for an asynchronous engine: the same rules and table. `process` may be cancelled at every await.

    Any number of tasks of one event loop may use it, with an engine of that loop.

    Args:
        database: an AsyncEngine, or an async_sessionmaker that is bound to exactly one.
        consumer: name of the consumer, as in Inbox.

    Raises:
        UsageError: an argument cannot work.

    """

    @overload
    def __init__(self: AsyncInbox[AsyncConnection], database: AsyncEngine, consumer: str) -> None: ...

    @overload
    def __init__(self: AsyncInbox[_S], database: async_sessionmaker[_S], consumer: str) -> None: ...

    def __init__(self, database: AsyncEngine | async_sessionmaker[Any], consumer: str) -> None:
        self._inbox = _InboxInGreenlet(cast(Any, database), consumer)

    async def verify(self) -> None:
        """Make sure that the table exists and that a rollback works; see Inbox.verify."""
        await greenlet_spawn(self._inbox.verify)

    async def process(self, record: Any, work: Callable[[_G, Any], Awaitable[object]]) -> bool:
        """Await `work(connection, record)` unless that was done before, and commit its effect with the record's row.

        See Inbox.process. A cancelled call commits nothing, unless COMMIT was sent already. In that case the record is
        done if COMMIT succeeded, and reading the record again finds the outcome.
        """

        def call(given: _G, record: Any) -> object:
            returned = work(given, record)
            return await_(returned) if inspect.isawaitable(returned) else returned

        return await greenlet_spawn(self._inbox.process, record, call)


class _InboxInGreenlet(Inbox[Any]):
    """The same steps, to be called in a greenlet."""

    def _make_opener(self, database: Any) -> Opener:
        return async_opener(database, "an Inbox")
