"""SqlTransactionListener and Inbox on an event loop, by SQLAlchemy's greenlet.

Code in a greenlet blocks nothing: where its driver waits, the task waits. When a task is cancelled, the code gets
CancelledError there, and SQLAlchemy rolls back. If a statement was running, it throws the connection away, so that no
other task gets it with an open transaction. Only the outcome of a cancelled COMMIT is unknown; the table has it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from concurrent.futures import Future, wait
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar, Unpack, cast, overload

from sqlalchemy import Connection, util
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session
from sqlalchemy.util import greenlet_spawn

from txbridge import AsyncBridge, AsyncTransactionListener, LocalTransactionState, MessageExt
from txbridge.client.answers import G, Stored
from txbridge.client.listener import Opened, require_arguments, require_coroutine
from txbridge.errors import UsageError
from txbridge_sqlalchemy.inbox import Inbox
from txbridge_sqlalchemy.sql_listener import BridgeOptions, Settings, SqlOptions, SqlTransactionListener, split_options
from txbridge_sqlalchemy.work import Opener, refuse_two_databases

_S = TypeVar("_S", bound=AsyncSession)
AsyncDatabase = AsyncEngine | async_sessionmaker[Any]

#: Awaits, in the task that has started the greenlet. SQLAlchemy 2.0 has it by another name.
await_: Callable[[Awaitable[Any]], Any] = getattr(util, "await_", None) or util.await_only
_G = TypeVar("_G")


#: As SqlFunction; it is awaited.
AsyncSqlFunction: TypeAlias = Callable[[_G, MessageExt, Any], Awaitable[bool | None]]


class AsyncSqlTransactionListener(AsyncTransactionListener[G]):
    """SqlTransactionListener for an AsyncTransactionProducer and an asynchronous engine: the same rules and table.

    Both methods may be cancelled at every await. A transaction that is cancelled before its COMMIT is sent is rolled
    back. After that only the database has the outcome, and a check finds it.

    Any number of tasks of one event loop may use it, with an engine of that loop.

    Args:
        database: an AsyncEngine, or an async_sessionmaker that is bound to exactly one.
        execute: a coroutine function, awaited as `execute(connection, message, arg)`, with an AsyncSession instead of
            the connection when an async_sessionmaker was given. A lambda may return its coroutine.
            SqlTransactionListener describes what it may do and return, and the other options.

    """

    @overload
    def __init__(
        self: AsyncSqlTransactionListener[AsyncConnection],
        database: AsyncEngine,
        execute: AsyncSqlFunction[AsyncConnection] | None = ...,
        **options: Unpack[SqlOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: AsyncSqlTransactionListener[_S],
        database: async_sessionmaker[_S],
        execute: AsyncSqlFunction[_S] | None = ...,
        **options: Unpack[SqlOptions],
    ) -> None: ...

    def __init__(
        self, database: Any, execute: AsyncSqlFunction[Any] | None = None, **options: Unpack[SqlOptions]
    ) -> None:
        self._listener = _ListenerInGreenlet(database, None if execute is None else _awaited(execute), **options)
        self.forwarding = self._listener.forwarding

    async def verify(self) -> None:
        """See SqlTransactionListener.verify."""
        await greenlet_spawn(self._listener.verify)

    async def barrier_id(self) -> str | None:
        """Identity of the table, which half messages carry. Read once, and created if the table has none."""
        return await greenlet_spawn(self._listener.barrier_id)

    async def refuse_repeat(self, row_id: str) -> None:
        """See SqlTransactionListener."""
        await greenlet_spawn(self._listener.refuse_repeat, row_id)

    async def execute_local_transaction(self, message: MessageExt, arg: Any) -> LocalTransactionState | Stored:
        """See SqlTransactionListener. CancelledError is raised; a check finds the outcome of the transaction."""
        return await greenlet_spawn(self._listener.execute_local_transaction, message, arg)

    @asynccontextmanager
    async def open_transaction(self, message: MessageExt) -> AsyncIterator[Opened[G]]:
        """See SqlTransactionListener. Begin and end are steps of the same generator, each in a greenlet of its own."""
        steps = self._listener.open_transaction(message)
        opened = await greenlet_spawn(steps.__enter__)
        try:
            yield opened
        except BaseException as error:
            await greenlet_spawn(steps.__exit__, type(error), error, error.__traceback__)
            raise
        await greenlet_spawn(steps.__exit__, None, None, None)

    async def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        """See SqlTransactionListener."""
        return await greenlet_spawn(self._listener.check_local_transaction, message)


def _awaited(function: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    """The application's function, as called in a greenlet. Raises UsageError for a plain one."""
    require_coroutine(function, "a SqlTransactionListener takes it, with an Engine")
    require_arguments(function, "connection", "message", "arg")
    return _in_greenlet(function)


