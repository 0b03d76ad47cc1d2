"""The client for threads: RocketMQ's TransactionMQProducer on Kafka."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Executor, Future
from typing import Any, Unpack

from txbridge.client.answers import G, LocalTransactionState
from txbridge.client.base.contained import ContainedFuture, calling
from txbridge.client.bridge import Bridge
from txbridge.client.flow.pipeline import Pipeline
from txbridge.client.listener import LocalTransaction, TransactionListener, execute
from txbridge.client.message import Message, MessageExt, check_message, require_time
from txbridge.client.options import ProducerOptions, require_positive
from txbridge.client.result import TransactionSendResult
from txbridge.client.several_messages import together
from txbridge.deadline import Deadline
from txbridge.errors import UsageError


def _commit(message: MessageExt, arg: Any) -> LocalTransactionState:  # noqa: ARG001
    """Stand-in for the local transaction of `send_later`, which has none."""
    return LocalTransactionState.COMMIT_MESSAGE


class TransactionProducer(Bridge[G]):
    """Producer of transactional messages of one producer group. It also answers the worker's checks. Thread-safe.

    It is a Bridge whose transactions are the methods of a listener, or functions: each is what the block of an
    announcement is. A bridge has the arguments that are not named here.

    Args:
        listener: Your code, which runs the local transactions and looks them up again.
        execute_executor: Runs the local transactions of `submit_message_in_transaction`, instead of the producer's own
            thread pool. `close` does not shut it down.
        execute_thread_pool_max_size: How many of these local transactions may run at once, also in your executor. 1
            keeps their order.

    """

    def __init__(
        self,
        group: str,
        listener: TransactionListener[G],
        settings: Mapping[str, Any],
        *,
        execute_executor: Executor | None = None,
        execute_thread_pool_max_size: int = 1,
        check_executor: Executor | None = None,
        check_thread_pool_max_size: int = 1,
        **options: Unpack[ProducerOptions],
    ) -> None:
        if not isinstance(listener, TransactionListener):
            raise UsageError(f"a TransactionListener is needed, not {type(listener).__name__}")
        require_positive(execute_thread_pool_max_size=execute_thread_pool_max_size)
        super().__init__(
            group,
            listener,
            settings,
            check_executor=check_executor,
            check_thread_pool_max_size=check_thread_pool_max_size,
            **options,
        )
        self._pipeline = Pipeline(listener, execute_executor, execute_thread_pool_max_size)

    def send_message_in_transaction(self, message: Message, arg: Any = None) -> TransactionSendResult:
        """Store the half message, run the local transaction with `arg`, and send its decision.

        This is RocketMQ's sendMessageInTransaction. The local transaction is the listener's, which gets `arg`. None
        counts as unknown, except with a SQL listener. So does an exception but `Rollback`; it is in the result instead
        of being raised.

        The call blocks until Kafka has acknowledged the half message, at most 1 s longer than `message.timeout.ms`, and
        while the listener runs. It does not wait for the acknowledgement of the END: `wait` of the result does.

        Raises:
            UsageError: The message cannot be sent, or the producer is closed. Nothing was sent.
            PrepareError: Kafka did not acknowledge the half message. The local transaction was not run.
            LayoutError, EnvironmentProblemError: This call starts the producer, and the start fails as in `start`.

        If the listener has an outbox, the message is stored there instead when Kafka is away (docs/outbox.md):
        `send_status` of the result is STORED.

        """
        check_message(message, self._options.names)
        return self._send_one(message, arg, self._listener.execute_local_transaction)

    def send_later(self, message: Message, timeout: float | None = None) -> TransactionSendResult:
        """Send a message that names a time of delivery, without a local transaction.

        It is prepared and committed at once. Returns when Kafka has acknowledged both. From then on the message is
        delivered once, when its time has come. `timeout` in seconds bounds the wait for the acknowledgement of the
        commit.

        If the process dies in between, the worker asks `check_local_transaction` as for any message. Your listener then
        answers rollback, as for every transaction that it does not know, or commit.

        Raises:
            UsageError: The message names no time of delivery, or cannot be sent.
            PrepareError, LayoutError, EnvironmentProblemError: As in `send_message_in_transaction`.
            EndTransactionError, TimeoutError: Kafka did not acknowledge the commit, or not within `timeout`. The
                message may be delivered or not.

        """
        check_message(message, self._options.names)
        require_time(message)
        result = self._send_one(message, None, _commit)
        result.wait(timeout)
        return result

    def send_messages_in_transaction(self, messages: Iterable[Message], arg: Any = None) -> TransactionSendResult:
        """Send several messages in one transaction: readers see all of them or none.

        In each partition they have the order of `messages`. They are one half message with one local transaction, one
        decision and, if needed, one check. The listener finds them in `message.messages`.

        At most 1,000 messages go to at most 100 topics. Together they may be as large as one message. RocketMQ has no
        such call. Raises as `send_message_in_transaction` does.
        """
        message = together(messages, self._options.names)
        return self._send_one(message, arg, self._listener.execute_local_transaction)

    def _send_one(self, message: Message, arg: Any, run: LocalTransaction) -> TransactionSendResult:
        runtime = self._life.runtime or self._life.start_client()
        # A `with` of its own ends with the attempt, whatever a signal interrupts, so close() does not wait forever.
        running = calling(self)
        with running, self._attempt(runtime, running, message, has_listener=run is not _commit) as attempt:
            attempt.outcome = execute(run, attempt.given, arg)
        return TransactionSendResult.of_decision(attempt.prepared, attempt.outcome, attempt.end)

    def submit_message_in_transaction(self, message: Message, arg: Any = None) -> Future[TransactionSendResult]:
        """Like `send_message_in_transaction`, in the background: one thread can have many transactions in flight.

        Returns when the half message is handed over. When Kafka has acknowledged it, the local transaction runs in
        `execute_executor`, by default in one thread of the producer. That thread keeps the order in which the half
        messages of a partition are stored, which is the order of the calls. Then the END is queued, and the future
        resolves with the TransactionSendResult.

        The future fails with the error that `send_message_in_transaction` would raise: PrepareError, KeyboardInterrupt.
        Its callbacks run in the threads of the local transactions, and delay them.

        The call blocks while 2,000 transactions, or messages of 64 MiB together, are between call and decision. It does
        not block in a listener method or a callback. `Future.cancel` works until the local transaction has begun.
        RocketMQ has no such call. It raises what `send_message_in_transaction` raises before the half message is handed
        over.
        """
        check_message(message, self._options.names)
        return self._submit_one(message, arg, self._listener.execute_local_transaction)

    def submit_messages_in_transaction(
        self, messages: Iterable[Message], arg: Any = None
    ) -> Future[TransactionSendResult]:
        """Like `send_messages_in_transaction`, in the background, as `submit_message_in_transaction` does for one."""
        message = together(messages, self._options.names)
        return self._submit_one(message, arg, self._listener.execute_local_transaction)

    def _submit_one(self, message: Message, arg: Any, run: LocalTransaction) -> Future[TransactionSendResult]:
        runtime = self._life.runtime or self._life.start_client()
        if runtime is None:
            # Here and not in a pool, which belongs to a started client.
            stored: Future[TransactionSendResult] = ContainedFuture()
            stored.set_result(self._send_one(message, arg, run))
            return stored
        sends = runtime.sends
        return self._pipeline.submit_transaction(sends, sends.admit_message(message), message, arg, run)

    def flush(self, timeout: float | None = None) -> int:
        """Do as Bridge.flush, and wait for the local transactions of submitted messages.

        Raises also UsageError in such a local transaction. The `end` of a result has the error of an END that was given
        up.
        """
        if self._pipeline.is_called_by_it():
            raise UsageError("flush() was called by a submitted transaction, for which it would have to wait")
        if self._life.runtime is None:
            return 0
        deadline = Deadline(timeout)
        # Before it waits: a callback and a forked child must not.
        super().flush(0)
        undecided = self._pipeline.flush(timeout)
        return undecided + super().flush(deadline.timeout)

    def _is_calling(self) -> bool:
        return super()._is_calling() or self._pipeline.is_called_by_it()

    def _refuse_calls(self) -> None:
        self._pipeline.stop()

    def _finish_calls(self, timeout: float | None) -> None:
        """End the pipeline. Submitted messages whose local transaction has not begun fail with PrepareError."""
        self._pipeline.close()
        super()._finish_calls(timeout)
