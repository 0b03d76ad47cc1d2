"""END entries: the effect of each on each state, in one Kafka transaction and over several."""

from __future__ import annotations

import pytest

from tests.support.partition_builder import (
    COMMIT,
    POLICY,
    ROLLBACK,
    UNKNOWN,
    Partition,
    end,
    entry,
    id_of,
    offsets,
    reasons,
    resume,
)
from txbridge.core import dedup
from txbridge.core.decision_record import Source
from txbridge.core.half_queue import HalfQueue
from txbridge.core.plan.effects import MalformedRecord
from txbridge.core.states import Outcome, TransactionState

#: A time at which no message that was born at 1,000 is due.
NOW = 2_000
DISCARD_AT = 97_000  # born 1,000; checks at 7,000, 37,000 and 67,000
MISSING = "no such topic"


def discarded(*half_offsets: int) -> Partition:
    """A partition whose half messages were checked three times and discarded at 97,000."""
    partition = Partition().prepare(*half_offsets)
    for now in (7_000, 37_000, 67_000, DISCARD_AT):
        last = partition.step(now)
    assert offsets(last.discards) == list(half_offsets)
    return partition


def held(*half_offsets: int, **options: int) -> Partition:
    """A partition that has committed these half messages while their topic was missing. It is there now."""
    partition = Partition().prepare(*half_offsets, **options)
    partition.obstacles["orders.placed"] = MISSING
    partition.step(NOW, end(0, *[entry(offset, COMMIT) for offset in half_offsets]))
    partition.obstacles.clear()
    return partition


@pytest.mark.parametrize("source", [Source.CLIENT, Source.CHECK, Source.OPERATOR])
def test_p2_a_commit_is_delivered_and_named_in_the_same_transaction(source):
    partition = Partition().prepare(0, 1)
    draft = partition.step(NOW, end(0, entry(1, COMMIT), source=source))
    assert offsets(draft.deliver) == [1]
    assert draft.ops() == [(Outcome.COMMIT, [1])]
    assert (draft.rolled_back, draft.held, draft.refused, draft.changed, draft.tombstones) == ([], [], [], [], [])
    assert (partition.queue.entry(1), partition.queue.outcome_of(1)) == (None, Outcome.COMMIT)
    assert partition.queue.entry(0) is not None


def test_p4_a_rollback_is_named_and_never_delivered():
    partition = Partition().prepare(0, 1)
    # Nobody asks whether it could be delivered.
    partition.obstacles["orders.placed"] = MISSING
    draft = partition.step(NOW, end(0, entry(1, ROLLBACK)))
    assert (draft.deliver, draft.held, offsets(draft.rolled_back)) == ([], [], [1])
    assert draft.ops() == [(Outcome.ROLLBACK, [1])]
    assert partition.queue.outcome_of(1) is Outcome.ROLLBACK


def test_unknown_leaves_the_message_pending():
    partition = Partition().prepare(0)
    assert partition.draft(NOW).is_empty
    draft = partition.draft(NOW, end(0, entry(0, UNKNOWN)))
    assert (draft.ops(), draft.changed, draft.refused, draft.entries) == ([], [], [], 1)
    assert not draft.is_empty, "END has gone on"
    partition.commit(draft)
    assert partition.queue.entry(0).state is TransactionState.PENDING
    assert partition.queue.next_end == 1


def test_p9_only_the_last_outcomes_are_remembered(monkeypatch):
    monkeypatch.setattr(dedup, "PLACES", 4)
    partition = Partition()
    for offset in range(10):
        partition.prepare(offset).step(NOW, end(offset, entry(offset, COMMIT)))
    assert [offset for offset in range(10) if partition.queue.remembered(offset)] == [6, 7, 8, 9]


def test_p5_of_a_message_that_was_finished_twice_the_last_outcome_is_remembered(monkeypatch):
    monkeypatch.setattr(dedup, "PLACES", 2)
    queue = HalfQueue(POLICY, watermark=10)
    for offset, outcome in [(5, Outcome.DISCARD), (6, Outcome.COMMIT), (5, Outcome.ROLLBACK)]:
        queue.finish_messages([offset], outcome)
    assert queue.remembered(5).outcome is Outcome.ROLLBACK
    queue.finish_messages([7], Outcome.COMMIT)
    assert (queue.remembered(5), queue.remembered(6).outcome) == (None, Outcome.COMMIT)


def test_the_transaction_id_is_the_right_to_decide():
    partition = Partition().prepare(0, 1)
    stolen = [entry(0, decision, id_of(1)) for decision in (COMMIT, ROLLBACK, UNKNOWN)]
    # It is tested before the group.
    draft = partition.step(NOW, end(0, *stolen), end(1, *stolen, group="billing"))
    assert (draft.ops(), reasons(draft)) == ([], ["WRONG_TRANSACTION_ID"] * 6)
    assert partition.queue.entry(0).state is TransactionState.PENDING


