"""The client for threads: RocketMQ's TransactionMQProducer on Kafka."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor, Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from txbridge.client.checks.thread_pool import CheckPool
from txbridge.client.flow.lifetime import Life
from txbridge.client.flow.pipeline import Pipeline
from txbridge.client.flow.reentrancy import calling, is_called_by
from txbridge.client.listener import LocalTransactionState, TransactionListener
from txbridge.client.message import Message, MessageExt, check_message, require_time
from txbridge.client.options import (
    DEFAULT_CHECK_REQUEST_HOLD_MAX,
    DEFAULT_START_TIMEOUT_S,
    DEFAULT_TIMER_MAX_DELAY_S,
    ClientOptions,
    require_positive,
)
from txbridge.client.result import TransactionSendResult
from txbridge.client.several_messages import together
from txbridge.deadline import Deadline
from txbridge.errors import UsageError

if TYPE_CHECKING:
    from txbridge.client.metrics import ClientMetrics


class _Commits(TransactionListener):
    """Of a message without a local transaction."""

    def execute_local_transaction(self, message: MessageExt, arg: Any) -> LocalTransactionState:  # noqa: ARG002
        return LocalTransactionState.COMMIT_MESSAGE

    def check_local_transaction(self, message: MessageExt) -> None:
        """Never called: checks are for the application's listener."""


_COMMITS = _Commits()


