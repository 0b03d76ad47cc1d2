"""The low watermark: the messages that it passes, those that are parked for it, and the state after a take-over."""

from __future__ import annotations

import pytest

from tests.support.partition_builder import (
    COMMIT,
    POLICY,
    ROLLBACK,
    Partition,
    end,
    entry,
    half,
    id_of,
    offsets,
    reasons,
    resume,
    whole,
)
from txbridge.core.check_policy import CheckPolicy
from txbridge.core.half_entry import HalfEntry
from txbridge.core.half_queue import HalfQueue
from txbridge.core.offset_topic import ParkedEntries
from txbridge.core.plan import due_work
from txbridge.core.plan.draft import Draft
from txbridge.core.states import Outcome, TransactionState

NOW = 2_000


# --- the watermark ----------------------------------------------------------------------------------------------------


def test_it_stands_before_the_first_open_message():
    partition = Partition().prepare(0, 1, 2, 3)
    assert partition.queue.watermark == 0
    draft = partition.step(NOW, end(0, entry(1, COMMIT), entry(0, ROLLBACK), entry(3, COMMIT)))
    assert (draft.watermark, partition.queue.watermark) == (2, 2)
    draft = partition.step(NOW, end(1, entry(2, COMMIT)))
    assert (draft.watermark, partition.queue.watermark) == (4, 4)


def test_a_transaction_that_does_not_look_at_it_leaves_it_where_it_is():
    partition = Partition().prepare(0, 1)
    partition.step(NOW, end(0, entry(0, COMMIT)))
    assert Draft(partition.queue, NOW).watermark == 1


def test_it_passes_gaps_and_what_is_beyond_the_last_record():
    partition = Partition(watermark=3).prepare(5, 9)
    partition.queue.advance_reader(12)
    partition.queue.advance_reader(11)
    assert (partition.queue.watermark, partition.queue.half_position) == (5, 12)
    assert partition.step(NOW, end(0, entry(5, COMMIT))).watermark == 9
    assert partition.step(NOW, end(1, entry(9, COMMIT))).watermark == 12
    assert Partition(watermark=3).queue.watermark == 3


def test_outcomes_below_it_are_forgotten_and_above_it_are_not():
    partition = Partition().prepare(0, 1, 2)
    partition.step(NOW, end(0, entry(0, COMMIT), entry(2, ROLLBACK)))
    assert [partition.queue.outcome_of(offset) for offset in range(3)] == [None, None, Outcome.ROLLBACK]
    assert list(partition.queue.iter_window()) == [(1, 100), (2, 100)]
    assert partition.queue.window_bytes == 200


def test_a_record_is_read_once():
    partition = Partition()
    assert partition.queue.read_half(half(0)) is True
    assert partition.queue.read_half(half(0)) is False
    assert partition.queue.read_malformed(0, 5) is False
    assert list(partition.queue.iter_window()) == [(0, 100)]


# --- parking ----------------------------------------------------------------------------------------------------------


def test_p9_it_does_not_lag_by_more_than_the_time_allowed():
    partition = Partition().prepare(0, 1, immunity="600").prepare(2, born=1_001, immunity="600")
    assert partition.draft(30_999).is_empty
    draft = partition.step(31_000)
    assert (offsets(draft.parked), draft.watermark, offsets(draft.changed)) == ([0, 1], 2, [0, 1])
    (parked, _) = draft.parked
    assert (parked.state, parked.checks, parked.next_due) == (TransactionState.PENDING, 0, 601_000)
    assert offsets(partition.step(31_001).parked) == [2]


def test_p9_it_does_not_lag_by_more_records_than_allowed():
    partition = Partition(CheckPolicy(park_after_records=3)).prepare(0, 1, 2)
    assert partition.draft(NOW).is_empty
    partition.prepare(3, 4)
    draft = partition.step(NOW)
    assert (offsets(draft.parked), draft.watermark) == ([0, 1], 2)


def test_p9_it_does_not_lag_by_more_bytes_than_allowed():
    partition = Partition(CheckPolicy(park_after_bytes=300)).prepare(0, 1, 2)
    assert partition.draft(NOW).is_empty
    partition.prepare(3, size=1)
    draft = partition.step(NOW)
    assert (offsets(draft.parked), draft.watermark, partition.queue.window_bytes) == ([0], 1, 201)


