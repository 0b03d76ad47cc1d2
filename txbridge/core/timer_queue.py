"""TimerQueue: items by due time, in a heap for the near future and a calendar for the time behind it."""

from __future__ import annotations

import heapq
from array import array
from bisect import insort
from collections.abc import Callable

#: With fewer items than this, cleaning is not worth its cost.
_SMALL = 1_024
#: Length of a day of the calendar in ms. A day is moved into the heap at once.
_DAY = 1_024
#: A day with more items than this is moved in pages of this size. A million items that are due in the same second would
#: take 150 MB in the heap, and a pause of seconds.
_PAGE = 8_192
#: An item of such a day is a single number: the time within the day and, in these bits, the offset, which is below 4 *
#: 10^15.
_OFFSET_BITS = 52
#: Items that cleaning looks at for each push. So cleaning is complete before the queue has grown by another eighth, and
#: 10,000 pushes in a row do not become slow.
_LOOKS = 8


class TimerQueue:
    """Items (due, half offset). One goes out of date when its message changes, and is dropped when it becomes due.

    Items that are due soon are in a heap. The others are in a calendar: a plain column of numbers for every second of
    time, which is moved into the heap when that second comes. An item takes 16 bytes there, and 150 in the heap.

    Behind an item that waits for long, items out of date would gather without end. So the calendar is also cleaned,
    whenever it has grown to twice its size after the last cleaning. One second of it is cleaned whenever enough was
    pushed to pay for the one before. The cost per push is constant, and there are about two items for each current one
    in the end.

    Nothing is cleaned if `cleaned` is false. For items that all become due before long, waiting costs less than looking
    at each of them twice.
    """

    __slots__ = (
        "_clean_at",
        "_cleaned",
        "_count",
        "_days",
        "_heap",
        "_horizon",
        "_is_current",
        "_later",
        "_rest",
        "_rest_at",
        "_rest_from",
        "_rest_until",
        "_to_clean",
        "_unpaid",
    )

    def __init__(self, is_current: Callable[[int, int], bool], *, cleaned: bool = True) -> None:
        self._is_current = is_current
        self._cleaned = cleaned
        self._heap: list[tuple[int, int]] = []
        #: Items that are due before this time are in the heap.
        self._horizon = 0
        #: The calendar, by number of the day: due, offset, due, offset ... And the numbers, as a heap.
        self._later: dict[int, array[int]] = {}
        self._days: list[int] = []
        #: A large day: its items in order, the index of the first that is left, and begin and end of the day (ms). The
        #: heap has the items before that index.
        self._rest: array[int] = array("q")
        self._rest_at = self._rest_from = self._rest_until = 0
        self._count = 0
        self._clean_at = _SMALL
        self._to_clean: list[int] = []
        #: Items that cleaning has looked at, less those that pushes have paid for since. The first few of each cleaning
        #: are free.
        self._unpaid = -_SMALL

    def __len__(self) -> int:
        return self._count

    def push_item(self, due: int, offset: int) -> None:
        """Schedule an item, which must be current already. To do it twice does no harm."""
        self._count += 1
        if due < self._horizon:
            heapq.heappush(self._heap, (due, offset))
        elif due < self._rest_until and offset >> _OFFSET_BITS == 0:
            code = (due - self._rest_from) << _OFFSET_BITS | offset
            if code < self._rest[self._rest_at]:
                heapq.heappush(self._heap, (due, offset))
            else:
                insort(self._rest, code, self._rest_at)
        else:
            self._note_later(due, offset)
        if self._cleaned and (self._to_clean or self._count >= self._clean_at):
            self._clean_some()

    def load_item(self, due: int, offset: int) -> None:
        """Schedule a current item before anything is asked for: a take-over has nothing to clean."""
        self._count += 1
        self._note_later(due, offset)
        if self._count >= self._clean_at:
            self._clean_at = 2 * self._count

    def next_due(self, until: int | None = None) -> int | None:
        """Time (ms) of the first current item. With `until`, None may also mean that nothing is due by then."""
        while True:
            while self._heap:
                if self._is_current(*self._heap[0]):
                    return self._heap[0][0]
                self._pop_head()
            first = self._horizon if self._rest else self._days[0] * _DAY if self._days else None
            if first is None or (until is not None and first > until):
                return None
            self._turn_page()

    def take_due(self, now: int, limit: int) -> list[int]:
        """Remove up to `limit` current items that are due, earliest first. Returns their half offsets."""
        taken: dict[int, None] = {}
        while len(taken) < limit and self._reach_time(now):
            due, offset = self._pop_head()
            if self._is_current(due, offset):
                taken[offset] = None
        return list(taken)

    def peek_due(self, now: int, limit: int) -> list[int]:
        """Half offsets of the items that `take_due` would remove."""
        found: dict[int, None] = {}
        seen: list[tuple[int, int]] = []
        while len(found) < limit and self._reach_time(now):
            item = self._pop_head()
            if self._is_current(*item):
                seen.append(item)
                found[item[1]] = None
        for item in seen:
            heapq.heappush(self._heap, item)
        self._count += len(seen)
        return list(found)

    def _note_later(self, due: int, offset: int) -> None:
        number = due // _DAY
        day = self._later.get(number)
        if day is None:
            day = self._later[number] = array("q")
            heapq.heappush(self._days, number)
        day.append(due)
        day.append(offset)

    def _pop_head(self) -> tuple[int, int]:
        self._count -= 1
        return heapq.heappop(self._heap)

    def _reach_time(self, now: int) -> bool:
        """Move due items of the calendar to the heap as far as needed. Returns whether the heap's head is due."""
        while not self._heap and (self._rest or self._days):
            if (self._horizon if self._rest else self._days[0] * _DAY) > now:
                return False
            self._turn_page()
        return bool(self._heap) and self._heap[0][0] <= now

    def _turn_page(self) -> None:
        """Move the first day of the calendar, or the next page of a large one, into the heap, which is empty."""
        if self._rest:
            self._next_page()
            return
        number = heapq.heappop(self._days)
        day = self._later.pop(number)
        if len(day) > 2 * _PAGE and max(day[1::2]) >> _OFFSET_BITS == 0:
            self._rest_from, self._rest_until = number * _DAY, (number + 1) * _DAY
            items = iter(day)
            codes = [(due - self._rest_from) << _OFFSET_BITS | offset for due, offset in zip(items, items, strict=True)]
            codes.sort()
            self._rest, self._rest_at = array("q", codes), 0
            self._next_page()
            return
        self._horizon = (number + 1) * _DAY
        self._heap = self._current_items(day)
        heapq.heapify(self._heap)
        self._count += len(self._heap) - len(day) // 2

    def _next_page(self) -> None:
        rest, start = self._rest, self._rest_from
        page = rest[self._rest_at : self._rest_at + _PAGE]
        self._rest_at += len(page)
        items = [(start + (code >> _OFFSET_BITS), code & ((1 << _OFFSET_BITS) - 1)) for code in page]
        # A sorted list is a heap.
        self._heap = [item for item in items if self._is_current(*item)]
        self._count += len(self._heap) - len(page)
        if self._rest_at < len(rest):
            self._horizon = start + (rest[self._rest_at] >> _OFFSET_BITS)
        else:
            self._horizon, self._rest, self._rest_at, self._rest_until = self._rest_until, array("q"), 0, 0

    def _current_items(self, day: array[int]) -> list[tuple[int, int]]:
        items, is_current = iter(day), self._is_current
        # The set comes last, because nearly all items are out of date.
        return list({item for item in zip(items, items, strict=True) if is_current(*item)})

    def _clean_some(self) -> None:
        self._unpaid -= _LOOKS
        if self._unpaid <= 0 and not self._to_clean:
            self._to_clean = [*self._later]
            before = len(self._heap)
            self._heap = [item for item in set(self._heap) if self._is_current(*item)]
            heapq.heapify(self._heap)
            self._looked_at(before, len(self._heap))
        if self._unpaid <= 0 and self._to_clean:
            self._clean_day(self._to_clean.pop())
        if not self._to_clean:
            self._clean_at = max(_SMALL, 2 * self._count)
            self._unpaid = -_SMALL

    def _clean_day(self, number: int) -> None:
        day = self._later.get(number)
        if day is not None:
            kept = array("q", [value for item in self._current_items(day) for value in item])
            # An empty day stays until its time comes, because its number is in the middle of a heap.
            self._later[number] = kept
            self._looked_at(len(day) // 2, len(kept) // 2)

    def _looked_at(self, items: int, kept: int) -> None:
        self._unpaid += items
        self._count += kept - items
