"""States of a transaction and all legal transitions between them, in one table of data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from txbridge.core.decision_record import GIVE_UP, Decision, Source


class TransactionState(Enum):
    """The state of a half message."""

    # Members are unique, as in Source. They are keys of a table that is looked up for every message.
    __hash__ = object.__hash__

    #: Prepared and undecided.
    PENDING = "pending"
    #: Committed, but its real topic does not take it at the moment.
    HELD = "held"
    #: Committed. The time of delivery has not come yet that the message, or one of several messages, names.
    SCHEDULED = "scheduled"
    #: Undecided after the last check or at its greatest age. It lies in TRANS_CHECK_MAX_TIME_TOPIC and can be resumed.
    DISCARDED = "discarded"
    #: Delivered. Final.
    COMMITTED = "committed"
    #: Never visible. Final.
    ROLLED_BACK = "rolled_back"
    #: Committed, and given up by a person or the application, because it could not be delivered or before its time
    #: came. A copy lies in TRANS_CHECK_MAX_TIME_TOPIC. Final.
    ABANDONED = "abandoned"

    @property
    def is_open(self) -> bool:
        """Whether another state can follow."""
        return self in _OPEN

    @property
    def is_committed(self) -> bool:
        """Whether it is committed and not delivered yet."""
        return self is TransactionState.HELD or self is TransactionState.SCHEDULED


_OPEN = (TransactionState.PENDING, TransactionState.HELD, TransactionState.SCHEDULED, TransactionState.DISCARDED)


class Outcome(Enum):
    """The worker's result for a half message: header OUTCOME of the OP record that names it."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    DISCARD = "discard"
    ABANDON = "abandon"

    @property
    def state(self) -> TransactionState:
        return _STATE_OF_OUTCOME[self]


_STATE_OF_OUTCOME = {
    Outcome.COMMIT: TransactionState.COMMITTED,
    Outcome.ROLLBACK: TransactionState.ROLLED_BACK,
    Outcome.DISCARD: TransactionState.DISCARDED,
    Outcome.ABANDON: TransactionState.ABANDONED,
}


class Event(Enum):
    """Events of a half message. Those up to ABANDON come as END entries, the others from the worker itself."""

    # Members are unique, as in Source. They are keys of a table that is looked up for every message.
    __hash__ = object.__hash__

    COMMIT = "commit"
    #: A commit that cannot be delivered now.
    COMMIT_UNDELIVERABLE = "commit_undeliverable"
    #: A commit before the time that the message names.
    COMMIT_EARLY = "commit_early"
    #: A commit that delivers some of several messages. The time of others has not come.
    COMMIT_STEP = "commit_step"
    ROLLBACK = "rollback"
    UNKNOWN = "unknown"
    RESUME = "resume"
    ABANDON = "abandon"
    #: The real topic takes a held message now, or the time of a scheduled one has come.
    DELIVER = "deliver"
    #: The same, and others of several messages are still to come.
    DELIVER_STEP = "deliver_step"
    #: The time of a scheduled message has come, and it cannot be delivered now.
    DUE_UNDELIVERABLE = "due_undeliverable"
    CHECK = "check"
    #: A full interval has passed since the last check, or the message has reached its greatest age.
    GIVE_UP = "give_up"


class RefusalReason(Enum):
    """Reasons for which an END entry has no effect (docs/protocol.md, END)."""

    NO_HALF_MESSAGE = "no_half_message"
    WRONG_TRANSACTION_ID = "wrong_transaction_id"
    WRONG_GROUP = "wrong_group"
    REPEAT = "repeat"
    CONTRADICTION = "contradiction"
    LATE = "late"
    NOT_DISCARDED = "not_discarded"
    NOT_HELD = "not_held"


@dataclass(frozen=True, slots=True)
class Transition:
    """The next state, and the reason if the event is refused. A refused event does not change the state."""

    state: TransactionState
    refused: RefusalReason | None = None


_PENDING, _HELD, _SCHEDULED, _DISCARDED, _COMMITTED, _ROLLED_BACK, _ABANDONED = TransactionState
_REPEAT, _CONTRADICTION = RefusalReason.REPEAT, RefusalReason.CONTRADICTION
_LATE, _NOT_DISCARDED = RefusalReason.LATE, RefusalReason.NOT_DISCARDED
_NOT_HELD = RefusalReason.NOT_HELD

