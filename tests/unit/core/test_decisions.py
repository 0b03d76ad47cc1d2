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
    half,
    id_of,
    offsets,
    reasons,
    resume,
    whole,
)
from txbridge.core import remembered
from txbridge.core.decision_record import DecisionEntry, Source
from txbridge.core.half_queue import HalfQueue
from txbridge.core.states import Outcome, TransactionState

#: A time at which no message that was born at 1,000 is due.
NOW = 2_000
DISCARD_AT = 97_000  # born 1,000; checks at 7,000, 37,000 and 67,000


def discarded(*half_offsets: int) -> Partition:
    """A partition whose half messages were checked three times and discarded at 97,000."""
    partition = Partition().prepare(*half_offsets)
    for now in (7_000, 37_000, 67_000, DISCARD_AT):
        last = partition.step(now)
    assert offsets(last.discards) == list(half_offsets)
    return partition


# --- the decision -----------------------------------------------------------------------------------------------------


def test_p2_a_commit_is_delivered_and_named_in_the_same_transaction():
    partition = Partition().prepare(0, 1)
    draft = partition.step(NOW, end(0, entry(1, COMMIT)))
    assert offsets(draft.deliver) == [1]
    assert draft.ops() == [(Outcome.COMMIT, [1])]
    assert (draft.rolled_back, draft.held, draft.refused, draft.changed, draft.tombstones) == ([], [], [], [], [])
    assert partition.queue.entry(1) is None
    assert partition.queue.outcome_of(1) is Outcome.COMMIT
    assert partition.queue.entry(0) is not None


def test_p4_a_rollback_is_named_and_never_delivered():
    partition = Partition().prepare(0, 1)
    draft = partition.step(NOW, end(0, entry(1, ROLLBACK)))
    assert (draft.deliver, offsets(draft.rolled_back)) == ([], [1])
    assert draft.ops() == [(Outcome.ROLLBACK, [1])]
    assert partition.queue.outcome_of(1) is Outcome.ROLLBACK


def test_p4_only_a_commit_asks_whether_it_can_be_delivered():
    partition = Partition().prepare(0, 1)
    partition.obstacles["orders.placed"] = "no such topic"
    draft = partition.step(NOW, end(0, entry(0, ROLLBACK), entry(1, UNKNOWN)))
    assert (offsets(draft.rolled_back), draft.held, draft.refused) == ([0], [], [])
    assert partition.queue.entry(1).state is TransactionState.PENDING


def test_unknown_leaves_the_message_pending():
    partition = Partition().prepare(0)
    draft = partition.draft(NOW, end(0, entry(0, UNKNOWN)))
    assert (draft.ops(), draft.changed, draft.refused, draft.entries) == ([], [], [], 1)
    assert not draft.is_empty, "END has gone on"
    partition.commit(draft)
    assert partition.queue.entry(0).state is TransactionState.PENDING
    assert partition.queue.next_end == 1


def test_one_record_ends_several_messages_in_its_order():
    partition = Partition().prepare(0, 1, 2, 3)
    draft = partition.step(NOW, end(0, entry(3, COMMIT), entry(1, ROLLBACK), entry(0, COMMIT)))
    assert draft.ops() == [(Outcome.COMMIT, [3, 0]), (Outcome.ROLLBACK, [1])]
    assert (draft.entries, draft.bytes) == (3, 200)


@pytest.mark.parametrize("source", [Source.CLIENT, Source.CHECK, Source.OPERATOR])
def test_whoever_decides(source):
    assert offsets(Partition().prepare(0).step(NOW, end(0, entry(0, COMMIT), source=source)).deliver) == [0]


def test_an_empty_draft_writes_nothing():
    partition = Partition().prepare(0)
    draft = partition.draft(NOW)
    assert draft.is_empty
    assert (draft.ops(), draft.changed, draft.tombstones, draft.next_end, draft.watermark) == ([], [], [], 0, 0)


# --- the first decision wins ------------------------------------------------------------------------------------------

PAIRS = [
    (COMMIT, COMMIT, "REPEAT"),
    (COMMIT, ROLLBACK, "CONTRADICTION"),
    (ROLLBACK, ROLLBACK, "REPEAT"),
    (ROLLBACK, COMMIT, "CONTRADICTION"),
]


