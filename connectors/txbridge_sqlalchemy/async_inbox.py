"""Inbox on an event loop."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar, cast, overload

from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker

from txbridge_sqlalchemy.async_probe import async_probe
from txbridge_sqlalchemy.async_work import begin_async, checked_async_database
from txbridge_sqlalchemy.inbox import ENDED, RepeatError, checked_consumer, refuse_returned, report_repeat
from txbridge_sqlalchemy.inbox_table import inbox, inbox_row
from txbridge_sqlalchemy.probe import probe_id
from txbridge_sqlalchemy.record_name import RecordName, name_of
from txbridge_sqlalchemy.row import Row
from txbridge_sqlalchemy.work import LostTransactionError

_S = TypeVar("_S", bound=AsyncSession)
_G = TypeVar("_G")


class AsyncInbox(Generic[_G]):
    """Inbox for an asynchronous engine: the same rules and table. `process` may be cancelled at every await.

    Any number of tasks of one event loop may use it, with an engine of that loop.

    Args:
        database: an AsyncEngine, or an async_sessionmaker that is bound to one, and to one only.
        consumer: name of the consumer, as in Inbox.

    Raises:
        UsageError: an argument cannot work.

    """

    @overload
    def __init__(self: AsyncInbox[AsyncConnection], database: AsyncEngine, consumer: str) -> None: ...

    @overload
    def __init__(self: AsyncInbox[_S], database: async_sessionmaker[_S], consumer: str) -> None: ...

    def __init__(self, database: AsyncEngine | async_sessionmaker[Any], consumer: str) -> None:
        self._database = checked_async_database(database, "an Inbox")
        self._consumer = checked_consumer(consumer)
        self._verified = False

    async def verify(self) -> None:
        """Make sure that the table is there and that a rollback works; see Inbox.verify."""
        await async_probe(self._database, inbox_row(self._consumer, RecordName(probe_id(), 1)), lambda _: None)
        self._verified = True

    async def process(self, record: Any, work: Callable[[_G, Any], Awaitable[object]]) -> bool:
        """Await `work(connection, record)` unless that was done already, and commit its effect with the record's row.

        See Inbox.process. A cancelled call commits nothing, unless COMMIT was sent already. In that case the record is
        done if COMMIT succeeded, and reading the record again finds the outcome.
        """
        name = name_of(record)
        if not self._verified:
            await self.verify()
        row = inbox_row(self._consumer, name)
        try:
            async with begin_async(self._database, inbox) as open_work:
                # The row comes first, as in Inbox.
                try:
                    await open_work.connection.run_sync(lambda _: open_work.sync.write_row(row))
                except IntegrityError as error:
                    raise RepeatError from error
                returned = work(cast(_G, open_work.given), record)
                refuse_returned(await returned if inspect.isawaitable(returned) else returned)
                if open_work.sync.is_over():
                    raise LostTransactionError(ENDED)  # noqa: TRY301  what the block must see
        except RepeatError:
            report_repeat(self._consumer, name)
            return False
        except LostTransactionError:
            # Only the table has the outcome.
            if not await self._is_done(row):
                raise
        return True

    async def _is_done(self, row: Row) -> bool:
        async with begin_async(self._database, inbox) as asking:
            return await asking.connection.run_sync(row.is_there)
