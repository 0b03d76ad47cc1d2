"""Fresh half messages: the conditions for taking them together, and their state after a take-over."""

from __future__ import annotations

import pytest

from tests.support.partition_builder import COMMIT, POLICY, id_of
from txbridge.core.decision_record import DecisionEntry, DecisionRecord, Source, encode_end, parse_end
from txbridge.core.fresh_halves import FreshHalves, read_plain
from txbridge.core.half_message import half_headers
from txbridge.core.half_queue import HalfQueue
from txbridge.core.offset_topic import ParkedEntries
from txbridge.core.plan.choice import EndChoice
from txbridge.core.plan.draft import Draft
from txbridge.core.states import Outcome, TransactionState
from txbridge.core.transaction_size import Limits


def halves(*offsets: int, ids: list[str] | None = None, **options) -> FreshHalves | None:
    headers = [
        half_headers((), transaction_id=name, group="orders", real_topic="placed", **options)
        for name in ids or map(id_of, offsets)
    ]
    count = len(offsets)
    return read_plain(offsets[0], [1_000] * count, [None] * count, [b"v"] * count, headers, "")


def commit(offset: int, *half_offsets: int, group: str = "orders") -> DecisionRecord:
    entries = [DecisionEntry(one, id_of(one), COMMIT) for one in half_offsets]
    return parse_end(offset, *encode_end(entries, group, Source.CLIENT))


def queue_with(*offsets: int) -> HalfQueue:
    queue, fresh = HalfQueue(POLICY), halves(*offsets)
    assert fresh is not None
    assert queue.take_fresh(fresh)
    return queue


@pytest.mark.parametrize("options", [{"immunity_seconds": 5}, {"real_partition": 1}, {"user_timestamp": 7}])
def test_one_with_options_is_looked_at_by_itself(options):
    assert halves(0, 1) is not None
    assert halves(0, 1, **options) is None


def test_the_same_id_twice_is_looked_at_one_by_one():
    assert halves(0, 1, ids=[id_of(0), id_of(0)]) is None
    queue, again = queue_with(0, 1), halves(2, ids=[id_of(1)])
    assert again is not None
    assert not queue.take_fresh(again)
    assert (queue.read_position, queue.count_by_state()[TransactionState.PENDING]) == (2, 2)


@pytest.mark.parametrize(
    ("record", "is_run"),
    [
        (commit(0, 1, 0), True),
        (commit(0, 0, 0), False),
        (commit(0, 2), False),
        (commit(0, 0, group="billing"), False),
        (DecisionRecord(0, "orders", Source.CLIENT, [DecisionEntry(0, id_of(0), COMMIT, check_times=1)]), False),
    ],
)
def test_what_an_end_record_decides_is_a_run_when_nothing_stands_in_its_way(record, is_run):
    run = EndChoice(queue_with(0, 1), Limits(), due=0).run_of(record)
    assert (run is not None) is is_run


def test_a_topic_without_room_does_not_stop_the_runs_of_others():
    choice = EndChoice(queue_with(0, 1), Limits(), lambda _: False, due=0)
    run = choice.run_of(commit(0, 1, 0))
    assert run is not None
    assert choice.take_run(run)


def test_what_a_run_has_decided_is_decided_once():
    queue = queue_with(0, 1, 2)
    choice = EndChoice(queue, Limits(), due=0)
    first, again = (choice.run_of(commit(number, 1)) for number in (0, 1))
    assert first is not None
    assert again is not None
    assert choice.take_run(first)
    assert choice.run_of(commit(1, 1)) is None
    draft = Draft(queue, 2_000)
    draft.apply_run(first)
    draft.park_entries(10)
    assert (draft.delivered, draft.watermark, draft.ops()) == (1, 0, [(Outcome.COMMIT, [1])])
    draft.apply(2_000)
    assert EndChoice(queue, Limits(), due=0).run_of(commit(1, 1)) is None
    assert (queue.outcome_of(1), queue.watermark, queue.count_by_state()[TransactionState.PENDING]) == (
        Outcome.COMMIT,
        0,
        2,
    )


def test_what_op_says_of_a_half_message_that_is_still_to_be_read_is_not_forgotten():
    queue, known, later = HalfQueue(POLICY), halves(0, 1), halves(2)
    queue.restore_op(0, Outcome.COMMIT, [1])
    assert known is not None
    assert later is not None
    assert not queue.take_fresh(known)
    queue.advance_reader(2)
    assert queue.take_fresh(later)


def test_what_is_parked_above_the_watermark_is_not_fresh():
    queue, known = HalfQueue(POLICY), halves(0, 1)
    (entry, _) = queue_with(0, 1).open_entries()
    queue.restore_parked(ParkedEntries([entry._replace(parked=True)]))
    assert known is not None
    assert not queue.take_fresh(known)


def test_it_is_of_concern_when_its_first_check_is_due():
    queue = queue_with(0, 1)
    assert queue.next_due() == 1_000 + POLICY.transaction_timeout
    assert queue.enter_fresh(queue.fresh_until(1_000 + POLICY.transaction_timeout - 1)) == []
    entered = queue.enter_fresh(queue.fresh_until(1_000 + POLICY.transaction_timeout))
    assert [half.offset for half in entered] == [0, 1]
    assert (len(queue.fresh), queue.fresh.bytes, queue.count_by_state()[TransactionState.PENDING]) == (0, 0, 2)
