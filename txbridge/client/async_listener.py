"""The application's side of its transactions on an event loop."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any

from txbridge.client.listener import LocalTransactionState, Outcome, judged
from txbridge.client.message import MessageExt

Answer = LocalTransactionState | None


class AsyncTransactionListener(ABC):
    """The application's side of its transactions; each method may be `async def`, or plain.

    A coroutine runs on the event loop, in the task that sends. A plain method runs in the loop's default executor, so
    that it never blocks the loop, with the context variables of the caller. Many calls may be under way at once.
    """

    @abstractmethod
    def execute_local_transaction(self, message: MessageExt, arg: Any) -> Awaitable[Answer] | Answer:
        """Run the local transaction; called once the half message is stored.

        None and an exception count as unknown, as in TransactionListener. CancelledError gets out, after unknown was
        sent.
        """

    @abstractmethod
    def check_local_transaction(self, message: MessageExt) -> Awaitable[Answer] | Answer:
        """Look up what became of the local transaction `message.transaction_id`; see TransactionListener."""


#: Told, when a call is cancelled, of the thread that still runs the method: a thread cannot be cancelled.
LeftRunning = Callable[["asyncio.Future[Any]"], object]


class ListenerMethod:
    """One of the two methods, and how it is called from the loop."""

    def __init__(self, method: Callable[..., Any], failed: Callable[[MessageExt, BaseException], Outcome]) -> None:
        self._method = method
        self._is_coroutine = inspect.iscoroutinefunction(method)
        self._failed = failed

    async def outcome(self, message: MessageExt, *more: Any, left_running: LeftRunning) -> Outcome:
        """Call it. Only what is no Exception (CancelledError, KeyboardInterrupt, SystemExit) gets out."""
        try:
            if self._is_coroutine:
                returned = await self._method(message, *more)
            else:
                returned, raised = await self._in_thread((message, *more), left_running)
                if raised is not None:
                    return self._failed(message, raised)
                if inspect.isawaitable(returned):
                    # A plain method that returns the coroutine of another one.
                    returned = await returned
        except Exception as error:  # noqa: BLE001  whatever the application raises counts as unknown
            return self._failed(message, error)
        return judged(returned, message, self._method.__name__)

    async def _in_thread(
        self, arguments: tuple[Any, ...], left_running: LeftRunning
    ) -> tuple[Any, BaseException | None]:
        """What it returned and what it raised."""
        is_cancelled = False

        def call() -> tuple[Any, Exception | None]:
            if is_cancelled:
                # It waited for a thread until nobody was interested.
                return None, None
            try:
                return self._method(*arguments), None
            except Exception as error:  # noqa: BLE001  a future does not take every exception (StopIteration)
                return None, error

        run = contextvars.copy_context().run
        thread = asyncio.get_running_loop().run_in_executor(None, run, call)
        try:
            return await asyncio.shield(thread)
        except asyncio.CancelledError:
            is_cancelled = True
            if not thread.done():
                left_running(thread)
            raise