def _in_greenlet(function: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    def call(*given: Any) -> Any:
        made = function(*given)
        return await_(made) if inspect.isawaitable(made) else made

    return call


def async_opener(database: AsyncDatabase) -> Opener:
    """See `opener`; for a greenlet."""
    if isinstance(database, AsyncEngine):
        return partial(_open_connection, database)
    if not isinstance(database, async_sessionmaker):
        raise UsageError(
            f"database must be an AsyncEngine or an async_sessionmaker, not {type(database).__name__} "
            "(the class without Async in its name takes an Engine or a sessionmaker)"
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


class _ListenerInGreenlet(SqlTransactionListener):
    """The same steps, to be called in a greenlet."""

    _make_opener = staticmethod(async_opener)

    def _wait_for(self, ends: Collection[Future[None]], seconds: float) -> None:
        await_(asyncio.to_thread(wait, ends, seconds))


class AsyncSqlBridge(AsyncBridge[G]):
    """SqlBridge for an asynchronous engine: `tx.session` is an AsyncSession, `tx.connection` an AsyncConnection.

    Its arguments are those of SqlBridge, with an AsyncEngine, or an async_sessionmaker that is bound to exactly one.
    A task may be cancelled at every await. Before COMMIT is sent, that rolls back.
    """

    @overload
    def __init__(
        self: AsyncSqlBridge[AsyncConnection],
        group: str,
        database: AsyncEngine,
        settings: Settings = ...,
        **options: Unpack[BridgeOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: AsyncSqlBridge[_S],
        group: str,
        database: async_sessionmaker[_S],
        settings: Settings = ...,
        **options: Unpack[BridgeOptions],
    ) -> None: ...

    def __init__(self, group: str, database: Any, settings: Settings = None, **options: Any) -> None:
        super().__init__(group, AsyncSqlTransactionListener(database, **split_options(options)), settings, **options)


class AsyncInbox(Generic[_G]):
    """Inbox for an asynchronous engine: the same rules and table. `process` may be cancelled at every await.

    Its arguments are those of Inbox, with an AsyncEngine, or an async_sessionmaker that is bound to exactly one. Any
    number of tasks of one event loop may use it, with an engine of that loop.
    """

    @overload
    def __init__(self: AsyncInbox[AsyncConnection], database: AsyncEngine, consumer: str) -> None: ...

    @overload
    def __init__(self: AsyncInbox[_S], database: async_sessionmaker[_S], consumer: str) -> None: ...

    def __init__(self, database: AsyncEngine | async_sessionmaker[Any], consumer: str) -> None:
        self._inbox = _InboxInGreenlet(cast(Any, database), consumer)

    async def verify(self) -> None:
        """See Inbox.verify."""
        await greenlet_spawn(self._inbox.verify)

    async def process(self, record: Any, work: Callable[[_G, Any], Awaitable[object]]) -> bool:
        """Await `work(connection, record)` unless that was done before, and commit its effect with the record's row.

        See Inbox.process. A cancelled call commits nothing, unless COMMIT was sent already. In that case the record is
        done if COMMIT succeeded, and reading the record again finds the outcome.
        """
        return await greenlet_spawn(self._inbox.process, record, _in_greenlet(work))


class _InboxInGreenlet(Inbox[Any]):
    """The same steps, to be called in a greenlet."""

    _make_opener = staticmethod(async_opener)