def test_the_bytes_that_are_allowed_are_allowed():
    policy = CheckPolicy(park_after_bytes=100)
    assert Partition(policy).prepare(0, size=100).queue.next_due() == 1_000 + policy.transaction_timeout
    assert Partition(policy).prepare(0, size=101).queue.next_due() == 0


def test_bytes_of_what_a_take_over_finds_finished_do_not_make_the_next_one_due():
    """Two finished messages of 100 bytes before an open one: only its own 100 bytes would be read again."""
    partition = Partition(CheckPolicy(park_after_bytes=150))
    partition.queue.restore_op(0, Outcome.COMMIT, [0, 1])
    partition.prepare(0, 1, 2)
    assert partition.queue.next_due() == 1_000 + partition.queue.policy.transaction_timeout


def test_bytes_of_finished_messages_count_until_it_passes_them():
    partition = Partition(CheckPolicy(park_after_bytes=300)).prepare(0, 1, 2)
    partition.step(NOW, end(0, entry(1, COMMIT)))
    partition.prepare(3)
    draft = partition.step(NOW)
    assert (offsets(draft.parked), draft.watermark, partition.queue.window_bytes) == ([0], 2, 200)


def test_a_finished_message_is_not_parked():
    partition = Partition().prepare(0, 1)
    draft = partition.step(31_000, end(0, entry(0, COMMIT)))
    assert (offsets(draft.checks), draft.parked, offsets(draft.changed)) == ([1], [], [1])


def test_parking_is_limited_and_the_rest_follows():
    partition = Partition().prepare(*range(5), immunity="600")
    steps = [partition.step(31_000, parks=2) for _ in range(3)]
    assert [(offsets(draft.parked), draft.watermark) for draft in steps] == [([0, 1], 2), ([2, 3], 4), ([4], 5)]


def test_a_parked_message_is_still_checked_and_decided():
    partition = Partition().prepare(0, immunity="600")
    partition.step(31_000)
    assert partition.queue.watermark == 1
    assert offsets(partition.step(601_000).checks) == [0]
    draft = partition.draft(601_001, end(0, entry(0, COMMIT)))
    assert (offsets(draft.deliver), draft.tombstones, draft.ops()) == ([0], [0], [(Outcome.COMMIT, [0])])
    partition.commit(draft)
    assert partition.queue.outcome_of(0) is None
    assert reasons(partition.step(601_002, end(1, entry(0, ROLLBACK)))) == ["CONTRADICTION"]


def test_a_message_parked_before_its_check_fell_due_is_checked_once():
    partition = Partition(CheckPolicy(park_after_records=0)).prepare(0)
    assert offsets(partition.step(NOW).parked) == [0]
    assert partition.step(6_999).checks == []
    assert offsets(partition.step(7_000).checks) == [0]
    assert partition.step(7_001).checks == []


def test_a_message_that_was_never_parked_leaves_no_tombstone():
    partition = Partition().prepare(0)
    assert partition.draft(NOW, end(0, entry(0, COMMIT))).tombstones == []


def test_a_message_can_be_discarded_above_the_watermark():
    # Message 0 is not checked yet, and these Kafka transactions have no room to park it.
    partition = Partition().prepare(0, immunity="3600").prepare(1)
    for now in (7_000, 37_000, 67_000):
        partition.step(now, parks=0)
    draft = partition.step(97_000, parks=0)
    assert (offsets(draft.discards), draft.watermark) == ([1], 0)
    assert reasons(partition.step(97_001, end(0, entry(1, COMMIT)))) == ["LATE"]
    assert offsets(partition.step(97_002, resume(1, 1)).resumed) == [1]
    assert offsets(partition.step(97_003, end(2, entry(1, COMMIT))).deliver) == [1]


# --- malformed --------------------------------------------------------------------------------------------------------


def test_p8_a_malformed_half_message_is_set_aside_and_stops_nothing():
    partition = Partition().prepare(0)
    assert partition.queue.read_malformed(1, 50) is True
    partition.prepare(2)
    assert partition.queue.malformed == {1}
    draft = partition.step(NOW, end(0, entry(0, COMMIT), entry(2, COMMIT)))
    assert draft.malformed == [1]
    assert draft.ops() == [(Outcome.COMMIT, [0, 2]), (Outcome.DISCARD, [1])]
    assert (draft.watermark, partition.queue.watermark, partition.queue.malformed) == (3, 3, frozenset())


