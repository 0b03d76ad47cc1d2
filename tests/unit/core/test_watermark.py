"""The low watermark: the messages that it passes, those that are parked for it, and the state after a take-over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.partition_builder import COMMIT, POLICY, Partition, end, entry, half, id_of, offsets, reasons
from txbridge.core.check_policy import CheckPolicy
from txbridge.core.half_entry import HalfEntry
from txbridge.core.offset_topic import ParkedEntries
from txbridge.core.states import Outcome, TransactionState

NOW = 2_000


def test_it_passes_gaps_and_what_is_beyond_the_last_record():
    partition = Partition(watermark=3).prepare(5, 9)
    partition.queue.advance_reader(12)
    partition.queue.advance_reader(11)
    assert (partition.queue.watermark, partition.queue.half_position) == (5, 12)
    assert partition.step(NOW, end(0, entry(5, COMMIT))).watermark == 9
    assert partition.step(NOW, end(1, entry(9, COMMIT))).watermark == 12
    assert Partition(watermark=3).queue.watermark == 3


def test_a_record_is_read_once():
    partition = Partition()
    assert partition.queue.read_half(half(0)) is True
    assert partition.queue.read_half(half(0)) is False
    assert partition.queue.read_malformed(0, 5) is False
    assert list(partition.queue.window) == [(0, 100)]


def test_p9_it_does_not_lag_by_more_than_the_time_allowed():
    partition = Partition().prepare(0, 1, immunity="600").prepare(2, born=1_001, immunity="600")
    assert partition.draft(30_999).is_empty
    draft = partition.step(31_000)
    assert (offsets(draft.parked), draft.watermark, offsets(draft.changed)) == ([0, 1], 2, [0, 1])
    (parked, _) = draft.parked
    assert (parked.state, parked.checks, parked.next_due) == (TransactionState.PENDING, 0, 601_000)
    assert offsets(partition.step(31_001).parked) == [2]


@pytest.mark.parametrize("policy", [CheckPolicy(park_after_records=3), CheckPolicy(park_after_bytes=300)])
def test_p9_it_does_not_lag_by_more_records_or_bytes_than_allowed(policy):
    partition = Partition(policy).prepare(0, 1, 2)
    assert not partition.queue.must_park
    assert partition.draft(NOW).is_empty
    # Those of finished messages count until it passes them.
    partition.step(NOW, end(0, entry(1, COMMIT)))
    partition.prepare(3)
    assert partition.queue.must_park, "before more is read"
    draft = partition.step(NOW)
    assert (offsets(draft.parked), draft.watermark) == ([0], 2)
    assert not partition.queue.must_park


def test_bytes_of_what_a_take_over_finds_finished_do_not_make_the_next_one_due():
    """Two finished messages of 100 bytes before an open one: only its own 100 bytes would be read again."""
    for last, due in ((100, 1_000 + POLICY.transaction_timeout), (151, 0)):
        partition = Partition(replace(POLICY, park_after_bytes=150))
        partition.queue.restore_op(0, Outcome.COMMIT, [0, 1])
        partition.prepare(0, 1).prepare(2, size=last)
        assert partition.queue.next_due() == due


def test_parking_is_limited_and_the_rest_follows():
    partition = Partition().prepare(*range(5), immunity="600")
    partition.max_entries = 2
    steps = [partition.step(31_000) for _ in range(3)]
    assert [(offsets(draft.parked), draft.watermark) for draft in steps] == [([0, 1], 2), ([2, 3], 4), ([4], 5)]


def test_the_watermark_waits_for_what_is_not_set_aside():
    partition = Partition()
    for offset in range(4):
        partition.queue.read_malformed(offset, 50)
    draft = partition.draft(NOW, malformed=2)
    assert (draft.is_empty, draft.malformed, draft.watermark) == (False, [0, 1], 2)
    assert draft.ops() == [(Outcome.DISCARD, [0, 1])]
    partition.queue.read_malformed(4, 50)
    partition.commit(draft)
    assert (partition.queue.watermark, partition.queue.malformed) == (2, {2, 3, 4})


def parked(offset: int, state: TransactionState = TransactionState.PENDING, **others) -> HalfEntry:
    made = HalfEntry(offset, id_of(offset), "orders", "orders.placed", 1_000, 100, 7_000, state, parked=True)
    return made._replace(**others)


def restored(*entries: HalfEntry, watermark: int = 10, policy: CheckPolicy = POLICY) -> Partition:
    """A partition after a take-over that has found these parked entries."""
    partition = Partition(policy, watermark=watermark)
    partition.queue.restore_parked(ParkedEntries(entries))
    return partition


def test_p10_checks_go_on_after_a_take_over_with_the_next_number():
    partition = restored(parked(5, checks=2, next_due=67_000), parked(6, checks=3, next_due=70_000))
    assert partition.draft(66_999).is_empty
    assert [(one.offset, one.checks) for one in partition.step(67_000).checks] == [(5, 3)]
    assert offsets(partition.step(70_000).discards) == [6]


def test_p10_the_back_off_of_a_held_message_begins_anew_after_a_take_over():
    partition = restored(parked(5, TransactionState.HELD, decided=1, error="no such topic", next_due=3_000))
    partition.obstacles["orders.placed"] = "still not"
    for now, due in [(3_000, 4_000), (4_000, 6_000), (6_000, 10_000)]:
        assert partition.draft(now).is_empty
        assert partition.queue.next_due() == due


def test_p3_what_op_names_is_finished_and_the_last_record_counts():
    partition = Partition(watermark=4)
    partition.queue.restore_op(0, Outcome.DISCARD, [6, 2, 8])
    partition.queue.restore_op(1, Outcome.COMMIT, [4, 6])
    partition.queue.restore_op(2, Outcome.ROLLBACK, [7])
    reads = [partition.queue.read_half(half(offset)) for offset in (4, 5, 6, 7)]
    assert reads == [False, True, False, False]
    assert partition.queue.read_malformed(8, 50) is False, "it is in the discard topic already"
    assert partition.queue.malformed == frozenset()
    draft = partition.step(NOW, end(0, *[entry(offset, COMMIT) for offset in (2, 4, 6, 7)]))
    assert (draft.deliver, reasons(draft)) == ([], ["LATE", "REPEAT", "REPEAT", "CONTRADICTION"])
    assert partition.queue.watermark == 5
    discarded = restored(parked(6, TransactionState.DISCARDED, reason="EXPIRED", next_due=10**12), watermark=6)
    assert discarded.queue.read_half(half(6)) is False, "its body is not needed"


def test_op_is_replayed_from_the_first_record_that_names_something_above_the_watermark():
    partition = Partition(next_op=40).prepare(0, 1, 2)
    partition.next_op = 50
    assert partition.queue.ops.start == 40
    for end_offset, offset in enumerate((1, 2)):
        partition.step(NOW, end(end_offset, entry(offset, COMMIT)))
        assert partition.queue.ops.start == 50
    partition.step(NOW, end(2, entry(0, COMMIT)))
    assert partition.queue.watermark == 3
    # OP 50, 52 and 54 with a marker after each: the next record cannot be below 56.
    assert partition.queue.ops.start == 56