@pytest.mark.parametrize(("first", "second", "reason"), PAIRS)
def test_p5_the_first_decision_wins_within_one_record(first, second, reason):
    draft = Partition().prepare(0).step(NOW, end(0, entry(0, first), entry(0, second)))
    assert (offsets(draft.deliver), offsets(draft.rolled_back)) == (([0], []) if first is COMMIT else ([], [0]))
    assert reasons(draft) == [reason]
    assert [len(half_offsets) for _, half_offsets in draft.ops()] == [1]


@pytest.mark.parametrize(("first", "second", "reason"), PAIRS)
def test_p5_the_first_decision_wins_within_one_transaction(first, second, reason):
    draft = Partition().prepare(0).step(NOW, end(0, entry(0, first)), end(1, entry(0, second)))
    assert (offsets(draft.deliver), offsets(draft.rolled_back)) == (([0], []) if first is COMMIT else ([], [0]))
    assert reasons(draft) == [reason]


@pytest.mark.parametrize(("first", "second", "reason"), PAIRS)
def test_p5_the_first_decision_wins_over_two_transactions(first, second, reason):
    partition = Partition().prepare(0, 1)
    partition.prepare(2)
    partition.step(NOW, end(0, entry(1, first)))
    draft = partition.step(NOW, end(1, entry(1, second)))
    assert (draft.deliver, draft.rolled_back, draft.ops()) == ([], [], [])
    assert reasons(draft) == [reason]
    assert partition.queue.outcome_of(1) is (Outcome.COMMIT if first is COMMIT else Outcome.ROLLBACK)


def test_a_refusal_says_which_entry_it_means():
    wrong = entry(5, COMMIT)
    (refusal,) = Partition().prepare(0).step(NOW, end(7, entry(0, COMMIT), wrong, source=Source.OPERATOR)).refused
    assert (refusal.end_offset, refusal.source, refusal.entry, refusal.reason.name) == (
        7,
        Source.OPERATOR,
        wrong,
        "NO_HALF_MESSAGE",
    )


def test_unknown_after_a_decision_is_neither_refused_nor_heard():
    partition = Partition().prepare(0, 1)
    draft = partition.step(NOW, end(0, entry(1, COMMIT), entry(1, UNKNOWN)))
    assert (draft.refused, offsets(draft.deliver)) == ([], [1])
    assert partition.step(NOW, end(1, entry(1, UNKNOWN))).refused == []


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("half_offset", [2, 3, 2**60, 2**63 - 1])
@pytest.mark.parametrize("decision", [COMMIT, ROLLBACK, UNKNOWN])
def test_p1_nothing_is_delivered_without_a_half_message(half_offset, decision):
    draft = Partition().prepare(0, 1).step(NOW, end(0, entry(half_offset, decision)))
    assert (draft.deliver, draft.ops(), reasons(draft)) == ([], [], ["NO_HALF_MESSAGE"])


def test_p1_an_end_that_came_before_its_half_message_was_read_does_not_count_later():
    partition = Partition().prepare(0)
    assert reasons(partition.step(NOW, end(0, entry(1, COMMIT)))) == ["NO_HALF_MESSAGE"]
    partition.prepare(1)
    assert partition.step(NOW).deliver == []
    assert partition.queue.entry(1).state is TransactionState.PENDING


def test_p1_a_transaction_marker_is_no_half_message():
    partition = Partition().prepare(0, 2)
    partition.queue.advance_reader(4)
    draft = partition.step(NOW, end(0, entry(1, COMMIT), entry(3, COMMIT)))
    assert (draft.deliver, reasons(draft)) == ([], ["NO_HALF_MESSAGE", "NO_HALF_MESSAGE"])


def test_p1_a_malformed_half_message_can_not_be_committed():
    partition = Partition().prepare(0)
    partition.queue.read_malformed(1, 10)
    before = partition.step(NOW, end(0, entry(1, COMMIT)))
    assert (before.malformed, before.ops(), reasons(before)) == ([1], [(Outcome.DISCARD, [1])], ["NO_HALF_MESSAGE"])
    after = partition.step(NOW, end(1, entry(1, COMMIT), entry(1, UNKNOWN)), resume(2, 1))
    assert (after.deliver, after.ops(), reasons(after)) == ([], [], ["LATE", "LATE", "LATE"])


