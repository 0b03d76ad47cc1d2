"""Half messages, END records and a partition without Kafka, planned by TurnPlanner, for the tests of the pure core."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet

from txbridge.core.check_policy import CheckPolicy
from txbridge.core.decision_record import Decision, DecisionEntry, DecisionRecord, Source
from txbridge.core.half_entry import HalfEntry
from txbridge.core.half_message import HalfMessage
from txbridge.core.half_queue import HalfQueue
from txbridge.core.plan.choice import Limits, TransactionSize
from txbridge.core.plan.draft import Draft
from txbridge.core.plan.planner import DueRound, TurnPlanner

#: RocketMQ's times, but only three checks.
POLICY = CheckPolicy(transaction_timeout=6_000, transaction_check_interval=30_000, transaction_check_max=3)
COMMIT, ROLLBACK, UNKNOWN = Decision.COMMIT, Decision.ROLLBACK, Decision.UNKNOWN
EVERYTHING = 1_000_000


def id_of(offset: int) -> str:
    """The transaction id of the half message at an offset."""
    return f"{0xABCDEF00_00000000_00000000_00000000 + offset:032X}"


def half(
    offset: int,
    *,
    born: int = 1_000,
    group: str = "orders",
    topic: str = "orders.placed",
    immunity: str | None = None,
    size: int = 100,
    deliver_at: int | None = None,
) -> HalfMessage:
    return HalfMessage.of(
        offset=offset,
        transaction_id=id_of(offset),
        group=group,
        real_topic=topic,
        born=born,
        key=None,
        value=b"x" * size,
        headers=(),
        immunity=immunity,
        deliver_at=deliver_at,
    )


def entry(offset: int, decision: Decision, transaction_id: str | None = None) -> DecisionEntry:
    return DecisionEntry(offset, transaction_id or id_of(offset), decision)


def end(offset: int, *entries: DecisionEntry, group: str = "orders", source: Source = Source.CLIENT) -> DecisionRecord:
    return DecisionRecord(offset, group, source, entries)


def resume(offset: int, half_offset: int) -> DecisionRecord:
    return end(offset, entry(half_offset, UNKNOWN), source=Source.RESUME)


class Gates:
    """Real topics that cannot be written, and the reasons."""

    room = None

    def __init__(self) -> None:
        self.obstacles: dict[str, str] = {}

    def begin_draft(self) -> None:
        pass

    def are_clear(self, topics: AbstractSet[str]) -> bool:
        return self.obstacles.keys().isdisjoint(topics)

    def obstacle_of_new(self, open_entry: HalfEntry) -> str | None:
        return next(filter(None, map(self.obstacles.get, open_entry.topics)), None)

    obstacle_of_held = problem_of_any = obstacle_of_new


class Partition:
    """A HalfQueue with plans that are applied as the worker does it.

    OP records have every second offset, as if every transaction had one and then its marker.
    """

    def __init__(self, policy: CheckPolicy = POLICY, **start: int) -> None:
        self.queue = HalfQueue(policy, **start)
        #: HALF, as far as retention has not deleted it.
        self.halves: dict[int, HalfMessage] = {}
        self.gates = Gates()
        self.obstacles = self.gates.obstacles
        #: Groups without a live member.
        self.dead: set[str] = set()
        #: Groups whose check topic refuses records, and the reasons.
        self.unasked: dict[str, str] = {}
        self.max_entries = self.max_bytes = EVERYTHING
        self.next_op = start.get("next_op", 0)

    def prepare(self, *offsets: int, **kwargs) -> Partition:
        return self.read(*[half(offset, **kwargs) for offset in offsets])

    def read(self, *halves: HalfMessage) -> Partition:
        for one in halves:
            self.halves[one.offset] = one
            self.queue.note_id(one)
            self.queue.read_half(one)
        return self

    @property
    def planner(self) -> TurnPlanner:
        size = TransactionSize(Limits(self.max_entries, self.max_bytes))
        return TurnPlanner(self.queue, size, self.gates, self.queue.enter_fresh, self._load)

    def _load(self, half_offsets: Collection[int]) -> dict[int, HalfMessage]:
        return {offset: self.halves[offset] for offset in half_offsets if offset in self.halves}

    def draft(
        self,
        now: int,
        *records: DecisionRecord,
        checks: int = EVERYTHING,
        discards: int = EVERYTHING,
        malformed: int = EVERYTHING,
        due: int | None = None,
    ) -> Draft:
        """The plan for these records, those that are applied already left out, and for all that is due."""
        planner, queue = self.planner, self.queue
        waiting = [record for record in records if record.offset >= queue.next_end]
        choice = planner.choose(waiting, queue.next_end, now if due is None else due)
        planner.look_at_due(choice.due)
        return planner.plan(
            choice, now, self.due_round(now, checks, discards), may_discard=True, most_malformed=malformed
        )

    def due_round(
        self, as_of: int, checks: int = EVERYTHING, discards: int = EVERYTHING, groups: list[str] | None = None
    ) -> DueRound:
        due = self.queue.timers.groups_with_checks_due(as_of, EVERYTHING) if groups is None else groups
        return DueRound(
            as_of,
            discard_as_of=as_of,
            groups=[group for group in due if group not in self.dead],
            obstacle=lambda one: self.unasked.get(one.group),
            most_checks=checks,
            most_discards=discards,
            is_probe=False,
        )

    def commit(self, draft: Draft) -> Draft:
        for _, offsets in draft.ops():
            self.queue.ops.note_record(self.next_op, offsets)
            self.next_op += 2
        draft.apply(draft.now)
        return draft

    def step(self, now: int, *records: DecisionRecord, **limits: int) -> Draft:
        return self.commit(self.draft(now, *records, **limits))

    @property
    def open_entries(self) -> list[HalfEntry]:
        """Open messages of the partition, by half offset."""
        found = map(self.queue.entry, range(self.queue.half_position))
        return [open_entry for open_entry in found if open_entry is not None]


def offsets(entries: Sequence[HalfEntry]) -> list[int]:
    return [open_entry.offset for open_entry in entries]


def reasons(draft: Draft) -> list[str]:
    return [refusal.reason.name for refusal in draft.refused]
