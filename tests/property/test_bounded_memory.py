"""Tables with bounded memory against a dictionary: parked messages, and the half messages that copies are known by."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from txbridge.core import parked_table
from txbridge.core.dedup import DeduplicationWindow
from txbridge.core.half_entry import HalfEntry
from txbridge.core.parked_table import ParkedTable
from txbridge.core.states import TransactionState

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
def test_it_is_a_dictionary_in_order(first, later, edge):
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
    assert {schedule[0] for schedule in table.iter_schedules()} == {entry.offset for entry in pending}
    assert sorted(table.iter_deliveries()) == sorted((entry.deliver_at, entry.offset) for entry in scheduled)
    kinds = [(one.group, one.born // 1_000) for one in pending] + [(one.group, one.state) for one in scheduled]
    assert table.count_kinds(1_000) == Counter(kinds)
    for offset, entry in known.items():
        assert table.counted_as(offset) == (entry.group, entry.state, entry.born)
        assert (table.schedule_of(offset) is None) == (entry.state is TransactionState.SCHEDULED)


def _do(table: ParkedTable, known: dict[int, HalfEntry], step: HalfEntry | int) -> None:
    if isinstance(step, int):
        assert table.remove_row(step) == (known.pop(step, None) is not None)
    else:
        table.put_row(step)
        known[step.offset] = step
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
