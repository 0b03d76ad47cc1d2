"""ParkedTable: pending or scheduled messages in columns, some 70 bytes each. Objects take ten times that.

Columns also spare Python's garbage collector. With a million objects every full collection stops the commits for a
second.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from itertools import compress

from txbridge.core.half_entry import HalfEntry
from txbridge.core.states import TransactionState

#: Fewer dead rows than this are not worth a new set of columns.
_FEW = 10_000
_ID_BYTES = 16
#: State of a row. All but _DEAD count as true.
_DEAD, _PENDING, _SCHEDULED = range(3)
#: Stands for a missing time.
_NONE = -1
#: Group, real topics, number of messages, and of those delivered (`HalfEntry.delivered`).
_Kind = tuple[str, str, int, int | None]


class ParkedTable:
    """Rows by half offset: entries that are pending or scheduled, parked and nothing else (`HalfEntry.is_plain`).

    While the table is filled, offsets may come in any order, come again (the last row counts) and be removed. That
    takes an index. `sort_rows` gives the index up: then rows are found by bisection, and a new row must have the
    highest offset.
    """

    def __init__(self) -> None:
        self._offsets = array("q")
        self._born = array("q")
        self._next_due = array("q")
        self._sizes = array("I")
        self._checks = array("I")
        #: Kind of each row as a number. A million rows share a few kinds.
        self._kinds = array("I")
        self._ids = bytearray()
        #: Of a pending row the time of delivery that it names, of a scheduled one the END offset of its decision.
        self._others = array("q")
        #: State of each row.
        self._states = bytearray()
        self._count = 0
        self._kind_numbers: dict[_Kind, int] = {}
        self._kind_names: list[_Kind] = []
        self._index: dict[int, int] | None = {}

    def __len__(self) -> int:
        return self._count

    def __contains__(self, offset: int) -> bool:
        return self._row_of(offset) >= 0

    def __iter__(self) -> Iterator[HalfEntry]:
        """Every row; in the order of offsets once the table is sorted."""
        return (self._entry_at(row) for row, alive in enumerate(self._states) if alive)

    def offsets(self) -> Iterator[int]:
        """Offset of every row, in the same order; cheaper than the rows."""
        return compress(self._offsets, self._states)

    def get_row(self, offset: int) -> HalfEntry | None:
        row = self._row_of(offset)
        return None if row < 0 else self._entry_at(row)

    def find_id(self, transaction_id: str) -> int | None:
        """Offset of the row with this transaction id. Looks at every row: 0.3 ms for 100,000, 10 ms for a million."""
        key, place = bytes.fromhex(transaction_id), -1
        while (place := self._ids.find(key, place + 1)) >= 0:
            row, rest = divmod(place, _ID_BYTES)
            if not rest and self._states[row]:
                return self._offsets[row]
        return None

    def schedule_of(self, offset: int) -> tuple[int, int, int] | None:
        """For a pending row: due time of the next check, number of checks sent, birth. Cheaper than `get_row`."""
        row = self._row_of(offset)
        if row < 0 or self._states[row] != _PENDING:
            return None
        return self._next_due[row], self._checks[row], self._born[row]

    def delivery_of(self, offset: int) -> int | None:
        """Due time of a scheduled row; cheaper than `get_row`."""
        row = self._row_of(offset)
        return None if row < 0 or self._states[row] != _SCHEDULED else self._next_due[row]

    def counted_as(self, offset: int) -> tuple[str, TransactionState, int] | None:
        """Group, state and birth; cheaper than `get_row`."""
        row = self._row_of(offset)
        if row < 0:
            return None
        return self._kind_names[self._kinds[row]][0], _STATES[self._states[row]], self._born[row]

    def count_kinds(self, width: int) -> Counter[tuple[str, int | TransactionState]]:
        """Number of rows by group and, if they are pending, the number of the span of `width` ms of their birth.

        Those of scheduled rows are by group and state.
        """
        groups = [kind[0] for kind in self._kind_names]
        rows = zip(self._kinds, self._born, self._states, strict=True)
        return Counter(
            (groups[kind], born // width if state == _PENDING else TransactionState.SCHEDULED)
            for kind, born, state in rows
            if state
        )

    def iter_schedules(self) -> Iterator[tuple[int, str, int, int, int]]:
        """Offset, group and the values of `schedule_of` for every pending row. A quick way through a million rows."""
        groups = [kind[0] for kind in self._kind_names]
        columns = zip(self._offsets, self._kinds, self._next_due, self._checks, self._born, self._states, strict=True)
        for offset, kind, next_due, checks, born, state in columns:
            if state == _PENDING:
                yield offset, groups[kind], next_due, checks, born

    def iter_deliveries(self) -> Iterator[tuple[int, int]]:
        """Due time and offset of each scheduled row."""
        columns = zip(self._next_due, self._offsets, self._states, strict=True)
        return ((next_due, offset) for next_due, offset, state in columns if state == _SCHEDULED)

    def put_row(self, row: HalfEntry) -> None:
        """Add a row, or replace the one with its offset."""
        place = self._row_of(row.offset)
        if place < 0:
            self._append_row(row)
            return
        self._born[place], self._next_due[place] = row.born, row.next_due
        self._sizes[place], self._checks[place] = row.size, row.checks
        self._kinds[place] = self._kind_number(_kind_of(row))
        self._states[place], self._others[place] = _state_of(row)
        self._ids[place * _ID_BYTES : (place + 1) * _ID_BYTES] = bytes.fromhex(row.transaction_id)

    def remove_row(self, offset: int) -> bool:
        """Remove a row; False when there is none."""
        row = self._row_of(offset)
        if row < 0:
            return False
        self._states[row] = _DEAD
        self._count -= 1
        if self._index is not None:
            del self._index[offset]
        if len(self._states) > 2 * self._count + _FEW:
            self._drop_empty_rows()
        return True

    def sort_rows(self) -> None:
        """Sort the rows by offset, and give up the index."""
        index, self._index = self._index, None
        if index is None:
            return
        order = [index[offset] for offset in sorted(index)]
        index.clear()
        self._rearrange_rows(order)

    def split_off(self, offset: int) -> list[HalfEntry]:
        """Remove and return the rows at and above an offset. The table must be sorted."""
        first = bisect_left(self._offsets, offset)
        found = [self._entry_at(row) for row in range(first, len(self._states)) if self._states[row]]
        for column in (self._offsets, self._born, self._next_due, self._sizes, self._checks, self._kinds, self._others):
            del column[first:]
        del self._states[first:]
        del self._ids[first * _ID_BYTES :]
        self._count -= len(found)
        return found

    def _row_of(self, offset: int) -> int:
        if self._index is not None:
            return self._index.get(offset, -1)
        row = bisect_left(self._offsets, offset)
        if row == len(self._offsets) or self._offsets[row] != offset or not self._states[row]:
            return -1
        return row

    def _entry_at(self, row: int) -> HalfEntry:
        group, real_topic, messages, delivered = self._kind_names[self._kinds[row]]
        state, other, next_due = self._states[row], self._others[row], self._next_due[row]
        is_scheduled = state == _SCHEDULED
        decided = other if is_scheduled else None
        deliver_at = next_due if is_scheduled else None if other == _NONE else other
        return HalfEntry(
            self._offsets[row],
            self._ids[row * _ID_BYTES : (row + 1) * _ID_BYTES].hex().upper(),
            group,
            real_topic,
            self._born[row],
            self._sizes[row],
            next_due,
            _STATES[state],
            self._checks[row],
            True,
            decided=decided,
            messages=messages,
            deliver_at=deliver_at,
            delivered=delivered,
        )

    def _append_row(self, row: HalfEntry) -> None:
        if self._index is not None:
            self._index[row.offset] = len(self._offsets)
        elif self._offsets and row.offset <= self._offsets[-1]:
            raise ValueError(f"half offset {row.offset} is not above {self._offsets[-1]}")
        self._offsets.append(row.offset)
        self._born.append(row.born)
        self._next_due.append(row.next_due)
        self._sizes.append(row.size)
        self._checks.append(row.checks)
        self._kinds.append(self._kind_number(_kind_of(row)))
        self._ids += bytes.fromhex(row.transaction_id)
        state, other = _state_of(row)
        self._others.append(other)
        self._states.append(state)
        self._count += 1

    def _kind_number(self, kind: _Kind) -> int:
        number = self._kind_numbers.get(kind)
        if number is None:
            number = self._kind_numbers[kind] = len(self._kind_names)
            self._kind_names.append(kind)
        return number

    def _drop_empty_rows(self) -> None:
        self._rearrange_rows(list(compress(range(len(self._states)), self._states)))
        # Kinds without a row are forgotten: clients choose groups and topics, so there may be any number over time.
        kinds = list(map(self._kind_names.__getitem__, self._kinds))
        self._kind_numbers, self._kind_names = {}, []
        self._kinds = array("I", map(self._kind_number, kinds))
        if self._index is not None:
            self._index = {offset: row for row, offset in enumerate(self._offsets)}

    def _rearrange_rows(self, order: list[int]) -> None:
        """Keep these rows, in this order. Columns are copied one by one, so that only one is in memory twice."""
        self._offsets = array("q", map(self._offsets.__getitem__, order))
        self._born = array("q", map(self._born.__getitem__, order))
        self._next_due = array("q", map(self._next_due.__getitem__, order))
        self._sizes = array("I", map(self._sizes.__getitem__, order))
        self._checks = array("I", map(self._checks.__getitem__, order))
        self._kinds = array("I", map(self._kinds.__getitem__, order))
        ids, self._ids = self._ids, bytearray()
        for row in order:
            # Not join: it would hold all the parts at once, as objects.
            self._ids += ids[row * _ID_BYTES : (row + 1) * _ID_BYTES]
        self._others = array("q", map(self._others.__getitem__, order))
        self._states = bytearray(map(self._states.__getitem__, order))


_STATES = {_PENDING: TransactionState.PENDING, _SCHEDULED: TransactionState.SCHEDULED}


def _kind_of(row: HalfEntry) -> _Kind:
    return row.group, row.real_topic, row.messages, row.delivered


def _state_of(row: HalfEntry) -> tuple[int, int]:
    """State of a row, and its number for `_others`."""
    if row.state is TransactionState.SCHEDULED:
        assert row.decided is not None
        return _SCHEDULED, row.decided
    return _PENDING, _NONE if row.deliver_at is None else row.deliver_at
