"""OpenCounter: the number of open messages, updated with every change, so that a million need not be counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from txbridge.core.states import TransactionState

#: Pending messages are counted by birth, in slots of this many ms. So an age is known to 10 s. The number of slots is
#: bounded by the greatest age (72 h have 25,920 slots), not by the number of messages.
SLOT_MS = 10_000
#: Most producer groups that are counted by name. Anyone who may write to HALF can invent groups, and everything that
#: shows counts goes through them. As many as the metrics may have (metrics_max_groups).
MOST_NAMED = 10_000
#: Name for all other groups together. No producer group can have this name.
OTHER = "(other)"


@dataclass(frozen=True, slots=True)
class OpenCounts:
    """Number of open messages at one moment."""

    #: By producer group: slot number (birth / SLOT_MS) and number of pending messages in it.
    pending: Mapping[str, Mapping[int, int]]
    #: Number of the others, by group and state.
    others: Mapping[tuple[str, TransactionState], int]

    def by_state(self) -> dict[TransactionState, int]:
        """Number of messages in each state, over all groups."""
        totals = {state: 0 for state in TransactionState if state.is_open}
        totals[TransactionState.PENDING] = sum(sum(slots.values()) for slots in self.pending.values())
        for (_, state), number in self.others.items():
            totals[state] += number
        return totals


class OpenCounter:
    """Running counts. One thread changes them, any thread may call `copy_counts`."""

    def __init__(self) -> None:
        # A key is removed when its count is 0.
        self._pending: dict[tuple[str, int], int] = {}
        self._others: dict[tuple[str, TransactionState], int] = {}
        #: Number of messages of each group that is counted by name, and of each group that is counted as OTHER. A group
        #: stays where it is as long as it has messages.
        self._named: dict[str, int] = {}
        self._unnamed: dict[str, int] = {}

    def add_message(self, group: str, state: TransactionState, since: int) -> None:
        """Count one more message. Its age counts from `since` (ms)."""
        if state is TransactionState.PENDING:
            self.add_pending(group, since // SLOT_MS, 1)
        else:
            self.add_others(group, state, 1)

    def add_pending(self, group: str, slot: int, count: int) -> None:
        """Count more pending messages of one slot."""
        key = self._count_in(group, count), slot
        self._pending[key] = self._pending.get(key, 0) + count

    def add_others(self, group: str, state: TransactionState, count: int) -> None:
        """Count more messages that are not pending."""
        key = self._count_in(group, count), state
        self._others[key] = self._others.get(key, 0) + count

    def _count_in(self, group: str, count: int) -> str:
        """Count messages of a group. Returns the name under which they are counted."""
        named = self._named.get(group)
        if named is not None:
            self._named[group] = named + count
            return group
        if group not in self._unnamed and len(self._named) < MOST_NAMED:
            self._named[group] = count
            return group
        self._unnamed[group] = self._unnamed.get(group, 0) + count
        return OTHER

    def add_born(self, group: str, births: Sequence[int]) -> None:
        """Count pending messages of a group, by their births (ms)."""
        for slot, count in _by_slot(births):
            self.add_pending(group, slot, count)

    def remove_born(self, group: str, births: Sequence[int]) -> None:
        """Uncount messages that `add_born` has counted, or a part of them."""
        for slot, count in _by_slot(births):
            self._remove_pending(group, slot, count)

    def _count_out(self, group: str, count: int = 1) -> str:
        """Uncount messages of a group. Returns the name under which they were counted."""
        counts = self._named if group in self._named else self._unnamed
        left = counts[group] - count
        if left:
            counts[group] = left
        else:
            del counts[group]
        return group if counts is self._named else OTHER

    def remove_message(self, group: str, state: TransactionState, since: int) -> None:
        """Uncount a message that was added with these arguments."""
        if state is TransactionState.PENDING:
            self._remove_pending(group, since // SLOT_MS, 1)
            return
        group = self._count_out(group)
        if (left := self._others[group, state] - 1) > 0:
            self._others[group, state] = left
        else:
            del self._others[group, state]

    def _remove_pending(self, group: str, slot: int, count: int) -> None:
        key = self._count_out(group, count), slot
        left = self._pending[key] - count
        if left:
            self._pending[key] = left
        else:
            del self._pending[key]

    def copy_counts(self) -> OpenCounts:
        """A copy of the counts."""
        pending: dict[str, dict[int, int]] = {}
        # copy() of a dict is atomic for other threads.
        for (group, slot), number in self._pending.copy().items():
            pending.setdefault(group, {})[slot] = number
        return OpenCounts(pending, self._others.copy())

    def totals(self) -> dict[TransactionState, int]:
        """Number of messages in each state, over all groups."""
        totals = {state: 0 for state in TransactionState if state.is_open}
        totals[TransactionState.PENDING] = sum(self._pending.values())
        for (_, state), number in self._others.items():
            totals[state] += number
        return totals


def _by_slot(births: Sequence[int]) -> Iterable[tuple[int, int]]:
    if not births:
        return ()
    slot = min(births) // SLOT_MS
    if slot == max(births) // SLOT_MS:
        # Nearly always.
        return ((slot, len(births)),)
    return Counter([born // SLOT_MS for born in births]).items()
