"""What the worker writes down for whoever takes the partition over: OP messages, the checkpoint, parked entries."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

from pydantic_core import from_json

from txbridge.core import names
from txbridge.core.fingerprint import Mark
from txbridge.core.headers import LARGEST_NUMBER, MalformedRecordError, OurHeaders, whole_number
from txbridge.core.names import Headers
from txbridge.core.parked_table import ParkedRow, ParkedTable
from txbridge.core.states import Outcome, TransactionState

#: Largest value of one OP record in bytes: well below Kafka's default record limit of 1 MiB.
MAX_OP_BYTES = 100_000


def encode_ops(offsets: Iterable[int]) -> list[bytes]:
    """Values of the OP records that name these half offsets, split at MAX_OP_BYTES."""
    values: list[bytes] = []
    texts: list[str] = []
    size = 0
    for offset in offsets:
        text = str(offset)
        if size + len(text) > MAX_OP_BYTES:
            values.append(",".join(texts).encode())
            texts, size = [], 0
        texts.append(text)
        size += len(text) + 1
    if texts:
        values.append(",".join(texts).encode())
    return values


def op_headers(outcome: Outcome) -> list[tuple[str, bytes | None]]:
    return [
        (names.VERSION, names.PROTOCOL_VERSION),
        (names.TAGS, names.REMOVE_TAG),
        (names.OUTCOME, outcome.value.encode()),
    ]


def parse_op(value: bytes | None, headers: Headers | None) -> tuple[Outcome, list[int]]:
    """Outcome and half offsets of an OP record. Raises MalformedRecordError."""
    ours = OurHeaders(headers)
    ours.require_version("OP record")
    if ours.required(names.TAGS).encode() != names.REMOVE_TAG:
        raise MalformedRecordError(f"header {names.TAGS} is not d")
    name = ours.required(names.OUTCOME)
    try:
        outcome = Outcome(name)
        text = (value or b"").decode("ascii")
    except UnicodeDecodeError as error:
        raise MalformedRecordError(str(error)) from None
    except ValueError:
        raise MalformedRecordError(f"{name[:40]!r} is not a valid Outcome") from None
    return outcome, [whole_number(offset, "half offset") for offset in text.split(",")]


class Cut(NamedTuple):
    """HALF has lost all from an offset on, END perhaps something, and a person has acknowledged it."""

    #: HALF offset from which on messages were lost; the log may have grown again.
    half: int
    #: OP records below this offset that name such an offset mean what was lost.
    op: int
    #: When (ms), who, and why.
    at: int
    by: str
    reason: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far a partition is worked off. `owner` and `seq` name the Kafka transaction that wrote it."""

    #: Low watermark: every half message below it is finished or parked.
    half: int
    #: Next END offset to apply.
    end: int
    #: OP offset from which a take-over replays.
    op: int
    #: Topic ids of half, end, op and offset: a topic that was deleted and created anew has another.
    topics: Mapping[str, str]
    owner: str = ""
    seq: int = 0
    #: HALF was read up to here: no OP record names more, and no parked entry is of more. None: not known.
    read: int | None = None
    #: OP records from `op` on, those of this Kafka transaction included: a reader that sees fewer has not seen all.
    ops: int = 0
    #: HALF offset from which a take-over reads, to know the ids of the last messages (`copies`); None: from `half`.
    recent: int | None = None
    #: Index of the next entry to apply within the END record at `end`; those before it are applied.
    entry: int = 0
    #: By short name of the topic (half, end): the last record that was read there.
    marks: Mapping[str, Mark] = field(default_factory=dict)
    #: What a person has acknowledged as lost.
    cut: Cut | None = None

    def meant(self, op_offset: int, half_offsets: list[int]) -> list[int]:
        """Of the half offsets that an OP record names, those that mean messages which were not lost."""
        if self.cut is None or op_offset >= self.cut.op:
            return half_offsets
        return [offset for offset in half_offsets if offset < self.cut.half]

    def encode(self) -> bytes:
        data: dict[str, Any] = {
            "half": self.half,
            "end": self.end,
            "op": self.op,
            "topics": dict(self.topics),
            "owner": self.owner,
            "seq": self.seq,
        }
        if self.read is not None:
            data |= {"read": self.read, "ops": self.ops}
        if self.recent is not None:
            data["recent"] = self.recent
        if self.entry:
            data["entry"] = self.entry
        if self.marks:
            data["marks"] = {short: list(mark) for short, mark in self.marks.items()}
        if self.cut is not None:
            data["cut"] = self.cut._asdict()
        return _dump(data)

    @classmethod
    def decode(cls, value: bytes) -> Checkpoint:
        data = _load(value)
        try:
            return cls(
                half=_number(data["half"]),
                end=_number(data["end"]),
                op=_number(data["op"]),
                topics={_text(name): _text(topic_id) for name, topic_id in data["topics"].items()},
                owner=_text(data["owner"]),
                seq=_number(data["seq"]),
                read=None if data.get("read") is None else _number(data["read"]),
                ops=_number(data.get("ops", 0)),
                recent=None if data.get("recent") is None else _number(data["recent"]),
                entry=_number(data.get("entry", 0)),
                marks={_text(short): _mark(mark) for short, mark in data.get("marks", {}).items()},
                cut=None if data.get("cut") is None else _cut(data["cut"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise MalformedRecordError(f"not a checkpoint: {_short(error)}") from None


_OPEN_STATES = {state.value: state for state in TransactionState if state.is_open}


@dataclass(frozen=True, slots=True)
class ParkedEntry:
    """One half message that the low watermark may pass while it is open: all that a take-over needs but its body."""

    half_offset: int
    state: TransactionState
    transaction_id: str
    group: str
    real_topic: str
    born: int
    size: int
    checks: int
    #: When the next check, retry of a held delivery, or removal of a discarded entry is due (ms).
    next_due: int
    #: END position at which the entry was written: for people, and not kept.
    end: int = 0
    decided: int | None = None
    error: str | None = None
    reason: str | None = None
    discarded_at: tuple[int, int] | None = None
    #: When it was resumed; its age counts from then.
    resumed: int | None = None

    def encode(self) -> bytes:
        data: dict[str, Any] = {
            "state": self.state.value,
            "id": self.transaction_id,
            "group": self.group,
            "topic": self.real_topic,
            "born": self.born,
            "size": self.size,
            "checks": self.checks,
            "next": self.next_due,
            "end": self.end,
        }
        if self.state is TransactionState.HELD:
            data |= {"decision": 8, "decided": self.decided}
        if self.state is TransactionState.DISCARDED:
            data |= {"reason": self.reason, "at": self.discarded_at}
        if self.error is not None:
            data["error"] = self.error
        if self.resumed is not None:
            data["resumed"] = self.resumed
        return _dump(data)

    @classmethod
    def decode(cls, half_offset: int, value: bytes) -> ParkedEntry:
        parsed = parse_parked(half_offset, value)
        return cls.from_row(parsed) if isinstance(parsed, ParkedRow) else parsed

    @classmethod
    def from_row(cls, row: ParkedRow) -> ParkedEntry:
        return cls(
            half_offset=row.offset,
            state=TransactionState.PENDING,
            transaction_id=row.transaction_id,
            group=row.group,
            real_topic=row.real_topic,
            born=row.born,
            size=row.size,
            checks=row.checks,
            next_due=row.next_due,
        )


#: A parked entry with more than these is more than pending.
_FIELDS_OF_ALL = {"state", "id", "group", "topic", "born", "size", "checks", "next", "end"}


def parse_parked(half_offset: int, value: bytes) -> ParkedRow | ParkedEntry:
    """A parked entry of OFFSET: a row when it is pending and nothing else, as most are. Raises MalformedRecordError."""
    data = _load(value)
    try:
        state = _OPEN_STATES[data["state"]]
        row = ParkedRow(
            half_offset,
            _which(data["id"], names.is_transaction_id),
            _group(data["group"]),
            _topic(data["topic"]),
            _number(data["born"]),
            _number(data["size"]),
            _number(data["checks"]),
            _number(data["next"]),
        )
        _number(data["end"])
        if (
            state is TransactionState.PENDING
            and data.keys() <= _FIELDS_OF_ALL
            and ParkedTable.takes(row.transaction_id, row.size, row.checks)
        ):
            return row
        return replace(
            ParkedEntry.from_row(row),
            state=state,
            decided=None if data.get("decided") is None else _number(data["decided"]),
            error=None if data.get("error") is None else _text(data["error"]),
            reason=None if data.get("reason") is None else _text(data["reason"]),
            discarded_at=None if data.get("at") is None else _coordinates(data["at"]),
            resumed=None if data.get("resumed") is None else _number(data["resumed"]),
        )
    except (KeyError, TypeError) as error:
        raise MalformedRecordError(f"not a parked entry: {_short(error)}") from None


def offset_headers() -> list[tuple[str, bytes | None]]:
    return [(names.VERSION, names.PROTOCOL_VERSION)]


def _number(value: Any) -> int:
    # Not int(): what we wrote is a number, and a guess about a state is worse than none.
    if type(value) is not int or not 0 <= value <= LARGEST_NUMBER:
        raise TypeError(f"not a whole number: {value!r:.40}")
    return value


def _mark(value: Any) -> Mark:
    if not isinstance(value, list) or len(value) != 4:
        raise TypeError(f"not a mark: {value!r:.40}")
    offset, digest, epoch, appended = value
    return Mark(
        _number(offset),
        _text(digest),
        None if epoch is None else _number(epoch),
        None if appended is None else _number(appended),
    )


def _cut(value: Any) -> Cut:
    return Cut(
        half=_number(value["half"]),
        op=_number(value["op"]),
        at=_number(value["at"]),
        by=_text(value["by"]),
        reason=_text(value["reason"]),
    )


def _text(value: Any) -> str:
    # JSON can hold half a character, which nothing else can take, a log included.
    if not isinstance(value, str) or value.encode(errors="ignore").decode() != value:
        raise TypeError(f"not a text: {value!r:.40}")
    return value


def _which(value: Any, is_one: Callable[[str], bool]) -> str:
    """A name that was valid when it came with the half message."""
    if not isinstance(value, str) or not is_one(value):
        raise TypeError(f"not a name: {value!r:.40}")
    return value


@lru_cache(1_024)
def _group(value: Any) -> str:
    """A producer group, one object for all that name it: a million messages share a few."""
    return sys.intern(_which(value, names.is_group))


@lru_cache(1_024)
def _topic(value: Any) -> str:
    """A real topic, likewise."""
    return sys.intern(_which(value, names.is_topic))


def _coordinates(value: Any) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2:
        raise TypeError(f"not coordinates: {value!r:.40}")
    return _number(value[0]), _number(value[1])


def _short(error: Exception) -> str:
    """What goes into a log: a key or value of a stranger's may be a megabyte long."""
    return f"{error!r:.200}"


def _dump(data: dict[str, Any]) -> bytes:
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")


def _load(value: bytes) -> dict[str, Any]:
    try:
        # Three times as fast as the standard library's: a take-over may have a million to read.
        data = from_json(value)
    except ValueError as error:
        raise MalformedRecordError(f"not JSON: {error}") from None
    if not isinstance(data, dict):
        raise MalformedRecordError("not a JSON object")
    return data
