"""TimerQueue: items by due time, in one heap of numbers."""

from __future__ import annotations

import heapq
from collections.abc import Callable

#: An item is one number: its due time (ms) and, in these bits, its half offset.
_OFFSET_BITS = 63
_OFFSET = 2**_OFFSET_BITS - 1
#: With fewer items than this, cleaning is not worth its cost.
_SMALL = 1_024
#: Items that cleaning looks at for each push. So cleaning is complete before the queue has grown by another eighth, and
#: 10,000 pushes in a row do not become slow.
_LOOKS = 8


class TimerQueue:
    """Items (due, half offset). One goes out of date when its message changes, and is dropped when it becomes due.

    Behind an item that waits for long, items out of date would gather without end. So the queue is cleaned whenever it
    has grown to twice its size after the last cleaning: each push moves some current items of the former heap, from its
    end, to a new one. The cost per push is constant, and there are about two items for each current one in the end.

    Nothing is cleaned if `cleaned` is false. For items that all become due before long, waiting costs less than looking
    at each of them twice.
    """

    __slots__ = ("_clean_at", "_cleaned", "_former", "_heap", "_is_current", "_moved")

    def __init__(self, is_current: Callable[[int, int], bool], *, cleaned: bool = True) -> None:
        self._is_current = is_current
        self._cleaned = cleaned
        self._heap: list[int] = []
        #: During a cleaning: what is left of the former heap, and the items that were moved. Without its last item a
        #: heap stays a heap.
        self._former: list[int] = []
        self._moved: set[int] = set()
        self._clean_at = _SMALL

    def __len__(self) -> int:
        return len(self._heap) + len(self._former)

    def push_item(self, due: int, offset: int) -> None:
        """Schedule an item, which must be current already. To do it twice does no harm."""
        heapq.heappush(self._heap, due << _OFFSET_BITS | offset)
        if self._cleaned and (self._former or len(self._heap) >= self._clean_at):
            self._clean_some()

    def load_item(self, due: int, offset: int) -> None:
        """Schedule a current item before anything is asked for: a take-over has nothing to clean."""
        heapq.heappush(self._heap, due << _OFFSET_BITS | offset)
        self._clean_at = max(self._clean_at, 2 * len(self._heap))

    def next_due(self, until: int | None = None) -> int | None:
        """Time (ms) of the first current item. With `until`, None may also mean that nothing is due by then."""
        while heap := self._first_heap():
            due, offset = heap[0] >> _OFFSET_BITS, heap[0] & _OFFSET
            if until is not None and due > until:
                return None
            if self._is_current(due, offset):
                return due
            heapq.heappop(heap)
        return None

    def take_due(self, now: int, limit: int) -> list[int]:
        """Remove up to `limit` current items that are due, earliest first. Returns their half offsets."""
        return list(self._pop_due(now, limit))

    def peek_due(self, now: int, limit: int) -> list[int]:
        """Half offsets of the items that `take_due` would remove."""
        found = self._pop_due(now, limit)
        for item in found.values():
            heapq.heappush(self._heap, item)
        return list(found)

    def _pop_due(self, now: int, limit: int) -> dict[int, int]:
        """The items that are removed, by their half offsets."""
        found: dict[int, int] = {}
        while len(found) < limit and self.next_due(now) is not None:
            item = heapq.heappop(self._first_heap())
            found[item & _OFFSET] = item
        return found

    def _first_heap(self) -> list[int]:
        """The heap with the first item; empty if there is none."""
        former, heap = self._former, self._heap
        return former if former and (not heap or former[0] < heap[0]) else heap

    def _clean_some(self) -> None:
        if not self._former:
            self._former, self._heap = self._heap, []
        for _ in range(min(_LOOKS, len(self._former))):
            item = self._former.pop()
            if item not in self._moved and self._is_current(item >> _OFFSET_BITS, item & _OFFSET):
                self._moved.add(item)
                heapq.heappush(self._heap, item)
        if not self._former:
            self._moved = set()
            self._clean_at = max(_SMALL, 2 * len(self._heap))
