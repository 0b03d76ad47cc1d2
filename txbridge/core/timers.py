"""Timers: the schedules of a partition's open messages, for checks, deliveries, discards and ages."""

from __future__ import annotations

from collections.abc import Iterable

from txbridge.core.check_groups import CheckGroups
from txbridge.core.check_policy import CheckPolicy
from txbridge.core.half_entry import HalfEntry
from txbridge.core.open_messages import OpenMessages
from txbridge.core.parked_table import ParkedTable
from txbridge.core.states import TransactionState
from txbridge.core.timer_queue import TimerQueue

#: First checks within this many ms of the birth stay in their queue until they are due, decided or not. They take 16
#: bytes each, 40 MB for a partition with 40,000 messages a second.
_SOON = 60_000


class Timers:
    """The schedules of the open messages. A caller that takes entries must apply its draft or put them back."""

    def __init__(self, policy: CheckPolicy, entries: OpenMessages) -> None:
        self._policy = policy
        self._entries = entries
        self._checks = CheckGroups(self._awaits_check)
        # The first check of each message that was just read, until it is due: nearly all are decided by then.
        self._first_checks = TimerQueue(self._awaits_first_check, cleaned=False)
        self._exhausted = TimerQueue(self._is_exhausted)
        self._timers = TimerQueue(self._is_timer)
        self._by_age = TimerQueue(self._is_aging)

    def heads(self, until: int | None) -> list[int]:
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

    def _is_timer(self, due: int, offset: int) -> bool:
        return self._entries.timer_of(offset) == due

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

    def in_turn(self, groups: Iterable[str]) -> list[str]:
        """Sort groups by their last turn: the group that was served last comes last."""
        return self._checks.in_turn(groups)

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