def test_the_transaction_id_is_the_right_to_decide():
    partition = Partition().prepare(0, 1)
    draft = partition.step(
        NOW, end(0, entry(0, COMMIT, id_of(1)), entry(0, ROLLBACK, id_of(1)), entry(0, UNKNOWN, id_of(1)))
    )
    assert (draft.ops(), reasons(draft)) == ([], ["WRONG_TRANSACTION_ID"] * 3)
    assert partition.queue.entry(0).state is TransactionState.PENDING


def test_only_its_own_group_decides():
    draft = Partition().prepare(0).step(NOW, end(0, entry(0, COMMIT), group="billing"))
    assert (draft.ops(), reasons(draft)) == ([], ["WRONG_GROUP"])


def test_the_transaction_id_is_tested_before_the_group():
    draft = Partition().prepare(0).step(NOW, end(0, entry(0, COMMIT, id_of(9)), group="billing"))
    assert reasons(draft) == ["WRONG_TRANSACTION_ID"]


def test_a_decision_taken_is_tested_before_the_transaction_id():
    # The transaction id of a finished message is not kept. A held or discarded message gets the same answer.
    partition = Partition()
    partition.obstacles["orders.placed"] = "no such topic"
    partition.prepare(0, 1)
    partition.step(NOW, end(0, entry(1, COMMIT)))
    wrong = [entry(1, COMMIT, id_of(9)), entry(1, ROLLBACK, id_of(9)), entry(1, UNKNOWN, id_of(9))]
    assert reasons(partition.step(NOW, end(1, *wrong))) == ["REPEAT", "CONTRADICTION", "WRONG_TRANSACTION_ID"]
    late = discarded(0).step(DISCARD_AT, end(0, *[entry(0, one.decision, id_of(9)) for one in wrong]))
    assert reasons(late) == ["LATE", "LATE", "WRONG_TRANSACTION_ID"]


@pytest.mark.parametrize("decision", [COMMIT, ROLLBACK, UNKNOWN])
def test_p5_what_is_forgotten_is_late_and_stays_as_it_was(decision, monkeypatch):
    monkeypatch.setattr(remembered, "GENERATION", 1)
    partition = Partition().prepare(0, 1, 2)
    partition.step(NOW, end(0, entry(0, ROLLBACK)))
    partition.step(NOW, end(1, entry(1, ROLLBACK)))
    assert partition.queue.watermark == 2
    draft = partition.step(NOW, end(2, entry(0, decision)))
    assert (draft.ops(), reasons(draft)) == ([], ["LATE"])


@pytest.mark.parametrize(
    ("first", "second", "refused"),
    [
        (COMMIT, COMMIT, ["REPEAT"]),
        (COMMIT, ROLLBACK, ["CONTRADICTION"]),
        (COMMIT, UNKNOWN, []),
        (ROLLBACK, COMMIT, ["CONTRADICTION"]),
        (ROLLBACK, ROLLBACK, ["REPEAT"]),
        (ROLLBACK, UNKNOWN, []),
    ],
)
def test_p5_below_the_watermark_a_second_decision_is_told_what_it_is(first, second, refused):
    partition = Partition().prepare(0, 1)
    partition.step(NOW, end(0, entry(0, first)))
    assert partition.queue.watermark == 1
    draft = partition.step(NOW, end(1, entry(0, second)))
    assert (draft.ops(), reasons(draft)) == ([], refused)


def test_p5_a_finished_message_that_is_still_remembered_can_not_be_resumed():
    partition = Partition().prepare(0)
    partition.step(NOW, end(0, entry(0, COMMIT)))
    assert reasons(partition.step(NOW, resume(1, 0))) == ["NOT_DISCARDED"]


def test_p9_only_the_last_outcomes_are_remembered(monkeypatch):
    monkeypatch.setattr(remembered, "GENERATION", 3)
    partition = Partition()
    for offset in range(10):
        partition.prepare(offset).step(NOW, end(offset, entry(offset, COMMIT)))
        assert len(partition.queue._remembered) <= 6
    known = [offset for offset in range(10) if partition.queue.remembered(offset)]
    assert known == [6, 7, 8, 9]


