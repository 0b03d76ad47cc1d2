"""The blocking client: RocketMQ's TransactionMQProducer on Kafka."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self

from txbridge import kafka_config
from txbridge.client.attempts import new_transaction_id
from txbridge.client.check_pool import CheckPool
from txbridge.client.errors import PrepareError
from txbridge.client.events import report
from txbridge.client.half_writer import Prepared
from txbridge.client.listener import Outcome, TransactionListener, execute, execution_failed
from txbridge.client.message import Message, MessageExt, check_message
from txbridge.client.metrics import ClientMetrics
from txbridge.client.result import TransactionSendResult
from txbridge.client.runtime import ClientOptions, Runtime
from txbridge.client.start import start
from txbridge.core.names import Names, is_group, is_topic
from txbridge.errors import UsageError

#: A broker is back from a restart after 10 to 20 s: a service that starts together with its Kafka gets through, one
#: with a wrong address fails while somebody is still watching.
DEFAULT_START_TIMEOUT_S = 30.0


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
        check_executor: runs `check_local_transaction` instead of a thread pool of ours; it is not shut down.
        check_thread_pool_max_size: threads of our pool (RocketMQ's checkThreadPoolMaxSize).
        check_request_hold_max: unanswered checks before no more are read (RocketMQ's checkRequestHoldMax; there
            further ones are dropped, here they stay in Kafka).
        start_timeout: seconds to wait for Kafka at start; an attempt that has begun is finished, which takes up to
            10 s more.
        metrics: counts what this producer does; one object may serve several producers.

    Raises:
        UsageError: an argument can not work.

    """

    def __init__(
        self,
        group: str,
        listener: TransactionListener,
        settings: Mapping[str, Any],
        *,
        namespace: str = "",
        check_executor: Executor | None = None,
        check_thread_pool_max_size: int = 1,
        check_request_hold_max: int = 2000,
        start_timeout: float = DEFAULT_START_TIMEOUT_S,
        metrics: ClientMetrics | None = None,
    ) -> None:
        _require_group(group, namespace)
        if not isinstance(listener, TransactionListener):
            raise UsageError(f"a TransactionListener is needed, not {type(listener).__name__}")
        for name, number in (
            ("check_thread_pool_max_size", check_thread_pool_max_size),
            ("check_request_hold_max", check_request_hold_max),
        ):
            if number < 1:
                raise UsageError(f"{name} must be at least 1, not {number}")
        kafka_config.user_config(settings)
        self._listener = listener
        self._options = ClientOptions(
            group, Names(namespace), dict(settings), start_timeout, check_request_hold_max, metrics
        )
        self._checks = CheckPool(listener, check_executor, check_thread_pool_max_size)
        self._executing = threading.local()
        self._life = threading.RLock()
        self._runtime: Runtime | None = None
        #: From the begin of `close`, and from its end.
        self._closed = self._ended = False

    @property
    def group(self) -> str:
        """The producer group."""
        return self._options.group

    def start(self) -> Self:
        """Verify the topics and connect; does nothing if it runs already.

        Raises LayoutError when the topics are not as they must be, EnvironmentProblemError when Kafka can not be
        reached within `start_timeout` or refuses, UsageError after close.
        """
        self._started()
        return self

    def send_message_in_transaction(self, message: Message, arg: Any = None) -> TransactionSendResult:
        """Store the half message, run the local transaction with `arg`, and send its decision on the way.

        RocketMQ's sendMessageInTransaction: None from the listener counts as unknown, and so does an exception, which
        is in the result instead of being raised. Blocks for the acknowledgement of the half message, up to
        `message.timeout.ms`, and for the listener; not for that of the END: see the result.

        Raises:
            UsageError: the message can not be sent, or the producer is closed; nothing was sent.
            PrepareError: the half message was not acknowledged, the local transaction was not run.
            LayoutError, EnvironmentProblemError: if this is what starts the producer.

        """
        if not isinstance(message, Message):
            raise UsageError(f"a Message is needed, not {type(message).__name__}")
        check_message(message, self._options.names)
        runtime = self._runtime or self._started()
        if not runtime.is_of_this_process:
            raise UsageError("this producer was started before a fork; create one in the child")
        runtime.check_limits(message)
        transaction_id = new_transaction_id()
        try:
            # Inside: an interrupt must not leave an attempt for which close() would wait for ever.
            runtime.begin(transaction_id)
            prepared = _prepare(runtime, message, transaction_id)
            extended = MessageExt.prepared(message, transaction_id, prepared.partition, prepared.offset, prepared.born)
            outcome = self._execute(runtime, prepared, extended, arg)
            end = runtime.end(prepared, outcome)
        finally:
            runtime.finish(transaction_id)
        return TransactionSendResult(
            transaction_id,
            prepared.partition,
            prepared.offset,
            outcome.state,
            outcome.exception,
            end,
        )

    def flush(self, timeout: float | None = None) -> int:
        """Wait until Kafka has acknowledged the ENDs of all calls that have returned.

        `timeout` in seconds; None waits as long as they are tried. Returns how many are not settled: 0 is all. One that
        was given up is settled; its result tells.
        """
        runtime = self._runtime
        return 0 if runtime is None else runtime.flush(timeout)

    def close(self, timeout: float | None = None) -> None:
        """Wait for running local transactions, their ENDs and running checks, and stop; later sends are refused.

        `timeout` in seconds; None waits as long as they take, at most 30 s for the ENDs. What is not done then is left
        to the worker's checks. Calling it again does nothing. UsageError from within a listener method of this
        producer, which it would wait for.
        """
        if getattr(self._executing, "depth", 0) or self._checks.is_called_by_it():
            raise UsageError("close() was called by a listener method, for which it would have to wait")
        self._closed = True
        with self._life:
            if self._ended:
                return
            if self._runtime is not None:
                self._runtime.close(timeout, self._checks.close)
            self._ended = True
        report(logging.INFO, "client_closed", group=self._options.group)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _started(self) -> Runtime:
        if self._closed:
            raise UsageError("this producer is closed; create a new one")
        with self._life:
            if self._runtime is None:
                self._runtime = start(self._options, self._checks.ask)
            return self._runtime

    def _execute(self, runtime: Runtime, prepared: Prepared, message: MessageExt, arg: Any) -> Outcome:
        self._executing.depth = getattr(self._executing, "depth", 0) + 1
        try:
            return execute(self._listener, message, arg)
        except BaseException as error:
            # KeyboardInterrupt, SystemExit: on their way out, but the worker learns that nothing is known.
            runtime.end(prepared, execution_failed(message, error))
            raise
        finally:
            self._executing.depth -= 1