class TransactionProducer:
    """Sends transactional messages of one producer group and answers the worker's checks; thread-safe.

    Use it as a context manager, or call `close` at the end. It starts with `start`, the `with` statement, or the first
    send. After a fork create a new one in the child.

    Args:
        group: the producer group: whoever may be asked about these transactions. 1 to 200 of A-Z a-z 0-9 . _ -
        listener: runs the local transactions and looks them up again.
        settings: librdkafka's, by its own names; at least `bootstrap.servers`. They serve every connection;
            `message.timeout.ms` is the time-out of a half message (default 3,000 ms, RocketMQ's sendMsgTimeout).
        namespace: prefix of the internal topics.
        execute_executor: runs the local transactions of `submit_message_in_transaction` instead of a thread pool of
            ours; it is not shut down.
        execute_thread_pool_max_size: how many of them run at once, also in your executor. 1 keeps their order.
        check_executor: runs `check_local_transaction` instead of a thread pool of ours; it is not shut down.
        check_thread_pool_max_size: threads of our pool (RocketMQ's checkThreadPoolMaxSize).
        check_request_hold_max: unanswered checks before no more are read (RocketMQ's checkRequestHoldMax; there
            further ones are dropped, here they stay in Kafka).
        start_timeout: seconds to wait for Kafka at start.
        timer_max_delay: longest delay of a message, in seconds; that of the workers, which discard what is to be
            delivered later.
        metrics: counts what this producer does; one object may serve several producers.

    Raises:
        UsageError: an argument cannot work.

    """

    def __init__(
        self,
        group: str,
        listener: TransactionListener,
        settings: Mapping[str, Any],
        *,
        namespace: str = "",
        execute_executor: Executor | None = None,
        execute_thread_pool_max_size: int = 1,
        check_executor: Executor | None = None,
        check_thread_pool_max_size: int = 1,
        check_request_hold_max: int = DEFAULT_CHECK_REQUEST_HOLD_MAX,
        start_timeout: float = DEFAULT_START_TIMEOUT_S,
        timer_max_delay: float = DEFAULT_TIMER_MAX_DELAY_S,
        metrics: ClientMetrics | None = None,
    ) -> None:
        if not isinstance(listener, TransactionListener):
            raise UsageError(f"a TransactionListener is needed, not {type(listener).__name__}")
        for method in (listener.execute_local_transaction, listener.check_local_transaction):
            if inspect.iscoroutinefunction(method):
                raise UsageError(f"{method.__name__} is a coroutine function: that takes an AsyncTransactionProducer")
        require_positive(
            execute_thread_pool_max_size=execute_thread_pool_max_size,
            check_thread_pool_max_size=check_thread_pool_max_size,
        )
        self._listener = listener
        self._options = ClientOptions.checked(
            group, settings, namespace, start_timeout, check_request_hold_max, metrics, timer_max_delay
        )
        self._pipeline = Pipeline(listener, execute_executor, execute_thread_pool_max_size)
        self._checks = CheckPool(listener, check_executor, check_thread_pool_max_size)
        self._life = Life(self._options, self._checks.ask)

    @property
    def group(self) -> str:
        """The producer group."""
        return self._options.group

    @property
    def is_connected(self) -> bool:
        """Whether it is started and the connection to Kafka works, as far as is known: for readiness."""
        runtime = self._life.runtime
        return runtime is not None and runtime.is_connected

    def start(self) -> Self:
        """Verify the topics and connect; does nothing if it runs already.

        Raises LayoutError when the topics are not as they must be, EnvironmentProblemError when Kafka cannot be
        reached within `start_timeout` or refuses, UsageError after close.
        """
        self._life.started()
        return self

    def send_message_in_transaction(self, message: Message, arg: Any = None) -> TransactionSendResult:
        """Store the half message, run the local transaction with `arg`, and send its decision on the way.

        RocketMQ's sendMessageInTransaction: None from the listener counts as unknown, and so does an exception, which
        is in the result instead of being raised. Blocks for the acknowledgement of the half message, up to
        `message.timeout.ms`, and for the listener; not for that of the END: see the result.

        Raises:
            UsageError: the message cannot be sent, or the producer is closed; nothing was sent.
            PrepareError: the half message was not acknowledged, the local transaction was not run.
            LayoutError, EnvironmentProblemError: if this is what starts the producer.

        """
        check_message(message, self._options.names)
        return self._send(message, self._listener, arg)

    def send_later(self, message: Message, timeout: float | None = None) -> TransactionSendResult:
        """Send a message that names a time of delivery, without a local transaction: prepared and committed at once.

        Returns when Kafka has acknowledged both; from then on the message is delivered once when its time has come.
        `timeout` in seconds bounds the wait for the second. Should the process die in between, the worker asks
        `check_local_transaction` as for any message: it answers rollback for what it does not know, or commit.

        Raises what `send_message_in_transaction` does, UsageError for a message without a time of delivery, and
        EndTransactionError or TimeoutError when the commit was not acknowledged: then it is not known what becomes of
        the message.
        """
        check_message(message, self._options.names)
        require_time(message)
        result = self._send(message, _COMMITS, None)
        result.wait(timeout)
        return result

    def send_messages_in_transaction(self, messages: Iterable[Message], arg: Any = None) -> TransactionSendResult:
        """Do as `send_message_in_transaction` with several messages: readers see all of them, in this order, or none.

        They are one half message with one local transaction, one decision and, if need be, one check. The listener
        finds them in `message.messages`. They may go to different topics, 100 at most; there may be 1,000 of them, and
        together they may be as large as one message. RocketMQ has no such call.

        Raises as `send_message_in_transaction` does.
        """
        return self._send(together(messages, self._options.names), self._listener, arg)

    def _send(self, message: Message, listener: TransactionListener, arg: Any) -> TransactionSendResult:
        sends = (self._life.runtime or self._life.started()).sends
        transaction_id = sends.admit(message)
        # Its own `with` ends with the attempt, whatever a signal interrupts: close() does not wait for ever.
        running = calling(self)
        try:
            with running:
                sends.begin(transaction_id, running)
                prepared = sends.prepare(message, transaction_id)
                return sends.decide(listener, message, prepared, arg)
        finally:
            sends.finish(transaction_id)

    def submit_message_in_transaction(self, message: Message, arg: Any = None) -> Future[TransactionSendResult]:
        """Do as `send_message_in_transaction` in the background, so that one thread has many transactions in flight.

        Returns when the half message is handed over. Once Kafka has acknowledged it, the local transaction runs in
        `execute_executor` (by default one thread of ours, in the order in which the half messages of a partition are
        stored, which is that of the calls), its END is sent on the way, and the future resolves with the
        TransactionSendResult. It fails with what `send_message_in_transaction` would have raised: PrepareError,
        KeyboardInterrupt. Its callbacks run where the local transactions do, and hold these up.

        Blocks while 2,000 transactions, or values of 64 MiB together, are between this call and their decision; a
        listener method or a callback that submits is not blocked by that. `Future.cancel` gives the attempt up as long
        as its local transaction has not begun. RocketMQ has no such call.

        Raises:
            UsageError: the message cannot be sent, or the producer is closed; nothing was sent.
            LayoutError, EnvironmentProblemError: if this is what starts the producer.

        """
        check_message(message, self._options.names)
        return self._submit(message, arg)

    def submit_messages_in_transaction(
        self, messages: Iterable[Message], arg: Any = None
    ) -> Future[TransactionSendResult]:
        """Do as `send_messages_in_transaction` in the background, as `submit_message_in_transaction` does with one."""
        return self._submit(together(messages, self._options.names), arg)

    def _submit(self, message: Message, arg: Any) -> Future[TransactionSendResult]:
        sends = (self._life.runtime or self._life.started()).sends
        return self._pipeline.submit(sends, sends.admit(message), message, arg)

    def flush(self, timeout: float | None = None) -> int:
        """Wait until Kafka has acknowledged the ENDs of all calls that have returned.

        `timeout` in seconds; None waits as long as they are tried, and as long as the local transactions of submitted
        messages take. Returns how many are not settled: 0 is all. One that was given up is settled; its result tells.
        UsageError from within the local transaction of a submitted message and from callbacks in our threads, which it
        would wait for, and after a fork.
        """
        if self._pipeline.is_called_by_it():
            raise UsageError("flush() was called by a submitted transaction, for which it would have to wait")
        runtime = self._life.runtime
        if runtime is None:
            return 0
        runtime.sends.require_this_process()
        if runtime.is_called_by_it():
            raise UsageError("flush() was called by a callback, whose thread it would have to wait for")
        deadline = Deadline(timeout)
        undecided = self._pipeline.flush(timeout)
        return undecided + runtime.flush(deadline.timeout)

    def close(self, timeout: float | None = None) -> None:
        """Wait for running local transactions, their ENDs and running checks, and stop; later sends are refused.

        `timeout` in seconds; None waits as long as they take, at most 30 s for the ENDs. What is not done then is left
        to the worker's checks; submitted messages whose local transaction has not begun fail with PrepareError. A start
        that is under way is given up. Calling it again does nothing, unless the first call was interrupted by a signal:
        then it goes on. In a forked child it does nothing.

        UsageError from within a listener method of this producer, from a signal's handler that interrupts a send, and
        from callbacks in our threads (of a result's `end`, `error_cb`, `stats_cb`), which it would wait for.
        """
        if self._life.is_of_another_process():
            return
        if is_called_by(self) or self._pipeline.is_called_by_it() or self._checks.is_called_by_it():
            raise UsageError(
                "close() was called by a listener method, or while a send of this thread was under way, "
                "for which it would have to wait"
            )
        self._life.close(timeout, self._pipeline.stop, self._finish)

    def _finish(self, timeout: float | None) -> None:
        """End the calls of the application, those that have begun within `timeout` seconds."""
        self._pipeline.close()
        self._checks.close(timeout)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
