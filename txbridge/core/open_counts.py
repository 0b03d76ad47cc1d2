"""OpenCounter: the number of open messages, updated with every change, so that a million need not be counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from txbridge.core.states import TransactionState

#: Pending messages are counted by birth, in slots of this many ms. So an age is known to 10 s. The number of slots is
#: bounded by the greatest age (72 h have 25,920 slots), not by the number of messages.
SLOT_MS = 10_000
#: Most producer groups that are counted by name. Anyone who may write to HALF can invent groups, and everything that
#: shows counts goes through them. As many as the metrics may have (metrics_max_groups).
MOST_NAMED = 10_000
#: Name for all other groups together. No producer group can have this name.
OTHER = "(other)"


_Key = TypeVar("_Key")


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


#: Messages are counted apart: pending ones by their slot, the others by their state.
Kind = int | TransactionState


class OpenCounter:
    """Running counts. One thread changes them, any thread may call `copy_counts`."""

    def __init__(self) -> None:
        # By the name under which a group is counted, and kind. A key is removed when its count is 0.
        self._counts: dict[tuple[str, Kind], int] = {}
        #: Number of messages of each group that is counted by name, and of each group that is counted as OTHER. A group
        #: stays where it is as long as it has messages.
        self._named: dict[str, int] = {}
        self._unnamed: dict[str, int] = {}

    def add_message(self, group: str, state: TransactionState, since: int, count: int = 1) -> None:
        """Count more messages, or fewer if `count` is negative. The age of a message counts from `since` (ms)."""
        self.add_messages(group, since // SLOT_MS if state is TransactionState.PENDING else state, count)

    def add_births(self, group: str, births: Sequence[int], sign: int = 1) -> None:
        """Count more pending messages by their births (ms), or fewer if `sign` is -1."""
        if not births:
            return
        slot = min(births) // SLOT_MS
        if slot == max(births) // SLOT_MS:
            # Nearly always.
            self.add_messages(group, slot, sign * len(births))
            return
        for slot, count in Counter([born // SLOT_MS for born in births]).items():
            self.add_messages(group, slot, sign * count)

    def add_messages(self, group: str, kind: Kind, count: int) -> None:
        """Count more messages of one kind, or fewer if `count` is negative."""
        groups, name = self._named, group
        if group not in groups and (group in self._unnamed or len(groups) >= MOST_NAMED):
            groups, name = self._unnamed, OTHER
        _add(groups, group, count)
        _add(self._counts, (name, kind), count)

    def copy_counts(self) -> OpenCounts:
        """A copy of the counts."""
        pending: dict[str, dict[int, int]] = {}
        others: dict[tuple[str, TransactionState], int] = {}
        # copy() of a dict is atomic for other threads.
        for (group, kind), number in self._counts.copy().items():
            if isinstance(kind, int):
                pending.setdefault(group, {})[kind] = number
            else:
                others[group, kind] = number
        return OpenCounts(pending, others)


def _add(counts: dict[_Key, int], key: _Key, count: int) -> None:
    left = counts.get(key, 0) + count
    if left:
        counts[key] = left
    else:
        del counts[key]