def test_p5_of_a_message_that_was_finished_twice_the_last_outcome_is_remembered(monkeypatch):
    monkeypatch.setattr(remembered, "GENERATION", 2)
    queue = HalfQueue(POLICY, watermark=10)
    for offset, outcome in [(5, Outcome.DISCARD), (6, Outcome.COMMIT), (5, Outcome.ROLLBACK)]:
        queue.finish_messages([offset], outcome)
    assert queue.remembered(5) is Outcome.ROLLBACK
    queue.finish_messages([7], Outcome.COMMIT)
    assert (queue.remembered(5), queue.remembered(6)) == (Outcome.ROLLBACK, None)


def test_what_is_to_come_at_the_watermark_is_not_late():
    assert reasons(Partition(watermark=10).step(NOW, end(0, entry(10, COMMIT)))) == ["NO_HALF_MESSAGE"]


def test_late_is_also_what_never_was_below_the_watermark():
    partition = Partition(watermark=10).prepare(10)
    assert reasons(partition.step(NOW, end(0, entry(9, COMMIT)))) == ["LATE"]


# --- resume -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decision", [COMMIT, ROLLBACK])
def test_p7_a_decision_after_the_discard_is_late(decision):
    partition = discarded(0, 1)
    draft = partition.step(DISCARD_AT + 1, end(0, entry(1, decision)))
    assert (draft.ops(), draft.changed, reasons(draft)) == ([], [], ["LATE"])
    assert partition.queue.entry(1).state is TransactionState.DISCARDED


def test_unknown_after_the_discard_changes_nothing():
    draft = discarded(0).step(DISCARD_AT + 1, end(0, entry(0, UNKNOWN)))
    assert (draft.refused, draft.changed) == ([], [])


def test_p7_a_discarded_message_can_be_resumed_and_starts_again():
    partition = discarded(0)
    draft = partition.step(100_000, resume(0, 0))
    (changed,) = draft.changed
    assert offsets(draft.resumed) == [0]
    assert (changed.state, changed.checks, changed.next_due, changed.resumed) == (
        TransactionState.PENDING,
        0,
        100_000,
        100_000,
    )
    assert (changed.reason, changed.discarded_at) == (None, None)
    assert draft.ops() == []
    checks = [(now, offsets(partition.step(now).checks)) for now in (100_000, 129_999, 130_000, 160_000)]
    assert checks == [(100_000, [0]), (129_999, []), (130_000, [0]), (160_000, [0])]
    again = partition.step(190_000)
    assert (offsets(again.discards), again.ops()) == ([0], [(Outcome.DISCARD, [0])])


def test_p7_a_second_resume_does_nothing():
    partition = discarded(0)
    draft = partition.step(100_000, resume(0, 0), resume(1, 0))
    assert (offsets(draft.resumed), reasons(draft)) == ([0], ["NOT_DISCARDED"])
    later = partition.step(100_001, resume(2, 0))
    assert (later.resumed, reasons(later)) == ([], ["NOT_DISCARDED"])


def test_a_resumed_message_can_be_committed_in_the_same_transaction():
    partition = discarded(0)
    draft = partition.draft(100_000, resume(0, 0), end(1, entry(0, COMMIT)))
    assert (draft.ops(), draft.changed, draft.tombstones) == ([(Outcome.COMMIT, [0])], [], [0])
    partition.commit(draft)
    assert partition.queue.entry(0) is None


def test_only_what_is_discarded_is_resumed():
    partition = Partition().prepare(0, 1, 2, 3, 4)
    partition.obstacles["orders.placed"] = "no such topic"
    partition.step(NOW, end(0, entry(1, ROLLBACK), entry(3, COMMIT)))
    partition.obstacles.clear()
    partition.step(NOW, end(1, entry(2, COMMIT)))
    draft = partition.step(NOW, resume(2, 0), resume(3, 1), resume(4, 2), resume(5, 3), resume(6, 7))
    assert reasons(draft) == ["NOT_DISCARDED", "NOT_DISCARDED", "NOT_DISCARDED", "NOT_DISCARDED", "NO_HALF_MESSAGE"]
    assert draft.changed == []


