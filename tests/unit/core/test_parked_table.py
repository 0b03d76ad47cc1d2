"""Rows of parked messages: unchanged when they are read, whatever was removed meanwhile, at a known cost."""

from __future__ import annotations

import sys
import tracemalloc

import pytest

from txbridge.core import parked_table
from txbridge.core.check_policy import CheckPolicy
from txbridge.core.half_entry import HalfEntry
from txbridge.core.offset_topic import ParkedEntries
from txbridge.core.open_messages import OpenMessages
from txbridge.core.parked_table import ParkedTable
from txbridge.core.states import TransactionState
from txbridge.core.timers import Timers


def entry(offset: int, **changes: object) -> HalfEntry:
    fields: dict[str, object] = {
        "parked": True,
        "offset": offset,
        "state": TransactionState.PENDING,
        "transaction_id": f"{offset:032X}",
        "group": "orders",
        "real_topic": "orders.placed",
        "born": 1_000,
        "size": 100,
        "checks": 0,
        "next_due": 7_000,
    }
    return HalfEntry(**(fields | changes))


def table(*rows: HalfEntry) -> ParkedTable:
    made = ParkedTable()
    for one in rows:
        made.put_row(one)
    return made


def test_a_sorted_one_grows_at_its_end_only():
    made = table(entry(1))
    made.sort_rows()
    made.put_row(entry(4))
    made.put_row(entry(1, checks=1))
    assert [one.checks for one in made] == [1, 0]
    with pytest.raises(ValueError, match="half offset 2 is not above 4"):
        made.put_row(entry(2))


def test_rows_that_are_split_off_are_no_longer_counted():
    made = table(*map(entry, range(4)))
    made.sort_rows()
    made.remove_row(2)
    assert made.split_off(1) == [entry(1), entry(3)]
    assert (len(made), list(made)) == (1, [entry(0)])


def test_a_row_that_becomes_scheduled_is_counted_as_such():
    entries = OpenMessages()
    rows = table(*map(entry, range(3)))
    rows.sort_rows()
    entries.adopt_rows(rows)
    entries.put_entry(entry(1, state=TransactionState.SCHEDULED, decided=5, deliver_at=7_000))
    counts = entries.open_counts()
    assert (counts.pending, counts.others) == ({"orders": {0: 2}}, {("orders", TransactionState.SCHEDULED): 1})


def test_removed_rows_are_given_up_in_the_end():
    made = table(*map(entry, range(30_000)))
    made.sort_rows()
    for offset in range(30_000):
        if offset % 1_000:
            assert made.remove_row(offset)
    assert not made.remove_row(1)
    assert [one.offset for one in made] == list(range(0, 30_000, 1_000))
    assert made.get_row(29_000) == entry(29_000)
    assert sys.getsizeof(made._states) < 15_000
    made.put_row(entry(30_000))
    assert made.get_row(30_000) == entry(30_000)


def test_p9_a_row_costs_less_than_100_bytes():
    made = table(*map(entry, range(50_000)))
    made.sort_rows()
    columns = (getattr(made, name) for name in ParkedTable().__dict__)
    assert sum(sys.getsizeof(column) for column in columns) < 73 * 50_000


@pytest.mark.parametrize(
    ("values", "fits"),
    [
        (("A" * 32, 2**32 - 1, 15), True),
        (("a" * 32, 1, 0), False),
        (("A" * 31, 1, 0), False),
        (("A" * 32 + "\n", 1, 0), False),
        (("A" * 32, 2**32, 0), False),
        (("A" * 32, 1, 2**32), False),
    ],
)
def test_what_fits_into_a_row(values, fits):
    transaction_id, size, checks = values
    assert entry(7, transaction_id=transaction_id, size=size, checks=checks).is_plain is fits


def test_entries_of_every_kind_are_one_mapping():
    held = entry(4, state=TransactionState.HELD, decided=7, error="no such topic")
    resumed = entry(6, resumed=9_000)
    odd = entry(8, size=2**40)
    entries = ParkedEntries([entry(2), held, resumed, odd])
    assert dict(entries) == {2: entry(2), 4: held, 6: resumed, 8: odd}
    # A change from one kind to the other and back, and a removal.
    entries.take_entry(2, entry(2, state=TransactionState.HELD, decided=8, error="later").encode(0))
    entries.take_entry(6, entry(6).encode(0))
    entries.take_entry(4, None)
    entries.take_entry(5, None)
    assert dict(entries) == {2: entry(2, state=TransactionState.HELD, decided=8, error="later"), 6: entry(6), 8: odd}
    assert (len(entries), 4 in entries, "4" in entries) == (3, False, False)
    rows, others = entries.release()
    assert ([one.offset for one in rows], sorted(one.offset for one in others)) == ([6], [2, 8])
    assert len(entries) == 0


def test_p9_groups_and_topics_without_an_open_message_take_no_memory(monkeypatch):
    # Every message names another group and another topic, and 100 are open at a time.
    monkeypatch.setattr(parked_table, "_FEW", 500)
    entries = OpenMessages()
    timers = Timers(CheckPolicy(), entries)
    tracemalloc.start()
    try:
        sizes = []
        for offset in range(12_000):
            one = entry(offset, group=f"group-{offset}", real_topic=f"topic-{offset}", next_due=86_400_000)
            entries.put_entry(one)
            timers.schedule_next(one)
            entries.settle_entry(offset)
            entries.remove_entry(offset - 100)
            if offset in (3_999, 11_999):
                sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert sizes[1] < 1.3 * sizes[0], sizes
