"""The topics of one partition as dictionaries, and a worker on them that does what the real one does, without Kafka.

The worker writes everything in the record formats, so that a take-over reads exactly what was written.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.support.partition_builder import Gates
from txbridge.core.check_policy import CheckPolicy
from txbridge.core.checkpoint import Checkpoint, encode_ops, op_headers, parse_op
from txbridge.core.decision_record import DecisionRecord
from txbridge.core.half_entry import HalfEntry
from txbridge.core.half_message import HalfMessage
from txbridge.core.half_queue import HalfQueue
from txbridge.core.names import Names
from txbridge.core.offset_topic import ParkedEntries
from txbridge.core.plan.choice import Limits, TransactionSize
from txbridge.core.plan.draft import Draft
from txbridge.core.plan.effects import MalformedRecord
from txbridge.core.plan.planner import DueRound, TurnPlanner

NAMES = Names()
CHECKPOINT_KEY = NAMES.checkpoint_key(0)


@dataclass
class Topics:
    """The committed records. Offsets have gaps, because markers and records of aborted transactions take some."""

    #: Half messages, or the size of a malformed record.
    half: dict[int, HalfMessage | int] = field(default_factory=dict)
    half_end: int = 0
    #: None is a malformed record.
    end: dict[int, DecisionRecord | None] = field(default_factory=dict)
    end_end: int = 0
    op: dict[int, tuple[bytes, list]] = field(default_factory=dict)
    op_end: int = 0
    #: Compacted: the last value of each key, none for a tombstone.
    offset: dict[bytes, bytes] = field(default_factory=dict)
    delivered: list[int] = field(default_factory=list)
    checks: list[tuple[int, int]] = field(default_factory=list)
    discards: list[tuple[int, str]] = field(default_factory=list)
    set_aside: list[int] = field(default_factory=list)

    @property
    def checkpoint(self) -> Checkpoint:
        value = self.offset.get(CHECKPOINT_KEY)
        return Checkpoint(half=0, end=0, op=0, topics={}) if value is None else Checkpoint.decode(value)

    @property
    def parked(self) -> dict[int, HalfEntry]:
        prefix = CHECKPOINT_KEY + b"/"
        return {
            int(key[len(prefix) :]): HalfEntry.decode(int(key[len(prefix) :]), value)
            for key, value in self.offset.items()
            if key.startswith(prefix)
        }

    def named_in_op(self) -> list[tuple[int, int]]:
        """Pairs (OP offset, half offset) of all half messages that OP names."""
        return [
            (op_offset, offset)
            for op_offset, (value, headers) in self.op.items()
            for offset in parse_op(value, headers)[1]
        ]

    def write(self, draft: Draft, replay_op: int, *, commit: bool) -> list[tuple[int, list[int]]]:
        """Write a Kafka transaction and return where its OP records landed. An aborted one only uses up offsets."""
        landed: list[tuple[int, list[int]]] = []
        for outcome, offsets in draft.ops():
            for value in encode_ops(offsets):
                if commit:
                    self.op[self.op_end] = (value, op_headers(outcome))
                    landed.append((self.op_end, offsets))
                self.op_end += 1
        if draft.ops():
            self.op_end += 1
        for number, entry in enumerate(draft.discards):
            draft.note_discarded(entry.offset, 0, len(self.discards) + number)
        if not commit:
            return landed
        self.delivered += [entry.offset for entry in draft.deliver]
        self.checks += [(entry.offset, entry.checks) for entry in draft.checks]
        self.discards += [(entry.offset, entry.reason or "") for entry in draft.discards]
        self.set_aside += draft.malformed
        for entry in draft.changed:
            self.offset[NAMES.parked_key(0, entry.offset)] = entry.encode(draft.next_end)
        for offset in draft.tombstones:
            del self.offset[NAMES.parked_key(0, offset)]
        checkpoint = Checkpoint(draft.watermark, draft.next_end, replay_op, {}, entry=draft.next_entry)
        self.offset[CHECKPOINT_KEY] = checkpoint.encode()
        return landed


@dataclass(frozen=True)
class Room:
    """Limits of one transaction: entries of END and bytes, then checks, discards and malformed records of HALF."""

    entries: int = 10**9
    bytes: int = 10**9
    checks: int = 1_000
    discards: int = 1_000
    malformed: int = 10**9


class Worker:
    """Owner of the partition since its take-over."""

    def __init__(self, topics: Topics, policy: CheckPolicy) -> None:
        self.topics = topics
        self.gates = Gates()
        checkpoint = topics.checkpoint
        self.queue = HalfQueue(
            policy,
            watermark=checkpoint.half,
            next_end=checkpoint.end,
            next_entry=checkpoint.entry,
            next_op=checkpoint.op,
        )
        self.queue.restore_parked(ParkedEntries(topics.parked.values()))
        for op_offset, (value, headers) in topics.op.items():
            if op_offset >= checkpoint.op:
                self.queue.restore_op(op_offset, *parse_op(value, headers))
        self.read(topics.half_end)

    def read(self, end: int) -> None:
        """Read HALF up to this offset, or to its end if that comes first."""
        end = min(end, self.topics.half_end)
        for offset in range(self.queue.half_position, end):
            record = self.topics.half.get(offset)
            if isinstance(record, HalfMessage):
                self.queue.read_half(record)
            elif record is not None:
                self.queue.read_malformed(offset, record)
        self.queue.advance_reader(end)

    def waiting(self, count: int) -> list[int]:
        """The next END offsets to apply, at most `count`."""
        return [offset for offset in self.topics.end if offset >= self.queue.next_end][:count]

    def draft(self, now: int, ends: list[int], as_of: int | None, dead: set[str], room: Room) -> Draft:
        """The plan for these END offsets and, if all of END is among them, for what is due at `as_of`."""
        records = [
            MalformedRecord(NAMES.end, 0, offset, None, b"x" * 50, (), "malformed") if record is None else record
            for offset, record in ((offset, self.topics.end[offset]) for offset in ends)
        ]
        named = [entry.half_offset for one in records if isinstance(one, DecisionRecord) for entry in one.entries]
        self.read(max(named, default=-1) + 1)
        size = TransactionSize(Limits(room.entries, room.bytes))
        planner = TurnPlanner(self.queue, size, self.gates, self.queue.enter_fresh, lambda _: {})
        choice = planner.choose(records, self.topics.end_end, now)
        due_round = None
        if as_of is not None and choice.end == self.topics.end_end:
            due = self.queue.timers.groups_with_checks_due(as_of, 10**9)
            due_round = DueRound(
                as_of,
                discard_as_of=as_of,
                groups=[group for group in due if group not in dead],
                obstacle=lambda _: None,
                most_checks=room.checks,
                most_discards=room.discards,
                is_probe=False,
            )
        return planner.plan(choice, now, due_round, may_discard=True, most_malformed=room.malformed)

    def apply(self, draft: Draft, landed: list[tuple[int, list[int]]]) -> None:
        for op_offset, offsets in landed:
            self.queue.ops.note_record(op_offset, offsets)
        draft.apply(draft.now)

    def known(self, below: int) -> dict[int, tuple]:
        """All state of the open entries below an offset, and the outcomes from the watermark to there."""
        return {entry.offset: describe(entry) for entry in self.open_entries if entry.offset < below} | {
            -1 - offset: (outcome,)
            for offset in range(self.queue.watermark, below)
            if (outcome := self.queue.outcome_of(offset)) is not None
        }

    @property
    def open_entries(self) -> list[HalfEntry]:
        """Open messages, those that are parked and not read again included."""
        return [entry for offset in self.topics.half if (entry := self.queue.entry(offset)) is not None]


def describe(entry: HalfEntry) -> tuple:
    return (
        entry.transaction_id,
        entry.group,
        entry.real_topic,
        entry.born,
        entry.size,
        entry.state,
        entry.checks,
        # The back-off of a held entry is not stored, so a take-over tries it sooner.
        None if entry.state.value == "held" else entry.next_due,
        entry.parked,
        entry.decided,
        entry.reason,
        entry.discarded_at,
        entry.resumed,
        entry.deliver_at,
    )
