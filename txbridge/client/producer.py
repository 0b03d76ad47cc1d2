"""The clients for threads and for asyncio: RocketMQ's TransactionMQProducer on Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Unpack

from txbridge.client.answers import G
from txbridge.client.async_bridge import AsyncBridge
from txbridge.client.base.contained import ContainedFuture, calling, is_called_by
from txbridge.client.bridge import Bridge
from txbridge.client.flow.pipeline import Pipeline
from txbridge.client.listener import AsyncTransactionListener, TransactionListener, call_function, execute
from txbridge.client.message import Message
from txbridge.client.message_batch import joined
from txbridge.client.options import ProducerOptions, require_positive
from txbridge.client.result import AsyncTransactionSendResult, TransactionSendResult
from txbridge.errors import UsageError


class TransactionProducer(Bridge[G]):
    """Producer of transactional messages of one producer group. It also answers the worker's checks. Thread-safe.

    It is a Bridge whose transactions are calls of a listener's method: each is what the block of an announcement is. A
    bridge has the arguments that are not named here.

    Args:
        listener: Your code, which runs the local transactions and looks them up again.
        execute_thread_pool_max_size: How many local transactions of `submit_message_in_transaction` may run at once. 1
            keeps their order.

    """

    def __init__(
        self,
        group: str,
        listener: TransactionListener[G],
        settings: Mapping[str, Any] | None,
        *,
        execute_thread_pool_max_size: int = 1,
        check_thread_pool_max_size: int = 1,
        **options: Unpack[ProducerOptions],
    ) -> None:
        if not isinstance(listener, TransactionListener):
            raise UsageError(f"a TransactionListener is needed, not {type(listener).__name__}")
        require_positive(execute_thread_pool_max_size=execute_thread_pool_max_size)
        super().__init__(group, listener, settings, check_thread_pool_max_size=check_thread_pool_max_size, **options)
        self._pipeline = Pipeline(listener, execute_thread_pool_max_size)

    def send_message_in_transaction(
        self, message: Message | Iterable[Message], arg: Any = None
    ) -> TransactionSendResult:
        """Store the half message, run the local transaction with `arg`, and send its decision.

        This is RocketMQ's sendMessageInTransaction. The local transaction is the listener's, which gets `arg`. An
        exception of it is in the result instead of being raised.

        Of several messages readers see all or none, in each partition in their order. The listener finds them in
        `message.messages`. At most 1,000 messages go to at most 100 topics, together as large as one.

        The call blocks until Kafka has acknowledged the half message, at most 1 s longer than `message.timeout.ms`, and
        while the listener runs. It does not wait for the acknowledgement of the END: `wait` of the result does. Raises
        what `announce` raises before the body. If an outbox has stored the message, `send_status` is STORED.
        """
        message = joined(message, self._options.names)
        runtime = self._lifetime.runtime or self._lifetime.start_client()
        # A `with` of its own ends with the attempt, whatever a signal interrupts, so close() does not wait forever.
        running = calling(self)
        with running, self._attempt(runtime, running, message) as attempt:
            attempt.outcome = execute(self._listener.execute_local_transaction, attempt.given, arg)
        return TransactionSendResult.of_attempt(attempt)

    def submit_message_in_transaction(
        self, message: Message | Iterable[Message], arg: Any = None
    ) -> Future[TransactionSendResult]:
        """Like `send_message_in_transaction`, in the background: one thread can have many transactions in flight.

        Returns when the half message is handed over. When Kafka has acknowledged it, the local transaction runs in
        one thread of the producer, or `execute_thread_pool_max_size`. One thread keeps the order of the calls in each
        half partition. Then the END is queued, and the future resolves with the result, or fails with what
        `send_message_in_transaction` would raise. Its callbacks run in the threads of the local transactions.

        The call blocks while 2,000 transactions, or messages of 64 MiB together, are between call and decision, but not
        in a listener method or a callback. `Future.cancel` works until the local transaction has begun.
        """
        message = joined(message, self._options.names)
        runtime = self._lifetime.runtime or self._lifetime.start_client()
        if runtime is None:
            # Here and not in a pool, which belongs to a started client.
            stored: Future[TransactionSendResult] = ContainedFuture()
            stored.set_result(self.send_message_in_transaction(message, arg))
            return stored
        return self._pipeline.submit_transaction(runtime.sends, message, arg)

    def _flush_calls(self, timeout: float | None) -> int:
        if is_called_by(self._pipeline):
            raise UsageError("flush() was called by a submitted transaction, for which it would have to wait")
        return self._pipeline.flush(timeout)

    def _is_calling(self) -> bool:
        return super()._is_calling() or is_called_by(self._pipeline)

    def _refuse_calls(self) -> None:
        self._pipeline.stop()

    def _finish_calls(self, timeout: float | None) -> None:
        """End the pipeline. Submitted messages whose local transaction has not begun fail with PrepareError."""
        self._pipeline.close()
        super()._finish_calls(timeout)


class AsyncTransactionProducer(AsyncBridge[G]):
    """TransactionProducer with `await`. Arguments, calls, results and errors are the same unless stated otherwise.

    Args, where they differ from those of AsyncBridge:
        listener: An AsyncTransactionListener, or a TransactionListener, whose methods then run in the loop's default
            executor.

    """

    def __init__(
        self,
        group: str,
        listener: AsyncTransactionListener[G] | TransactionListener[G],
        settings: Mapping[str, Any],
        *,
        check_concurrency: int = 1,
        **options: Unpack[ProducerOptions],
    ) -> None:
        if not isinstance(listener, AsyncTransactionListener | TransactionListener):
            raise UsageError(
                f"an AsyncTransactionListener or a TransactionListener is needed, not {type(listener).__name__}"
            )
        super().__init__(group, listener, settings, check_concurrency=check_concurrency, **options)

    async def send_message_in_transaction(
        self, message: Message | Iterable[Message], arg: Any = None
    ) -> AsyncTransactionSendResult:
        """Store the half message, run the local transaction with `arg`, and send its decision.

        Any number of tasks may await it at the same time. While 2,000 sends, or messages of 64 MiB together, are in
        flight, further sends wait. Sends of a listener method do not wait.

        If it is cancelled before Kafka has acknowledged the half message, the attempt is given up. While the local
        transaction runs, unknown is sent, or rollback if a SQL listener is sure of it. A plain listener method goes on
        in its thread, and `close` waits for it.
        """
        message = joined(message, self._options.names)
        left: list[asyncio.Future[Any]] = []
        async with self._attempt(message, left) as attempt:
            run = self._listener.execute_local_transaction
            attempt.outcome = await call_function(run, attempt.given, arg, left_running=left.append)
        return AsyncTransactionSendResult.of_attempt(attempt, _hand_over=self._hand_over)
