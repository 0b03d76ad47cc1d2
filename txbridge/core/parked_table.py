"""ParkedTable: a million pending messages in columns, some 60 bytes each, where objects would take ten times that.

And an object less is one less for Python's garbage collector to look at: with a million of them every full collection
stops the commits for a second.
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
_DEAD = 0
_ALIVE = 1
#: Group, real topics, number of messages.
_Kind = tuple[str, str, int]


class ParkedTable:
    """Rows by half offset: entries that are pending, parked and nothing else (`HalfEntry.is_plain`).

    While it is filled, offsets may come in any order, again (the last one counts) and be removed; that takes an index.
    `sort` gives the index up: from then on rows are found by bisection, and a new one must have the highest offset.
    """

    def __init__(self) -> None:
        self._offsets = array("q")
        self._born = array("q")
        self._next_due = array("q")
        self._sizes = array("I")
        self._checks = array("I")
        #: Which group, real topics and number of messages: a million of them share a few.
        self._kinds = array("I")
        self._ids = bytearray()
        self._alive = bytearray()
        self._count = 0
        self._kind_numbers: dict[_Kind, int] = {}
        self._kind_names: list[_Kind] = []
        self._index: dict[int, int] | None = {}

    def __len__(self) -> int:
        return self._count

    def __contains__(self, offset: int) -> bool:
        return self._row(offset) >= 0

    def __iter__(self) -> Iterator[HalfEntry]:
        """Every row: in the order of offsets once it is sorted."""
        return (self._at(row) for row, alive in enumerate(self._alive) if alive)

    def offsets(self) -> Iterator[int]:
        """Of every row, in the same order; cheaper than the rows."""
        return compress(self._offsets, self._alive)

    def get(self, offset: int) -> HalfEntry | None:
        row = self._row(offset)
        return None if row < 0 else self._at(row)

    def schedule_of(self, offset: int) -> tuple[int, int, int] | None:
        """When the next check is due, how many were sent, and when it was born; cheaper than `get`."""
        row = self._row(offset)
        return None if row < 0 else (self._next_due[row], self._checks[row], self._born[row])

    def birth_of(self, offset: int) -> tuple[str, int] | None:
        """Group, and when it was born; cheaper than `get`."""
        row = self._row(offset)
        return None if row < 0 else (self._kind_names[self._kinds[row]][0], self._born[row])

    def births(self, width: int) -> Counter[tuple[str, int]]:
        """How many rows of each group were born in each span of `width` ms, as (group, number of the span)."""
        groups = [group for group, _, _ in self._kind_names]
        rows = zip(compress(self._kinds, self._alive), compress(self._born, self._alive), strict=True)
        return Counter((groups[kind], born // width) for kind, born in rows)

    def schedules(self) -> Iterator[tuple[int, str, int, int, int]]:
        """Offset, group, and what `schedule_of` says, of every row; to go through a million of them quickly."""
        groups = [group for group, _, _ in self._kind_names]
        columns = zip(self._offsets, self._kinds, self._next_due, self._checks, self._born, self._alive, strict=True)
        for offset, kind, next_due, checks, born, alive in columns:
            if alive:
                yield offset, groups[kind], next_due, checks, born

    def put(self, row: HalfEntry) -> None:
        """Add a row, or replace the one with its offset."""
        place = self._row(row.offset)
        if place < 0:
            self._append(row)
            return
        self._born[place], self._next_due[place] = row.born, row.next_due
        self._sizes[place], self._checks[place] = row.size, row.checks
        self._kinds[place] = self._kind((row.group, row.real_topic, row.messages))
        self._ids[place * _ID_BYTES : (place + 1) * _ID_BYTES] = bytes.fromhex(row.transaction_id)

    def remove(self, offset: int) -> bool:
        """Remove a row; False when there is none."""
        row = self._row(offset)
        if row < 0:
            return False
        self._alive[row] = _DEAD
        self._count -= 1
        if self._index is not None:
            del self._index[offset]
        if len(self._alive) > 2 * self._count + _FEW:
            self._compact()
        return True

    def sort(self) -> None:
        """Give up the index, and be in the order of offsets."""
        index, self._index = self._index, None
        if index is None:
            return
        order = [index[offset] for offset in sorted(index)]
        index.clear()
        self._rearrange(order)

    def split(self, offset: int) -> list[HalfEntry]:
        """Take out the rows at and above an offset; of a sorted table."""
        first = bisect_left(self._offsets, offset)
        found = [self._at(row) for row in range(first, len(self._alive)) if self._alive[row]]
        for column in (self._offsets, self._born, self._next_due, self._sizes, self._checks, self._kinds, self._alive):
            del column[first:]
        del self._ids[first * _ID_BYTES :]
        self._count -= len(found)
        return found

    # --- columns ----------------------------------------------------------------------------------------------------

    def _row(self, offset: int) -> int:
        if self._index is not None:
            return self._index.get(offset, -1)
        row = bisect_left(self._offsets, offset)
        if row == len(self._offsets) or self._offsets[row] != offset or not self._alive[row]:
            return -1
        return row

    def _at(self, row: int) -> HalfEntry:
        group, real_topic, messages = self._kind_names[self._kinds[row]]
        return HalfEntry(
            self._offsets[row],
            self._ids[row * _ID_BYTES : (row + 1) * _ID_BYTES].hex().upper(),
            group,
            real_topic,
            self._born[row],
            self._sizes[row],
            self._next_due[row],
            TransactionState.PENDING,
            self._checks[row],
            True,
            messages=messages,
        )

    def _append(self, row: HalfEntry) -> None:
        if self._index is not None:
            self._index[row.offset] = len(self._offsets)
        elif self._offsets and row.offset <= self._offsets[-1]:
            raise ValueError(f"half offset {row.offset} is not above {self._offsets[-1]}")
        self._offsets.append(row.offset)
        self._born.append(row.born)
        self._next_due.append(row.next_due)
        self._sizes.append(row.size)
        self._checks.append(row.checks)
        self._kinds.append(self._kind((row.group, row.real_topic, row.messages)))
        self._ids += bytes.fromhex(row.transaction_id)
        self._alive.append(_ALIVE)
        self._count += 1

    def _kind(self, kind: _Kind) -> int:
        number = self._kind_numbers.get(kind)
        if number is None:
            number = self._kind_numbers[kind] = len(self._kind_names)
            self._kind_names.append(kind)
        return number

    def _compact(self) -> None:
        self._rearrange(list(compress(range(len(self._alive)), self._alive)))
        if self._index is not None:
            self._index = {offset: row for row, offset in enumerate(self._offsets)}

    def _rearrange(self, order: list[int]) -> None:
        """Keep these rows, in this order; one column after the other, so that only one is there twice."""
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
        self._alive = bytearray([_ALIVE]) * len(order)