def test_only_its_own_group_decides():
    draft = Partition().prepare(0).step(NOW, end(0, entry(0, COMMIT), group="billing"))
    assert (draft.ops(), reasons(draft)) == ([], ["WRONG_GROUP"])


def test_p7_a_decision_after_the_discard_is_late():
    partition = discarded(0, 1)
    draft = partition.step(DISCARD_AT + 1, end(0, entry(1, COMMIT), entry(1, ROLLBACK), entry(1, UNKNOWN)))
    assert (draft.ops(), draft.changed, reasons(draft)) == ([], [], ["LATE", "LATE"])
    assert partition.queue.entry(1).state is TransactionState.DISCARDED


def test_p7_a_second_resume_does_nothing():
    partition = discarded(0)
    draft = partition.step(100_000, resume(0, 0), resume(1, 0))
    assert (offsets(draft.resumed), reasons(draft)) == ([0], ["NOT_DISCARDED"])
    later = partition.step(100_001, resume(2, 0))
    assert (later.resumed, reasons(later)) == ([], ["NOT_DISCARDED"])


def test_a_resumed_message_can_be_committed_in_the_same_transaction_and_needs_its_room():
    partition = discarded(0)
    draft = partition.draft(100_000, resume(0, 0), end(1, entry(0, COMMIT)))
    assert (draft.ops(), draft.changed, draft.tombstones) == ([(Outcome.COMMIT, [0])], [], [0])
    draft.abandon()
    partition.prepare(1, born=99_000, size=300).max_bytes = 350
    records = [resume(0, 0), end(1, entry(1, COMMIT)), end(2, entry(0, COMMIT))]
    assert [offsets(partition.step(100_000, *records).deliver) for _ in range(2)] == [[1], [0]]


def test_a_resume_needs_the_transaction_id_and_the_group():
    partition = discarded(0)
    draft = partition.step(
        100_000,
        end(0, entry(0, UNKNOWN, id_of(1)), source=Source.RESUME),
        end(1, entry(0, UNKNOWN), source=Source.RESUME, group="billing"),
    )
    assert (draft.resumed, reasons(draft)) == ([], ["WRONG_TRANSACTION_ID", "WRONG_GROUP"])


def test_p6_p8_a_held_message_is_retried_with_back_off_and_delivered_when_it_can_be_and_never_checked():
    partition = held(0)
    asked = []
    partition.gates.obstacle_of_held = lambda _: asked.append(now) or "still not"
    for now in range(NOW, 200_000, 500):
        assert partition.draft(now).is_empty
    # 1, 2, 4, 8, 16, 32, 60 and 60 seconds after the previous time.
    assert asked == [3_000, 5_000, 9_000, 17_000, 33_000, 65_000, 125_000, 185_000]
    assert partition.queue.entry(0).error == "still not"
    partition.gates.obstacle_of_held = lambda _: None
    assert partition.step(244_999).deliver == []
    draft = partition.draft(245_000)
    assert (offsets(draft.deliver), draft.tombstones, draft.ops()) == ([0], [0], [(Outcome.COMMIT, [0])])


def test_p14_op_says_which_ends_decided_and_names_apart_what_was_held():
    partition = held(0)
    partition.prepare(1, 2)
    draft = partition.draft(NOW + 60_000, end(1, entry(2, COMMIT), entry(1, ROLLBACK)))
    assert draft.ops() == [(Outcome.COMMIT, [2]), (Outcome.COMMIT, [0]), (Outcome.ROLLBACK, [1])]
    assert [draft.ends_of(*named) for named in draft.ops()] == [((1, 0), (2, 0)), None, None]


def test_a_transaction_may_be_exactly_full():
    partition = Partition()
    partition.max_bytes = 350
    for offset, size in enumerate((100, 150, 100, 10)):
        partition.prepare(offset, size=size)
    record = end(0, *[entry(offset, COMMIT) for offset in range(4)])
    assert [offsets(partition.step(NOW, record).deliver) for _ in range(2)] == [[0, 1, 2], [3]]


def test_held_messages_have_a_quarter_beside_decisions_and_otherwise_all_room():
    partition = held(0, 1, 2, 3)
    partition.prepare(4).max_bytes = 400
    before = partition.open_entries
    draft = partition.step(NOW + 1_000, end(1, entry(4, COMMIT)))
    assert (offsets(draft.deliver), draft.left_out) == ([4, 0], True)
    # Those without room wait as they are.
    assert draft.changed == []
    assert partition.open_entries == before[1:4]
    draft = partition.step(NOW + 1_000)
    assert (offsets(draft.deliver), draft.left_out) == ([1, 2, 3], False)


