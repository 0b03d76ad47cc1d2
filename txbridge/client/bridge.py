"""The bridge for threads: announces what a transaction does, and answers the worker's checks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Generic, Self, Unpack

from txbridge.client.announcement import Announcement, announced
from txbridge.client.answers import G
from txbridge.client.barrier import once_row_id
from txbridge.client.base.contained import calling, is_called_by
from txbridge.client.checks.calls import ThreadChecks
from txbridge.client.flow.cancellation import DEFAULT_CANCEL_TIMEOUT_S, Cancellable
from txbridge.client.flow.lifetime import ClientLifetime
from txbridge.client.flow.undecided import Undecided
from txbridge.client.listener import Check, CheckFunction, TransactionListener, require_plain
from txbridge.client.message import Message
from txbridge.client.options import ClientOptions, ProducerOptions, require_positive
from txbridge.client.prepare.prepared import Prepared
from txbridge.client.result import CancelResult
from txbridge.deadline import Deadline
from txbridge.errors import UsageError

if TYPE_CHECKING:
    import threading

    from txbridge.client.runtime import Runtime


class Bridge(Generic[G]):
    """Announces on Kafka what transactions do, and answers the worker's checks. Thread-safe.

    `start`, the `with` statement or the first announcement starts it; `close` or the end of `with` ends it. After a
    fork, create a new one in the child.

    Args:
        group: The producer group. Any process of the group may be asked about these transactions. 1 to 200 characters
            of A-Z a-z 0-9 . _ -
        check: Looks a transaction up, by the `transaction_id` of the message that it gets. It returns True if its data
            is committed, False if it is not and never will be, None if nobody knows yet. It may be called in any
            process of the group, several times. A TransactionListener is taken, too.
        settings: Properties of librdkafka by its own names; at least `bootstrap.servers`. They apply to every
            connection. `message.timeout.ms` is the time-out of a half message (default 3,000 ms, RocketMQ's
            sendMsgTimeout). None: no Kafka. Then the check is a listener with an outbox.
        check_thread_pool_max_size: How many checks may run at once (RocketMQ's checkThreadPoolMaxSize).

    Keyword Args:
        namespace (str): Prefix of the internal topics, by default none.
        check_request_hold_max (int): How many checks may be unanswered, by default 2,000 (RocketMQ's
            checkRequestHoldMax). The others stay in Kafka; RocketMQ drops them.
        start_timeout (float): Seconds to wait for Kafka at the start, by default 30.
        start_without_kafka (bool): Let a service start while Kafka is away, and connect later (see `start`).
        timer_max_delay (float): Longest delay of a message, in seconds, by default three days, as the workers have it.
        commit_interval (float): Seconds for which decisions are gathered, at most, to leave together, by default 0.025.
            After a quiet time one leaves at once. With 0 it waits only for earlier ones in flight.
        metrics (ClientMetrics): Counts the work of this bridge. One object may serve several bridges.

    """

    def __init__(
        self,
        group: str,
        check: Check | TransactionListener[G],
        settings: Mapping[str, Any] | None,
        *,
        check_thread_pool_max_size: int = 1,
        **options: Unpack[ProducerOptions],
    ) -> None:
        instead = "that takes an AsyncBridge, or an AsyncTransactionProducer"
        if isinstance(check, TransactionListener):
            listener = check
            for method in (listener.execute_local_transaction, listener.check_local_transaction, listener.barrier_id):
                require_plain(method, instead)
        else:
            require_plain(check, instead)
            listener = CheckFunction(check)
        require_positive(check_thread_pool_max_size=check_thread_pool_max_size)
        self._listener = listener
        self._options = ClientOptions(
            group, settings or {}, forwarding=listener.forwarding, has_kafka=settings is not None, **options
        )
        self._checks = ThreadChecks(listener, self, check_thread_pool_max_size)
        self._lifetime = ClientLifetime(self._options, self._checks)

    @property
    def group(self) -> str:
        """The producer group."""
        return self._options.group

    @property
    def is_connected(self) -> bool:
        """Whether the bridge is started and Kafka has answered within the last 6 s: for readiness probes.

        After an outage it is true again some 4 s after Kafka answers. After `close` it is false.
        """
        return self._lifetime.is_connected

    def start(self) -> Self:
        """Verify the internal topics and connect. Does nothing if the bridge runs already.

        With `start_without_kafka`, or an outbox, it returns after 5 s without an answer of Kafka, and the bridge goes
        on trying. Meanwhile sends raise PrepareError at once, or store their messages. What is found wrong later
        (LayoutError) is logged, and raised by the sends that are not stored.

        Raises:
            LayoutError: The internal topics are not as the protocol needs them.
            EnvironmentProblemError: Kafka cannot be reached within `start_timeout`, or refuses a request.
            UsageError: librdkafka refuses a setting, the bridge is closed, or it was started before a fork.

        """
        if self._lifetime.start_client() is None:
            self._lifetime.raise_start_error()
            if not self._options.has_kafka:
                self._listener.barrier_id()
        return self

    @contextmanager
    def announce(self, *messages: Message, once: str | None = None) -> Iterator[Announcement[G]]:
        """Announce what the block does: the messages are delivered if, and only if, its transaction is committed.

        Kafka stores the messages first, as one half message. Leaving the block normally commits. An exception rolls
        back at once, and comes out unchanged. `tx` has the transaction's id, and its session or connection if it is one
        of SQL; then leave COMMIT and ROLLBACK to it. Otherwise the body stores `tx.transaction_id` with its data; there
        `Rollback` is the exception that rolls back, and any other leaves the outcome to a check.

        It does not wait for the acknowledgement of the decision: `flush` does.

        `once` names what is done, as a request that may come again. The database keeps this key of the group in the
        same transaction, so of all blocks with one key, in any process, one is committed. A rollback leaves no key.

        Raises:
            AlreadyDoneError: The key was committed before, by the transaction that the error names. If another block
                with this key still runs, this one waits for its end.
            UsageError: The messages cannot be sent, the bridge has no SQL for `once`, or this is in the block of
                another announcement of this bridge, whose transaction would not be the same one. The body was not run.
            PrepareError: Kafka did not acknowledge the half message. The body was not run, and trying again is safe.
                With an outbox the messages are stored instead.
            LayoutError, EnvironmentProblemError: This call starts the bridge, and the start fails as in `start`.
            OutcomeUnknownError: At the end of the block. Nobody knows the outcome, and a check decides.

        """
        message = announced(self, messages, self._options)
        runtime = self._lifetime.runtime or self._lifetime.start_client()
        if (key := once_row_id(self.group, once)) is not None:
            self._listener.refuse_repeat(key)
        running, tx = calling(self), None
        try:
            with running, self._attempt(runtime, running, message) as attempt:
                tx = Announcement[G](attempt)
                attempt.given.course.once = key
                with self._listener.open_transaction(attempt.given) as opened:
                    yield tx.begin_body(opened)
                tx.end_body()
        except Exception as error:
            if tx is None or (raised := tx.error_of(error)) is error:
                raise
            raise raised from error

    @contextmanager
    def _attempt(self, runtime: Runtime | None, running: threading.Lock, message: Message) -> Iterator[Undecided]:
        """Prepare the message, and send the decision at the end. The caller holds `running`."""
        if runtime is None:
            # Kafka has not answered since the start.
            self._lifetime.refuse_send()
            with Undecided(None, Prepared.without_half(), message) as attempt:
                yield attempt
            return
        sends = runtime.sends
        transaction_id = sends.admit_message(message)
        sends.ask_barrier(self._listener)
        try:
            sends.attempts.begin_attempt(transaction_id, running)
            prepared = sends.prepare_half(message, transaction_id)
            with Undecided(sends, prepared, message) as attempt:
                yield attempt
        finally:
            sends.finish_attempt(transaction_id)

    def cancel(
        self, transaction: Cancellable, reason: str, timeout: float | None = DEFAULT_CANCEL_TIMEOUT_S
    ) -> CancelResult:
        """Cancel a transaction of the group that is committed and not delivered yet, because its time has not come.

        `transaction` is the `tx` of its announcement, a result, or its id, which any process of the group may name. The
        worker answers what has happened, in some 50 ms, and at most `timeout` seconds (None: no limit). `reason` is for
        people: the copy in the discard topic, OP and the audit show it.

        Raises:
            UsageError: No transaction id, no reason, a message in the outbox, or a call of a callback. Nothing was
                sent.
            TimeoutError: No worker has answered within `timeout`. The text says whether the command stands in END: then
                it is applied when a worker runs.
            EndTransactionError: Kafka did not acknowledge the command.
            LayoutError, EnvironmentProblemError: Kafka cannot be asked. Nothing was cancelled.

        """
        runtime = self._lifetime.require_runtime()
        if runtime.is_called_by_it():
            raise UsageError("cancel() was called by a callback, whose thread it would have to wait for")
        return runtime.cancellation.cancel(transaction, reason, timeout)

    def flush(self, timeout: float | None = None) -> int:
        """Wait until Kafka has acknowledged the ENDs of all calls that have returned.

        At most `timeout` seconds. With None as long as the client tries to send the ENDs (30 s for each record) and
        submitted local transactions take. Returns how many transactions are not settled. One whose END was given up is.
        Raises UsageError after a fork, and in a thread that it would wait for.
        """
        runtime = self._lifetime.runtime
        if runtime is None:
            return 0
        runtime.sends.require_this_process()
        if runtime.is_called_by_it():
            raise UsageError("flush() was called by a callback, whose thread it would have to wait for")
        deadline = Deadline(timeout)
        undecided = self._flush_calls(timeout)
        return undecided + runtime.flush(deadline.timeout)

    def _flush_calls(self, _: float | None) -> int:
        """Wait for calls that have returned before their decision. Returns how many have none."""
        return 0

    def close(self, timeout: float | None = None) -> None:
        """Wait for running local transactions, their ENDs and running checks, and stop. Later sends are refused.

        At most `timeout` seconds; None: as long as these take. Each END record is tried for 30 s, and those of a half
        partition one after another. Checks decide what is not done by then. A start that is under way is given up.

        Another call does nothing, unless a signal interrupted the first one; nor does one in a forked child. Raises
        UsageError in the block of an announcement, a check and a callback (`error_cb`, `stats_cb`), for which it would
        wait.
        """
        if self._lifetime.is_of_another_process():
            return
        if self._is_calling():
            raise UsageError(
                "close() was called by a listener method, or while a send of this thread was under way, "
                "for which it would have to wait"
            )
        self._lifetime.close(timeout, self._finish_calls, self._refuse_calls)

    def _is_calling(self) -> bool:
        """Whether this code runs in a call of the application's code that `close` would wait for."""
        return is_called_by(self)

    def _refuse_calls(self) -> None:
        """Refuse calls that wait for room. Returns at once."""

    def _finish_calls(self, timeout: float | None) -> None:
        """Wait up to `timeout` seconds (None: no limit) for running checks."""
        self._checks.close(timeout)

    @asynccontextmanager
    async def lifespan(self, _: object = None) -> AsyncIterator[None]:
        """Start and close with an ASGI application, as in `FastAPI(lifespan=bridge.lifespan)`."""
        await asyncio.to_thread(self.start)
        try:
            yield
        finally:
            await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()