def test_a_resume_needs_the_transaction_id_and_the_group():
    partition = discarded(0)
    draft = partition.step(
        100_000,
        end(0, entry(0, UNKNOWN, id_of(1)), source=Source.RESUME),
        end(1, entry(0, UNKNOWN), source=Source.RESUME, group="billing"),
    )
    assert (draft.resumed, reasons(draft)) == ([], ["WRONG_TRANSACTION_ID", "WRONG_GROUP"])


# --- held -------------------------------------------------------------------------------------------------------------


def test_p8_a_commit_without_a_topic_to_go_to_is_held_and_the_others_pass():
    partition = Partition()
    partition.prepare(0, topic="missing").prepare(1)
    partition.obstacles["missing"] = "no such topic"
    draft = partition.step(NOW, end(4, entry(0, COMMIT), entry(1, COMMIT)))
    (held,) = draft.held
    assert offsets(draft.deliver) == [1]
    assert (held.offset, held.state, held.decided, held.error) == (0, TransactionState.HELD, 4, "no such topic")
    assert list(draft.changed) == [held]
    assert draft.ops() == [(Outcome.COMMIT, [1])]
    assert partition.queue.watermark == 2, "parked, so it holds nothing up"


def test_p8_a_held_message_is_retried_with_back_off_and_delivered_when_it_can_be():
    partition = Partition().prepare(0)
    partition.obstacles["orders.placed"] = "no such topic"
    partition.step(10_000, end(0, entry(0, COMMIT)))
    asked = []
    partition.obstacle = lambda held: asked.append(now) or "still not"
    for now in range(10_000, 200_000, 500):
        assert partition.draft(now).is_empty
    # 1, 2, 4, 8, 16, 32, 60 and 60 seconds after the previous time.
    assert asked == [11_000, 13_000, 17_000, 25_000, 41_000, 73_000, 133_000, 193_000]
    assert partition.queue.entry(0).error == "still not"
    partition.obstacle = lambda held: None
    assert partition.step(252_999).deliver == []
    draft = partition.draft(253_000)
    assert (offsets(draft.deliver), draft.tombstones, draft.ops()) == ([0], [0], [(Outcome.COMMIT, [0])])


def test_p14_op_says_which_ends_decided_and_names_apart_what_was_held():
    partition = Partition().prepare(0, 1, 2)
    partition.obstacles["orders.placed"] = "no such topic"
    partition.step(NOW, end(0, entry(0, COMMIT)))
    partition.obstacles.clear()
    draft = partition.draft(NOW + 60_000, end(1, entry(2, COMMIT), entry(1, ROLLBACK)))
    assert draft.ops() == [(Outcome.COMMIT, [2]), (Outcome.COMMIT, [0]), (Outcome.ROLLBACK, [1])]
    assert [draft.ends_of(*named) for named in draft.ops()] == [((1, 0), (2, 0)), None, None]


def test_p6_a_held_message_is_never_checked_nor_discarded():
    partition = Partition().prepare(0)
    partition.obstacles["orders.placed"] = "no such topic"
    partition.step(NOW, end(0, entry(0, COMMIT)))
    for now in range(7_000, 400_000_000, 10_000_000):
        draft = partition.step(now)
        assert (draft.checks, draft.discards) == ([], [])
    assert partition.queue.entry(0).state is TransactionState.HELD


def test_p5_the_decision_of_a_held_message_stands():
    partition = Partition().prepare(0, 1)
    partition.obstacles["orders.placed"] = "no such topic"
    first = partition.step(NOW, end(0, entry(1, COMMIT), entry(1, ROLLBACK)))
    assert (offsets(first.held), first.rolled_back, reasons(first)) == ([1], [], ["CONTRADICTION"])
    partition.obstacles.clear()
    second = partition.step(NOW, end(1, entry(1, COMMIT), entry(1, ROLLBACK), entry(1, UNKNOWN)))
    assert (second.ops(), reasons(second)) == ([], ["REPEAT", "CONTRADICTION"])
    assert offsets(partition.step(NOW + 1_000).deliver) == [1]


