"""Timers: the schedules of a partition's open messages, for checks, deliveries, discards and ages."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable

from txbridge.core.check_policy import CheckPolicy
from txbridge.core.half_entry import HalfEntry
from txbridge.core.open_messages import OpenMessages
from txbridge.core.parked_table import ParkedTable
from txbridge.core.states import TransactionState

#: An item is one number: its due time (ms) and, in these bits, its half offset.
_OFFSET_BITS = 63
_OFFSET = 2**_OFFSET_BITS - 1
#: With fewer items than this, cleaning is not worth its cost.
_FEW_ITEMS = 1_024
#: Items that cleaning looks at for each push. So cleaning is complete before the queue has grown by another eighth, and
#: 10,000 pushes in a row do not become slow.
_CLEANED = 8


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
        self._clean_at = _FEW_ITEMS

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
        for _ in range(min(_CLEANED, len(self._former))):
            item = self._former.pop()
            if item not in self._moved and self._is_current(item >> _OFFSET_BITS, item & _OFFSET):
                self._moved.add(item)
                heapq.heappush(self._heap, item)
        if not self._former:
            self._moved = set()
            self._clean_at = max(_FEW_ITEMS, 2 * len(self._heap))


#: First checks within this many ms of the birth stay in their queue until they are due, decided or not. They take 56
#: bytes each, 45 MB for a partition with 40,000 messages a second.
_SOON = 20_000
#: Groups that are looked at, and removed if they have no check left, for each new group. With two, groups without a
#: check are never more than those with one.
_LOOKS = 2
#: Fewer entries of the heap of groups than this are not worth a new heap.
_FEW_HEADS = 1_024


class CheckGroups:
    """One schedule per group, so that those that are not live do not delay others, and those with a check due.

    Anyone who may write to HALF can invent groups, and no client ever answers for them. So no method goes through all
    groups. Groups with a check due stand in a line. They are looked at a few at a time, and go to its end. `is_current`
    is passed to the schedules (TimerQueue).
    """

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


class Timers:
    """The schedules of the open messages. A caller that takes entries must apply its draft or put them back."""

    def __init__(self, policy: CheckPolicy, entries: OpenMessages) -> None:
        self._policy = policy
        self._entries = entries
        self._checks = CheckGroups(self._awaits_check)
        self.in_turn = self._checks.in_turn
        # The first check of each message that was just read, until it is due: nearly all are decided by then.
        self._first_checks = TimerQueue(self._awaits_first_check, cleaned=False)
        self._exhausted = TimerQueue(self._is_exhausted)
        self._timers = TimerQueue(lambda due, offset: entries.timer_of(offset) == due)
        self._by_age = TimerQueue(self._is_aging)

    def list_heads(self, until: int | None) -> list[int]:
        """First due time of each schedule. With `until`, times that are later may be missing."""
        schedules = (self._first_checks, self._checks, self._exhausted, self._timers, self._by_age)
        return [due for schedule in schedules if (due := schedule.next_due(until)) is not None]

    def next_discard(self, until: int) -> int | None:
        """Time (ms) at which the first message is to be discarded. None may also mean that none is by `until`."""
        self._move_ripe(until)
        heads = (self._exhausted.next_due(until), self._by_age.next_due(until))
        return min((due for due in heads if due is not None), default=None)

    def schedule_next(self, entry: HalfEntry) -> None:
        """Schedule the next event of an entry: check, discard after the last check, delivery, or removal."""
        if entry.state is not TransactionState.PENDING:
            self._timers.push_item(entry.next_due, entry.offset)
        elif self._policy.is_exhausted(entry.checks):
            self._exhausted.push_item(entry.next_due, entry.offset)
        else:
            self._checks.push_check(entry.group, entry.next_due, entry.offset)

    def schedule_first(self, entry: HalfEntry) -> None:
        """Schedule the first check of a message that was just read."""
        if entry.next_due - entry.born <= _SOON:
            self._first_checks.push_item(entry.next_due, entry.offset)
        else:
            self.schedule_next(entry)

    def _move_ripe(self, now: int) -> None:
        """Move first checks that are due to the schedules of all checks."""
        for offset in self._first_checks.take_due(now, len(self._first_checks)):
            self.schedule_next(self._entries.get_open(offset))

    def schedule_expiry(self, entry: HalfEntry) -> None:
        """Schedule the discard of an entry at its greatest age."""
        # Called for parked entries only. A message is parked long before it grows old, and one that is finished young
        # costs nothing.
        if entry.state is TransactionState.PENDING:
            self._by_age.push_item(self._policy.expires(entry.since), entry.offset)

    def load_rows(self, rows: ParkedTable) -> None:
        """Schedule all rows of a take-over, by their next event and by their age."""
        policy = self._policy
        for offset, group, next_due, checks, born in rows.iter_schedules():
            if policy.is_exhausted(checks):
                self._exhausted.load_item(next_due, offset)
            else:
                self._checks.load_check(group, next_due, offset)
            self._by_age.load_item(policy.expires(born), offset)
        for due, offset in rows.iter_deliveries():
            self._timers.load_item(due, offset)

    def next_delivery(self, until: int) -> int | None:
        """Time (ms) at which the first held, scheduled or discarded message is due; None if none is by `until`."""
        due = self._timers.next_due(until)
        return None if due is None or due > until else due

    # Conditions for an item of each schedule to be current.

    def _awaits_first_check(self, due: int, offset: int) -> bool:
        entry = self._entries.get_object(offset)
        return entry is not None and entry.next_due == due

    def _awaits_check(self, due: int, offset: int) -> bool:
        found = self._entries.schedule_of(offset)
        return found is not None and found[0] == due and not self._policy.is_exhausted(found[1])

    def _is_exhausted(self, due: int, offset: int) -> bool:
        found = self._entries.schedule_of(offset)
        return found is not None and found[0] == due and self._policy.is_exhausted(found[1])

    def _is_aging(self, expires: int, offset: int) -> bool:
        found = self._entries.schedule_of(offset)
        return found is not None and self._policy.expires(found[2]) == expires

    def groups_with_checks_due(self, now: int, limit: int) -> list[str]:
        """Up to `limit` producer groups with a check due. Later calls return the others."""
        self._move_ripe(now)
        return self._checks.groups_due(now, limit)

    def has_checks_due(self, group: str, now: int) -> bool:
        """Whether a check of this group is due."""
        self._move_ripe(now)
        return self._checks.is_due(group, now)

    def take_checks_due(self, group: str, now: int, limit: int) -> list[HalfEntry]:
        """Remove up to `limit` messages of a group whose check is due."""
        return [self._entries.get_open(offset) for offset in self._checks.take_due(group, now, limit)]

    def take_exhausted(self, now: int, limit: int) -> list[HalfEntry]:
        """Remove up to `limit` messages undecided a full interval after their last check."""
        self._move_ripe(now)
        return self._take_from(self._exhausted, now, limit)

    def take_timers_due(self, now: int, limit: int) -> list[HalfEntry]:
        """Remove up to `limit` messages: held and scheduled ones to deliver, discarded ones to forget."""
        return self._take_from(self._timers, now, limit)

    def take_expired(self, now: int, limit: int) -> list[HalfEntry]:
        """Remove up to `limit` pending messages that have reached their greatest age, oldest first."""
        return self._take_from(self._by_age, now, limit)

    def _take_from(self, schedule: TimerQueue, now: int, limit: int) -> list[HalfEntry]:
        return [self._entries.get_open(offset) for offset in schedule.take_due(now, limit)]

    def put_back(self, entries: Iterable[HalfEntry]) -> None:
        """Schedule entries again that were taken (not for their age) and not applied."""
        for entry in entries:
            self.schedule_next(entry)

    def put_back_expired(self, entries: Iterable[HalfEntry]) -> None:
        """Schedule entries again that were taken for their age and not applied."""
        for entry in entries:
            self.schedule_expiry(entry)

    def peek_deliveries(self, now: int, limit: int) -> list[HalfEntry]:
        """The held and scheduled messages that `take_timers_due` would yield."""
        entries = map(self._entries.get_open, self._timers.peek_due(now, limit))
        return [entry for entry in entries if entry.state.is_committed]

    def bring_forward(self, now: int, step: int) -> None:
        """Move entries that a clock has put off which has gone back by `step` to `now` (ms).

        Only this process needs to know; nothing is written.
        """
        for offset, due in [*self._entries.put_off(self._policy, now, step)]:
            changed = self._entries.get_open(offset)._replace(next_due=due)
            self._entries.put_entry(changed)
            self.schedule_next(changed)

    def postpone_retry(self, entry: HalfEntry, now: int, error: str, attempts: int) -> None:
        """Try an entry later that its real topic or check topic still does not take. `attempts` so far: 1 or more.

        Only this process needs to know; nothing is written.
        """
        due = self._policy.retry_refused(now, attempts)
        changed = entry._replace(attempts=attempts, error=error, next_due=due)
        self._entries.put_entry(changed)
        self.schedule_next(changed)
