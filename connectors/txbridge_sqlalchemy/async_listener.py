"""SqlTransactionListener on an event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker

from txbridge import AsyncTransactionListener, LocalTransactionState, MessageExt
from txbridge.client.barrier import (
    ANSWERS,
    BARRIER_ROW,
    COMMITTED,
    ROLLED_BACK,
    Barrier,
    Rollback,
    is_busy,
    new_barrier_id,
    report_busy,
    report_lost,
)
from txbridge.core.check_policy import DEFAULT_PATIENCE_S
from txbridge_sqlalchemy.async_probe import async_probe
from txbridge_sqlalchemy.async_work import begin_async, checked_async_database
from txbridge_sqlalchemy.decisions import (
    DecidedError,
    Waits,
    refuse_dirty_reads,
    refuse_mistakes,
)
from txbridge_sqlalchemy.probe import probe_id
from txbridge_sqlalchemy.table import row_of, transactions
from txbridge_sqlalchemy.work import LostTransactionError

_S = TypeVar("_S", bound=AsyncSession)


class AsyncSqlTransactionListener(AsyncTransactionListener):
    """SqlTransactionListener for an AsyncTransactionProducer and an asynchronous engine: the same rules and table.

    Both methods may be cancelled at every await. A transaction that is cancelled before its COMMIT is sent is rolled
    back. After that only the database has the outcome, and a check finds it.

    Any number of tasks of one event loop may use it, with an engine of that loop.

    Args:
        database: an AsyncEngine, or an async_sessionmaker that is bound to one, and to one only.
        execute: a coroutine function, awaited as `execute(connection, message, arg)`, with an AsyncSession instead of
            the connection when an async_sessionmaker was given. SqlTransactionListener describes what it may do and
            return.
        check_wait: seconds, as in SqlTransactionListener.
        patience: seconds, as in SqlTransactionListener.

    """

    @overload
    def __init__(
        self,
        database: AsyncEngine,
        execute: Callable[[AsyncConnection, MessageExt, Any], Awaitable[bool | None]],
        *,
        check_wait: float = ...,
        patience: float = ...,
    ) -> None: ...

    @overload
    def __init__(
        self,
        database: async_sessionmaker[_S],
        execute: Callable[[_S, MessageExt, Any], Awaitable[bool | None]],
        *,
        check_wait: float = ...,
        patience: float = ...,
    ) -> None: ...

    def __init__(
        self,
        database: AsyncEngine | async_sessionmaker[Any],
        execute: Callable[[Any, MessageExt, Any], Awaitable[bool | None]],
        *,
        check_wait: float = 3.0,
        patience: float = DEFAULT_PATIENCE_S,
    ) -> None:
        self._database = checked_async_database(database, "a SqlTransactionListener")
        self._execute = execute
        self._waits = Waits(check_wait)
        self._barrier = Barrier(patience)

    async def verify(self) -> None:
        """Make sure that the table is there and that a rollback works.

        See SqlTransactionListener.verify.
        """
        level = await async_probe(self._database, row_of(probe_id(), ROLLED_BACK), self._waits.isolation_level)
        refuse_dirty_reads(level)
        self._barrier.id = await self._state_or_new(BARRIER_ROW, new_barrier_id())

    async def barrier_id(self) -> str | None:
        """Identity of the table, which half messages carry. Read once, and made where the table has none."""
        await self._verify_once()
        return self._barrier.id

    async def execute_local_transaction(self, message: MessageExt, arg: Any) -> LocalTransactionState:
        """Run the application's function and write the transaction's row, all or nothing.

        See SqlTransactionListener. CancelledError is raised; a check finds the outcome of the transaction.
        """
        await self._verify_once()
        try:
            return await self._run(message, arg)
        except DecidedError:
            # A check was faster, or the application has called this method twice with one message. Or the function has
            # ended the transaction by itself.
            pass
        except LostTransactionError as error:
            report_lost(message, error)
        except BaseException:
            self._barrier.note_failed(message.transaction_id)
            raise
        return await self._decision_of(message)

    async def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        """Look the transaction up. If it is not found, make sure that it cannot be committed later.

        See SqlTransactionListener.
        """
        try:
            await self._verify_once()
            found = await self._read_states(message.transaction_id, BARRIER_ROW)
            answer = self._barrier.answer(message, found.get(message.transaction_id), found.get(BARRIER_ROW))
            return await self._decision_of(message) if answer is None else answer
        except DBAPIError as error:
            if not is_busy(error.orig):
                raise
            report_busy(message)
            return LocalTransactionState.UNKNOW

    async def _verify_once(self) -> None:
        if self._barrier.id is None:
            await self.verify()

    async def _run(self, message: MessageExt, arg: Any) -> LocalTransactionState:
        """Run the function. SqlTransactionListener._run explains the order of these steps."""
        async with begin_async(self._database, transactions) as work:
            row = row_of(message.transaction_id, COMMITTED)
            try:
                await work.connection.run_sync(lambda _: work.sync.write_row(row))
            except IntegrityError as error:
                raise DecidedError from error
            try:
                commits = await self._execute(work.given, message, arg)
            except Rollback:
                commits = False
            refuse_mistakes(commits)
            if work.sync.is_over():
                raise DecidedError
            if commits is False:
                await work.transaction.rollback()
        if commits is False:
            return ANSWERS[(await self._read_states(message.transaction_id)).get(message.transaction_id, ROLLED_BACK)]
        return LocalTransactionState.COMMIT_MESSAGE

    async def _decision_of(self, message: MessageExt) -> LocalTransactionState:
        """Return the decision in the table. If there is none, write a rollback first."""
        return ANSWERS[await self._state_or_new(message.transaction_id, ROLLED_BACK)]

    async def _state_or_new(self, row_id: str, new: str) -> str:
        """Return the state of a row. If there is none, write it with this state."""
        found = await self._read_states(row_id)
        if not found:
            row = row_of(row_id, new)
            try:
                async with begin_async(self._database, transactions) as work:
                    await work.connection.run_sync(self._waits.set_time_limits)
                    await work.connection.run_sync(lambda _: work.sync.write_row(row))
            except IntegrityError:
                found = await self._read_states(row_id)
                if not found:
                    raise
        return found.get(row_id, new)

    async def _read_states(self, *ids: str) -> dict[str, str]:
        async with begin_async(self._database, transactions) as work:
            return await work.connection.run_sync(self._waits.states_of, *ids)
