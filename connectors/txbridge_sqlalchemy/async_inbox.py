"""Inbox on an event loop."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar, cast, overload

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.util import greenlet_spawn

from txbridge_sqlalchemy.async_work import async_opener, await_
from txbridge_sqlalchemy.inbox import Inbox
from txbridge_sqlalchemy.work import Opener

_S = TypeVar("_S", bound=AsyncSession)
_G = TypeVar("_G")


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