def test_the_watermark_waits_for_what_is_not_set_aside():
    partition = Partition()
    for offset in range(4):
        partition.queue.read_malformed(offset, 50)
    draft = partition.draft(NOW)
    draft.set_aside_malformed(2)
    draft.park_entries(10)
    assert (draft.malformed, draft.watermark) == ([0, 1], 2)
    assert draft.ops() == [(Outcome.DISCARD, [0, 1])]
    partition.queue.read_malformed(4, 50)
    partition.commit(draft)
    assert (partition.queue.watermark, partition.queue.malformed) == (2, {2, 3, 4})


def test_a_malformed_half_message_that_was_set_aside_is_not_set_aside_again():
    queue = HalfQueue(POLICY)
    queue.restore_op(0, Outcome.DISCARD, [1])
    queue.read_half(half(0))
    assert queue.read_malformed(1, 50) is False
    assert queue.malformed == frozenset()


def test_setting_aside_alone_is_worth_a_transaction():
    partition = Partition()
    partition.queue.read_malformed(0, 50)
    assert not partition.draft(NOW).is_empty


# --- take-over --------------------------------------------------------------------------------------------------------


def parked(offset: int, state: TransactionState = TransactionState.PENDING, **kwargs) -> HalfEntry:
    fields = {
        "parked": True,
        "offset": offset,
        "state": state,
        "transaction_id": id_of(offset),
        "group": "orders",
        "real_topic": "orders.placed",
        "born": 1_000,
        "size": 100,
        "checks": 0,
        "next_due": 7_000,
    }
    return HalfEntry(**{**fields, **kwargs})


def test_p10_a_parked_entry_comes_back_as_it_was():
    for before in (
        parked(5, checks=2, next_due=67_000, resumed=50_000),
        parked(6, TransactionState.HELD, decided=12, error="no such topic"),
        parked(7, TransactionState.DISCARDED, reason="EXPIRED", discarded_at=(0, 9)),
    ):
        queue = HalfQueue(POLICY, watermark=10)
        queue.restore_parked(ParkedEntries([HalfEntry.decode(before.offset, before.encode(3))]))
        (restored,) = queue.open_entries()
        assert restored == before


def test_p10_checks_go_on_after_a_take_over_with_the_next_number():
    partition = Partition(watermark=10)
    partition.queue.restore_parked(
        ParkedEntries((parked(5, checks=2, next_due=67_000), parked(6, checks=3, next_due=70_000)))
    )
    assert partition.draft(66_999).is_empty
    assert [(one.offset, one.checks) for one in partition.step(67_000).checks] == [(5, 3)]
    assert offsets(partition.step(70_000).discards) == [6]


def test_p10_age_goes_on_after_a_take_over():
    partition = Partition(CheckPolicy(transaction_max_age=100_000), watermark=10)
    partition.dead.add("orders")
    partition.queue.restore_parked(ParkedEntries([parked(5), parked(6, resumed=2_000)]))
    assert offsets(partition.step(101_000).discards) == [5]
    assert offsets(partition.step(102_000).discards) == [6]


def test_p10_held_and_discarded_messages_go_on_after_a_take_over():
    partition = Partition(watermark=10)
    partition.queue.restore_parked(
        ParkedEntries(
            [
                parked(5, TransactionState.HELD, decided=1, error="no such topic", next_due=3_000),
                parked(6, TransactionState.DISCARDED, reason="EXPIRED", next_due=4_000),
                parked(7, TransactionState.DISCARDED, reason="EXPIRED", next_due=9_000),
            ],
        )
    )
    assert partition.queue.count_by_state() == {
        TransactionState.PENDING: 0,
        TransactionState.HELD: 1,
        TransactionState.SCHEDULED: 0,
        TransactionState.DISCARDED: 2,
    }
    assert partition.queue.timers.topics_of_due_deliveries(4_000, 10) == {"orders.placed"}
    assert offsets(partition.step(3_000).deliver) == [5]
    assert offsets(partition.step(4_000).forgotten) == [6]
    assert offsets(partition.step(5_000, resume(0, 7)).resumed) == [7]


