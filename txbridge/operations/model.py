"""Open messages and the results of commands, as operations return them. Pure data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from txbridge.core.decision_record import COMMANDS, Decision, Source
from txbridge.core.names import short_id, topics_of
from txbridge.core.states import TransactionState


class NextStep(Enum):
    """The next step of the worker for an open message, without a command."""

    CHECK = "check"
    #: Set it aside in the discard topic.
    DISCARD = "discard"
    #: Try again to deliver it.
    RETRY = "retry"
    #: Deliver it when its time comes.
    DELIVER = "deliver"
    #: Drop a discarded message: it cannot be resumed any more then.
    LAPSE = "lapse"


@dataclass(frozen=True, slots=True)
class StoredCommand:
    """An END command about a message that has an effect on it."""

    end_offset: int
    decision: Decision
    source: Source
    client_id: str | None

    def __str__(self) -> str:
        if self.source in COMMANDS:
            what = f"{self.source.value} of {self.client_id}" if self.client_id else self.source.value
        else:
            who = f" {self.client_id}" if self.client_id else ""
            what = f"{self.decision.name.lower()} of {self.source.value}{who}"
        return f"{what} at END offset {self.end_offset}"


@dataclass(frozen=True, slots=True)
class OpenMessage:
    """One half message that is not finished, as of the last checkpoint of its partition. Times in ms since 1970 UTC."""

    partition: int
    half_offset: int
    transaction_id: str
    group: str
    real_topic: str
    state: TransactionState
    #: Append time of the half message.
    born: int
    #: Bytes of its key, value and headers.
    size: int
    #: Check requests sent (since the last resume).
    checks: int
    next_step: NextStep
    #: Due time of the next step; None for a held message, whose next attempt only its worker knows.
    next_due: int | None
    #: Whether OFFSET has a parked entry for it.
    parked: bool = False
    #: The reason why it cannot be delivered (held) or checked (pending). Otherwise the remark of the last "unknown", if
    #: one was found.
    error: str | None = None
    #: For a held or scheduled message: END offset of its decision.
    decided: int | None = None
    #: For a discarded message: MAX_CHECKS or EXPIRED, and partition and offset in the discard topic.
    reason: str | None = None
    discarded_at: tuple[int, int] | None = None
    #: Time of the last resume.
    resumed: int | None = None
    #: The earliest time of delivery, if the message names one. Of several messages: of those to be delivered next.
    deliver_at: int | None = None
    #: Number of messages in the transaction, and of those that are delivered, if they name different times.
    messages: int = 1
    delivered: int = 0
    #: The first command in END that will change its state, but that no worker has applied yet.
    stored: StoredCommand | None = None
    #: The user's key; None if it was not read, or if the message has none.
    key: bytes | None = None
    #: Identity of the barrier table in which its sender writes; None if it was not read, or if the message names none.
    barrier_id: str | None = None
    #: Whether its body is gone from HALF: then it cannot be delivered any more.
    gone: bool = False

    @property
    def coordinates(self) -> str:
        return f"{self.partition}:{self.half_offset}"

    @property
    def progress(self) -> str:
        """How many of its messages are delivered, if some are."""
        return f"{self.delivered} of {self.messages} delivered" if self.delivered else ""

    @property
    def short_id(self) -> str:
        """The part of the id that may be shown. Anyone who knows the whole id may decide."""
        return short_id(self.transaction_id)


@dataclass(frozen=True, slots=True)
class Selection:
    """Conditions for the open messages to list; None means no condition."""

    states: frozenset[TransactionState] = frozenset({TransactionState.PENDING, TransactionState.HELD})
    group: str | None = None
    topic: str | None = None
    partition: int | None = None
    #: ms; compared with the time since birth.
    min_age: int = 0
    #: A part of the cause's text, in upper or lower case.
    cause: str | None = None
    #: Most messages to list, oldest first.
    limit: int | None = 100

    def includes_message(self, message: OpenMessage, now: int) -> bool:
        return (
            message.state in self.states
            and self.group in {None, message.group}
            and (self.topic is None or self.topic in topics_of(message.real_topic))
            and self.partition in {None, message.partition}
            and now - message.born >= self.min_age
        )


@dataclass(frozen=True, slots=True)
class Listing:
    """Open messages, oldest first. `total` also counts those beyond the limit."""

    messages: Sequence[OpenMessage]
    total: int
    #: By this machine's clock (ms).
    now: int
    #: Warnings about the topics, for people.
    warnings: Sequence[str] = ()
    #: Partitions not read in full, and why. Their open messages are left out, or lack keys and last errors.
    unread: Mapping[int, str] = field(default_factory=dict)
    #: The total by cause.
    causes: Mapping[str, int] = field(default_factory=dict)
    #: Open messages that do not fit the selection, by state.
    left_out: Mapping[TransactionState, int] = field(default_factory=dict)


class Result(Enum):
    """Results of a command by hand."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    #: Committed, but its real topic does not accept it; the worker keeps trying.
    HELD = "held"
    #: Committed, and its time has not come; the worker delivers it then.
    SCHEDULED = "scheduled"
    RESUMED = "resumed"
    #: It was resumed before: this command has no effect.
    ALREADY_RESUMED = "already_resumed"
    #: A held or scheduled message was given up.
    ABANDONED = "abandoned"
    #: Results of a dry run: nothing was written.
    WOULD_COMMIT = "would_commit"
    WOULD_ROLL_BACK = "would_roll_back"
    WOULD_RESUME = "would_resume"
    WOULD_ABANDON = "would_abandon"
    #: It has no effect, and `detail` says why.
    REFUSED = "refused"
    #: Kafka did not acknowledge the command: it may be stored all the same. `detail` says more.
    NOT_KNOWN = "not_known"
    #: Stored in END, but no worker has applied it within the time-out. It will be applied; do not repeat it.
    STORED = "stored"


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a command about one half message."""

    message: OpenMessage
    result: Result
    #: One sentence for people.
    detail: str
    #: END offset of the command; None when nothing was written.
    end_offset: int | None = None
