"""The table of parked messages against a dictionary."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from txbridge.core import parked_table
from txbridge.core.half_entry import HalfEntry
from txbridge.core.parked_table import ParkedTable

_OFFSETS = st.integers(0, 40)
_ROWS = st.builds(
    lambda **fields: HalfEntry(**fields, parked=True),
    offset=_OFFSETS,
    transaction_id=st.integers(0, 2**128 - 1).map(lambda number: f"{number:032X}"),
    group=st.sampled_from(["a", "b"]),
    real_topic=st.sampled_from(["x", "y"]),
    born=st.integers(0, 2**62),
    size=st.integers(0, 2**32 - 1),
    checks=st.integers(0, 99),
    next_due=st.integers(0, 2**62),
)


@given(st.lists(_ROWS | _OFFSETS), st.lists(_ROWS | _OFFSETS), _OFFSETS)
def test_it_is_a_dictionary_in_order(first, later, edge):
    # So that small tables are compacted, too.
    parked_table._FEW, before = 3, parked_table._FEW
    try:
        table, known = ParkedTable(), {}
        for step in first:
            _do(table, known, step)
        table.sort()
        assert list(table) == [known[offset] for offset in sorted(known)]
        highest = 40
        for step in later:
            if isinstance(step, HalfEntry) and step.offset not in known:
                highest += 1
                _do(table, known, step._replace(offset=highest))
            else:
                _do(table, known, step)
        assert list(table) == [known[offset] for offset in sorted(known)]
        assert table.split(edge) == [known[offset] for offset in sorted(known) if offset >= edge]
        assert list(table) == [known[offset] for offset in sorted(known) if offset < edge]
    finally:
        parked_table._FEW = before


def _do(table: ParkedTable, known: dict[int, HalfEntry], step: HalfEntry | int) -> None:
    if isinstance(step, int):
        assert table.remove(step) == (known.pop(step, None) is not None)
    else:
        table.put(step)
        known[step.offset] = step
    assert len(table) == len(known)
