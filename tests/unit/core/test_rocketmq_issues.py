"""RocketMQ's defects in its check loop by issue number, with the same cases here, step by step.

The figures of RocketMQ were observed on its broker 5.3.0 with transactionTimeOut 3 s, transactionCheckInterval 4 s and
transactionCheckMax 3. The end-to-end tests are those of tests/integration/test_better_than_rocketmq.py.
"""

from __future__ import annotations

import pytest

from tests.support.partition_builder import (
    COMMIT,
    ROLLBACK,
    UNKNOWN,
    Partition,
    end,
    entry,
    half,
    id_of,
    offsets,
    reasons,
)
from txbridge.core.check_policy import CheckPolicy
from txbridge.core.checkpoint import parse_op
from txbridge.core.states import Outcome, TransactionState

OBSERVED = CheckPolicy(transaction_timeout=3_000, transaction_check_interval=4_000, transaction_check_max=3)


def history(partition: Partition, until: int, *, born: int = 0, step: int = 100) -> list[tuple[str, int, int]]:
    """(what, half offset, milliseconds since birth) of every check and discard."""
    found = []
    for now in range(born, until, step):
        draft = partition.step(now)
        found += [(f"check {one.checks}", one.offset, now - born) for one in draft.checks]
        found += [("discard", one.offset, now - born) for one in draft.discards]
    return found


def test_issue_544_a_message_with_an_immunity_that_the_watermark_has_passed_is_checked():
    partition = Partition(OBSERVED).prepare(0, born=0, immunity="100").prepare(1, born=0)
    partition.step(100, end(0, entry(1, COMMIT)))
    partition.step(31_000)
    assert partition.queue.watermark == 2
    assert history(partition, 200_000)[0] == ("check 1", 0, 100_000)


def test_issue_7240_an_end_of_an_immune_message_finishes_no_other():
    # One OP record names several messages. RocketMQ takes all of it for done when it contains the immune one.
    partition = Partition(OBSERVED).prepare(0, 1, 2, born=0, immunity="10")
    draft = partition.step(100, end(0, entry(0, COMMIT), entry(1, COMMIT)))
    assert draft.ops() == [(Outcome.COMMIT, [0, 1])]
    restored = Partition(OBSERVED)
    outcome, named = parse_op(b"0,1", [("TXB_V", b"1"), ("TAGS", b"d"), ("OUTCOME", b"commit")])
    restored.queue.restore_op(0, outcome, named)
    restored.prepare(0, 1, 2, born=0, immunity="10")
    for one in (partition, restored):
        assert {offset for _, offset, _ in history(one, 60_000)} == {2}


def test_issues_1517_1544_more_due_checks_than_can_be_sent_are_neither_counted_nor_repeated():
    partition = Partition(OBSERVED).prepare(*range(10), born=0)
    rounds = [partition.step(3_000 + n, checks=4).checks for n in range(4)]
    assert [offsets(one) for one in rounds] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], []]
    assert {one.checks for checks in rounds for one in checks} == {1}


def test_issue_9500_an_aborted_round_repeats_nothing_and_loses_nothing():
    # RocketMQ: any exception ends the round without its offsets, and what it had sent is sent and counted again.
    partition = Partition(OBSERVED).prepare(0, 1, born=0)
    for now in (3_000, 3_100, 3_200):
        partition.draft(now, end(0, entry(1, COMMIT))).abandon()
    draft = partition.step(3_300, end(0, entry(1, COMMIT)))
    assert ([(one.offset, one.checks) for one in draft.checks], offsets(draft.deliver)) == ([(0, 1)], [1])


def test_issue_1568_a_malformed_half_message_stops_no_check():
    partition = Partition(OBSERVED)
    partition.queue.read_malformed(0, 10)
    partition.prepare(1, born=0)
    draft = partition.step(3_000)
    assert (draft.malformed, offsets(draft.checks), draft.watermark) == ([0], [1], 2)


def test_issues_9786_9787_a_check_leaves_a_small_entry_behind_and_never_the_message_again():
    # RocketMQ appends the whole message to the half topic again at every check.
    partition = Partition(OBSERVED)
    partition.queue.read_half(half(0, born=0, size=1_000_000))
    draft = partition.step(3_000)
    (changed,) = draft.changed
    assert len(changed.encode(0)) < 300
    assert (partition.queue.half_position, changed.state) == (1, TransactionState.PENDING)


def test_issue_6401_an_answer_that_was_overtaken_by_the_producer_is_refused():
    # RocketMQ has a time window in which it refuses the producer (604); here the order of END alone decides.
    partition = Partition(OBSERVED).prepare(0, born=0, immunity="1")
    partition.step(1_000)
    draft = partition.step(70_000, end(0, entry(0, COMMIT)), end(1, entry(0, ROLLBACK)), end(2, entry(0, UNKNOWN)))
    assert (offsets(draft.deliver), reasons(draft)) == ([0], ["CONTRADICTION"])


def test_a_second_half_message_with_the_same_id_is_another_transaction():
    partition = Partition(OBSERVED).prepare(0, born=0)
    partition.queue.read_half(half(1, born=0)._replace(transaction_id=id_of(0)))
    draft = partition.step(100, end(0, entry(0, COMMIT), entry(1, ROLLBACK, id_of(0))))
    assert (offsets(draft.deliver), offsets(draft.rolled_back), draft.refused) == ([0], [1], [])


@pytest.mark.parametrize("timestamp", [1, 9_999_999_999_999])
def test_the_producers_clock_plays_no_part_in_the_age(timestamp):
    # RocketMQ counts from the producer's born timestamp: a clock that is behind is checked, or skipped, at once.
    partition = Partition(OBSERVED)
    partition.queue.read_half(half(0, born=1_000_000_000)._replace(user_timestamp=timestamp))
    assert history(partition, 1_000_010_000, born=1_000_000_000)[0] == ("check 1", 0, 3_000)
