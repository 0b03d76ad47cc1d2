"""Calls of the application's check method, in threads or on an event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from txbridge.client.async_listener import AsyncTransactionListener, call_function
from txbridge.client.base.log import report
from txbridge.client.base.reentrancy import calling
from txbridge.client.checks.request import CheckRequest
from txbridge.client.listener import UNKNOWN, ListenerOutcome, TransactionListener, check, check_failed
from txbridge.client.message import MessageExt
from txbridge.core.names import short_id
from txbridge.deadline import Deadline

#: Interval (s) at which close() looks whether the loop is closed. A closed loop does not report the end of a check.
_LOOK_S = 0.1


class CheckCalls(ABC):
    """Asks the application, and counts the checks that it has not answered. Thread-safe."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._asked = 0
        self._closed = False

    def ask_application(self, request: CheckRequest, answer: Callable[[ListenerOutcome | None], None]) -> None:
        """Ask the application and pass its answer on, or None if it cannot be asked.

        After close nothing is answered, so that the request stays in Kafka for another member of the group.
        """
        with self._condition:
            if self._closed:
                return
            self._asked += 1
        try:
            call = self._start_call(request.message)
        except BaseException as error:  # noqa: BLE001  an executor of the user's may refuse as it likes
            report(
                logging.ERROR,
                "check_not_asked",
                exception=error,
                transaction=short_id(request.message.transaction_id),
                next="the worker will ask again",
            )
            answer(None)
            self._count_answer()
        else:
            call.add_done_callback(partial(self._end_call, answer))

    def close(self, timeout: float | None = None) -> None:
        """Start no more calls, and wait up to `timeout` seconds (None: no limit) for those that run.

        Checks whose call has not begun stay unanswered.
        """
        deadline = Deadline(timeout)
        with self._condition:
            self._closed = True
            while self._asked and not (deadline.is_over or self._is_gone()):
                self._condition.wait(min(_LOOK_S, deadline.left))

    @abstractmethod
    def call_listener(self, message: MessageExt) -> Any:
        """Call the method in this thread and return its outcome, or a coroutine that does it on the loop."""

    @abstractmethod
    def _start_call(self, message: MessageExt) -> Future[ListenerOutcome | None]:
        """Let the method be called. The result is None if close() came before the call."""

    def _is_gone(self) -> bool:
        """Whether calls that run will never end."""
        return False

    def _end_call(self, answer: Callable[[ListenerOutcome | None], None], call: Future[ListenerOutcome | None]) -> None:
        try:
            if call.cancelled():
                # The user has shut down the executor.
                answer(None)
            elif call.exception() is not None:
                # SystemExit in a thread of a pool ends nothing. Unknown makes the worker ask again.
                answer(UNKNOWN)
            elif (outcome := call.result()) is not None:
                answer(outcome)
        finally:
            self._count_answer()

    def _count_answer(self) -> None:
        with self._condition:
            self._asked -= 1
            self._condition.notify_all()


class ThreadChecks(CheckCalls):
    """Calls in the user's executor or in a pool of ours (RocketMQ's checkExecutor)."""

    def __init__(self, listener: TransactionListener, owner: object, executor: Executor | None, max_size: int) -> None:
        super().__init__()
        self._listener = listener
        self._owner = owner
        self._is_ours = executor is None
        # A pool starts its threads when it is used, so this costs nothing yet.
        self._executor = executor or ThreadPoolExecutor(max_size, thread_name_prefix="txbridge-check-pool")

    def close(self, timeout: float | None = None) -> None:
        """See CheckCalls.close."""
        super().close(timeout)
        if self._is_ours:
            self._executor.shutdown(wait=False)

    def _start_call(self, message: MessageExt) -> Future[ListenerOutcome | None]:
        return self._executor.submit(self.call_listener, message)

    def call_listener(self, message: MessageExt) -> ListenerOutcome | None:
        if self._closed:
            return None
        with calling(self._owner):
            return check(self._listener, message)


class LoopChecks(CheckCalls):
    """Calls on an event loop, at most `concurrency` at the same time."""

    def __init__(
        self, listener: TransactionListener | AsyncTransactionListener, owner: object, concurrency: int
    ) -> None:
        super().__init__()
        self._listener = listener
        self._owner = owner
        self._turns = asyncio.Semaphore(concurrency)
        #: The application's loop; set before the first check comes.
        self.loop: asyncio.AbstractEventLoop

    def _start_call(self, message: MessageExt) -> Future[ListenerOutcome | None]:
        if self.loop.is_closed():
            raise RuntimeError("the event loop was closed without closing the producer")
        return asyncio.run_coroutine_threadsafe(self.call_listener(message), self.loop)

    def _is_gone(self) -> bool:
        return self.loop.is_closed()

    async def call_listener(self, message: MessageExt) -> ListenerOutcome | None:
        async with self._turns:
            if self._closed:
                return None
            try:
                with calling(self._owner):
                    return await call_function(self._listener.check_local_transaction, message, failed=check_failed)
            except asyncio.CancelledError:
                # The application ends its loop, or its method has given itself up.
                return UNKNOWN
