"""Half messages, END records and a partition without Kafka, for the tests of the pure core."""

from __future__ import annotations

from txbridge.core.check_policy import CheckPolicy
from txbridge.core.decision_record import Decision, DecisionEntry, DecisionRecord, Source
from txbridge.core.half_message import HalfMessage
from txbridge.core.half_queue import HalfQueue
from txbridge.core.plan import due_work
from txbridge.core.plan.choice import EndChoice, Slice
from txbridge.core.plan.draft import Draft
from txbridge.core.transaction_size import Limits

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
    return HalfMessage(
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


class Partition:
    """A HalfQueue with drafts that are applied as the worker does it.

    OP records have every second offset, as if every transaction had one and then its marker.
    """

    def __init__(self, policy: CheckPolicy = POLICY, **start: int) -> None:
        self.queue = HalfQueue(policy, **start)
        self.dead: set[str] = set()
        #: Real topics that cannot be written, and the reasons.
        self.obstacles: dict[str, str] = {}
        #: Groups whose check topic refuses records, and the reasons.
        self.unasked: dict[str, str] = {}
        self.max_entries = self.max_bytes = EVERYTHING
        self.next_op = start.get("next_op", 0)

    def prepare(self, *offsets: int, **kwargs) -> Partition:
        for offset in offsets:
            self.queue.read_half(half(offset, **kwargs))
        return self

    def draft(
        self,
        now: int,
        *records: DecisionRecord,
        checks: int = EVERYTHING,
        discards: int = EVERYTHING,
        retries: int = EVERYTHING,
        parks: int = EVERYTHING,
    ) -> Draft:
        draft = Draft(self.queue, now)
        choice = EndChoice(self.queue, Limits(self.max_entries, self.max_bytes), due=now)
        for record in records:
            part = choice.take_entries(record)
            if part.stop > part.start:
                draft.apply_end(part, self.obstacle)
            if part.stop < len(record.entries):
                break
        due_work.deliver_due(draft, self.obstacle, self.obstacle, retries, self.max_bytes)
        due_work.discard(draft, now, discards)
        due_work.send_checks(
            draft, now, lambda group: group not in self.dead, checks, lambda one: self.unasked.get(one.group)
        )
        draft.set_aside_malformed()
        draft.park_entries(parks)
        return draft

    def obstacle(self, open_entry) -> str | None:
        return self.obstacles.get(open_entry.real_topic)

    def commit(self, draft: Draft) -> Draft:
        for _, offsets in draft.ops():
            self.queue.ops.note_record(self.next_op, offsets)
            self.next_op += 2
        draft.apply(draft.now)
        return draft

    def step(self, now: int, *records: DecisionRecord, **limits: int) -> Draft:
        return self.commit(self.draft(now, *records, **limits))


def whole(record: DecisionRecord) -> Slice:
    """All entries of an END record."""
    return Slice(record, 0, len(record.entries))


def offsets(entries) -> list[int]:
    return [open_entry.offset for open_entry in entries]


def reasons(draft: Draft) -> list[str]:
    return [refusal.reason.name for refusal in draft.refused]
