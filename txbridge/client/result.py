"""Results of `send_message_in_transaction`, for threads and for asyncio."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Self

from txbridge.client.answers import LocalTransactionState, SendStatus
from txbridge.client.decide.decision_batcher import settled_ticket
from txbridge.core.half_message import Reply
from txbridge.core.states import TransactionState

if TYPE_CHECKING:
    from txbridge.client.decide.decision_batcher import Ticket
    from txbridge.client.flow.undecided import Undecided
import contextvars
from collections import deque
from typing import Any, TypeVar

from txbridge.errors import UsageError

_T = TypeVar("_T")


class HandOver:
    """Resolves futures of an event loop. Any thread may use `resolve_soon`.

    Waking a loop costs a system call, so only the first waiting result wakes it. Those that come before the loop runs
    are handed over together.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._results: deque[tuple[asyncio.Future[Any], Any]] = deque()
        self._is_woken = False
        #: An empty context. A task that is started on the loop must not inherit the context of the thread that woke it.
        self._context = contextvars.Context()

    def require_this_loop(self) -> None:
        """Raise UsageError in another event loop."""
        if asyncio.get_running_loop() is not self.loop:
            raise UsageError(
                "this client was started in another event loop; create one in each (tests: `with TestClient(app)`)"
            )

    def resolve_soon(self, future: asyncio.Future[_T], result: _T) -> None:
        """Resolve a future on the loop, soon, unless it was cancelled. Results keep their order."""
        self._results.append((future, result))
        if not self._is_woken:
            self._is_woken = True
            try:
                self.loop.call_soon_threadsafe(self._resolve_all, context=self._context)
            except RuntimeError:
                # The loop was closed without closing the producer. Nobody waits for these results.
                self._results.clear()
                self._is_woken = False

    def _resolve_all(self) -> None:
        # First of all, so that a result that is appended from here on wakes the loop again.
        self._is_woken = False
        # Not "while": a fast thread must not keep the loop from its other work.
        for _ in range(len(self._results)):
            future, result = self._results.popleft()
            if not future.done():
                future.set_result(result)


@dataclass(frozen=True)
class _Sent:
    """A half message, or a message in the outbox of the listener, with the outcome of its local transaction."""

    #: Name of the transaction, 32 characters. Anyone who knows it can decide the transaction, so keep it secret.
    transaction_id: str = field(repr=False)
    #: Partition of the half message in HALF; -1 if there is none.
    half_partition: int
    #: Offset of the half message in that partition; -1 if there is none.
    half_offset: int
    #: The outcome of the local transaction.
    local_transaction_state: LocalTransactionState
    #: The exception of the local transaction, if it raised one: Rollback, with the state ROLLBACK_MESSAGE; or another
    #: one, with that state if it is known to be rolled back, else UNKNOWN. UsageError if it returned what is no answer.
    local_exception: Exception | None
    _end: Ticket = field(repr=False)
    send_status: SendStatus = SendStatus.SEND_OK

    @classmethod
    def of_attempt(cls, attempt: Undecided, **more: object) -> Self:
        """Return the result of an attempt whose local transaction is over."""
        prepared, outcome, end = attempt.prepared, attempt.outcome, attempt.end
        assert outcome is not None
        made = cls.__new__(cls)
        # Not by __init__, because that of a frozen dataclass sets each attribute with a call of its own.
        made.__dict__.update(
            transaction_id=prepared.transaction_id,
            half_partition=prepared.partition,
            half_offset=prepared.offset,
            local_transaction_state=outcome.state,
            local_exception=outcome.exception,
            # A stored message is committed, whatever becomes of a half message that is rolled back.
            _end=end
            if end and outcome.send_status is SendStatus.SEND_OK
            else settled_ticket(prepared.entry_of(outcome)),
            send_status=outcome.send_status,
            **more,
        )
        return made

    @property
    def end(self) -> Future[None]:
        """Future of the END. It resolves with None when Kafka has acknowledged the END; at once for a stored message.

        It fails with EndTransactionError if the END was given up. Its callbacks run in the thread that sends all ENDs,
        so they must be quick and must not wait for other ENDs.
        """
        self._end.leave_soon()
        return self._end.as_future()

    @property
    def msg_id(self) -> str:
        """RocketMQ's other name for the transaction id."""
        return self.transaction_id

    @property
    def queue_offset(self) -> int:
        """RocketMQ's name for `half_offset`."""
        return self.half_offset


@dataclass(frozen=True)
class TransactionSendResult(_Sent):
    """A half message that is stored, with the outcome of its local transaction."""

    def wait(self, timeout: float | None = None) -> None:
        """Wait until Kafka has acknowledged the END. Soon after, the worker has applied it.

        Raises EndTransactionError if the END was given up, and TimeoutError after `timeout` seconds. None: as long as
        the client tries to send it, 30 s for each record.
        """
        self.end.result(timeout)


@dataclass(frozen=True)
class AsyncTransactionSendResult(_Sent):
    """TransactionSendResult of an AsyncTransactionProducer. Its `wait` is awaited."""

    _hand_over: HandOver = field(kw_only=True, repr=False, compare=False)

    async def wait(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  as the blocking one
        """Like TransactionSendResult.wait, without blocking the event loop. Several tasks may wait for one END."""
        end = self.end
        if not end.done():
            self._hand_over.require_this_loop()
            acknowledged: asyncio.Future[None] = self._hand_over.loop.create_future()
            # Not asyncio.wrap_future, which wakes the loop once for each END instead of once for a record of many.
            end.add_done_callback(lambda _: self._hand_over.resolve_soon(acknowledged, None))
            async with asyncio.timeout(timeout):
                await acknowledged
        end.result()


class CancelOutcome(Enum):
    """What the worker has found when it was to cancel a transaction."""

    #: It was committed and waited for its time, or could not be delivered. It is given up and is never delivered.
    CANCELLED = "cancelled"
    #: Too late: it is delivered.
    DELIVERED = "delivered"
    #: Nobody has decided it yet. Its local transaction, or a check, can still commit it. It is not cancelled.
    UNDECIDED = "undecided"
    #: It was rolled back, and is never delivered.
    ROLLED_BACK = "rolled_back"
    #: It was discarded, because nobody has decided it in time. An operator can resume it.
    DISCARDED = "discarded"
    #: No worker knows it: the group has no such transaction, or it was finished long ago.
    NOT_FOUND = "not_found"


@dataclass(frozen=True)
class CancelResult:
    """What became of a transaction that was to be cancelled."""

    outcome: CancelOutcome
    #: If it is cancelled: number of its messages that were delivered before, at their own times. None for another
    #: outcome, and when it was cancelled before and the worker no longer knows the number.
    delivered: int | None = None

    @classmethod
    def of_reply(cls, reply: Reply | None) -> CancelResult:
        """Return the result for the state in which the worker has left the transaction. None: nobody knows it."""
        if reply is None or reply.state is None:
            return cls(CancelOutcome.NOT_FOUND)
        return cls(_OUTCOMES[reply.state], reply.delivered)


#: States of a transaction that can be cancelled.
CANCELLABLE = (TransactionState.SCHEDULED, TransactionState.HELD)
#: A scheduled or held transaction is given up, so the command leaves none in these states.
_OUTCOMES = {
    TransactionState.ABANDONED: CancelOutcome.CANCELLED,
    TransactionState.COMMITTED: CancelOutcome.DELIVERED,
    TransactionState.PENDING: CancelOutcome.UNDECIDED,
    TransactionState.ROLLED_BACK: CancelOutcome.ROLLED_BACK,
    TransactionState.DISCARDED: CancelOutcome.DISCARDED,
}
