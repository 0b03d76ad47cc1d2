"""Result of `cancel`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from txbridge.core.reply_record import Reply
from txbridge.core.states import TransactionState


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