def test_p10_the_back_off_of_a_held_message_begins_anew_after_a_take_over():
    partition = Partition(watermark=10)
    partition.obstacles["orders.placed"] = "still not"
    partition.queue.restore_parked(
        ParkedEntries([parked(5, TransactionState.HELD, decided=1, error="no such topic", next_due=3_000)])
    )
    for now, due in [(3_000, 4_000), (4_000, 6_000), (6_000, 10_000)]:
        assert partition.draft(now).is_empty
        assert partition.queue.next_due() == due


def test_p10_a_parked_message_above_the_watermark_is_read_again_and_stays_as_it_was():
    queue = HalfQueue(POLICY, watermark=4)
    queue.restore_parked(
        ParkedEntries([parked(5, checks=2), parked(6, TransactionState.DISCARDED, reason="EXPIRED", next_due=10**12)])
    )
    queue.restore_op(0, Outcome.DISCARD, [6])
    assert queue.read_half(half(4)) is True
    assert queue.read_half(half(5)) is True, "its body is needed"
    assert queue.read_half(half(6)) is False, "its body is not"
    assert queue.entry(5).checks == 2
    assert queue.entry(6).state is TransactionState.DISCARDED
    assert queue.outcome_of(6) is None, "it can be resumed"


def test_p10_a_message_resumed_after_its_discard_was_named_is_pending():
    partition = Partition(watermark=4)
    partition.queue.restore_parked(ParkedEntries([parked(5, resumed=1_500)]))
    partition.queue.restore_op(0, Outcome.DISCARD, [5])
    partition.prepare(4, 5)
    assert partition.queue.outcome_of(5) is None
    assert offsets(partition.step(NOW, end(0, entry(5, COMMIT))).deliver) == [5]


def test_a_decision_about_a_discarded_message_that_was_just_forgotten_is_late_above_the_watermark_too():
    partition = Partition(watermark=4)
    forgotten = HalfEntry(
        5, id_of(5), "orders", "orders.placed", 1_000, 100, NOW - 1, TransactionState.DISCARDED, 3, reason="EXPIRED"
    )
    partition.queue.restore_parked(ParkedEntries([forgotten]))
    partition.prepare(4, born=NOW).prepare(5)
    draft = Draft(partition.queue, NOW)
    due_work.deliver_due(draft, partition.obstacle, partition.obstacle, 10, 1_000)
    assert offsets(draft.forgotten) == [5]
    draft.apply_end(whole(end(0, entry(5, COMMIT))), partition.obstacle)
    assert reasons(draft) == ["LATE"]
    partition.commit(draft)
    assert partition.queue.watermark == 4
    assert reasons(partition.step(NOW, end(1, entry(5, COMMIT)))) == ["LATE"]


def test_p3_what_op_names_is_finished_and_the_last_record_counts():
    partition = Partition(watermark=4)
    partition.queue.restore_op(0, Outcome.DISCARD, [6, 2])
    partition.queue.restore_op(1, Outcome.COMMIT, [4, 6])
    partition.queue.restore_op(2, Outcome.ROLLBACK, [7])
    reads = [partition.queue.read_half(half(offset)) for offset in (4, 5, 6, 7)]
    assert reads == [False, True, False, False]
    draft = partition.step(NOW, end(0, *[entry(offset, COMMIT) for offset in (2, 4, 6, 7)]))
    assert (draft.deliver, reasons(draft)) == ([], ["LATE", "REPEAT", "REPEAT", "CONTRADICTION"])
    assert partition.queue.watermark == 5


# --- where OP must be replayed from -----------------------------------------------------------------------------------


def test_op_is_replayed_from_the_first_record_that_names_something_above_the_watermark():
    partition = Partition(next_op=40).prepare(0, 1, 2)
    partition.next_op = 50
    assert partition.queue.ops.start == 40
    partition.step(NOW, end(0, entry(1, COMMIT)))
    assert partition.queue.ops.start == 50
    partition.step(NOW, end(1, entry(2, COMMIT)))
    assert partition.queue.ops.start == 50, "message 1 still lies above the watermark"
    partition.step(NOW, end(2, entry(0, COMMIT)))
    assert partition.queue.watermark == 3
    # OP 50, 52 and 54 with a marker after each: the next record cannot be below 56.
    assert partition.queue.ops.start == 56


def test_an_op_record_that_names_only_parked_messages_is_not_needed():
    partition = Partition().prepare(0, immunity="600").prepare(1, born=30_000)
    partition.step(31_000)
    partition.next_op = 7
    partition.step(31_001, end(0, entry(0, COMMIT)))
    assert partition.queue.ops.start == 9


