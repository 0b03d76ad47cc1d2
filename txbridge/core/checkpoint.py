"""OP records, their positions, and the checkpoint: the notes of a worker for the next owner of a partition."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple

from txbridge.core import names
from txbridge.core.headers import MalformedRecordError, OurHeaders, whole_number
from txbridge.core.json_fields import dump, load, number, short, text
from txbridge.core.names import Headers
from txbridge.core.states import Outcome

#: Bytes of a value that are hashed: enough to tell records apart, and few enough for each Kafka transaction.
_MOST = 65_536

#: Largest value of one OP record in bytes: well below Kafka's default record limit of 1 MiB.
MAX_OP_BYTES = 100_000


class Mark(NamedTuple):
    """The last record that was read of a log, as the checkpoint keeps it."""

    offset: int
    digest: str
    #: Leader epoch of the record, and its append time (ms), if they are known. A leader that was elected after the log
    #: had lost its tail has a higher epoch.
    epoch: int | None = None
    appended: int | None = None


def digest(key: bytes | None, value: bytes | None, transaction_id: str = "") -> str:
    """64 bits of a hash of a record, in hexadecimal."""
    found = blake2b(digest_size=8)
    for part in (key or b"", (value or b"")[:_MOST], transaction_id.encode()):
        found.update(b"%d:" % len(part))
        found.update(part)
    return found.hexdigest()


def encode_ops(offsets: Iterable[int]) -> list[bytes]:
    """Values of the OP records that name these half offsets, split at MAX_OP_BYTES."""
    named = list(offsets)
    joined = ",".join(map(str, named)).encode()
    if len(joined) <= MAX_OP_BYTES:
        return [joined] if named else []
    values: list[bytes] = []
    texts: list[str] = []
    size = 0
    for offset in named:
        digits = str(offset)
        if size + len(digits) > MAX_OP_BYTES:
            values.append(",".join(texts).encode())
            texts, size = [], 0
        texts.append(digits)
        size += len(digits) + 1
    if texts:
        values.append(",".join(texts).encode())
    return values


#: An entry of END: the offset of its record, and its index there.
Position = tuple[int, int]


def op_headers(outcome: Outcome, ends: tuple[Position, Position] | None = None) -> list[tuple[str, bytes | None]]:
    """Headers of an OP record.

    `ends`: the range of END with the decisions about all named messages: first entry, and the one behind the last.
    """
    applied = () if ends is None else ((names.ENDS_APPLIED, b"%d:%d-%d:%d" % (*ends[0], *ends[1])),)
    return [
        (names.VERSION, names.PROTOCOL_VERSION),
        (names.TAGS, names.REMOVE_TAG),
        (names.OUTCOME, outcome.value.encode()),
        *applied,
    ]


def parse_op(value: bytes | None, headers: Headers | None) -> tuple[Outcome, list[int]]:
    """Outcome and half offsets of an OP record. Raises MalformedRecordError."""
    ours = OurHeaders(headers)
    ours.require_version("OP record")
    if ours.require_text(names.TAGS).encode() != names.REMOVE_TAG:
        raise MalformedRecordError(f"header {names.TAGS} is not d")
    name = ours.require_text(names.OUTCOME)
    try:
        outcome = Outcome(name)
        named = (value or b"").decode("ascii")
    except UnicodeDecodeError as error:
        raise MalformedRecordError(str(error)) from None
    except ValueError:
        raise MalformedRecordError(f"{name[:40]!r} is not a valid Outcome") from None
    return outcome, [whole_number(offset, "half offset") for offset in named.split(",")]


class OpPositions:
    """What a take-over reads of OP: from the first record on that names an offset at or above the low watermark."""

    def __init__(self, next_op: int) -> None:
        # OP offset of each, and the highest half offset that it names.
        self._records: deque[tuple[int, int]] = deque()
        #: Lower bound of the end of OP, from the records that are known.
        self.end = next_op
        #: OP offset of the last known record; -1 when none is known.
        self.last = -1

    @property
    def start(self) -> int:
        """OP offset from which a take-over must replay: that of the first record that names an offset >= watermark."""
        return self._records[0][0] if self._records else self.end

    def count_from(self, op_offset: int) -> int:
        """Number of OP records from this one on, at or above `start`."""
        if op_offset <= self.start:
            return len(self._records)
        return sum(offset >= op_offset for offset, _ in self._records)

    def restore_record(self, op_offset: int, half_offsets: Collection[int], *, is_needed: bool) -> None:
        """Take in one OP record, in the order of OP. `is_needed`: it names something at or above the watermark."""
        if is_needed or self._records:
            # From the first needed record on, every record is counted. `advance_start` looks at the first only.
            self._records.append((op_offset, max(half_offsets, default=-1)))
        self.last, self.end = op_offset, op_offset + 1

    def note_record(self, op_offset: int, half_offsets: Collection[int]) -> None:
        """Note where an OP record of ours landed. `advance_start` comes after."""
        self._records.append((op_offset, max(half_offsets)))
        # Its transaction is committed, so the marker takes an offset behind it, and our next record lands above that.
        # This makes a difference when retention has deleted all of OP and the log begins behind the marker.
        self.last, self.end = op_offset, op_offset + 2

    def advance_start(self, watermark: int) -> None:
        """Drop the first records while they name nothing at or above the low watermark, which has moved."""
        while self._records and self._records[0][1] < watermark:
            self._records.popleft()


class Cut(NamedTuple):
    """A loss that a person has acknowledged: the tail of HALF, or of END, or of both."""

    #: HALF offset from which on messages were lost. The log may have grown again.
    half: int
    #: OP offset. OP records below it that name HALF offsets from `half` on mean lost messages.
    op: int
    #: Time (ms), person and reason of the acknowledgement.
    at: int
    by: str
    reason: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Progress of a partition. `owner` and `seq` name the Kafka transaction that wrote it."""

    #: Low watermark: every half message below it is finished or parked.
    half: int
    #: Next END offset to apply.
    end: int
    #: OP offset from which a take-over replays.
    op: int
    #: Topic ids of half, end, op and offset: a topic that was deleted and created again has another.
    topics: Mapping[str, str]
    owner: str = ""
    seq: int = 0
    #: HALF offset up to which HALF was read. No OP record and no parked entry names it or a later one. None: not known.
    read: int | None = None
    #: Number of OP records from `op` on, those of this Kafka transaction included. A reader that sees fewer has not
    #: seen all.
    ops: int = 0
    #: HALF offset from which a take-over reads, to know the ids of the last messages (`dedup`). None: from `half`.
    recent: int | None = None
    #: Index of the next entry to apply within the END record at `end`; those before it are applied.
    entry: int = 0
    #: By short name of the topic (half, end): the last record that was read there.
    marks: Mapping[str, Mark] = field(default_factory=dict)
    #: The last loss that a person has acknowledged.
    cut: Cut | None = None

    def meant(self, op_offset: int, half_offsets: list[int]) -> list[int]:
        """The half offsets that an OP record names, without those that mean lost messages."""
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
        return dump(data)

    @classmethod
    def decode(cls, value: bytes) -> Checkpoint:
        data = load(value)
        try:
            return cls(
                half=number(data["half"]),
                end=number(data["end"]),
                op=number(data["op"]),
                topics={text(name): text(topic_id) for name, topic_id in data["topics"].items()},
                owner=text(data["owner"]),
                seq=number(data["seq"]),
                read=None if data.get("read") is None else number(data["read"]),
                ops=number(data.get("ops", 0)),
                recent=None if data.get("recent") is None else number(data["recent"]),
                entry=number(data.get("entry", 0)),
                marks={text(short): _mark(mark) for short, mark in data.get("marks", {}).items()},
                cut=None if data.get("cut") is None else _cut(data["cut"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise MalformedRecordError(f"not a checkpoint: {short(error)}") from None


def offset_headers() -> list[tuple[str, bytes | None]]:
    return [(names.VERSION, names.PROTOCOL_VERSION)]


def _mark(value: Any) -> Mark:
    if not isinstance(value, list) or len(value) != 4:
        raise TypeError(f"not a mark: {value!r:.40}")
    offset, digest, epoch, appended = value
    return Mark(
        number(offset),
        text(digest),
        None if epoch is None else number(epoch),
        None if appended is None else number(appended),
    )


def _cut(value: Any) -> Cut:
    return Cut(
        half=number(value["half"]),
        op=number(value["op"]),
        at=number(value["at"]),
        by=text(value["by"]),
        reason=text(value["reason"]),
    )