def test_a_retry_is_limited_and_the_rest_follows():
    partition = Partition().prepare(*range(5))
    partition.obstacles["orders.placed"] = "no such topic"
    partition.step(NOW, end(0, *[entry(offset, COMMIT) for offset in range(5)]))
    assert partition.queue.timers.topics_of_due_deliveries(NOW + 999, 10) == set()
    assert partition.queue.timers.topics_of_due_deliveries(NOW + 1_000, 10) == {"orders.placed"}
    partition.obstacles.clear()
    assert offsets(partition.step(NOW + 1_000, retries=2).deliver) == [0, 1]
    assert offsets(partition.step(NOW + 1_000, retries=2).deliver) == [2, 3]
    assert offsets(partition.step(NOW + 1_000, retries=2).deliver) == [4]


def test_p14_what_does_not_fit_into_one_transaction_goes_into_the_next_ones_in_its_order():
    partition = Partition().prepare(*range(10))
    partition.max_bytes = 350
    record = end(7, *[entry(offset, COMMIT) for offset in (9, 8, 7, 6, 5, 4, 3, 2, 1, 0)])
    drafts = [partition.step(NOW, record) for _ in range(4)]
    assert [offsets(draft.deliver) for draft in drafts] == [[9, 8, 7], [6, 5, 4], [3, 2, 1], [0]]
    assert [(draft.next_end, draft.next_entry) for draft in drafts] == [(7, 3), (7, 6), (7, 9), (8, 0)]
    assert all(draft.held == draft.changed == [] for draft in drafts), "nothing is written about what waits"


def test_p14_no_small_message_overtakes_a_large_one_of_the_same_or_of_a_later_record():
    partition = Partition()
    partition.prepare(0).prepare(1, size=300).prepare(2, 3, size=10)
    partition.max_bytes = 350
    records = [end(0, entry(0, COMMIT), entry(1, COMMIT), entry(2, COMMIT)), end(1, entry(3, COMMIT))]
    assert offsets(partition.step(NOW, *records).deliver) == [0]
    assert offsets(partition.step(NOW, *records).deliver) == [1, 2, 3]


def test_a_transaction_may_be_exactly_full():
    partition = Partition().prepare(0, 1, 2, 3)
    partition.max_bytes = 300
    record = end(0, *[entry(offset, COMMIT) for offset in range(4)])
    assert offsets(partition.step(NOW, record).deliver) == [0, 1, 2]
    assert offsets(partition.step(NOW, record).deliver) == [3]


def test_one_message_that_is_larger_than_a_transaction_should_be_goes_alone():
    partition = Partition()
    partition.prepare(0).prepare(1, size=10_000).prepare(2)
    partition.max_bytes = 350
    record = end(0, *[entry(offset, COMMIT) for offset in range(3)])
    assert [offsets(partition.step(NOW, record).deliver) for _ in range(3)] == [[0], [1], [2]]


def test_what_is_resumed_and_committed_at_once_needs_its_room():
    partition = discarded(0)
    partition.prepare(1, born=NOW + DISCARD_AT, size=300)
    partition.max_bytes = 350
    records = [resume(0, 0), end(1, entry(1, COMMIT)), end(2, entry(0, COMMIT))]
    assert [offsets(partition.step(NOW + DISCARD_AT, *records).deliver) for _ in range(2)] == [[1], [0]]


def test_a_message_of_no_bytes_is_a_message():
    partition = Partition()
    partition.prepare(0, size=0).prepare(1, size=10_000)
    partition.max_bytes = 350
    record = end(0, entry(0, COMMIT), entry(1, COMMIT))
    assert [offsets(partition.step(NOW, record).deliver) for _ in range(2)] == [[0], [1]]


def test_entries_that_deliver_nothing_are_counted_too():
    partition = Partition().prepare(0, 1, 2)
    partition.max_entries = 2
    records = [end(0, entry(0, ROLLBACK)), end(1, entry(1, ROLLBACK), entry(2, ROLLBACK))]
    first = partition.step(NOW, *records)
    assert (offsets(first.rolled_back), first.next_end, first.next_entry) == ([0, 1], 1, 1)
    second = partition.step(NOW, *records[1:])
    assert (offsets(second.rolled_back), second.next_end, second.next_entry) == ([2], 2, 0)