def test_several_op_records_of_one_transaction():
    partition = Partition(watermark=0).prepare(0, 1, 2)
    draft = partition.draft(NOW, end(0, entry(1, COMMIT), entry(2, ROLLBACK)))
    assert draft.ops() == [(Outcome.COMMIT, [1]), (Outcome.ROLLBACK, [2])]
    partition.queue.ops.note_record(10, [1])
    partition.queue.ops.note_record(11, [2])
    draft.apply(NOW)
    assert partition.queue.ops.start == 10
    partition.next_op = 13
    partition.step(NOW, end(1, entry(0, COMMIT)))
    assert partition.queue.ops.start == 15


@pytest.mark.parametrize("unknown", [-1, -1001])
def test_an_op_record_whose_offset_was_not_told_is_replayed_from_before_it(unknown):
    partition = Partition(next_op=20).prepare(0, 1, 2)
    draft = partition.draft(NOW, end(0, entry(1, COMMIT), entry(2, ROLLBACK)))
    partition.queue.ops.note_record(unknown, [1])
    partition.queue.ops.note_record(unknown, [2])
    draft.apply(NOW)
    assert partition.queue.ops.start == 19
    assert Partition().prepare(0, 1).queue.ops.start == 0
    fresh = Partition().prepare(0, 1)
    draft = fresh.draft(NOW, end(0, entry(1, COMMIT)))
    fresh.queue.ops.note_record(unknown, [1])
    draft.apply(NOW)
    assert fresh.queue.ops.start == 0


def test_an_op_record_that_names_the_watermark_itself_is_needed():
    queue = HalfQueue(POLICY, watermark=4)
    queue.restore_op(12, Outcome.COMMIT, [4])
    queue.advance_watermark()
    assert queue.ops.start == 12
    assert queue.read_half(half(4)) is False
    assert queue.ops.start == 12
    queue.advance_watermark()
    assert (queue.watermark, queue.ops.start) == (5, 13)


def test_after_a_take_over_op_is_replayed_from_what_is_still_needed():
    queue = HalfQueue(POLICY, watermark=4, next_op=10)
    assert queue.ops.start == 10
    queue.restore_op(12, Outcome.COMMIT, [1, 2])
    assert queue.ops.start == 13
    queue.restore_op(15, Outcome.COMMIT, [3, 5])
    queue.restore_op(18, Outcome.COMMIT, [4])
    assert queue.ops.start == 15
    queue.read_half(half(4))
    queue.read_half(half(5))
    queue.advance_watermark()
    assert (queue.watermark, queue.ops.start) == (6, 19)


def test_finishing_a_message_at_the_watermark_leaves_its_outcome_until_it_is_passed():
    queue = HalfQueue(POLICY)
    queue.read_half(half(0))
    queue.finish_messages([0], Outcome.COMMIT)
    assert queue.outcome_of(0) is Outcome.COMMIT
    queue.advance_watermark()
    assert queue.outcome_of(0) is None


def test_finishing_a_message_below_the_watermark_leaves_no_outcome_behind():
    queue = HalfQueue(POLICY, watermark=10)
    queue.restore_parked(ParkedEntries([parked(5)]))
    queue.finish_messages([5], Outcome.COMMIT)
    assert (queue.outcome_of(5), queue.entry(5)) == (None, None)


def test_how_many_records_of_op_a_take_over_needs():
    queue = HalfQueue(CheckPolicy(), watermark=10, next_op=3)
    queue.restore_op(3, Outcome.COMMIT, [4])
    assert (queue.ops.start, queue.ops.count_from(queue.ops.start)) == (4, 0)
    queue.restore_op(5, Outcome.COMMIT, [12])
    # It names nothing that is needed, but it lies between two needed records.
    queue.restore_op(7, Outcome.COMMIT, [5])
    queue.restore_op(9, Outcome.ROLLBACK, [11])
    assert (queue.ops.start, queue.ops.count_from(5), queue.ops.count_from(6)) == (5, 3, 2)


def test_when_something_has_to_be_parked_before_more_is_read():
    queue = HalfQueue(CheckPolicy(park_after_records=2))
    for offset in range(2):
        queue.read_half(half(offset))
    assert not queue.must_park
    queue.read_half(half(2))
    assert queue.must_park
