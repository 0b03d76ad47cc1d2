"""Due actions: checks, discards, expiry, and the removal of a discarded message."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.partition_builder import COMMIT, POLICY, ROLLBACK, Partition, end, entry, offsets, resume
from txbridge.core.check_policy import CheckPolicy
from txbridge.core.half_queue import HalfQueue
from txbridge.core.offset_topic import ParkedEntries
from txbridge.core.plan.effects import EXPIRED, MAX_CHECKS
from txbridge.core.states import Outcome, TransactionState

MAX_AGE = 72 * 3_600_000
RETENTION = 30 * 24 * 3_600_000


def checked_at(partition: Partition, times) -> list[tuple[int, list[tuple[int, int]]]]:
    """(time, [(half offset, number of the check)]) of every step that checked."""
    found = []
    for now in times:
        draft = partition.step(now)
        if draft.checks:
            found.append((now, [(one.offset, one.checks) for one in draft.checks]))
    return found


def checked(*half_offsets: int) -> Partition:
    """A partition whose half messages have had all checks, the last at 67,000."""
    partition = Partition().prepare(*half_offsets)
    for now in (7_000, 37_000, 67_000):
        partition.step(now)
    return partition


def unanswered() -> Partition:
    """A partition with one half message, of a group without a live member, which is parked."""
    partition = Partition().prepare(0)
    partition.dead.add("orders")
    partition.step(31_000)
    return partition


def test_p6_a_check_comes_at_the_time_out_and_then_every_interval():
    partition = Partition().prepare(0)
    assert checked_at(partition, range(1_000, 97_000)[::500]) == [
        (7_000, [(0, 1)]),
        (37_000, [(0, 2)]),
        (67_000, [(0, 3)]),
    ]


def test_p8_a_backlog_of_one_group_does_not_hold_up_the_others():
    partition = Partition().prepare(*range(100))
    partition.prepare(100, 101, group="billing", born=2_000)
    partition.prepare(102, group="shipping", born=2_000)
    served = [offsets(partition.step(9_000, checks=1).checks) for _ in range(8)]
    # The one that was served last comes last.
    assert served == [[0], [100], [102], [1], [101], [2], [3], [4]]


def test_groups_share_a_round_and_use_what_others_leave():
    partition = Partition().prepare(*range(100))
    partition.prepare(100, 101, group="billing", born=2_000)
    assert offsets(partition.step(9_000, checks=10).checks) == [0, 1, 2, 3, 4, 100, 101, 5, 6, 7]
    equal = Partition()
    for first, group in ((0, "orders"), (100, "billing"), (200, "shipping")):
        equal.prepare(*range(first, first + 50), group=group, born=1_000 + first)
    # 10 among 3, then 6 among 2, then 3: rounded up each time.
    assert offsets(equal.step(9_000, checks=10).checks) == [0, 1, 2, 3, 100, 101, 102, 200, 201, 202]


def test_p7_discarded_a_full_interval_after_the_last_check_and_never_with_it():
    partition = Partition().prepare(0)
    for now in (7_000, 37_000):
        partition.step(now)
    last_check = partition.step(67_010)
    assert (offsets(last_check.checks), last_check.discards) == ([0], [])
    assert partition.step(97_009).discards == []
    draft = partition.step(97_010)
    (changed,) = draft.changed
    assert draft.discards == [changed]
    assert (changed.state, changed.checks, changed.reason) == (TransactionState.DISCARDED, 3, MAX_CHECKS)
    assert changed.next_due == 97_010 + RETENTION
    assert (draft.ops(), draft.tombstones, draft.checks) == ([(Outcome.DISCARD, [0])], [], [])
    assert [now for now in range(97_010, 400_000, 1_000) if partition.step(now).discards] == []


def test_p7_undecided_at_the_greatest_age_is_expired_however_few_checks_were_sent():
    partition = unanswered()
    assert partition.step(1_000 + MAX_AGE - 1).discards == []
    # A decision at this moment whose Kafka transaction is not committed changes nothing.
    partition.draft(1_000 + MAX_AGE, end(0, entry(0, ROLLBACK))).abandon()
    draft = partition.step(1_000 + MAX_AGE)
    ((one,)) = draft.discards
    assert (one.reason, one.checks, draft.ops()) == (EXPIRED, 0, [(Outcome.DISCARD, [0])])
    # An immunity beyond the greatest age is no reason to ask.
    immune = Partition().prepare(0, immunity="999999999")
    immune.step(31_000)
    draft = immune.step(1_000 + MAX_AGE)
    assert ([one.reason for one in draft.discards], draft.checks) == ([EXPIRED], [])


def test_p7_a_resumed_message_has_its_age_from_then():
    partition = unanswered()
    expiry = 1_000 + MAX_AGE
    assert offsets(partition.step(expiry).discards) == [0]
    partition.step(expiry + 5_000, resume(0, 0))
    assert partition.step(expiry + 5_000 + MAX_AGE - 1).discards == []
    assert [one.reason for one in partition.step(expiry + 5_000 + MAX_AGE).discards] == [EXPIRED]
    # Also if the clock went back to its birth.
    partition = unanswered()
    partition.step(expiry)
    partition.step(1_000, resume(0, 0))
    assert [one.reason for one in partition.step(expiry).discards] == [EXPIRED]


def test_p9_a_discarded_message_is_forgotten_when_it_can_no_longer_be_resumed():
    partition = checked(0, 1)
    partition.step(97_000)
    partition.step(98_000, resume(0, 1))
    partition.step(98_000, end(1, entry(1, COMMIT)))
    assert partition.draft(97_000 + RETENTION - 1).is_empty
    draft = partition.draft(97_000 + RETENTION)
    assert (offsets(draft.forgotten), draft.tombstones, draft.ops(), list(draft.changed)) == ([0], [0], [], [])
    assert not draft.is_empty
    partition.commit(draft)
    assert partition.open_entries == []


def test_a_resume_in_the_transaction_that_would_forget_it_is_heard():
    partition = checked(0)
    partition.step(97_000)
    draft = partition.step(97_000 + RETENTION, resume(0, 0))
    assert (draft.forgotten, offsets(draft.resumed)) == ([], [0])
    assert offsets(partition.step(97_000 + RETENTION).checks) == [0]


# First checks that are nearer stay until their time comes.
@pytest.mark.parametrize(("first_check", "kept"), [(60_001, 1_024), (60_000, 20_000)])
def test_p9_messages_that_finish_do_not_gather_behind_one_of_a_dead_group(first_check, kept):
    partition = Partition(replace(POLICY, transaction_timeout=first_check, park_after=100_000)).prepare(0)
    partition.dead.add("orders")
    for offset in range(1, 20_000):
        partition.prepare(offset, born=1_000 + offset)
        partition.step(1_000 + offset, end(offset, entry(offset, COMMIT)))
    timers = partition.queue.timers
    schedules = [timers._first_checks, *timers._checks.schedules.values()]
    assert sum(map(len, schedules)) <= kept
    partition.step(82_000)
    assert len(timers._first_checks) == 0


def test_p9_groups_that_have_nothing_open_are_forgotten():
    partition = Partition()
    for offset in range(100):
        partition.prepare(offset, group=f"group-{offset}")
        partition.step(2_000, end(offset, entry(offset, ROLLBACK), group=f"group-{offset}"))
    assert partition.queue.timers.groups_with_checks_due(7_000, 100) == []
    assert len(partition.queue.timers._checks.schedules) == 0


@pytest.mark.parametrize("is_parked", [False, True], ids=["young", "parked"])
def test_p8_a_refused_check_is_tried_later_and_later_and_never_counted(is_parked):
    partition = Partition().prepare(0, immunity="60" if is_parked else None)
    if is_parked:
        # It has no Python object any more.
        partition.step(40_000)
    first = 61_000 if is_parked else 7_000
    partition.unasked["orders"] = "too large"
    # What the transaction that notes it did not commit is noted again.
    partition.draft(first).abandon()
    (changed,) = partition.step(first).changed
    assert (changed.state, changed.checks, changed.error) == (TransactionState.PENDING, 0, "too large")
    tried, before = [], partition.queue.entry(0)
    for now in range(first, first + 130_000, 500):
        draft = partition.draft(now)
        # OFFSET has the reason since the first time.
        assert (draft.checks, draft.unchecked, draft.is_empty) == ([], [], True)
        draft.abandon()
        if (now_due := partition.queue.entry(0)) != before:
            tried.append(now - first)
            before = now_due
    assert tried == [seconds * 1_000 for seconds in (1, 3, 7, 15, 31, 63, 123)]
    partition.unasked.clear()
    now = first + 190_000
    (changed,) = partition.step(now).checks
    assert (changed.offset, changed.checks, changed.next_due, changed.error) == (0, 1, now + 30_000, None)


def test_what_a_clock_has_put_off_is_due_in_time_when_the_clock_goes_back():
    partition = Partition().prepare(0, born=601_000).prepare(1, born=602_000, immunity="20")
    partition.obstacles["invoices"] = "no such topic"
    partition.prepare(2, born=602_000, topic="invoices")
    partition.queue.note_time(607_000)
    assert offsets(partition.step(607_000, end(0, entry(2, COMMIT))).checks) == [0]
    partition.obstacles.clear()
    partition.queue.note_time(7_000)
    # The check of 0 was sent just now, and its next one comes after the interval; 1 waits for its immunity.
    assert {one.offset: one.next_due for one in partition.open_entries} == {0: 37_000, 1: 27_000, 2: 67_000}
    # A take-over does the same.
    queue = HalfQueue(POLICY, watermark=1)
    queue.restore_parked(ParkedEntries([partition.queue.entry(0)._replace(checks=1, next_due=631_000)]))
    queue.note_time(1_000)
    assert queue.next_due() == 31_000


def test_next_due_sees_what_lies_behind_what_is_parked_or_finished():
    partition = Partition().prepare(0)
    partition.step(7_000)
    partition.prepare(1, born=8_000, immunity="600")
    assert partition.queue.next_due() == 37_000
    partition.queue.finish_messages([0], Outcome.ROLLBACK)
    assert partition.queue.next_due() == 38_000
    partition.prepare(2, born=9_000, immunity="600")
    partition.queue.finish_messages([1], Outcome.COMMIT)
    assert partition.queue.watermark == 1, "not passed yet"
    assert partition.queue.next_due() == 39_000


def test_next_due_knows_of_retries_of_age_and_of_malformed_records():
    partition = Partition().prepare(0)
    partition.obstacles["orders.placed"] = "no such topic"
    partition.step(2_000, end(0, entry(0, COMMIT)))
    assert partition.queue.next_due() == 3_000
    partition.queue.read_malformed(1, 10)
    assert partition.queue.next_due() == 0
    old = Partition(CheckPolicy(transaction_max_age=8_000, park_after=1_000)).prepare(0)
    old.step(6_999)
    old.step(7_000)
    assert old.queue.next_due() == 9_000