def _require_group(group: str, namespace: str) -> None:
    if not isinstance(group, str) or not is_group(group):
        raise UsageError(f"{group!r} can not be a producer group: 1 to 200 characters of A-Z a-z 0-9 . _ - are needed")
    if not is_topic(Names(namespace).check(group)):
        raise UsageError(
            f"namespace {namespace!r} can not prefix topic names, or makes them longer than 249 characters"
        )


def _prepare(runtime: Runtime, message: Message, transaction_id: str) -> Prepared:
    """Store the half message; PrepareError if Kafka does not acknowledge it."""
    reports: SimpleQueue[Prepared | PrepareError] = SimpleQueue()
    try:
        _write(runtime, message, transaction_id, reports.put)
        # librdkafka reports every record, at the latest after message.timeout.ms.
        prepared = reports.get()
    except BaseException:
        # Interrupted: Kafka may store it, but there will be no local transaction.
        runtime.give_up(transaction_id)
        raise
    if isinstance(prepared, PrepareError):
        runtime.give_up(transaction_id)
        raise prepared
    return prepared


def _write(
    runtime: Runtime,
    message: Message,
    transaction_id: str,
    on_done: Callable[[Prepared | PrepareError], None],
) -> None:
    """Hand the half message over; waits for room, as long as for an acknowledgement."""
    deadline = time.monotonic() + runtime.prepare_timeout
    if not runtime.wait_for_room(runtime.prepare_timeout):
        raise PrepareError(
            "too many decisions wait for Kafka's acknowledgement, so no new transaction was begun; check the brokers "
            "of the END topic, then send again",
        )
    while True:
        try:
            runtime.write_half(message, transaction_id, on_done)
        except BufferError:
            left = deadline - time.monotonic()
            if left <= 0:
                raise PrepareError(
                    "librdkafka's queue stayed full (queue.buffering.max.messages, .kbytes), so no new transaction was "
                    "begun; check the brokers, then send again",
                ) from None
            runtime.wait_for_half_room(left)
        else:
            return
