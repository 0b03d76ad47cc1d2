"""Census: how many messages are open, kept up to date with every change, so that nobody has to count a million."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from txbridge.core.states import TransactionState

#: Pending messages are counted by the time of their birth, in slots of this many ms: an age is known to 10 s, and what
#: is kept is bounded by the greatest age (72 h have 25,920 slots), however many messages wait.
SLOT_MS = 10_000


@dataclass(frozen=True, slots=True)
class Count:
    """A census at one moment."""

    #: By producer group: slot number (birth / SLOT_MS) and how many pending messages it holds.
    pending: Mapping[str, Mapping[int, int]]
    #: Held and discarded ones.
    others: Mapping[tuple[str, TransactionState], int]


class Census:
    """One thread changes it, any may `count`."""

    def __init__(self) -> None:
        # Whoever may write to HALF can invent groups, so what is empty is forgotten.
        self._pending: dict[tuple[str, int], int] = {}
        self._others: dict[tuple[str, TransactionState], int] = {}

    def add(self, group: str, state: TransactionState, since: int) -> None:
        """One more; `since` is when its age began (ms)."""
        if state is TransactionState.PENDING:
            self.add_pending(group, since // SLOT_MS, 1)
        else:
            self._others[group, state] = self._others.get((group, state), 0) + 1

    def add_pending(self, group: str, slot: int, count: int) -> None:
        """Many at once."""
        key = group, slot
        self._pending[key] = self._pending.get(key, 0) + count

    def remove(self, group: str, state: TransactionState, since: int) -> None:
        """One that was added with these is open no more."""
        if state is TransactionState.PENDING:
            key = group, since // SLOT_MS
            left = self._pending[key] - 1
            if left:
                self._pending[key] = left
            else:
                del self._pending[key]
        elif (left := self._others[group, state] - 1) > 0:
            self._others[group, state] = left
        else:
            del self._others[group, state]

    def count(self) -> Count:
        """A copy."""
        pending: dict[str, dict[int, int]] = {}
        # copy() of a dict is one step for other threads.
        for (group, slot), number in self._pending.copy().items():
            pending.setdefault(group, {})[slot] = number
        return Count(pending, self._others.copy())

    def totals(self) -> dict[TransactionState, int]:
        """How many of each state, over all groups."""
        totals = {state: 0 for state in TransactionState if state.is_open}
        totals[TransactionState.PENDING] = sum(self._pending.values())
        for (_, state), number in self._others.items():
            totals[state] += number
        return totals
