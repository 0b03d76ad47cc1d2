"""Mentions: every record that names a half message, in one shape, at the coordinates of the half message.

The half message itself is a mention, too. A transaction is the list of its mentions, and nothing else of the topics is
needed to judge it. A mention holds a hash instead of a user's key, value and headers. Nobody changes one, and yet it is
not `frozen`: that would make it four times as slow to create, and an audit creates millions.

A mention as plain values (`to_row`) is JSON, so that it can cross a process, lie in a database or in a column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, NamedTuple
from urllib.parse import unquote

from txbridge.core.names import delivered_id

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
#: The sources of an END that a person sends.
BY_OPERATOR = frozenset({"operator", "resume", "abandon"})
#: Those that give a committed message up: a person, or the application.
GIVE_UP = frozenset({"abandon", "cancel"})
#: Those that decide nothing. `find` is a question, and changes nothing either.
COMMANDS = GIVE_UP | {"resume", "find"}


@dataclass(slots=True)
class Mention:
    """What a record says about a half message."""

    #: Half coordinates. A record that cannot be read names no offset.
    partition: int
    half: int | None
    #: Offset of the record in its own topic.
    at: int


class MessagePart(NamedTuple):
    """A message of a half message, as it asks to be delivered."""

    topic: str
    #: Partition and timestamp (ms) that it asks for.
    place: int | None
    dated: int | None
    content: int
    #: Time of delivery, ms; 0 without one, which is earlier than any other.
    deliver_at: int = 0


@dataclass(slots=True)
class HalfMention(Mention):
    """A record of HALF: the half message itself. `at` is `half`."""

    half: int
    #: Append time, ms.
    born: int
    #: The rule of the protocol that it breaks, in words; None when it is well formed. A faulty one is no transaction,
    #: and its fields may be anything.
    fault: str | None = None
    id: str | None = None
    group: str | None = None
    #: Of several messages that of the first.
    real_topic: str | None = None
    #: REAL_QID.
    fixed_partition: int | None = None
    #: TXB_DELIVER_AT, ms. Each of several messages has it, too, or a time of its own.
    deliver_at: int | None = None
    #: Hash of the user's key, value and headers. Equal contents have equal hashes, so a difference proves something.
    content: int = 0
    #: Timestamp of the record to be delivered, ms.
    dated: int = 0
    #: Several messages in their order; None for a single one.
    parts: tuple[MessagePart, ...] | None = None

    @property
    def delivered_id(self) -> str | None:
        """The id of its visible records: not its own, if its messages name different times."""
        if self.id is None or len({part.deliver_at for part in self.parts or ()}) < 2:
            return self.id
        return delivered_id(self.id)

    @property
    def messages(self) -> tuple[MessagePart, ...]:
        """The messages in their order: several, or a single one."""
        if self.parts is not None:
            return self.parts
        alone = str(self.real_topic), self.fixed_partition, self.dated, self.content, self.deliver_at or 0
        return (MessagePart(*alone),)


@dataclass(slots=True)
class EndMention(Mention):
    """An entry of a readable END record. `at` and `line` are its place in END."""

    #: From 0.
    line: int
    id: str
    group: str
    decision: int
    source: str
    #: Append time of the record, ms.
    stamp: int
    #: Name that the sender gives itself, number of the check that it answers, and remark (percent-encoded).
    client: str | None = None
    checks: int | None = None
    remark: str | None = None

    @property
    def place(self) -> tuple[int, int]:
        """The place in the order of decisions."""
        return self.at, self.line

    @property
    def remark_text(self) -> str | None:
        """The remark as text; as it is, if it is badly encoded."""
        try:
            return None if self.remark is None else unquote(self.remark, errors="strict")
        except UnicodeDecodeError:
            return self.remark


@dataclass(slots=True)
class OutcomeMention(Mention):
    """One half offset that an OP record names."""

    #: commit, rollback, discard or abandon.
    outcome: str
    stamp: int
    #: Of a commit with TXB_ENDS: positions (`position_of`) of the first END entry that its Kafka transaction has
    #: applied, and of the one behind the last.
    since: int | None = None
    until: int | None = None


@dataclass(slots=True)
class CopyMention(Mention):
    """A visible record of a real topic that carries TXB_HALF. `half` is None when that cannot be read."""

    topic: str
    #: Partition of the real topic.
    place: int
    id: str | None
    content: int
    #: Its timestamp, ms; None when the broker gave it.
    dated: int | None = None
    #: The partition that its key asks for, if the record is in one where the key was never put.
    by_key: int | None = None
    #: Which one of several messages it is, and of how many; None when it does not say so.
    number: int | None = None
    numbers: int | None = None

    @property
    def visible_at(self) -> tuple[str, int, int]:
        """Topic, partition and offset."""
        return self.topic, self.place, self.at


@dataclass(slots=True)
class ParkedMention(Mention):
    """A parked entry of OFFSET, or its tombstone."""

    #: pending, held, scheduled or discarded; None for a tombstone.
    state: str | None
    stamp: int
    id: str | None = None
    group: str | None = None
    topic: str | None = None
    #: Times in ms: of birth, of the next check or delivery (`next`), of a resume.
    born: int | None = None
    due: int | None = None
    resumed: int | None = None
    #: Number of checks sent.
    checks: int | None = None
    #: Why it is held.
    error: str | None = None
    #: Number of its messages that were delivered, the earliest first.
    delivered: int = 0
    #: END position: every END below it had been applied.
    end_position: int | None = None


@dataclass(slots=True)
class CheckMention(Mention):
    """A check request."""

    topic: str
    #: Partition of the check topic.
    place: int
    id: str | None
    #: Number of the check, and END position at which it was decided.
    checks: int | None = None
    end_position: int | None = None


@dataclass(slots=True)
class DiscardMention(Mention):
    """A record of the discard topic about a well-formed half message: discarded, or abandoned."""

    #: Partition of the discard topic.
    place: int
    reason: str | None
    stamp: int
    #: TXB_END: every END below it had been applied.
    end_position: int | None = None
    #: Checks sent before it.
    checks: int | None = None
    #: Of an abandoned one, as ParkedMention.delivered.
    delivered: int = 0

    @property
    def is_abandon(self) -> bool:
        """Whether an operator gave up a committed message; any other record discards an undecided one."""
        return self.reason == "ABANDONED"


@dataclass(slots=True)
class AsideMention(Mention):
    """A record of the discard topic about a malformed record, or a copy, of `source_topic`.

    `partition` and `half` are the coordinates of that record, whichever topic it is in.
    """

    half: int
    source_topic: str
    #: Partition of the discard topic.
    place: int
    #: The worker's words.
    error: str | None = None
    #: For a copy of a half message: the offset of the first, which counts.
    first: int | None = None
    is_copy: bool = False


@dataclass(slots=True)
class UnreadableMention(Mention):
    """A record of END or OP that cannot be read, so it names no half message."""

    topic: str
    fault: str
    #: Version of the protocol, if it is a number and not ours.
    version: str | None = None


@dataclass(slots=True)
class NamedMention(Mention):
    """A row that a relay's progress names, at the coordinates of relay_records.py. `at` lies in OUTBOX."""

    half: int
    #: The real topic.
    topic: str
    batch: int
    #: Partition of OUTBOX.
    place: int


