"""Many transactions in flight from one thread: their local transactions run in a pool once they are prepared."""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from txbridge.client.errors import PrepareError
from txbridge.client.flow.in_flight import InFlight
from txbridge.client.flow.reentrancy import calling, is_called_by
from txbridge.client.flow.shared_future import LightFuture, SharedCondition
from txbridge.client.listener import TransactionListener
from txbridge.client.log import report
from txbridge.client.message import Message
from txbridge.client.result import TransactionSendResult
from txbridge.errors import UsageError

if TYPE_CHECKING:
    from txbridge.client.flow.send_path import SendPath
    from txbridge.client.prepare.half_writer import Prepared

_CLOSED = (
    "the producer was closed before the local transaction was run, so it was not; should a check come, it is answered "
    "with rollback"
)
_REFUSED = (
    "the local transaction was not run, because execute_executor refused it (see the log); should a check come, it is "
    "answered with rollback"
)


@dataclass(slots=True, eq=False)
class _Attempt:
    """One transaction on its way.

    It takes the report of its half message itself, and is then ready: every object for each that is in flight counts.
    """

    ready: deque[_Attempt]
    sends: SendPath
    transaction_id: str
    message: Message
    arg: Any
    future: Future[TransactionSendResult]
    size: int
    #: What it has got from InFlight; None until it counts there, and once it is over.
    epoch: int | None = None
    prepared: Prepared | PrepareError | None = None

    def __call__(self, prepared: Prepared | PrepareError) -> None:
        """The half message is stored or not; this is the thread of the delivery reports, or of a call that failed."""
        if self.prepared is None:
            self.prepared = prepared
            self.ready.append(self)


