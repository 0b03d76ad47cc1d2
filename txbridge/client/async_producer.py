"""The client for asyncio: TransactionProducer with `await`."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from txbridge.client.async_listener import AsyncTransactionListener, ListenerMethod
from txbridge.client.checks.event_loop import AsyncChecks
from txbridge.client.errors import PrepareError, closed
from txbridge.client.flow import process
from txbridge.client.flow.back_pressure import Turns
from txbridge.client.flow.loop_bridge import HandOver, Resolving
from txbridge.client.flow.reentrancy import calling, is_called_by
from txbridge.client.listener import LocalTransactionState, TransactionListener, check_failed, execution_failed
from txbridge.client.log import report
from txbridge.client.message import Message, MessageExt, check_message, require_time
from txbridge.client.options import (
    DEFAULT_CHECK_REQUEST_HOLD_MAX,
    DEFAULT_START_TIMEOUT_S,
    DEFAULT_TIMER_MAX_DELAY_S,
    ClientOptions,
    require_positive,
)
from txbridge.client.result import AsyncTransactionSendResult
from txbridge.client.several_messages import together
from txbridge.errors import UsageError

if TYPE_CHECKING:
    from txbridge.client.flow.send_path import SendPath
    from txbridge.client.metrics import ClientMetrics
    from txbridge.client.prepare.half_writer import Prepared
    from txbridge.client.runtime import Runtime

_T = TypeVar("_T")

#: Threads for what blocks and must not queue up: start, close, and a wait for room of each of four kinds, on behalf of
#: all sends. They are started when needed, none of them for a single send.
_WAITING_THREADS = 6
#: Threads for flushes, of which there may be any number: further ones queue up, which changes nothing for them.
_FLUSHING_THREADS = 2
#: With so many sends under way, half messages wait some milliseconds for company: below, hardly any would come.
_GATHER_FROM = 32


async def _commit(message: MessageExt, arg: Any) -> LocalTransactionState:  # noqa: ARG001
    """In the place of a local transaction, where there is none."""
    return LocalTransactionState.COMMIT_MESSAGE


_COMMITS = ListenerMethod(_commit, execution_failed)


class AsyncTransactionProducer:
    """TransactionProducer on an event loop: the same semantics, with `await`.

    Use it with `async with`, or await `close` at the end. It starts with `start`, `async with`, or the first send, and
    then belongs to that event loop: any number of its tasks may share it. After a fork, and for another loop, create a
    new one.

    Args:
        group: the producer group, as in TransactionProducer.
        listener: an AsyncTransactionListener; a TransactionListener, too, whose methods then run in the loop's default
            executor.
        settings: librdkafka's, by its own names, as in TransactionProducer. Its callbacks (`error_cb`, `stats_cb`) are
            called by threads of ours, not on the loop.
        namespace: prefix of the internal topics.
        check_concurrency: calls of `check_local_transaction` under way at once (RocketMQ's checkThreadPoolMaxSize).
        check_request_hold_max: unanswered checks before no more are read, as in TransactionProducer.
        start_timeout: seconds to wait for Kafka at start, as in TransactionProducer.
        timer_max_delay: longest delay of a message, in seconds, as in TransactionProducer.
        metrics: as in TransactionProducer.

    Raises:
        UsageError: an argument cannot work.

    """

    def __init__(
        self,
        group: str,
        listener: AsyncTransactionListener | TransactionListener,
        settings: Mapping[str, Any],
        *,
        namespace: str = "",
        check_concurrency: int = 1,
        check_request_hold_max: int = DEFAULT_CHECK_REQUEST_HOLD_MAX,
        start_timeout: float = DEFAULT_START_TIMEOUT_S,
        timer_max_delay: float = DEFAULT_TIMER_MAX_DELAY_S,
        metrics: ClientMetrics | None = None,
    ) -> None:
        if not isinstance(listener, AsyncTransactionListener | TransactionListener):
            raise UsageError(
                f"an AsyncTransactionListener or a TransactionListener is needed, not {type(listener).__name__}"
            )
        require_positive(check_concurrency=check_concurrency)
        self._options = ClientOptions.checked(
            group, settings, namespace, start_timeout, check_request_hold_max, metrics, timer_max_delay
        )
        self._execute = ListenerMethod(listener.execute_local_transaction, execution_failed)
        self._checks = AsyncChecks(
            ListenerMethod(listener.check_local_transaction, check_failed), self, check_concurrency
        )
        # Pools start their threads when they are used, so these cost nothing yet.
        self._waits_in = ThreadPoolExecutor(_WAITING_THREADS, thread_name_prefix="txbridge-async")
        self._flushes_in = ThreadPoolExecutor(_FLUSHING_THREADS, thread_name_prefix="txbridge-async-flush")
        self._hand_over: HandOver | None = None
        self._runtime: Runtime | None = None
        #: The process in which it was started; None until then.
        self._process: int | None = None
        self._starting: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._closed = False
        self._turns = Turns()
        #: Waits for Kafka that several sends share.
        self._waits: dict[Callable[[float], object], asyncio.Future[Any]] = {}

    @property
    def group(self) -> str:
        """The producer group."""
        return self._options.group

    async def start(self) -> Self:
        """Verify the topics and connect; does nothing if it runs already.

        Raises LayoutError when the topics are not as they must be, EnvironmentProblemError when Kafka cannot be
        reached within `start_timeout` or refuses, UsageError after close and in another event loop.
        """
        await self._started()
        return self

    async def send_message_in_transaction(self, message: Message, arg: Any = None) -> AsyncTransactionSendResult:
        """Store the half message, run the local transaction with `arg`, and send its decision on the way.

        As TransactionProducer.send_message_in_transaction, and any number of tasks may await it at once: while 2,000
        of them, or values of 64 MiB together, are under way, further ones wait for their turn, except in a listener
        method.

        Cancelled before Kafka has acknowledged the half message, it gives the attempt up: the local transaction is not
        run, and a check is answered with rollback. Cancelled while the local transaction runs, it sends unknown, so
        that the worker asks; a plain method goes on in its thread, and `close` waits for it.

        Raises:
            UsageError: the message cannot be sent, the producer is closed, or this is another event loop; nothing was
                sent.
            PrepareError: the half message was not acknowledged, the local transaction was not run.
            LayoutError, EnvironmentProblemError: if this is what starts the producer.

        """
        check_message(message, self._options.names)
        return await self._send(message, self._execute, arg)

    async def send_later(self, message: Message, timeout: float | None = None) -> AsyncTransactionSendResult:  # noqa: ASYNC109  as the blocking one
        """Send a message that names a time of delivery, without a local transaction, as TransactionProducer.send_later.

        Cancelled before Kafka has acknowledged the half message, it gives the attempt up; later, the message may be
        delivered.
        """
        check_message(message, self._options.names)
        require_time(message)
        result = await self._send(message, _COMMITS, None)
        await result.wait(timeout)
        return result

    async def send_messages_in_transaction(
        self, messages: Iterable[Message], arg: Any = None
    ) -> AsyncTransactionSendResult:
        """Do as `send_message_in_transaction` with several messages: readers see all of them, in this order, or none.

        As TransactionProducer.send_messages_in_transaction.
        """
        return await self._send(together(messages, self._options.names), self._execute, arg)

    async def _send(self, message: Message, execute: ListenerMethod, arg: Any) -> AsyncTransactionSendResult:
        hand_over, runtime = await self._started()
        sends = runtime.sends
        transaction_id = sends.admit(message)
        size = len(message.value or b"")
        # A listener method that waited for a turn would wait for itself.
        epoch = await self._turns.take(size, waits=not is_called_by(self))
        left: list[asyncio.Future[Any]] = []
        try:
            sends.begin(transaction_id)
            prepared = await self._prepare(hand_over, sends, message, transaction_id)
            given = prepared.extended(message)
            try:
                with calling(self):
                    outcome = await execute.outcome(given, arg, left_running=left.append)
            except BaseException as error:
                sends.interrupted(prepared, given, error)
                raise
            return AsyncTransactionSendResult.of(prepared, outcome, sends.end(prepared, outcome), _hand_over=hand_over)
        finally:

            def over(_: object = None) -> None:
                sends.finish(transaction_id)
                self._turns.give_back(epoch, size)

            if left:
                # Until its thread is done the local transaction runs: a check must not ask, and close() waits.
                left[0].add_done_callback(over)
            else:
                over()

    async def flush(self, timeout: float | None = None) -> int:  # noqa: ASYNC109  as the blocking one
        """Wait until Kafka has acknowledged the ENDs of all sends that have returned.

        `timeout` in seconds; None waits as long as they are tried. Returns how many are not settled: 0 is all. One that
        was given up is settled; its result tells. UsageError in another event loop.
        """
        runtime = self._require_ours()
        return 0 if runtime is None or self._is_ended else await _in_thread(self._flushes_in, runtime.flush, timeout)

    async def close(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  as the blocking one
        """Wait for running local transactions, their ENDs and running checks, and stop; later sends are refused.

        `timeout` in seconds; None waits as long as they take, at most 30 s for the ENDs. What is not done then is left
        to the worker's checks. Calling it again waits for the first call. A cancelled call goes on in the background.
        A start that is under way is given up. In a forked child it does nothing. UsageError in another event loop, and
        from within a listener method of this producer, or a task that it has started, which it would wait for.
        """
        if self._process is not None and self._process != process.generation():
            return
        if is_called_by(self):
            raise UsageError("close() was called by a listener method, for which it would have to wait")
        self._require_ours()
        self._closed = True
        self._turns.close()
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close(timeout))
        await asyncio.shield(self._closing)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # --- life -------------------------------------------------------------------------------------------------------

    @property
    def _is_ended(self) -> bool:
        return self._closing is not None and self._closing.done()

    def _require_ours(self) -> Runtime | None:
        """The started client, if there is one; UsageError after a fork and in another event loop."""
        if self._runtime is not None:
            self._runtime.sends.require_this_process()
        if self._hand_over is not None:
            self._hand_over.require_this_loop()
        return self._runtime

    async def _started(self) -> tuple[HandOver, Runtime]:
        if self._closed:
            raise closed()
        runtime = self._require_ours()
        if runtime is None:
            if self._starting is None:
                self._hand_over = HandOver(asyncio.get_running_loop())
                self._starting = asyncio.get_running_loop().create_task(self._start(self._hand_over))
                # Its failure is for those who wait for it, if they still do.
                self._starting.add_done_callback(lambda task: task.cancelled() or task.exception())
            # A cancelled send must not cancel the start for others, nor leave a client behind that nobody closes.
            await asyncio.shield(self._starting)
            runtime = self._runtime
        assert runtime is not None
        assert self._hand_over is not None
        return self._hand_over, runtime

    async def _start(self, hand_over: HandOver) -> None:
        self._process = process.generation()
        is_abandoned = False
        started: list[Runtime] = []

        def begin() -> Runtime:
            # Only here: a program that imports this and never sends need not load what speaks to Kafka.
            from txbridge.client.start import start  # noqa: PLC0415

            ask = partial(self._checks.ask, hand_over)
            started.append(start(self._options, ask, lambda: self._closed or is_abandoned))
            if is_abandoned:
                started[0].close(0, _do_nothing)
            return started[0]

        try:
            self._runtime = await _in_thread(self._waits_in, begin)
        except BaseException:
            # Cancelled: the loop ends while the thread goes on, and nobody would close what it starts.
            is_abandoned = True
            if started:
                threading.Thread(target=started[0].close, args=[0, _do_nothing], daemon=True).start()
            # It may be tried again, also in another loop.
            self._starting = self._hand_over = None
            raise

    async def _close(self, timeout: float | None) -> None:  # noqa: ASYNC109
        if self._starting is not None:
            await asyncio.wait([self._starting])
        if self._runtime is not None:
            await _in_thread(self._waits_in, self._runtime.close, timeout, self._checks.close)
        self._waits_in.shutdown(wait=False)
        self._flushes_in.shutdown(wait=False)
        report(logging.INFO, "client_closed", group=self._options.group)

    # --- an attempt -------------------------------------------------------------------------------------------------

    async def _prepare(self, hand_over: HandOver, sends: SendPath, message: Message, transaction_id: str) -> Prepared:
        """SendPath.prepare on the loop."""
        reported: asyncio.Future[Prepared | PrepareError] = hand_over.loop.create_future()
        try:
            writer = sends.half_writer(gathers=self._turns.number >= _GATHER_FROM)
            on_done = Resolving(hand_over, reported)
            for wait, seconds in sends.hand_over(writer, message, transaction_id, on_done):
                await self._shared(wait, seconds)
            result = await reported
        except BaseException:
            # Cancelled: Kafka may store it, but there will be no local transaction.
            sends.give_up(transaction_id)
            raise
        return sends.prepared(transaction_id, result)

    async def _shared(self, wait: Callable[[float], object], timeout: float) -> object:  # noqa: ASYNC109
        """Wait in a thread, in one for all who wait for the same."""
        waiting = self._waits.get(wait)
        if waiting is None:
            waiting = self._waits[wait] = asyncio.ensure_future(_in_thread(self._waits_in, wait, timeout))
            waiting.add_done_callback(lambda _: self._waits.pop(wait))
        return await asyncio.shield(waiting)


def _do_nothing(_: float | None) -> None:
    """No check was asked yet."""


async def _in_thread(pool: ThreadPoolExecutor, function: Callable[..., _T], *arguments: Any) -> _T:
    """Call what blocks. Not in the loop's executor, where plain listener methods may take all threads."""
    return await asyncio.get_running_loop().run_in_executor(pool, partial(function, *arguments))
