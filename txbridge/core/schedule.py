"""Schedule: what is due when, as a heap that is not searched when something changes."""

from __future__ import annotations

import heapq
from collections.abc import Callable

#: A heap shorter than this is not worth cleaning.
_SMALL = 1_024


class Schedule:
    """A heap of (due, half offset) whose items go out of date when their message moves on.

    Those are dropped when they come up. Behind an item that waits for long they would gather without end, so that the
    heap is also cleaned whenever it has grown to twice what it held after the last time: constant cost per push, and
    never more than about two items for each that is current.
    """

    __slots__ = ("_clean_at", "_heap", "_is_current")

    def __init__(self, is_current: Callable[[int, int], bool]) -> None:
        self._is_current = is_current
        self._heap: list[tuple[int, int]] = []
        self._clean_at = _SMALL

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, due: int, offset: int) -> None:
        """Schedule; the item must be current already. Twice does no harm."""
        heapq.heappush(self._heap, (due, offset))
        if len(self._heap) >= self._clean_at:
            self._heap = [item for item in set(self._heap) if self._is_current(*item)]
            heapq.heapify(self._heap)
            self._clean_at = max(_SMALL, 2 * len(self._heap))

    def next_due(self) -> int | None:
        """When the first current item is due."""
        while self._heap and not self._is_current(*self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take(self, now: int, limit: int) -> list[int]:
        """Remove up to `limit` current items that are due, earliest first; their half offsets."""
        taken: dict[int, None] = {}
        while self._heap and self._heap[0][0] <= now and len(taken) < limit:
            due, offset = heapq.heappop(self._heap)
            if self._is_current(due, offset):
                taken[offset] = None
        return list(taken)

    def peek(self, now: int, limit: int) -> list[int]:
        """What `take` would remove. Costs as much as that, however long the heap is."""
        heap = self._heap
        found: dict[int, None] = {}
        # In a heap what comes next is a child of what has come: a second, small heap of those.
        frontier = [(heap[0], 0)] if heap else []
        while frontier and frontier[0][0][0] <= now and len(found) < limit:
            (due, offset), index = heapq.heappop(frontier)
            if self._is_current(due, offset):
                found[offset] = None
            for child in range(2 * index + 1, min(2 * index + 3, len(heap))):
                heapq.heappush(frontier, (heap[child], child))
        return list(found)