class Pipeline:
    """Runs what `submit_message_in_transaction` is given; thread-safe.

    Not one job of the executor for each transaction, which would cost more than everything else: a job runs whatever is
    prepared until nothing is, and only then another one is needed. So user code never runs in the thread that serves
    the delivery reports, which a slow listener would stop, and a blocking call in a listener for ever.
    """

    def __init__(self, listener: TransactionListener, executor: Executor | None, max_size: int) -> None:
        self._listener = listener
        self._is_ours = executor is None
        # A pool starts its threads when it is used, so this costs nothing yet.
        self._executor = executor or ThreadPoolExecutor(max_size, thread_name_prefix="txbridge-execute-pool")
        self._max_size = max_size
        self._lock = threading.Lock()
        #: There is room, or something that a flush waits for is over.
        self._news = threading.Condition(self._lock)
        #: Of all futures.
        self._resolved = SharedCondition()
        self._in_flight = InFlight()
        self._ready: deque[_Attempt] = deque()
        self._jobs = 0
        #: No further calls; and no further local transactions.
        self._stopped = self._closed = False

    def submit(self, sends: SendPath, transaction_id: str, message: Message, arg: Any) -> Future[TransactionSendResult]:
        """Hand the half message over; blocks while too much is in flight. UsageError after close."""
        size = len(message.value or b"")
        future: Future[TransactionSendResult] = LightFuture(self._resolved)
        attempt = _Attempt(self._ready, sends, transaction_id, message, arg, future, size)
        try:
            # Inside: an interrupt must not leave an attempt for which flush() or close() would wait for ever.
            self._enter(attempt)
            sends.begin(transaction_id)
            writer = sends.half_writer(gathers=True, in_order=True)
            sends.write(writer, message, transaction_id, attempt, self._start_jobs)
        except PrepareError as error:
            with calling(self):
                self._settle(attempt, error)
        except BaseException:
            # Interrupted. If it cannot be cancelled any more, its local transaction has begun and will be decided.
            if future.cancel():
                sends.give_up(transaction_id)
                self._leave(attempt)
            raise
        return future

    def flush(self, timeout: float | None) -> int:
        """Wait until all calls before are decided; returns how many are not (s, None: no limit)."""
        with self._lock:
            mark = self._in_flight.mark()
            self._news.wait_for(lambda: not self._in_flight.left_of(mark), timeout)
            return self._in_flight.left_of(mark)

    def is_called_by_it(self) -> bool:
        """Whether this code runs in a local transaction, or in a callback of a future."""
        return is_called_by(self)

    def stop(self) -> None:
        """Refuse further calls, also those that wait for room; returns at once."""
        with self._lock:
            self._stopped = True
            self._news.notify_all()

    def close(self) -> None:
        """Give up what has no local transaction yet; returns without waiting for those that run."""
        with self._lock:
            self._stopped = self._closed = True
        self._give_up(_CLOSED)
        if self._is_ours:
            with self._lock:
                is_idle = not self._in_flight.number
            self._executor.shutdown(wait=is_idle)

    def _enter(self, attempt: _Attempt) -> None:
        """Wait for room and take it."""
        # A listener method, or a callback, that waited for room would wait for itself.
        waits = not is_called_by(self)
        with self._lock:
            if waits and self._in_flight.is_full:
                self._news.wait_for(lambda: self._stopped or not self._in_flight.is_full)
            if self._stopped:
                raise UsageError("this producer is closed; create a new one")
            attempt.epoch = self._in_flight.add(attempt.size)

    def _leave(self, attempt: _Attempt) -> None:
        """The attempt is over; only the first time counts."""
        attempt.sends.finish(attempt.transaction_id)
        with self._lock:
            if attempt.epoch is not None:
                is_news = self._in_flight.remove(attempt.epoch, attempt.size)
                attempt.epoch = None
                if is_news:
                    self._news.notify_all()

    def _start_jobs(self) -> None:
        """Some were reported. Not one by one: threads would take the interpreter's lock from each other each time."""
        # Both are looked at after they were appended, and without the lock: whoever closes, or ends a job, changes the
        # one and then looks whether something is ready. So one of the two sees the other.
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
            job = self._executor.submit(self._run)
        except Exception as error:  # noqa: BLE001  an executor of the user's may refuse as it likes
            self._refused(error)
        else:
            job.add_done_callback(self._job_is_over)

    def _job_is_over(self, job: Future[None]) -> None:
        if job.cancelled():
            # The user has shut down the executor.
            self._refused(None)

    def _run(self) -> None:
        with calling(self):
            while not self._closed:
                try:
                    attempt = self._ready.popleft()
                except IndexError:
                    if self._job_may_end():
                        return
                else:
                    self._settle(attempt, attempt.prepared)

    def _job_may_end(self) -> bool:
        with self._lock:
            self._jobs -= 1
            if not self._ready:
                return True
            # It was appended just before, and another job was not seen to be needed.
            self._jobs += 1
            return False

    def _give_up(self, why: str) -> int:
        """Settle everything that is ready without running it; returns how many."""
        for number in itertools.count():
            try:
                attempt = self._ready.popleft()
            except IndexError:
                return number
            prepared = attempt.prepared
            with calling(self):
                self._settle(attempt, prepared if isinstance(prepared, PrepareError) else PrepareError(why))
        raise AssertionError

    def _refused(self, error: Exception | None) -> None:
        with self._lock:
            self._jobs -= 1
            is_last = not self._jobs
        # Another job runs what is ready.
        number = self._give_up(_REFUSED) if is_last else 0
        report(logging.ERROR, "local_transactions_not_run", exception=error, transactions=number)

    def _settle(self, attempt: _Attempt, prepared: Prepared | PrepareError | None) -> None:
        """Run the local transaction, if it comes to that, and resolve the future, whose callbacks run here, too.

        Within `calling(self)`.
        """
        sends, future = attempt.sends, attempt.future
        assert prepared is not None
        try:
            if not future.set_running_or_notify_cancel():
                sends.give_up(attempt.transaction_id)
            elif isinstance(prepared, PrepareError):
                sends.give_up(attempt.transaction_id)
                future.set_exception(prepared)
            else:
                try:
                    result = sends.decide(self._listener, attempt.message, prepared, attempt.arg)
                except BaseException as error:  # noqa: BLE001  as any executor: the caller gets it from the future
                    future.set_exception(error)
                else:
                    future.set_result(result)
        finally:
            # Last of all: who was waiting in flush() or close() finds the future resolved.
            self._leave(attempt)