#: (state, event) -> transition. A pair that is not here cannot happen: asking for it is a programming error.
TRANSITIONS: dict[tuple[TransactionState, Event], Transition] = {
    (_PENDING, Event.COMMIT): Transition(_COMMITTED),
    (_PENDING, Event.COMMIT_UNDELIVERABLE): Transition(_HELD),
    (_PENDING, Event.COMMIT_EARLY): Transition(_SCHEDULED),
    (_PENDING, Event.COMMIT_STEP): Transition(_SCHEDULED),
    (_PENDING, Event.ROLLBACK): Transition(_ROLLED_BACK),
    (_PENDING, Event.UNKNOWN): Transition(_PENDING),
    (_PENDING, Event.RESUME): Transition(_PENDING, _NOT_DISCARDED),
    (_PENDING, Event.ABANDON): Transition(_PENDING, _NOT_HELD),
    (_PENDING, Event.CHECK): Transition(_PENDING),
    (_PENDING, Event.GIVE_UP): Transition(_DISCARDED),
    # A held message is decided: its decision stands, and no check can change it.
    (_HELD, Event.COMMIT): Transition(_HELD, _REPEAT),
    (_HELD, Event.COMMIT_UNDELIVERABLE): Transition(_HELD, _REPEAT),
    (_HELD, Event.ROLLBACK): Transition(_HELD, _CONTRADICTION),
    (_HELD, Event.UNKNOWN): Transition(_HELD),
    (_HELD, Event.RESUME): Transition(_HELD, _NOT_DISCARDED),
    # Not a rollback. The commit stands, and the state records that it could not be carried out.
    (_HELD, Event.ABANDON): Transition(_ABANDONED),
    (_HELD, Event.DELIVER): Transition(_COMMITTED),
    (_HELD, Event.DELIVER_STEP): Transition(_SCHEDULED),
    # A scheduled message is decided as well. It only waits for its time.
    (_SCHEDULED, Event.COMMIT): Transition(_SCHEDULED, _REPEAT),
    (_SCHEDULED, Event.ROLLBACK): Transition(_SCHEDULED, _CONTRADICTION),
    (_SCHEDULED, Event.UNKNOWN): Transition(_SCHEDULED),
    (_SCHEDULED, Event.RESUME): Transition(_SCHEDULED, _NOT_DISCARDED),
    (_SCHEDULED, Event.ABANDON): Transition(_ABANDONED),
    (_SCHEDULED, Event.DELIVER): Transition(_COMMITTED),
    (_SCHEDULED, Event.DELIVER_STEP): Transition(_SCHEDULED),
    (_SCHEDULED, Event.DUE_UNDELIVERABLE): Transition(_HELD),
    # A decision after a discard is late (RocketMQ delivers it: #8158). A resume makes the message pending again.
    (_DISCARDED, Event.COMMIT): Transition(_DISCARDED, _LATE),
    (_DISCARDED, Event.COMMIT_UNDELIVERABLE): Transition(_DISCARDED, _LATE),
    (_DISCARDED, Event.ROLLBACK): Transition(_DISCARDED, _LATE),
    (_DISCARDED, Event.UNKNOWN): Transition(_DISCARDED),
    (_DISCARDED, Event.RESUME): Transition(_PENDING),
    (_DISCARDED, Event.ABANDON): Transition(_DISCARDED, _NOT_HELD),
    # First decision wins (RocketMQ accepts each of these: #2694, #5574, #8158).
    (_COMMITTED, Event.COMMIT): Transition(_COMMITTED, _REPEAT),
    (_COMMITTED, Event.COMMIT_UNDELIVERABLE): Transition(_COMMITTED, _REPEAT),
    (_COMMITTED, Event.ROLLBACK): Transition(_COMMITTED, _CONTRADICTION),
    (_COMMITTED, Event.UNKNOWN): Transition(_COMMITTED),
    (_COMMITTED, Event.RESUME): Transition(_COMMITTED, _NOT_DISCARDED),
    (_COMMITTED, Event.ABANDON): Transition(_COMMITTED, _NOT_HELD),
    (_ROLLED_BACK, Event.COMMIT): Transition(_ROLLED_BACK, _CONTRADICTION),
    (_ROLLED_BACK, Event.COMMIT_UNDELIVERABLE): Transition(_ROLLED_BACK, _CONTRADICTION),
    (_ROLLED_BACK, Event.ROLLBACK): Transition(_ROLLED_BACK, _REPEAT),
    (_ROLLED_BACK, Event.UNKNOWN): Transition(_ROLLED_BACK),
    (_ROLLED_BACK, Event.RESUME): Transition(_ROLLED_BACK, _NOT_DISCARDED),
    (_ROLLED_BACK, Event.ABANDON): Transition(_ROLLED_BACK, _NOT_HELD),
    (_ABANDONED, Event.COMMIT): Transition(_ABANDONED, _REPEAT),
    (_ABANDONED, Event.COMMIT_UNDELIVERABLE): Transition(_ABANDONED, _REPEAT),
    (_ABANDONED, Event.ROLLBACK): Transition(_ABANDONED, _CONTRADICTION),
    (_ABANDONED, Event.UNKNOWN): Transition(_ABANDONED),
    (_ABANDONED, Event.RESUME): Transition(_ABANDONED, _NOT_DISCARDED),
    (_ABANDONED, Event.ABANDON): Transition(_ABANDONED, _NOT_HELD),
}


def event_of(decision: Decision, source: Source) -> Event:
    """The event of an END entry, if its message can be delivered now."""
    if source is Source.RESUME:
        return Event.RESUME
    if source in GIVE_UP:
        return Event.ABANDON
    if decision is Decision.COMMIT:
        return Event.COMMIT
    return Event.ROLLBACK if decision is Decision.ROLLBACK else Event.UNKNOWN
