"""The client for asyncio: TransactionProducer with `await`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack

from txbridge.client.answers import A, G, LocalTransactionState, R
from txbridge.client.base.contained import calling, is_called_by
from txbridge.client.base.loop_bridge import HandOver
from txbridge.client.checks.calls import LoopChecks
from txbridge.client.coroutines import is_coroutine_function
from txbridge.client.errors import PrepareError, closed, started_before_a_fork
from txbridge.client.flow.attempts import PAUSE_S, Turns
from txbridge.client.flow.cancellation import DEFAULT_CANCEL_TIMEOUT_S, Cancellable
from txbridge.client.flow.lifetime import Life
from txbridge.client.listener import (
    AsyncFunction,
    AsyncTransactionListener,
    LocalTransaction,
    TransactionListener,
    bind_execute,
    call_function,
    execution_failed,
)
from txbridge.client.message import Message, MessageExt, check_message, require_time
from txbridge.client.options import ClientOptions, ProducerOptions, require_positive
from txbridge.client.prepare.prepared import Prepared
from txbridge.client.result import AsyncTransactionSendResult, CancelResult
from txbridge.client.several_messages import together
from txbridge.deadline import Deadline
from txbridge.errors import UsageError

if TYPE_CHECKING:
    from txbridge.client.flow.send_path import SendPath
    from txbridge.client.runtime import Runtime

_T = TypeVar("_T")

#: Threads for start, close, and looks at topics that messages with a timestamp need, which take 1.5 s at most. A thread
#: starts when it is needed.
_BLOCKING_THREADS = 4
#: Threads for flushes. Any number of tasks may flush; further flushes wait for a thread.
_FLUSHING_THREADS = 2
#: From this number of sends in flight on, half messages wait some milliseconds for others, to share a request. With
#: fewer sends, hardly any others would come.
_GATHER_FROM = 32


async def _commit(message: MessageExt, arg: Any) -> LocalTransactionState:  # noqa: ARG001
    """Stand-in for the local transaction of `send_later`, which has none."""
    return LocalTransactionState.COMMIT_MESSAGE


class AsyncTransactionProducer(Generic[G]):
    """TransactionProducer with `await`. Arguments, calls, results and errors are the same unless stated otherwise.

    Use it with `async with`, or await `close` at the end. `start`, `async with` or the first send starts it. From then
    on it belongs to that event loop, and any number of the loop's tasks may share it. In another loop its calls raise
    UsageError. Create a new one after a fork, and for another loop.

    Args, where they differ:
        listener: An AsyncTransactionListener, or a TransactionListener, whose methods then run in the loop's default
            executor.
        settings: Properties of librdkafka. Its callbacks (`error_cb`, `stats_cb`) run in threads of the producer, not
            on the loop.
        check_concurrency: How many calls of `check_local_transaction` may run at once (RocketMQ's
            checkThreadPoolMaxSize).

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
        require_positive(check_concurrency=check_concurrency)
        self._options = ClientOptions(group, settings, forwarding=listener.forwarding, **options)
        self._listener = listener
        self._checks = LoopChecks(listener, self, check_concurrency)
        # Pools start their threads when they are used, so these cost nothing yet.
        self._calls_in = ThreadPoolExecutor(_BLOCKING_THREADS, thread_name_prefix="txbridge-async")
        self._flushes_in = ThreadPoolExecutor(_FLUSHING_THREADS, thread_name_prefix="txbridge-async-flush")
        self._cancels_in = ThreadPoolExecutor(_BLOCKING_THREADS, thread_name_prefix="txbridge-async-cancel")
        self._life = Life(self._options, self._checks)
        #: To the loop that has started the producer, or that starts it; None until then.
        self._hand_over: HandOver | None = None
        self._starting: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._turns = Turns()
        #: Held by the send that looks for room.
        self._room = asyncio.Lock()

    @property
    def group(self) -> str:
        """The producer group."""
        return self._options.group

    @property
    def is_connected(self) -> bool:
        """Whether the producer is started and Kafka answers, as in TransactionProducer."""
        return self._life.is_connected

    async def start(self) -> Self:
        """Verify the internal topics and connect. Does nothing if the producer runs already."""
        if (await self._ensure_started())[1] is None:
            self._life.raise_start_error()
        return self

    async def send_message_in_transaction(
        self, message: Message, arg: A | None = None, *, execute: AsyncFunction[A, R, G] | None = None
    ) -> AsyncTransactionSendResult[R]:
        """Store the half message, run the local transaction with `arg`, and send its decision.

        With an AsyncTransactionListener, `execute` may be `async def` or plain, as the listener's methods may.

        Any number of tasks may await it at the same time. While 2,000 sends, or messages of 64 MiB together, are in
        flight, further sends wait. Sends of a listener method do not wait.

        If it is cancelled before Kafka has acknowledged the half message, the attempt is given up: the local
        transaction is not run, and a check is answered with rollback. If it is cancelled while the local transaction
        runs, unknown is sent, so that the worker asks, or rollback if a SQL listener is sure of it. A plain listener
        method goes on in its thread, and `close` waits for it.
        """
        check_message(message, self._options.names)
        return await self._send_one(message, arg, bind_execute(self._listener, execute))

    async def send_later(self, message: Message, timeout: float | None = None) -> AsyncTransactionSendResult:  # noqa: ASYNC109  as the blocking one
        """Send a message that names a time of delivery, without a local transaction. `timeout` is in seconds.

        If the call is cancelled before Kafka has acknowledged the half message, the attempt is given up. If it is
        cancelled later, the message may be delivered.
        """
        check_message(message, self._options.names)
        require_time(message)
        result = await self._send_one(message, None, _commit)
        await result.wait(timeout)
        return result

    async def send_messages_in_transaction(
        self, messages: Iterable[Message], arg: A | None = None, *, execute: AsyncFunction[A, R, G] | None = None
    ) -> AsyncTransactionSendResult[R]:
        """Send several messages in one transaction: readers see all of them or none."""
        message = together(messages, self._options.names)
        return await self._send_one(message, arg, bind_execute(self._listener, execute))

    async def _send_one(self, message: Message, arg: Any, run: LocalTransaction) -> AsyncTransactionSendResult:
        hand_over, runtime = await self._ensure_started()
        if runtime is None:
            return await self._store_one(hand_over, message, arg, run)
        sends = runtime.sends
        transaction_id = sends.admit_message(message)
        has_listener = run is not _commit
        if has_listener:
            await self._ask_barrier(sends)
        # A listener method that waited for a turn would wait for itself.
        epoch = await self._turns.take_turn(size := message.size, waits=not is_called_by(self))
        left: list[asyncio.Future[Any]] = []
        try:
            sends.attempts.begin_attempt(transaction_id)
            if has_listener and sends.stores_message():
                prepared = Prepared.without_half()
            else:
                reported = await self._prepare_half(hand_over, sends, message, transaction_id)
                prepared = sends.require_stored(transaction_id, reported, has_listener=has_listener)
            given = prepared.for_listener(message)
            try:
                with calling(self):
                    outcome = await call_function(run, given, arg, left_running=left.append)
            except BaseException as error:
                sends.send_decision(prepared, execution_failed(given, error))
                raise
            return AsyncTransactionSendResult.of_decision(
                prepared, outcome, sends.send_decision(prepared, outcome, message), _hand_over=hand_over
            )
        finally:

            def over(_: object = None) -> None:
                sends.finish_attempt(transaction_id)
                self._turns.give_back(epoch, size)

            if left:
                # Its thread still runs the local transaction. Until it is done a check must not ask, and close() waits.
                left[0].add_done_callback(over)
            else:
                over()

    async def _store_one(
        self, hand_over: HandOver, message: Message, arg: Any, run: LocalTransaction
    ) -> AsyncTransactionSendResult:
        """Run the local transaction, if it stores the message. Kafka has not answered since the start."""
        self._life.refuse_send(is_stored=run is not _commit and self._listener.forwarding is not None)
        prepared = Prepared.without_half()
        with calling(self):
            outcome = await call_function(run, prepared.for_listener(message), arg)
        return AsyncTransactionSendResult.of_decision(prepared, outcome, _hand_over=hand_over)

    async def cancel(
        self,
        transaction: Cancellable,
        reason: str,
        timeout: float | None = DEFAULT_CANCEL_TIMEOUT_S,  # noqa: ASYNC109  as the blocking one
    ) -> CancelResult:
        """Cancel a transaction that is committed and not delivered yet, as TransactionProducer.cancel does.

        Four calls run at the same time; further ones wait. A cancelled call goes on in the background.
        """
        await self._ensure_started()
        # It does not block any more.
        runtime = self._life.require_runtime()
        return await _in_thread(self._cancels_in, runtime.cancellation.cancel, transaction, reason, timeout)

    async def flush(self, timeout: float | None = None) -> int:  # noqa: ASYNC109  as the blocking one
        """Wait up to `timeout` seconds (None: 30 s for each END record) for the ENDs of all sends that have returned.

        Returns the number of ENDs that are not settled.
        """
        self._require_ours()
        runtime = self._life.runtime
        if runtime is None or (self._closing is not None and self._closing.done()):
            return 0
        deadline = Deadline(timeout)
        try:
            async with asyncio.timeout(timeout):
                return await _in_thread(self._flushes_in, lambda: runtime.flush(deadline.timeout))
        except TimeoutError:
            # Other flushes may still have all threads. This call does not wait.
            return runtime.flush(0)

    async def close(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  as the blocking one
        """Wait up to `timeout` seconds (None: as long as it takes), as TransactionProducer.close does, and stop.

        Another call waits for the first one. A cancelled call goes on in the background. A listener method, and a task
        that it has started, gets UsageError, because `close` would wait for it.
        """
        if self._life.is_of_another_process():
            return
        if is_called_by(self):
            raise UsageError("close() was called by a listener method, for which it would have to wait")
        self._require_ours()
        self._turns.close()
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close(timeout))
        await asyncio.shield(self._closing)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _require_ours(self) -> None:
        """Raise UsageError after a fork and in another event loop."""
        if self._life.is_of_another_process():
            raise started_before_a_fork()
        if self._hand_over is not None:
            self._hand_over.require_this_loop()

    async def _ensure_started(self) -> tuple[HandOver, Runtime | None]:
        """The started client. None: Kafka has not answered yet, and the start goes on in the background."""
        if self._closing is not None:
            raise closed()
        self._require_ours()
        if self._life.runtime is None:
            if self._starting is None:
                loop = self._checks.loop = asyncio.get_running_loop()
                self._hand_over = HandOver(loop)
                self._starting = loop.create_task(self._start())
                # Marks the failure as retrieved. The sends that wait for the start raise it.
                self._starting.add_done_callback(lambda task: task.cancelled() or task.exception())
            # A cancelled send must not cancel the start for other sends.
            await asyncio.shield(self._starting)
        assert self._hand_over is not None
        return self._hand_over, self._life.runtime

    async def _start(self) -> None:
        try:
            await _in_thread(self._calls_in, self._life.start_client)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                # The loop ends while the thread goes on, and nobody would close the new client.
                abandoned, self._life = self._life, Life(self._options, self._checks)
                threading.Thread(target=abandoned.close, daemon=True).start()
            # The start may be tried again, also in another loop.
            self._starting = self._hand_over = None
            raise

    async def _close(self, timeout: float | None) -> None:  # noqa: ASYNC109
        await _in_thread(self._calls_in, self._life.close, timeout, self._checks.close)
        for pool in (self._calls_in, self._flushes_in, self._cancels_in):
            pool.shutdown(wait=False)

    async def _ask_barrier(self, sends: SendPath) -> None:
        """Do as SendPath.ask_barrier, without blocking the loop."""
        listener = self._listener
        if type(listener).barrier_id in (TransactionListener.barrier_id, AsyncTransactionListener.barrier_id):
            return
        if isinstance(listener, TransactionListener) and not is_coroutine_function(listener.barrier_id):
            await asyncio.to_thread(sends.ask_barrier, listener)
            return
        found = listener.barrier_id()
        if isinstance(found, Awaitable):
            found = await found
        sends.note_barrier(found)

    async def _prepare_half(
        self, hand_over: HandOver, sends: SendPath, message: Message, transaction_id: str
    ) -> Prepared | PrepareError:
        """Do as SendPath.prepare_half, without blocking the loop. Returns what became of the half message."""
        reported: asyncio.Future[Prepared | PrepareError] = hand_over.loop.create_future()
        try:
            gathers = self._turns.number >= _GATHER_FROM
            writer = sends.halves.for_many(waits=False) if gathers else sends.writer_for_caller()
            on_done = partial(hand_over.resolve_soon, reported)
            looks = sends.hand_over(writer, message, transaction_id, on_done)
            for look in looks:
                if look is not None:
                    await _in_thread(self._calls_in, look)
                    continue
                async with self._room:
                    for _ in looks:
                        await asyncio.sleep(PAUSE_S)
            return await reported
        except PrepareError as error:
            return error
        except BaseException:
            # Cancelled. Kafka may still store the half message, but no local transaction will run.
            sends.attempts.give_up(transaction_id)
            raise


async def _in_thread(pool: ThreadPoolExecutor, function: Callable[..., _T], *arguments: Any) -> _T:
    """Run a blocking call in `pool`. In the loop's own executor, plain listener methods may occupy all threads."""
    try:
        call = asyncio.get_running_loop().run_in_executor(pool, partial(function, *arguments))
    except RuntimeError:
        # The pool takes nothing after `close`.
        raise closed() from None
    return await call
