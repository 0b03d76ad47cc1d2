"""The client for threads: RocketMQ's TransactionMQProducer on Kafka."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Executor, Future
from typing import Any, Generic, Self, Unpack

from txbridge.client.answers import A, G, LocalTransactionState, R
from txbridge.client.base.contained import ContainedFuture, calling, is_called_by
from txbridge.client.checks.calls import ThreadChecks
from txbridge.client.coroutines import require_plain
from txbridge.client.flow.cancellation import DEFAULT_CANCEL_TIMEOUT_S, Cancellable
from txbridge.client.flow.lifetime import Life
from txbridge.client.flow.pipeline import Pipeline
from txbridge.client.listener import Function, LocalTransaction, TransactionListener, bind_execute, execute
from txbridge.client.message import Message, MessageExt, check_message, require_time
from txbridge.client.options import ClientOptions, ProducerOptions, require_positive
from txbridge.client.prepare.prepared import Prepared
from txbridge.client.result import CancelResult, TransactionSendResult
from txbridge.client.several_messages import together
from txbridge.deadline import Deadline
from txbridge.errors import UsageError


def _commit(message: MessageExt, arg: Any) -> LocalTransactionState:  # noqa: ARG001
    """Stand-in for the local transaction of `send_later`, which has none."""
    return LocalTransactionState.COMMIT_MESSAGE


class TransactionProducer(Generic[G]):
    """Producer of transactional messages of one producer group. It also answers the worker's checks. Thread-safe.

    Use it as a context manager, or call `close` at the end. `start`, the `with` statement or the first send starts it.
    After a fork, create a new one in the child.

    Args:
        group: The producer group. Any process of the group may be asked about these transactions. 1 to 200 characters
            of A-Z a-z 0-9 . _ -
        listener: Your code, which runs the local transactions and looks them up again.
        settings: Properties of librdkafka by its own names; at least `bootstrap.servers`. They apply to every
            connection. `message.timeout.ms` is the time-out of a half message (default 3,000 ms, RocketMQ's
            sendMsgTimeout).
        execute_executor: Runs the local transactions of `submit_message_in_transaction`, instead of the producer's own
            thread pool. `close` does not shut it down.
        execute_thread_pool_max_size: How many of these local transactions may run at once, also in your executor. 1
            keeps their order.
        check_executor: Runs `check_local_transaction`, instead of the producer's own thread pool. `close` does not shut
            it down.
        check_thread_pool_max_size: Threads of the producer's own pool for checks (RocketMQ's checkThreadPoolMaxSize).

    Keyword Args:
        namespace (str): Prefix of the internal topics, by default none.
        check_request_hold_max (int): How many checks may be unanswered, by default 2,000 (RocketMQ's
            checkRequestHoldMax). The others stay in Kafka; RocketMQ drops them.
        start_timeout (float): Seconds to wait for Kafka at the start, by default 30.
        start_without_kafka (bool): Let a service start while Kafka is away, and connect later (see `start`).
        timer_max_delay (float): Longest delay of a message, in seconds, by default three days. Use the workers' value,
            because a worker discards messages with a longer delay.
        commit_interval (float): Seconds for which decisions are gathered, at most, to leave together, by default 0.025.
            So a commit is visible up to that much later, unless it comes after a quiet time. With 0 it waits only for
            earlier ones in flight.
        metrics (ClientMetrics): Counts the work of this producer. One object may serve several producers.

    Raises:
        UsageError: An argument cannot work.

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
        for method in (listener.execute_local_transaction, listener.check_local_transaction, listener.barrier_id):
            require_plain(method, "that takes an AsyncTransactionProducer")
        require_positive(
            execute_thread_pool_max_size=execute_thread_pool_max_size,
            check_thread_pool_max_size=check_thread_pool_max_size,
        )
        self._listener = listener
        self._options = ClientOptions(group, settings, forwarding=listener.forwarding, **options)
        self._pipeline = Pipeline(listener, execute_executor, execute_thread_pool_max_size)
        self._checks = ThreadChecks(listener, self, check_executor, check_thread_pool_max_size)
        self._life = Life(self._options, self._checks)

    @property
    def group(self) -> str:
        """The producer group."""
        return self._options.group

    @property
    def is_connected(self) -> bool:
        """Whether the producer is started and Kafka has answered within the last 6 s: for readiness probes.

        After an outage it is true again some 4 s after Kafka answers. After `close` it is false.
        """
        return self._life.is_connected

    def start(self) -> Self:
        """Verify the internal topics and connect. Does nothing if the producer runs already.

        With `start_without_kafka`, or if the listener has an outbox, the call returns after 5 s without an answer of
        Kafka, and the producer goes on trying. Meanwhile sends raise PrepareError at once, or store their messages.
        What is found wrong later (LayoutError) is raised by the sends that are not stored, and logged.

        Raises:
            LayoutError: The internal topics are not as the protocol needs them.
            EnvironmentProblemError: Kafka cannot be reached within `start_timeout`, or refuses a request.
            UsageError: librdkafka refuses a setting, the producer is closed, or it was started before a fork.

        """
        if self._life.start_client() is None:
            self._life.raise_start_error()
        return self

    def send_message_in_transaction(
        self, message: Message, arg: A | None = None, *, execute: Function[A, R, G] | None = None
    ) -> TransactionSendResult[R]:
        """Store the half message, run the local transaction with `arg`, and send its decision.

        This is RocketMQ's sendMessageInTransaction. The local transaction is `execute(message, arg)`, with the
        connection or session first for a SqlTransactionListener; without `execute` it is the listener's own. It may
        return `Committed(value)`, and raise `Rollback`. None counts as unknown, except with a SQL listener. So does
        another exception, which is in the result instead of being raised.

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
        return self._send_one(message, arg, bind_execute(self._listener, execute))

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

    def send_messages_in_transaction(
        self, messages: Iterable[Message], arg: A | None = None, *, execute: Function[A, R, G] | None = None
    ) -> TransactionSendResult[R]:
        """Send several messages in one transaction: readers see all of them or none.

        In each partition they have the order of `messages`. They are one half message with one local transaction, one
        decision and, if needed, one check. The listener finds them in `message.messages`.

        At most 1,000 messages go to at most 100 topics. Together they may be as large as one message. RocketMQ has no
        such call. Raises as `send_message_in_transaction` does.
        """
        message = together(messages, self._options.names)
        return self._send_one(message, arg, bind_execute(self._listener, execute))

    def _send_one(self, message: Message, arg: Any, run: LocalTransaction) -> TransactionSendResult:
        has_listener = run is not _commit
        runtime = self._life.runtime or self._life.start_client()
        if runtime is None:
            return self._store_one(message, arg, run)
        sends = runtime.sends
        transaction_id = sends.admit_message(message)
        if has_listener:
            sends.ask_barrier(self._listener)
        # A `with` of its own ends with the attempt, whatever a signal interrupts, so close() does not wait forever.
        running = calling(self)
        try:
            with running:
                sends.attempts.begin_attempt(transaction_id, running)
                prepared = sends.prepare_half(message, transaction_id, has_listener=has_listener)
                return sends.run_local_transaction(run, message, prepared, arg)
        finally:
            sends.finish_attempt(transaction_id)

    def _store_one(self, message: Message, arg: Any, run: LocalTransaction) -> TransactionSendResult:
        """Run the local transaction, if it stores the message. Kafka has not answered since the start."""
        self._life.refuse_send(is_stored=run is not _commit and self._listener.forwarding is not None)
        prepared = Prepared.without_half()
        with calling(self):
            outcome = execute(run, prepared.for_listener(message), arg)
        return TransactionSendResult.of_decision(prepared, outcome)

    def submit_message_in_transaction(
        self, message: Message, arg: A | None = None, *, execute: Function[A, R, G] | None = None
    ) -> Future[TransactionSendResult[R]]:
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
        return self._submit_one(message, arg, bind_execute(self._listener, execute))

    def submit_messages_in_transaction(
        self, messages: Iterable[Message], arg: A | None = None, *, execute: Function[A, R, G] | None = None
    ) -> Future[TransactionSendResult[R]]:
        """Like `send_messages_in_transaction`, in the background, as `submit_message_in_transaction` does for one."""
        message = together(messages, self._options.names)
        return self._submit_one(message, arg, bind_execute(self._listener, execute))

    def _submit_one(self, message: Message, arg: Any, run: LocalTransaction) -> Future[TransactionSendResult]:
        runtime = self._life.runtime or self._life.start_client()
        if runtime is None:
            # Here and not in a pool, which belongs to a started client.
            stored: Future[TransactionSendResult] = ContainedFuture()
            stored.set_result(self._store_one(message, arg, run))
            return stored
        sends = runtime.sends
        return self._pipeline.submit_transaction(sends, sends.admit_message(message), message, arg, run)

    def cancel(
        self, transaction: Cancellable, reason: str, timeout: float | None = DEFAULT_CANCEL_TIMEOUT_S
    ) -> CancelResult:
        """Cancel a transaction of the group that is committed and not delivered yet, because its time has not come.

        `transaction` is its result, or its id, which any process of the group may name. The worker answers, so the
        result says what happened. If the delivery is under way, either the transaction is cancelled and never
        delivered, or it is too late. `reason` is for people: the copy in the discard topic, OP and the audit show it.

        Blocks until the worker has answered, some 50 ms, and at most `timeout` seconds (None: no limit). RocketMQ has
        no such call for transactional messages; it recalls delayed ones.

        Raises:
            UsageError: This is no transaction id, there is no reason, or the message is in the outbox of the listener.
                Also in a callback of the producer. Nothing was sent.
            TimeoutError: No worker has answered within `timeout`. The text says whether the command stands in END: then
                it is applied when a worker runs.
            EndTransactionError: Kafka did not acknowledge the command.
            LayoutError, EnvironmentProblemError: Kafka cannot be asked. Nothing was cancelled.

        """
        runtime = self._life.require_runtime()
        if runtime.is_called_by_it():
            raise UsageError("cancel() was called by a callback, whose thread it would have to wait for")
        return runtime.cancellation.cancel(transaction, reason, timeout)

    def flush(self, timeout: float | None = None) -> int:
        """Wait until Kafka has acknowledged the ENDs of all calls that have returned.

        `timeout` is in seconds. With None it waits as long as the client tries to send the ENDs (30 s for each END
        record), and as long as the local transactions of submitted messages take. Returns the number of transactions
        that are not settled. An END that was given up is settled, and the `end` of its result has the error.

        Raises:
            UsageError: The caller is the local transaction of a submitted message, or a callback in a thread that
                `flush` would wait for. Also after a fork.

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
        """Wait for running local transactions, their ENDs and running checks, and stop. Later sends are refused.

        `timeout` is in seconds. None waits as long as these take. Each END record is tried for 30 s, and those of a
        half partition one after another. The worker's checks decide the transactions that are not done by then.
        Submitted messages whose local transaction has not begun fail with PrepareError. A start that is under way is
        given up.

        Another call does nothing, unless a signal interrupted the first one. Then it goes on. In a forked child the
        call does nothing.

        Raises:
            UsageError: The caller is a listener method of this producer, a signal handler that interrupts a send, or a
                callback in a thread of the producer (of a result's `end`, `error_cb`, `stats_cb`). `close` would wait
                for these.

        """
        if self._life.is_of_another_process():
            return
        if is_called_by(self) or self._pipeline.is_called_by_it():
            raise UsageError(
                "close() was called by a listener method, or while a send of this thread was under way, "
                "for which it would have to wait"
            )
        self._life.close(timeout, self._finish_calls, self._pipeline.stop)

    def _finish_calls(self, timeout: float | None) -> None:
        """End the pipeline, and wait up to `timeout` seconds (None: no limit) for running checks."""
        self._pipeline.close()
        self._checks.close(timeout)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()