def test_no_held_message_overtakes_a_larger_one_that_has_no_room():
    partition = held(0, size=300)
    partition.prepare(1, 2).max_bytes = 350
    partition.obstacles["orders.placed"] = MISSING
    partition.step(NOW, end(1, entry(1, COMMIT)))
    partition.obstacles.clear()
    # Otherwise the large one would never be delivered.
    assert offsets(partition.step(NOW + 1_000, end(2, entry(2, COMMIT))).deliver) == [2]
    assert offsets(partition.step(NOW + 1_000).deliver) == [0]
    assert offsets(partition.step(NOW + 1_000).deliver) == [1]
    alone = held(0, size=10_000)
    alone.max_bytes = 350
    assert offsets(alone.step(NOW + 1_000).deliver) == [0]


def test_end_goes_on_over_malformed_records_and_markers():
    partition = Partition(next_end=5).prepare(0, 1)
    first, second = (MalformedRecord("END", 0, offset, None, b"x" * 60, (), "nonsense") for offset in (6, 10))
    records = first, end(9, entry(0, COMMIT)), second
    # There is a gap before each record. A malformed one needs its room for the copy.
    partition.max_bytes = 200
    draft = partition.draft(NOW, *records)
    assert (offsets(draft.deliver), draft.next_end) == ([0], 10)
    draft.abandon()
    partition.max_bytes = 220
    draft = partition.step(NOW, *records)
    assert (offsets(draft.deliver), draft.next_end) == ([0], 11)
    # Markers follow the last record.
    draft = partition.planner.plan_checkpoint(NOW, NOW, 13)
    assert not draft.is_empty
    partition.commit(draft)
    assert partition.queue.next_end == 13
    assert partition.planner.plan_checkpoint(NOW, NOW, 12).is_empty


def snapshot(partition: Partition):
    queue = partition.queue
    return (
        partition.open_entries,
        [queue.outcome_of(offset) for offset in range(20)],
        queue.malformed,
        queue.watermark,
        queue.next_end,
        queue.ops.start,
        queue.next_due(),
    )


def test_p3_an_aborted_transaction_leaves_no_trace():
    partition = Partition()
    partition.prepare(0, 1, 2).prepare(3, topic="missing")
    partition.queue.read_malformed(4, 10)
    partition.obstacles["missing"] = MISSING
    before = snapshot(partition)
    records = [end(0, entry(0, COMMIT), entry(1, ROLLBACK)), end(1, entry(3, COMMIT)), end(2, entry(0, COMMIT))]
    for _ in range(3):
        draft = partition.draft(7_000, *records)
        assert (offsets(draft.deliver), offsets(draft.rolled_back)) == ([0], [1])
        assert (offsets(draft.held), offsets(draft.checks), draft.malformed) == ([3], [2], [4])
        assert (draft.watermark, draft.next_end) == (5, 3)
        draft.abandon()
        assert snapshot(partition) == before
    partition.step(7_000, *records)
    assert partition.queue.watermark == 5


def test_p3_retries_discards_and_expiries_of_an_aborted_transaction_come_again():
    partition = discarded(0)
    forget_at = DISCARD_AT + partition.queue.policy.discard_retention
    partition.prepare(1, born=97_000, topic="missing")
    partition.prepare(2, born=97_000)
    partition.obstacles["missing"] = MISSING
    partition.step(97_000, end(0, entry(1, COMMIT)))
    partition.step(127_000)
    partition.obstacles.clear()
    before = snapshot(partition)
    for _ in range(3):
        draft = partition.draft(forget_at)
        assert (offsets(draft.forgotten), offsets(draft.deliver), offsets(draft.discards)) == ([0], [1], [2])
        assert [one.reason for one in draft.discards] == ["EXPIRED"]
        draft.abandon()
        assert snapshot(partition) == before
    assert partition.step(forget_at).ops() == [(Outcome.COMMIT, [1]), (Outcome.DISCARD, [2])]
    assert partition.draft(forget_at).is_empty


def test_p9_aborting_for_hours_does_not_fill_the_schedules():
    partition = held(0, 1)
    partition.prepare(*range(2, 12))
    partition.gates.obstacle_of_held = lambda _: MISSING
    partition.step(7_000)
    late = 7_000 + partition.queue.policy.transaction_max_age + 1
    for seconds in range(5_000):
        draft = partition.draft(late + 1_000 * seconds)
        assert len(draft.discards) == 10
        draft.abandon()
    timers = partition.queue.timers
    scheduled = [timers._timers, timers._exhausted, timers._by_age, *timers._checks.schedules.values()]
    assert sum(len(schedule) for schedule in scheduled) < 4 * 1_024


def test_the_transaction_id_and_then_the_group_are_tested_before_a_decision_taken():
    finished = Partition().prepare(0)
    finished.step(NOW, end(0, entry(0, COMMIT)))
    for partition in (held(0), discarded(0), finished):
        records = [end(1, *(entry(0, decision, id_of(9)) for decision in (COMMIT, ROLLBACK, UNKNOWN)))]
        records.append(end(2, entry(0, COMMIT), group="billing"))
        assert reasons(partition.step(DISCARD_AT, *records)) == ["WRONG_TRANSACTION_ID"] * 3 + ["WRONG_GROUP"]