@dataclass(slots=True)
class RowMention(Mention):
    """A visible record of a real topic that carries TXB_OUTBOX, at the same coordinates."""

    half: int
    topic: str
    #: Partition of the real topic.
    place: int
    id: str
    #: The batch that it claims.
    batch: int


#: The kinds in the order in which a transaction usually meets them. Their places are stored: only append to them.
MENTIONS: tuple[type[Mention], ...] = (
    HalfMention,
    EndMention,
    OutcomeMention,
    CopyMention,
    ParkedMention,
    CheckMention,
    DiscardMention,
    AsideMention,
    UnreadableMention,
    NamedMention,
    RowMention,
)
_NUMBER_OF = {kind: number for number, kind in enumerate(MENTIONS)}
_FIELDS = {kind: attrgetter(*(field.name for field in fields(kind))) for kind in MENTIONS}


def to_row(mention: Mention) -> list[Any]:
    """The mention as plain values: the number of its kind, and its fields in their order."""
    kind = type(mention)
    row = [_NUMBER_OF[kind], *_FIELDS[kind](mention)]
    if isinstance(mention, HalfMention) and mention.parts is not None:
        row[-1] = [list(part) for part in mention.parts]
    return row


def from_row(row: Sequence[Any]) -> Mention:
    """The mention of `to_row`, also if the row was JSON meanwhile."""
    number, *values = row
    if number == _NUMBER_OF[HalfMention] and values[-1] is not None:
        values[-1] = tuple(MessagePart(*part) for part in values[-1])
    make: Callable[..., Mention] = MENTIONS[number]
    return make(*values)


#: The bits that the index of an entry takes in a position in END.
_INDEX_BITS = 10


def position_of(offset: int, index: int) -> int:
    """The position of an entry as one number, in the order of END: by offset of its record, then index in it."""
    return (offset << _INDEX_BITS) + index
