"""Calls of the application's check method, in threads or on an event loop, for the requests of a check topic."""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from confluent_kafka import Message as Record

from txbridge.client.base.contained import calling
from txbridge.client.base.log import report
from txbridge.client.listener import (
    UNKNOWN,
    AsyncTransactionListener,
    ListenerOutcome,
    TransactionListener,
    call_function,
    check_failed,
    execute,
)
from txbridge.client.message import MessageExt
from txbridge.core import names
from txbridge.core.half_message import parse_coordinates, parse_half
from txbridge.core.headers import MalformedRecordError, OurHeaders, whole_number
from txbridge.core.names import Names, is_reserved_header, short_id
from txbridge.deadline import Deadline
from txbridge.kafka.headers import headers_of

#: Interval (s) at which close() looks whether the loop is closed. A closed loop does not report the end of a check.
_LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """The worker's question about a transaction."""

    message: MessageExt
    #: Bytes of the half message, as the END record of the answer counts them.
    size: int


def parse_check(record: Record, group: str, topic_names: Names, partitions: int) -> CheckRequest:
    """Parse a record of the group's check topic, which may hold anything. `partitions`: number of those of HALF.

    Raises MalformedRecordError with the broken rule.
    """
    headers = headers_of(record)
    ours = OurHeaders(headers)
    partition, offset = parse_coordinates(ours.require_text(names.HALF_COORDINATES))
    if partition >= partitions:
        raise MalformedRecordError(f"{names.HALF_COORDINATES} names partition {partition}, there are {partitions}")
    # Only headers of the half message. Other reserved headers belong to the request, or to a later version of it.
    copied = [header for header in headers if header[0] in names.HALF_HEADERS or not is_reserved_header(header[0])]
    stored = record.timestamp()[1]
    half = parse_half(offset, stored, record.key(), record.value(), copied, topic_names)
    if half.group != group:
        raise MalformedRecordError(f"it is for group {half.group!r}")
    check_times = whole_number(ours.require_text(names.CHECK_TIMES), names.CHECK_TIMES)
    if check_times < 1:
        raise MalformedRecordError(f"{names.CHECK_TIMES} is {check_times}, the first check has 1")
    born = ours.optional_number(names.BORN)
    barrier_id = ours.find_text(names.BARRIER)
    return CheckRequest(MessageExt.for_check(half, partition, check_times, born, barrier_id, stored), half.size)


class CheckCalls(ABC):
    """Asks the application, and counts the checks that it has not answered. Thread-safe."""

    def __init__(self, listener: TransactionListener | AsyncTransactionListener, owner: object) -> None:
        self._listener = listener
        self._owner = owner
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
            call = self.start_call(request.message)
        except BaseException as error:  # noqa: BLE001  a loop or an interpreter that ends may refuse it
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
    def start_call(self, message: MessageExt) -> Future[ListenerOutcome | None]:
        """Let the method be called. The result is None if close() came before the call."""

    def _is_gone(self) -> bool:
        """Whether calls that run will never end."""
        return False

    def _end_call(self, answer: Callable[[ListenerOutcome | None], None], call: Future[ListenerOutcome | None]) -> None:
        try:
            if call.cancelled():
                # The application ends its loop.
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
    """Calls in a pool of threads (RocketMQ's checkExecutor)."""

    def __init__(self, listener: TransactionListener, owner: object, max_size: int) -> None:
        super().__init__(listener, owner)
        # A pool starts its threads when it is used, so this costs nothing yet.
        self._executor = ThreadPoolExecutor(max_size, thread_name_prefix="txbridge-check-pool")

    def close(self, timeout: float | None = None) -> None:
        """See CheckCalls.close."""
        super().close(timeout)
        self._executor.shutdown(wait=False)

    def start_call(self, message: MessageExt) -> Future[ListenerOutcome | None]:
        return self._executor.submit(self.call_listener, message)

    def call_listener(self, message: MessageExt) -> ListenerOutcome | None:
        if self._closed:
            return None
        with calling(self._owner):
            return execute(self._listener.check_local_transaction, message, failed=check_failed)


class LoopChecks(CheckCalls):
    """Calls on an event loop, at most `concurrency` at the same time."""

    def __init__(
        self, listener: TransactionListener | AsyncTransactionListener, owner: object, concurrency: int
    ) -> None:
        super().__init__(listener, owner)
        self._turns = asyncio.Semaphore(concurrency)
        #: The application's loop; set before the first check comes.
        self.loop: asyncio.AbstractEventLoop

    def start_call(self, message: MessageExt) -> Future[ListenerOutcome | None]:
        if self.loop.is_closed():
            raise RuntimeError("the event loop was closed without closing the client")
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
