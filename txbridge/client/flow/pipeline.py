"""Pipeline of transactions, many in flight from one thread, and their futures. Local transactions run in a pool."""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from txbridge.client.base import process
from txbridge.client.base.contained import ContainedFuture, calling, is_called_by, may_be_a_signal
from txbridge.client.base.log import report
from txbridge.client.errors import PrepareError, closed
from txbridge.client.flow.attempts import InFlight
from txbridge.client.flow.undecided import Undecided
from txbridge.client.listener import TransactionListener, execute
from txbridge.client.message import Message
from txbridge.client.prepare.prepared import Prepared
from txbridge.client.result import TransactionSendResult
from txbridge.deadline import Deadline
from txbridge.errors import UsageError

if TYPE_CHECKING:
    from txbridge.client.flow.send_path import SendPath

_CLOSED = (
    "the producer was closed before the local transaction was run, so it was not; should a check come, it is answered "
    "with rollback"
)
_REFUSED = (
    "the local transaction was not run, because no thread took it (see the log); should a check come, it is "
    "answered with rollback"
)
_FINISHED = "FINISHED"

_T = TypeVar("_T")
_Read = TypeVar("_Read")


class SharedCondition(threading.Condition):
    """Condition of futures that callers seldom wait for. Without a waiter, a notification costs nothing."""

    # `with` looks for these on the class, and finds the lock's own methods in the instance. A Condition's methods are
    # functions that call the lock's, twice for each of the five times that a transaction needs it.
    __slots__ = ("__enter__", "__exit__", "process")

    def __init__(self) -> None:
        super().__init__()
        self.process = process.generation()
        self.__enter__ = self._lock.__enter__  # type: ignore[attr-defined, method-assign]  # the standard library's own
        self.__exit__ = self._lock.__exit__  # type: ignore[attr-defined, method-assign]

    def notify_all(self) -> None:
        """Notify all waiters. The lock must be held."""
        if self._waiters:  # type: ignore[attr-defined]  # the standard library's own
            super().notify_all()


