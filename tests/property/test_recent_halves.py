"""Copies of half messages: each is recognised within the window, and nothing else is taken for a copy."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from txbridge.core.dedup import DeduplicationWindow

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
