"""The client for asyncio: TransactionProducer with `await`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Unpack

from txbridge.client.answers import G
from txbridge.client.async_bridge import AsyncBridge
from txbridge.client.listener import AsyncTransactionListener, TransactionListener, call_function
from txbridge.client.message import Message
from txbridge.client.options import ProducerOptions
from txbridge.client.result import AsyncTransactionSendResult
from txbridge.client.several_messages import joined
from txbridge.errors import UsageError


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

        If it is cancelled before Kafka has acknowledged the half message, the attempt is given up: the local
        transaction is not run, and a check is answered with rollback. If it is cancelled while the local transaction
        runs, unknown is sent, so that the worker asks, or rollback if a SQL listener is sure of it. A plain listener
        method goes on in its thread, and `close` waits for it.
        """
        message = joined(message, self._options.names)
        left: list[asyncio.Future[Any]] = []
        async with self._attempt(message, left) as attempt:
            run = self._listener.execute_local_transaction
            attempt.outcome = await call_function(run, attempt.given, arg, left_running=left.append)
        return AsyncTransactionSendResult.of_attempt(attempt, _hand_over=self._hand_over)