class LightFuture(ContainedFuture[_T]):
    """A Future that shares its condition with others: ten thousand may be in flight.

    A condition of its own is ten objects. The garbage collector's work for them costs more than anything else in a
    transaction. In return, every resolved future wakes all waiters, and each of them looks again.
    """

    def __init__(self, condition: SharedCondition) -> None:
        # Not super().__init__, which makes a condition. The other attributes that it sets are constants of the class.
        self._condition: SharedCondition = condition
        self._waiters: list[Any] = []
        self._done_callbacks: list[Any] = []

    def result(self, timeout: float | None = None) -> _T:
        """Return the result, as any Future does."""
        return self._looking_again(super().result, timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the exception, as any Future does."""
        return self._looking_again(super().exception, timeout)

    def _looking_again(self, read: Callable[[float | None], _Read], timeout: float | None) -> _Read:
        deadline = Deadline(timeout)
        if self._condition.process != process.generation() and self._state != _FINISHED:
            raise UsageError("this future belongs to a producer that was started before a fork: only the parent knows")
        while True:
            try:
                return read(deadline.timeout)
            except TimeoutError:
                # A future that failed with a TimeoutError raises it again. Otherwise the waiter was woken too early.
                if self.done() or deadline.is_over:
                    return read(0)


# Initial values of a Future's other attributes, taken from the standard library.
for _name, _value in Future().__dict__.items():
    if _name not in {"_condition", "_waiters", "_done_callbacks"}:
        setattr(LightFuture, _name, _value)


@dataclass(slots=True, eq=False)
class _Attempt:
    """One transaction on its way.

    It is itself the callback for the report of its half message, because every object of a transaction in flight
    counts.
    """

    ready: deque[_Attempt]
    sends: SendPath
    transaction_id: str
    message: Message
    arg: Any
    future: Future[TransactionSendResult]
    size: int
    #: Epoch from InFlight; None until it counts there, and once it is over.
    epoch: int | None = None
    prepared: Prepared | PrepareError | None = None

    def __call__(self, prepared: Prepared | PrepareError) -> None:
        """Take the report of the half message. Runs in the thread of the delivery reports, or of a call that failed."""
        if self.prepared is None:
            self.prepared = prepared
            self.ready.append(self)


class Pipeline:
    """Runs the transactions of `submit_message_in_transaction`; thread-safe.

    A job of the executor runs prepared transactions until none is left. Only then another job is needed. A job for each
    transaction would cost more than everything else.

    User code never runs in the thread that serves the delivery reports. There a slow listener would delay the reports,
    and a blocking call in a listener would stop them forever.
    """

    def __init__(self, listener: TransactionListener, max_size: int) -> None:
        self._listener = listener
        # A pool starts its threads when it is used, so this costs nothing yet.
        self._executor = ThreadPoolExecutor(max_size, thread_name_prefix="txbridge-execute-pool")
        self._max_size = max_size
        self._lock = threading.Lock()
        #: Wakes callers that wait for room or in flush().
        self._news = threading.Condition(self._lock)
        #: Condition of all futures.
        self._resolved = SharedCondition()
        self._in_flight = InFlight()
        self._ready: deque[_Attempt] = deque()
        self._jobs = 0
        #: Whether further calls are refused, and whether further local transactions are.
        self._stopped = self._closed = False

    def submit_transaction(self, sends: SendPath, message: Message, arg: Any) -> Future[TransactionSendResult]:
        """Hand the half message over. Blocks while too much is in flight. Raises UsageError after close."""
        transaction_id = sends.admit_message(message)
        future: Future[TransactionSendResult] = LightFuture(self._resolved)
        attempt = _Attempt(self._ready, sends, transaction_id, message, arg, future, message.size)
        try:
            # Inside, because an interrupt must not leave an attempt for which flush() or close() would wait forever.
            self._enter_flight(attempt)
            sends.ask_barrier(self._listener)
            sends.attempts.begin_attempt(transaction_id)
            if sends.stores_message():
                attempt(Prepared.without_half())
                self._start_jobs()
            else:
                writer = sends.halves.for_many(waits=True)
                writer.after_reports = self._start_jobs
                sends.write_half(writer, message, transaction_id, attempt)
        except PrepareError as error:
            with calling(self):
                self._settle_attempt(attempt, error)
        except BaseException:
            # Interrupted. If the future cannot be cancelled, the local transaction has begun and will be decided.
            if future.cancel():
                sends.attempts.give_up(transaction_id)
                self._leave_flight(attempt)
            raise
        return future

    def flush(self, timeout: float | None) -> int:
        """Wait up to `timeout` seconds (None: no limit) for all calls before. Returns how many are not decided."""
        with self._lock:
            mark = self._in_flight.set_mark()
            self._news.wait_for(lambda: not self._in_flight.left_of(mark), timeout)
            return self._in_flight.left_of(mark)

    def stop(self) -> None:
        """Refuse further calls, also those that wait for room. Returns at once."""
        with self._lock:
            self._stopped = True
            self._news.notify_all()

    def close(self) -> None:
        """Give up attempts without a local transaction. Returns without waiting for local transactions that run."""
        with self._lock:
            self._stopped = self._closed = True
        self._give_up(_CLOSED)
        with self._lock:
            is_idle = not self._in_flight.number
        self._executor.shutdown(wait=is_idle)

    def _enter_flight(self, attempt: _Attempt) -> None:
        """Wait for room and take it."""
        # A listener method, or a callback, that waited for room would wait for itself.
        waits = not is_called_by(self)
        with self._lock:
            if waits and self._in_flight.is_full:
                self._news.wait_for(lambda: self._stopped or not self._in_flight.is_full)
            if self._stopped:
                raise closed()
            attempt.epoch = self._in_flight.add_attempt(attempt.size)

    def _leave_flight(self, attempt: _Attempt) -> None:
        """End the attempt. Only the first call counts."""
        attempt.sends.finish_attempt(attempt.transaction_id)
        with self._lock:
            if attempt.epoch is not None:
                is_news = self._in_flight.remove_attempt(attempt.epoch, attempt.size)
                attempt.epoch = None
                if is_news:
                    self._news.notify_all()

    def _start_jobs(self) -> None:
        """Start jobs for reported attempts.

        It is called after several reports. After each one, threads would take the interpreter's lock from each other.
        """
        # Both are read without the lock, after attempts were appended. A thread that closes, or ends a job, changes the
        # one and then looks whether an attempt is ready. So one of the two threads sees the other.
        if self._closed:
            self._give_up(_CLOSED)
        elif self._ready and self._jobs < self._max_size:
            with self._lock:
                more = min(self._max_size - self._jobs, len(self._ready))
                self._jobs += more
            for _ in range(more):
                self._start_job()

    def _start_job(self) -> None:
        try:
            self._executor.submit(self._run_ready)
        except BaseException as error:
            # The interpreter ends, and its pools take nothing any more.
            self._note_refusal(error)
            if may_be_a_signal(error):
                raise

    def _run_ready(self) -> None:
        with calling(self):
            while not self._closed:
                try:
                    attempt = self._ready.popleft()
                except IndexError:
                    if self._job_may_end():
                        return
                else:
                    self._settle_attempt(attempt, attempt.prepared)

    def _job_may_end(self) -> bool:
        with self._lock:
            self._jobs -= 1
            if not self._ready:
                return True
            # An attempt was appended just before, by a thread that saw no need for another job.
            self._jobs += 1
            return False

    def _give_up(self, why: str) -> int:
        """Settle all ready attempts without their local transactions. Returns how many."""
        for number in itertools.count():
            try:
                attempt = self._ready.popleft()
            except IndexError:
                return number
            prepared = attempt.prepared
            with calling(self):
                self._settle_attempt(attempt, prepared if isinstance(prepared, PrepareError) else PrepareError(why))
        raise AssertionError

    def _note_refusal(self, error: BaseException) -> None:
        with self._lock:
            self._jobs -= 1
            is_last = not self._jobs
        # If this job is not the last one, another job runs the ready attempts.
        number = self._give_up(_REFUSED) if is_last else 0
        report(logging.ERROR, "local_transactions_not_run", exception=error, transactions=number)

    def _settle_attempt(self, attempt: _Attempt, prepared: Prepared | PrepareError | None) -> None:
        """Run the local transaction of a stored half message, and resolve the future. Its callbacks run here, too.

        Call it within `calling(self)`.
        """
        sends, future = attempt.sends, attempt.future
        assert prepared is not None
        try:
            if not future.set_running_or_notify_cancel():
                sends.attempts.give_up(attempt.transaction_id)
            else:
                try:
                    if isinstance(prepared, PrepareError):
                        prepared = sends.require_stored(attempt.transaction_id, prepared)
                    with Undecided(sends, prepared, attempt.message) as undecided:
                        run = self._listener.execute_local_transaction
                        undecided.outcome = execute(run, undecided.given, attempt.arg)
                    result = TransactionSendResult.of_attempt(undecided)
                except BaseException as error:  # noqa: BLE001  as any executor: the caller gets it from the future
                    future.set_exception(error)
                else:
                    future.set_result(result)
        finally:
            # Last of all, so that callers of flush() or close() find the future resolved.
            self._leave_flight(attempt)