def test_p5_what_was_applied_of_a_record_is_not_applied_again():
    partition = Partition().prepare(0, 1)
    partition.max_entries = 1
    record = end(0, entry(0, COMMIT), entry(1, COMMIT))
    partition.step(NOW, record)
    second = partition.step(NOW, record)
    assert (offsets(second.deliver), reasons(second)) == ([1], [])


def test_one_entry_of_a_record_is_counted_as_one_decision():
    partition = Partition().prepare(0, 1, 2)
    partition.max_entries = 2
    record = end(0, entry(0, COMMIT), entry(1, ROLLBACK), entry(2, COMMIT))
    counted = [partition.step(NOW, record).decisions[Source.CLIENT] for _ in range(2)]
    assert [(one.entries, one.commits, one.rollbacks) for one in counted] == [(2, 1, 1), (1, 1, 0)]


def test_held_messages_have_the_room_that_decisions_leave():
    partition = Partition().prepare(*range(4))
    partition.obstacles["orders.placed"] = "no such topic"
    partition.step(NOW, end(0, entry(0, COMMIT), entry(1, COMMIT)))
    partition.obstacles.clear()
    partition.max_bytes = 350
    draft = partition.step(NOW + 1_000, end(1, entry(2, COMMIT), entry(3, COMMIT)))
    assert (offsets(draft.deliver), draft.left_out) == ([2, 3, 0], True)
    assert draft.changed == [], "nothing is written about the one that has no room"
    draft = partition.step(NOW + 1_000)
    assert (offsets(draft.deliver), draft.left_out) == ([1], False)


def test_a_held_message_without_room_is_put_back_as_it_was():
    partition = Partition()
    partition.prepare(0, size=300).prepare(1).prepare(2, size=200)
    partition.obstacles["orders.placed"] = "no such topic"
    partition.step(NOW, end(0, entry(0, COMMIT), entry(1, COMMIT)))
    partition.obstacles.clear()

    def held() -> list[tuple]:
        entries = partition.queue.open_entries()
        return [(one.offset, one.next_due, one.attempts, one.error) for one in entries if one.decided is not None]

    before = held()
    partition.max_bytes = 350
    # The small one waits as well: otherwise the large one would never be delivered.
    draft = partition.step(NOW + 1_000, end(1, entry(2, COMMIT)))
    assert (offsets(draft.deliver), draft.left_out) == ([2], True)
    assert held() == before
    assert offsets(partition.step(NOW + 1_000).deliver) == [0]
    assert offsets(partition.step(NOW + 1_000).deliver) == [1]


def test_a_held_message_that_is_larger_than_a_transaction_should_be_goes_alone():
    partition = Partition().prepare(0, size=10_000)
    partition.obstacles["orders.placed"] = "no such topic"
    partition.step(NOW, end(0, entry(0, COMMIT)))
    partition.obstacles.clear()
    partition.max_bytes = 350
    assert offsets(partition.step(NOW + 1_000).deliver) == [0]


def test_held_messages_may_be_retried_before_end_is_applied():
    partition = Partition().prepare(0, 1)
    partition.obstacles["orders.placed"] = "no such topic"
    partition.step(NOW, end(0, entry(0, COMMIT), entry(1, COMMIT)))
    partition.obstacles.clear()
    draft = partition.draft(NOW + 1_000)
    draft.apply_end(whole(end(1, entry(1, COMMIT), entry(1, ROLLBACK))), partition.obstacle)
    assert (offsets(draft.deliver), reasons(draft)) == ([0, 1], ["REPEAT", "CONTRADICTION"])


# --- position ---------------------------------------------------------------------------------------------------------


def test_end_goes_on_over_what_is_skipped():
    partition = Partition(next_end=5).prepare(0, 1)
    draft = partition.draft(NOW)
    draft.skip_end(7)
    draft.apply_end(whole(end(9, entry(0, COMMIT))), partition.obstacle)
    draft.skip_end(8)
    assert draft.next_end == 10
    assert not draft.is_empty
    partition.commit(draft)
    assert partition.queue.next_end == 10


