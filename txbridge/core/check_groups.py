"""CheckGroups: the checks of each producer group, so that those of a group that is not live do not delay others.

Anyone who may write to HALF can invent groups, and no client ever answers for them. So no method goes through all
groups. Groups with a check due stand in a line. They are looked at a few at a time, and go to its end.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable

from txbridge.core.timer_queue import TimerQueue

#: Groups that are looked at, and removed if they have no check left, for each new group. With two, groups without a
#: check are never more than those with one.
_LOOKS = 2
#: Fewer entries of the heap of groups than this are not worth a new heap.
_FEW_HEADS = 1_024


class CheckGroups:
    """One schedule per group, and the groups with a check due. `is_current` is passed to the schedules (TimerQueue)."""

    def __init__(self, is_current: Callable[[int, int], bool]) -> None:
        self._is_current = is_current
        #: By group. Some may have no current check left.
        self.schedules: OrderedDict[str, TimerQueue] = OrderedDict()
        #: Heap of the groups that do not stand in line, each with a time not after its first check. Only the earliest
        #: entry of a group counts.
        self._heads: list[tuple[int, str]] = []
        self._head: dict[str, int] = {}
        #: The line, in two parts: groups that `groups_due` has not returned since they came, and groups that it has.
        self._new: OrderedDict[str, None] = OrderedDict()
        self._seen: OrderedDict[str, None] = OrderedDict()
        #: Time (ms) up to which a check counts as due.
        self._now = 0
        #: By group: number of the turn in which it was served last.
        self._served: dict[str, int] = {}
        self._turn = 0

    def push_check(self, group: str, due: int, offset: int) -> None:
        """Schedule a check."""
        if group not in self.schedules:
            self._sweep_groups()
        self._schedule_of(group).push_item(due, offset)
        self._note_due(group, due)

    def load_check(self, group: str, due: int, offset: int) -> None:
        """Schedule a check at a take-over, before any check is asked for."""
        self._schedule_of(group).load_item(due, offset)
        self._note_due(group, due)

    def next_due(self, until: int | None = None) -> int | None:
        """Time (ms) of the first check; if checks are due, the time of any of these.

        With `until`, a result after that time may be too early.
        """
        for line in (self._new, self._seen):
            while line:
                group = next(iter(line))
                due = self._due_of(group)
                if due is not None:
                    return due
                del line[group]
        while self._heads:
            due, group = self._heads[0]
            if until is not None and due > until:
                return due
            first = self._first_due(group) if self._head.get(group) == due else None
            if first == due:
                return due
            self._drop_head(due, group, first)
        return None

    def groups_due(self, now: int, limit: int) -> list[str]:
        """Up to `limit` groups with a check due: those that waited longest, half of them new ones."""
        self._fill_line(now)
        found: list[str] = []
        seen = len(self._seen)
        limit = min(limit, len(self._new) + seen)
        self._look_through(self._new, len(self._new), (limit + 1) // 2, found)
        self._look_through(self._seen, seen, limit, found)
        self._look_through(self._new, len(self._new), limit, found)
        return found

    def is_due(self, group: str, now: int) -> bool:
        """Whether a check of this group is due."""
        schedule = self.schedules.get(group)
        due = None if schedule is None else schedule.next_due(now)
        return due is not None and due <= now

    def take_due(self, group: str, now: int, limit: int) -> list[int]:
        """Remove up to `limit` checks that are due. Returns their half offsets."""
        schedule = self.schedules.get(group)
        if schedule is None:
            return []
        taken = schedule.take_due(now, limit)
        if taken:
            self._turn += 1
            self._served[group] = self._turn
        return taken

    def in_turn(self, groups: Iterable[str]) -> list[str]:
        """Sort groups by their last turn: the group that was served last comes last."""
        return sorted(groups, key=lambda group: self._served.get(group, 0))

    # --- the line ---------------------------------------------------------------------------------------------------

    def _schedule_of(self, group: str) -> TimerQueue:
        found = self.schedules.get(group)
        if found is None:
            found = self.schedules[group] = TimerQueue(self._is_current)
        return found

    def _sweep_groups(self) -> None:
        """Remove some groups without a current check.

        The check of a decided message stays here until it is due, which may take days.
        """
        for _ in range(min(_LOOKS, len(self.schedules))):
            group = next(iter(self.schedules))
            self.schedules.move_to_end(group)
            if self._first_due(group) is None:
                self._new.pop(group, None)
                self._seen.pop(group, None)

    def _note_due(self, group: str, due: int) -> None:
        if group in self._new or group in self._seen:
            return
        head = self._head.get(group)
        if head is None or due < head:
            self._head[group] = due
            heapq.heappush(self._heads, (due, group))
            if len(self._heads) > 2 * len(self._head) + _FEW_HEADS:
                self._heads = [(due, group) for group, due in self._head.items()]
                heapq.heapify(self._heads)

    def _first_due(self, group: str) -> int | None:
        """Time (ms) of the group's first check. A group without one is removed."""
        due = self.schedules[group].next_due()
        if due is None:
            del self.schedules[group]
            self._head.pop(group, None)
            self._served.pop(group, None)
        return due

    def _drop_head(self, due: int, group: str, first: int | None) -> None:
        """Remove the first entry of the heap, which does not count or is too early. `first` is the right time."""
        heapq.heappop(self._heads)
        if first is not None and self._head.get(group) == due:
            self._head[group] = first
            heapq.heappush(self._heads, (first, group))

    def _fill_line(self, now: int) -> None:
        """Move groups whose first check is due into the line."""
        self._now = now
        while self._heads and self._heads[0][0] <= now:
            due, group = self._heads[0]
            first = self._first_due(group) if self._head.get(group) == due else None
            if first is not None and first <= now:
                heapq.heappop(self._heads)
                del self._head[group]
                self._new[group] = None
            else:
                self._drop_head(due, group, first)

    def _due_of(self, group: str) -> int | None:
        """Time (ms) of the first check of a group in line; None if the group has to leave the line.

        It leaves when it has no check, or none that is due. In the second case it is in the heap again.
        """
        due = self._first_due(group)
        if due is None or due <= self._now:
            return due
        self._head[group] = due
        heapq.heappush(self._heads, (due, group))
        return None

    def _look_through(self, line: OrderedDict[str, None], count: int, limit: int, found: list[str]) -> None:
        """Look at the first `count` groups of a part of the line, until `limit` are found. These go to its end."""
        for _ in range(count):
            if len(found) >= limit:
                return
            group, _ = line.popitem(last=False)
            if self._due_of(group) is not None:
                self._seen[group] = None
                found.append(group)
