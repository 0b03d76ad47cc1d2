"""The timer queue and the tables with bounded memory against a dictionary, and END with different cuts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import cycle, repeat
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.property.reference_model import IMMUNITY
from tests.support.partition_builder import Partition, end, entry, id_of, offsets
from txbridge.core import parked_table, timers
from txbridge.core.check_policy import CheckPolicy
from txbridge.core.decision_record import Decision, DecisionEntry, DecisionRecord
from txbridge.core.dedup import DeduplicationWindow
from txbridge.core.half_entry import HalfEntry
from txbridge.core.parked_table import ParkedTable
from txbridge.core.plan.choice import Limits
from txbridge.core.states import TransactionState
from txbridge.core.timers import TimerQueue

MESSAGES = 6


@pytest.fixture(params=[1, 4, 1_024], ids=lambda size: f"cleaned from {size}", scope="module")
def cleaned(request: pytest.FixtureRequest) -> Iterator[None]:
    """Number of items from which a queue is cleaned, one for each push."""
    with mock.patch.multiple(timers, _FEW_ITEMS=request.param, _CLEANED=1):
        yield


@pytest.mark.usefixtures("cleaned")
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["push", "push", "repeat", "drop", "take", "peek"]), st.integers(0, 9), st.integers(0, 30)
        ),
        max_size=60,
    )
)
def test_a_schedule_yields_what_is_due_once_and_in_order(steps):
    dues: dict[int, int] = {}
    schedule = TimerQueue(lambda due, offset: dues.get(offset) == due)
    for what, offset, number in steps:
        expected = [o for _, o in sorted((due, o) for o, due in dues.items() if due <= number)][:offset]
        if what == "push":
            dues[offset] = number
            schedule.push_item(number, offset)
        elif what == "repeat" and offset in dues:
            schedule.push_item(dues[offset], offset)
        elif what == "drop":
            dues.pop(offset, None)
        elif what == "peek":
            assert schedule.peek_due(number, offset) == expected
        elif what == "take":
            assert schedule.take_due(number, offset) == expected
            for taken in expected:
                del dues[taken]
        assert schedule.next_due() == min(dues.values(), default=None)


def run(records: list[DecisionRecord], sizes: Iterator[Limits]) -> tuple:
    """Apply END in Kafka transactions of these sizes; return all outcomes."""
    partition = Partition()
    for offset in range(MESSAGES):
        partition.prepare(offset, size=100 * offset)
    queue = partition.queue
    # Half message 0 stays open, so that the watermark stays below all outcomes.
    delivered: list[int] = []
    rolled_back: list[int] = []
    refused: list[tuple[int, DecisionEntry, str]] = []
    while queue.next_end < len(records):
        limits = next(sizes)
        partition.max_entries, partition.max_bytes = limits.entries, limits.bytes
        draft = partition.draft(1_000, *records)
        assert (draft.next_end, draft.next_entry) > (queue.next_end, queue.next_entry), "it stands still"
        delivered += offsets(draft.deliver)
        rolled_back += offsets(draft.rolled_back)
        refused += [(one.end_offset, one.entry, one.reason.name) for one in draft.refused]
        partition.commit(draft)
    return delivered, rolled_back, refused, offsets(partition.open_entries)


@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, MESSAGES), st.booleans(), st.sampled_from(Decision)), min_size=1, max_size=3),
        max_size=10,
    ),
    st.lists(st.builds(Limits, st.integers(1, 9), st.integers(1, 700)), min_size=1, max_size=6),
)
def test_p5_p14_where_transactions_are_cut_makes_no_difference(drawn, sizes):
    records = [
        end(number, *[entry(offset, decision, id_of(offset if right else 99)) for offset, right, decision in entries])
        for number, entries in enumerate(drawn)
    ]
    whole = run(records, repeat(Limits()))
    assert run(records, cycle(sizes)) == whole
    assert run(records, repeat(Limits(1, 1))) == whole


def test_the_immunity_times_of_the_reference_model_are_those_of_the_protocol():
    policy = CheckPolicy(transaction_max_age=10**12)
    assert {text: policy.first_check(0, text) for text in IMMUNITY} == IMMUNITY


_OFFSETS = st.integers(0, 40)


def _row(decided: int | None, **fields: Any) -> HalfEntry:
    entry = HalfEntry(**fields, parked=True)
    if decided is None:
        return entry
    return entry._replace(state=TransactionState.SCHEDULED, decided=decided, deliver_at=entry.next_due)


_ROWS = st.builds(
    _row,
    decided=st.none() | st.integers(0, 2**62),
    deliver_at=st.none() | st.integers(0, 2**62),
    offset=_OFFSETS,
    transaction_id=st.integers(0, 2**128 - 1).map(lambda number: f"{number:032X}"),
    group=st.sampled_from(["a", "b"]),
    real_topic=st.sampled_from(["x", "y"]),
    born=st.integers(0, 2**62),
    size=st.integers(0, 2**32 - 1),
    checks=st.integers(0, 99),
    next_due=st.integers(0, 2**62),
    messages=st.integers(1, 3),
    delivered=st.none() | st.integers(0, 2),
)


@given(st.lists(_ROWS | _OFFSETS), st.lists(_ROWS | _OFFSETS), _OFFSETS)
def test_the_table_of_parked_messages_is_a_dictionary_in_order(first, later, edge):
    # Small enough that these tables are compacted, too.
    parked_table._FEW, before = 3, parked_table._FEW
    try:
        table, known = ParkedTable(), {}
        for step in first:
            _do(table, known, step)
        table.sort_rows()
        assert list(table) == [known[offset] for offset in sorted(known)]
        highest = 40
        for step in later:
            if isinstance(step, HalfEntry) and step.offset not in known:
                highest += 1
                _do(table, known, step._replace(offset=highest))
            else:
                _do(table, known, step)
        assert list(table) == [known[offset] for offset in sorted(known)]
        _counts_agree(table, known)
        assert table.split_off(edge) == [known[offset] for offset in sorted(known) if offset >= edge]
        assert list(table) == [known[offset] for offset in sorted(known) if offset < edge]
    finally:
        parked_table._FEW = before


def _counts_agree(table: ParkedTable, known: dict[int, HalfEntry]) -> None:
    pending = [entry for entry in known.values() if entry.state is TransactionState.PENDING]
    scheduled = [entry for entry in known.values() if entry.state is TransactionState.SCHEDULED]
    schedules = {one.offset: (one.next_due, one.checks, one.born) for one in pending}
    assert sorted(table.iter_schedules()) == sorted((one.offset, one.group, *schedules[one.offset]) for one in pending)
    assert sorted(table.iter_deliveries()) == sorted((entry.deliver_at, entry.offset) for entry in scheduled)
    kinds = [(one.group, one.born // 1_000) for one in pending] + [(one.group, one.state) for one in scheduled]
    assert table.count_kinds(1_000) == Counter(kinds)
    for offset, row in known.items():
        assert table.counted_as(offset) == (row.group, row.state, row.born)
        assert table.schedule_of(offset) == schedules.get(offset)


def _do(table: ParkedTable, known: dict[int, HalfEntry], step: HalfEntry | int) -> None:
    if isinstance(step, int):
        assert table.remove_row(step) == (known.pop(step, None) is not None)
    else:
        table.put_row(step)
        known[step.offset] = step
        assert table.get_row(step.offset) == step
    assert len(table) == len(known)


#: One of a few ids, and the milliseconds until its append (negative after an election).
_RECORDS = st.lists(st.tuples(st.integers(0, 12), st.integers(-15, 60)), max_size=120)


@given(_RECORDS, st.sampled_from([40, 100, 1_000]), st.integers(0, 5))
def test_a_copy_is_recognised_within_the_window_and_nothing_else_is_one(
    records: list[tuple[int, int]], window: int, at_least: int
) -> None:
    recent = DeduplicationWindow(window, at_least)
    accepted: dict[int, list[tuple[int, int]]] = {}
    born = newest = 1_000
    for offset, (name, later) in enumerate(records):
        born += later
        newest = max(newest, born)
        known = accepted.setdefault(name, [])
        first = recent.note_id(offset, f"{name:032X}", born)
        if first is None:
            assert all(newest - before > window for _, before in known)
            known.append((offset, born))
        else:
            assert first in [one for one, _ in known]
            assert recent.first_of(offset) == first
        assert recent.start is not None
        assert recent.start <= offset