def test_skipping_alone_is_worth_a_transaction():
    partition = Partition(next_end=5)
    draft = partition.draft(NOW)
    draft.skip_end(6)
    assert not draft.is_empty


# --- abandon ----------------------------------------------------------------------------------------------------------


def snapshot(partition: Partition):
    queue = partition.queue
    return (
        [tuple(getattr(one, name) for name in one.__slots__) for one in queue.open_entries()],
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
    partition.obstacles["missing"] = "no such topic"
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
    partition.obstacles["missing"] = "no such topic"
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
    partition = Partition()
    partition.prepare(0, 1, topic="missing").prepare(*range(2, 12))
    partition.obstacles["missing"] = "no such topic"
    partition.step(7_000, end(0, entry(0, COMMIT), entry(1, COMMIT)))
    late = 7_000 + partition.queue.policy.transaction_max_age + 1
    for seconds in range(5_000):
        draft = partition.draft(late + 1_000 * seconds)
        assert len(draft.discards) == 10
        draft.abandon()
    queue = partition.queue
    scheduled = [
        queue.timers._timers,
        queue.timers._exhausted,
        queue.timers._by_age,
        *queue.timers._checks.schedules.values(),
    ]
    assert sum(len(schedule) for schedule in scheduled) < 4 * 1_024


def test_a_read_while_a_transaction_is_under_way_is_not_lost():
    partition = Partition().prepare(0)
    draft = partition.draft(NOW, end(0, entry(0, COMMIT)))
    assert draft.watermark == 1
    partition.prepare(1)
    partition.queue.read_half(half(0))
    partition.commit(draft)
    assert partition.queue.watermark == 1
    assert offsets(partition.step(7_000).checks) == [1]


# --- abandon ----------------------------------------------------------------------------------------------------------


def abandon(offset: int, half_offset: int):
    return end(offset, DecisionEntry(half_offset, id_of(half_offset), UNKNOWN, None, "gone"), source=Source.ABANDON)


def test_a_held_message_can_be_abandoned_and_is_finished():
    partition = Partition().prepare(0, 1)
    partition.obstacles["orders.placed"] = "topic orders.placed does not exist"
    partition.step(2_000, end(0, entry(0, COMMIT)))
    draft = partition.step(3_000, abandon(1, 0))
    (given_up,) = draft.abandoned
    assert (given_up.entry.offset, given_up.entry.error, given_up.reason) == (
        0,
        "topic orders.placed does not exist",
        "gone",
    )
    assert (draft.ops(), draft.tombstones, draft.watermark) == ([(Outcome.ABANDON, [0])], [0], 1)
    partition.obstacles.clear()
    later = partition.step(100_000, end(2, entry(0, ROLLBACK)), end(3, entry(0, COMMIT)), abandon(4, 0))
    assert (offsets(later.deliver), reasons(later)) == ([], ["CONTRADICTION", "REPEAT", "NOT_HELD"])


def test_a_message_that_is_not_held_can_not_be_abandoned():
    partition = Partition().prepare(0, 1, 2)
    draft = partition.step(2_000, abandon(0, 0), end(1, entry(1, COMMIT)), abandon(2, 1), end(3, entry(0, ROLLBACK)))
    assert (reasons(draft), draft.abandoned, offsets(draft.deliver)) == (["NOT_HELD", "NOT_HELD"], [], [1])
    assert reasons(partition.step(2_001, abandon(4, 0))) == ["NOT_HELD"]


def test_a_message_held_in_the_same_transaction_can_be_abandoned():
    partition = Partition().prepare(0)
    partition.obstacles["orders.placed"] = "gone"
    draft = partition.step(2_000, end(0, entry(0, COMMIT)), abandon(1, 0))
    assert (draft.ops(), list(draft.changed)) == ([(Outcome.ABANDON, [0])], [])


def test_who_abandons_must_know_the_transaction_id():
    partition = Partition().prepare(0)
    partition.obstacles["orders.placed"] = "gone"
    partition.step(2_000, end(0, entry(0, COMMIT)))
    forged = end(1, entry(0, UNKNOWN, id_of(7)), source=Source.ABANDON)
    assert reasons(partition.step(2_001, forged)) == ["WRONG_TRANSACTION_ID"]
