"""The bridge for asyncio: Bridge with `await`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack

from txbridge.client.announcement import Announcement, announced
from txbridge.client.answers import G
from txbridge.client.barrier import once_row_id
from txbridge.client.base.contained import calling, is_called_by
from txbridge.client.checks.calls import LoopChecks
from txbridge.client.errors import PrepareError, closed, started_before_a_fork
from txbridge.client.flow.attempts import PAUSE_S, Turns
from txbridge.client.flow.cancellation import DEFAULT_CANCEL_TIMEOUT_S, Cancellable
from txbridge.client.flow.lifetime import ClientLifetime
from txbridge.client.flow.undecided import Undecided
from txbridge.client.listener import (
    AsyncCheck,
    AsyncTransactionListener,
    CheckFunction,
    TransactionListener,
    is_coroutine_function,
    opened_by,
)
from txbridge.client.message import Message
from txbridge.client.options import ClientOptions, ProducerOptions, require_positive
from txbridge.client.prepare.prepared import Prepared
from txbridge.client.result import CancelResult, HandOver
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


class AsyncBridge(Generic[G]):
    """Bridge with `async with` and `await`. Arguments, calls and errors are the same unless stated otherwise.

    From its start on it belongs to that event loop, and any number of the loop's tasks may share it. In another loop,
    and after a fork, its calls raise UsageError: create a new one there.

    Args, where they differ:
        check: A function, which then runs in the loop's default executor, or a coroutine function. An
            AsyncTransactionListener is taken, too.
        settings: Properties of librdkafka. Its callbacks (`error_cb`, `stats_cb`) run in threads of the bridge, not on
            the loop.
        check_concurrency: How many checks may run at once (RocketMQ's checkThreadPoolMaxSize).

    """

    def __init__(
        self,
        group: str,
        check: AsyncCheck | AsyncTransactionListener[G] | TransactionListener[G],
        settings: Mapping[str, Any] | None,
        *,
        check_concurrency: int = 1,
        **options: Unpack[ProducerOptions],
    ) -> None:
        require_positive(check_concurrency=check_concurrency)
        self._listener: AsyncTransactionListener[G] | TransactionListener[G] = (
            check if isinstance(check, AsyncTransactionListener | TransactionListener) else CheckFunction(check)
        )
        self._options = ClientOptions(
            group, settings or {}, forwarding=self._listener.forwarding, has_kafka=settings is not None, **options
        )
        self._check_concurrency = check_concurrency
        self._make_client()

    def _make_client(self) -> None:
        """Make what a start and a close use up."""
        self._checks = LoopChecks(self._listener, self, self._check_concurrency)
        # Pools start their threads when they are used, so these cost nothing yet.
        self._calls_in = ThreadPoolExecutor(_BLOCKING_THREADS, thread_name_prefix="txbridge-async")
        self._flushes_in = ThreadPoolExecutor(_FLUSHING_THREADS, thread_name_prefix="txbridge-async-flush")
        self._cancels_in = ThreadPoolExecutor(_BLOCKING_THREADS, thread_name_prefix="txbridge-async-cancel")
        self._lifetime = ClientLifetime(self._options, self._checks)
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
        return self._lifetime.is_connected

    async def start(self) -> Self:
        """Verify the internal topics and connect. Does nothing if the producer runs already."""
        if (await self._ensure_started())[1] is None:
            self._lifetime.raise_start_error()
            if not self._options.has_kafka and isinstance(found := self._listener.barrier_id(), Awaitable):
                await found
        return self

    @asynccontextmanager
    async def announce(self, *messages: Message, once: str | None = None) -> AsyncIterator[Announcement[G]]:
        """Announce what the block does, as Bridge.announce says, with `async with`.

        A cancelled task gets CancelledError and nothing else. Before the COMMIT is sent, that rolls back; afterwards a
        check decides.
        """
        message = announced(self, messages, self._options)
        key = once_row_id(self.group, once)
        if key is not None and (looking := self._listener.refuse_repeat(key)) is not None:
            await looking
        tx = None
        try:
            async with self._attempt(message) as attempt:
                tx = Announcement[G](attempt)
                attempt.given.course.once = key
                async with opened_by(self._listener, attempt.given) as opened:
                    yield tx.begin_body(opened)
                tx.end_body()
        except Exception as error:
            if tx is None or (raised := tx.error_of(error)) is error:
                raise
            raise raised from error

    @asynccontextmanager
    async def _attempt(self, message: Message, left: Sequence[asyncio.Future[Any]] = ()) -> AsyncIterator[Undecided]:
        """Prepare the message, and send the decision at the end. The attempt ends when the thread in `left` does."""
        hand_over, runtime = await self._ensure_started()
        if runtime is None:
            # Kafka has not answered since the start.
            self._lifetime.refuse_send()
            with calling(self), Undecided(None, Prepared.without_half(), message) as attempt:
                yield attempt
            return
        sends = runtime.sends
        transaction_id = sends.admit_message(message)
        await self._ask_barrier(sends)
        # A listener method that waited for a turn would wait for itself.
        epoch = await self._turns.take_turn(size := message.size, waits=not is_called_by(self))
        try:
            sends.attempts.begin_attempt(transaction_id)
            if sends.stores_message():
                prepared = Prepared.without_half()
            else:
                reported = await self._prepare_half(hand_over, sends, message, transaction_id)
                prepared = sends.require_stored(transaction_id, reported)
            with calling(self), Undecided(sends, prepared, message) as attempt:
                yield attempt
        finally:

            def over(_: object = None) -> None:
                sends.finish_attempt(transaction_id)
                self._turns.give_back(epoch, size)

            if left:
                # Its thread still runs the local transaction. Until it is done a check must not ask, and close() waits.
                left[0].add_done_callback(over)
            else:
                over()

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
        runtime = self._lifetime.require_runtime()
        return await _in_thread(self._cancels_in, runtime.cancellation.cancel, transaction, reason, timeout)

    async def flush(self, timeout: float | None = None) -> int:  # noqa: ASYNC109  as the blocking one
        """Wait up to `timeout` seconds for the ENDs of all sends that have returned, as Bridge.flush does."""
        self._require_ours()
        runtime = self._lifetime.runtime
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
        """Wait up to `timeout` seconds, as Bridge.close does, and stop.

        Another call waits for the first one. A cancelled call goes on in the background.
        """
        if self._lifetime.is_of_another_process():
            return
        if is_called_by(self):
            raise UsageError("close() was called by a listener method, for which it would have to wait")
        self._require_ours()
        self._turns.close()
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close_client(timeout))
        await asyncio.shield(self._closing)

    @asynccontextmanager
    async def lifespan(self, _: object = None) -> AsyncIterator[None]:
        """Start and close with an ASGI application, as in `FastAPI(lifespan=bridge.lifespan)`; any number of times."""
        if self._closing is not None:
            self._make_client()
        async with self:
            yield

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _require_ours(self) -> None:
        """Raise UsageError after a fork and in another event loop."""
        if self._lifetime.is_of_another_process():
            raise started_before_a_fork()
        if self._hand_over is not None:
            self._hand_over.require_this_loop()

    async def _ensure_started(self) -> tuple[HandOver, Runtime | None]:
        """The started client. None: Kafka has not answered yet, and the start goes on in the background."""
        if self._closing is not None:
            raise closed()
        self._require_ours()
        if self._lifetime.runtime is None:
            if self._starting is None:
                loop = self._checks.loop = asyncio.get_running_loop()
                self._hand_over = HandOver(loop)
                self._starting = loop.create_task(self._start_client())
                # Marks the failure as retrieved. The sends that wait for the start raise it.
                self._starting.add_done_callback(lambda task: task.cancelled() or task.exception())
            # A cancelled send must not cancel the start for other sends.
            await asyncio.shield(self._starting)
        assert self._hand_over is not None
        return self._hand_over, self._lifetime.runtime

    async def _start_client(self) -> None:
        try:
            await _in_thread(self._calls_in, self._lifetime.start_client)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                # The loop ends while the thread goes on, and nobody would close the new client.
                abandoned, self._lifetime = self._lifetime, ClientLifetime(self._options, self._checks)
                threading.Thread(target=abandoned.close, daemon=True).start()
            # The start may be tried again, also in another loop.
            self._starting = self._hand_over = None
            raise

    async def _close_client(self, timeout: float | None) -> None:  # noqa: ASYNC109
        await _in_thread(self._calls_in, self._lifetime.close, timeout, self._checks.close)
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
