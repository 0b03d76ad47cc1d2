"""Open half messages of a partition, and their number: objects for young or special ones, rows for those that wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from txbridge.core.check_policy import CheckPolicy
from txbridge.core.fresh_halves import FreshHalves
from txbridge.core.half_entry import HalfEntry
from txbridge.core.parked_table import ParkedTable
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


class OpenMessages:
    """Open messages by half offset. An entry that is returned is a snapshot: to change one, put another.

    A pending or scheduled message that is parked becomes a row when the low watermark passes it. So rows are
    added in the order of offsets. A message that is held or discarded, was resumed or cannot be checked stays an
    object.
    """

    def __init__(self) -> None:
        self._objects: dict[int, HalfEntry] = {}
        self._rows = ParkedTable()
        self._rows.sort_rows()
        self._counter = OpenCounter()
        #: Number of messages by group, state and age; for any thread.
        self.open_counts = self._counter.copy_counts
        #: The same as `get`, but None for a row; quicker.
        self.get_object = self._objects.get

    def __len__(self) -> int:
        return len(self._objects) + len(self._rows)

    def __contains__(self, offset: int) -> bool:
        return offset in self._objects or offset in self._rows

    def __iter__(self) -> Iterator[HalfEntry]:
        yield from self._rows
        yield from self.objects()

    def objects(self) -> Iterable[HalfEntry]:
        """All but the rows."""
        return self._objects.values()

    def get(self, offset: int) -> HalfEntry | None:
        entry = self._objects.get(offset)
        if entry is None and self._rows:
            entry = self._rows.get_row(offset)
        return entry

    def find_id(self, transaction_id: str) -> int | None:
        """Offset of the message with this transaction id. Looks at every message."""
        found = self._rows.find_id(transaction_id)
        if found is not None:
            return found
        objects = self._objects.values()
        return next((entry.offset for entry in objects if entry.transaction_id == transaction_id), None)

    def get_open(self, offset: int) -> HalfEntry:
        """The entry of a message that is open for certain."""
        entry = self.get(offset)
        assert entry is not None
        return entry

    def add_entry(self, entry: HalfEntry) -> None:
        """Add an entry that is not there."""
        self._objects[entry.offset] = entry
        self._counter.add_message(entry.group, entry.state, entry.since)

    def put_entry(self, entry: HalfEntry) -> None:
        """Add or replace an entry."""
        if self._rows and entry.is_plain and (counted := self._rows.counted_as(entry.offset)) is not None:
            group, state, born = counted
            if state is not entry.state:
                self._counter.add_message(group, state, born, -1)
                self._counter.add_message(entry.group, entry.state, entry.born)
            self._rows.put_row(entry)
            return
        self.remove_entry(entry.offset)
        self.add_entry(entry)

    def remove_entry(self, offset: int) -> str | None:
        """Remove an entry, if there is one. Returns its producer group."""
        entry = self._objects.pop(offset, None)
        if entry is not None:
            self._counter.add_message(entry.group, entry.state, entry.since, -1)
            return entry.group
        if self._rows and (counted := self._rows.counted_as(offset)) is not None:
            self._rows.remove_row(offset)
            self._counter.add_message(*counted, -1)
            return counted[0]
        return None

    def settle_entry(self, offset: int) -> None:
        """Make a plain entry a row: the low watermark has passed its offset."""
        entry = self._objects.get(offset)
        if entry is not None and entry.is_plain:
            # It is counted already: a row has the same state.
            del self._objects[offset]
            self._rows.put_row(entry)

    def adopt_rows(self, rows: ParkedTable) -> None:
        """Take over a sorted table, while this is still empty."""
        self._rows = rows
        for (group, kind), number in rows.count_kinds(SLOT_MS).items():
            self._counter.add_messages(group, kind, number)

    def schedule_of(self, offset: int) -> tuple[int, int, int] | None:
        """For a pending message: due time of the next check, number of checks sent, and begin of its age."""
        entry = self._objects.get(offset)
        if entry is None:
            return self._rows.schedule_of(offset)
        return (entry.next_due, entry.checks, entry.since) if entry.state is TransactionState.PENDING else None

    def timer_of(self, offset: int) -> int | None:
        """For a held, scheduled or discarded message: the time at which it is to be delivered or forgotten."""
        entry = self._objects.get(offset)
        if entry is None:
            return self._rows.delivery_of(offset)
        return None if entry.state is TransactionState.PENDING else entry.next_due

    def put_off(self, policy: CheckPolicy, now: int, step: int) -> Iterator[tuple[int, int]]:
        """Offset and new due time (ms) of each message that a clock has put off which has gone back by `step`."""
        for offset, _, due, checks, born in self._rows.iter_schedules():
            if (earlier := policy.brought_forward(due, now, step, born, checks)) < due:
                yield offset, earlier
        for entry in self._objects.values():
            if entry.state in (TransactionState.PENDING, TransactionState.HELD):
                due, is_refused = entry.next_due, entry.error is not None or entry.state is TransactionState.HELD
                earlier = policy.brought_forward(due, now, step, entry.since, entry.checks, is_refused=is_refused)
                if earlier < due:
                    yield entry.offset, earlier

    def count_fresh(self, halves: FreshHalves) -> None:
        """Count fresh half messages: they are open, but not in here yet."""
        for group in {envelope.group for envelope in halves.envelopes}:
            births = [born for born, one in zip(halves.births, halves.envelopes, strict=True) if one.group == group]
            self._counter.add_births(group, births)

    def uncount_fresh(self, group: str, births: Sequence[int]) -> None:
        """Uncount fresh messages of a group that are finished, or about to be added here."""
        self._counter.add_births(group, births, -1)
