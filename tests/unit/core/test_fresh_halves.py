"""Fresh half messages: the conditions for taking them together, and their state after a take-over."""

from __future__ import annotations

import pytest

from tests.support.partition_builder import COMMIT, POLICY, Partition, id_of
from txbridge.core.decision_record import DecisionEntry, DecisionRecord, Source, encode_end, parse_end
from txbridge.core.fresh_halves import FreshHalves, Run, read_plain
from txbridge.core.half_entry import HalfEntry
from txbridge.core.half_message import half_headers
from txbridge.core.half_queue import HalfQueue
from txbridge.core.offset_topic import ParkedEntries
from txbridge.core.states import Outcome


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


def partition_with(*offsets: int) -> Partition:
    partition, fresh = Partition(), halves(*offsets)
    assert fresh is not None
    assert partition.queue.take_fresh(fresh)
    return partition


@pytest.mark.parametrize("options", [{"immunity_seconds": 5}, {"real_partition": 1}, {"user_timestamp": 7}])
def test_one_with_options_is_looked_at_by_itself(options):
    assert halves(0, 1) is not None
    assert halves(0, 1, **options) is None


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
    partition = partition_with(0, 1)
    draft = partition.draft(2_000, record)
    assert any(isinstance(part, Run) for part in draft.parts) is is_run
    # Its topic takes nothing.
    partition = partition_with(0, 1)
    partition.obstacles["placed"] = "no such topic"
    assert partition.draft(2_000, record).parts == []


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
    entry = HalfEntry(0, id_of(0), "orders", "placed", 1_000, 100, 7_000, parked=True)
    queue.restore_parked(ParkedEntries([entry]))
    assert known is not None
    assert not queue.take_fresh(known)
