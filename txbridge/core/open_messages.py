"""The open half messages of a partition: objects for those that are young or special, rows for the many that wait."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from txbridge.core.checkpoint import ParkedEntry
from txbridge.core.open_counts import SLOT_MS, OpenCounter, OpenCounts
from txbridge.core.parked_table import ParkedRow, ParkedTable
from txbridge.core.states import TransactionState


class _Fields(NamedTuple):
    offset: int
    transaction_id: str
    group: str
    real_topic: str
    born: int
    size: int
    #: When the next check, the next delivery attempt, or the removal of a discarded entry is due (ms).
    next_due: int
    state: TransactionState = TransactionState.PENDING
    checks: int = 0
    #: Whether a parked entry for it stands in OFFSET.
    parked: bool = False
    #: Of a held one: END offset of its decision.
    decided: int | None = None
    #: Why it can not be delivered, or why it could not be checked, and attempts so far.
    error: str | None = None
    attempts: int = 0
    #: Of a discarded one: why, and where it lies in the discard topic.
    reason: str | None = None
    discarded_at: tuple[int, int] | None = None
    #: When it was resumed; its age counts from then.
    resumed: int | None = None


class HalfEntry(_Fields):
    """One open half message: pending, held, or discarded and resumable. Its body lives elsewhere (BodyCache).

    It can not be changed: many are made out of a row whenever they are asked for, and a change of such a one would be
    lost. Another one takes its place (`OpenMessages.put`). A tuple, which is made as quickly as an object with slots.
    """

    __slots__ = ()

    @property
    def since(self) -> int:
        """From when its age counts (ms)."""
        return self.born if self.resumed is None else self.resumed

    def to_parked(self, end: int) -> ParkedEntry:
        """The record of OFFSET that says all this."""
        return ParkedEntry(
            half_offset=self.offset,
            state=self.state,
            transaction_id=self.transaction_id,
            group=self.group,
            real_topic=self.real_topic,
            born=self.born,
            size=self.size,
            checks=self.checks,
            next_due=self.next_due,
            end=end,
            decided=self.decided,
            error=self.error,
            reason=self.reason,
            discarded_at=self.discarded_at,
            resumed=self.resumed,
        )

    @property
    def is_plain(self) -> bool:
        """Whether it is pending, parked and nothing else, and so fits into a row."""
        return (
            self.state is TransactionState.PENDING
            and self.parked
            and self.resumed is None
            and self.error is None
            and ParkedTable.takes(self.transaction_id, self.size, self.checks)
        )

    def to_row(self) -> ParkedRow:
        return ParkedRow(
            self.offset,
            self.transaction_id,
            self.group,
            self.real_topic,
            self.born,
            self.size,
            self.checks,
            self.next_due,
        )

    @classmethod
    def from_row(cls, row: ParkedRow) -> HalfEntry:
        return cls(
            offset=row.offset,
            transaction_id=row.transaction_id,
            group=row.group,
            real_topic=row.real_topic,
            born=row.born,
            size=row.size,
            next_due=row.next_due,
            checks=row.checks,
            parked=True,
        )

    @classmethod
    def from_parked(cls, parked: ParkedEntry) -> HalfEntry:
        return cls(
            offset=parked.half_offset,
            transaction_id=parked.transaction_id,
            group=parked.group,
            real_topic=parked.real_topic,
            born=parked.born,
            size=parked.size,
            next_due=parked.next_due,
            state=parked.state,
            checks=parked.checks,
            parked=True,
            decided=parked.decided,
            error=parked.error,
            reason=parked.reason,
            discarded_at=parked.discarded_at,
            resumed=parked.resumed,
        )


class OpenMessages:
    """Open messages by half offset. An entry that comes out of it is a snapshot: to change one, `put` another.

    One that is pending and parked becomes a row when the low watermark passes it (`settle`): watermark after watermark,
    so that rows come in the order of offsets. What is held, discarded, was resumed or can not be checked stays an
    object.
    """

    def __init__(self) -> None:
        self._objects: dict[int, HalfEntry] = {}
        self._rows = ParkedTable()
        self._rows.sort()
        self._counter = OpenCounter()

    def __len__(self) -> int:
        return len(self._objects) + len(self._rows)

    def __contains__(self, offset: int) -> bool:
        return offset in self._objects or offset in self._rows

    def __iter__(self) -> Iterator[HalfEntry]:
        yield from map(HalfEntry.from_row, self._rows)
        yield from self._objects.values()

    def get(self, offset: int) -> HalfEntry | None:
        entry = self._objects.get(offset)
        if entry is None and self._rows:
            row = self._rows.get(offset)
            entry = None if row is None else HalfEntry.from_row(row)
        return entry

    def get_object(self, offset: int) -> HalfEntry | None:
        """The same, but None for a row; quicker."""
        return self._objects.get(offset)

    def known(self, offset: int) -> HalfEntry:
        """One that is open for certain."""
        entry = self.get(offset)
        assert entry is not None
        return entry

    def add(self, entry: HalfEntry) -> None:
        """Add one that is not there."""
        self._objects[entry.offset] = entry
        self._counter.add(entry.group, entry.state, entry.since)

    def put(self, entry: HalfEntry) -> None:
        """Add or replace."""
        if entry.offset in self._rows and entry.is_plain:
            self._rows.put(entry.to_row())
            return
        self.remove(entry.offset)
        self.add(entry)

    def remove(self, offset: int) -> None:
        """Remove, if it is there."""
        entry = self._objects.pop(offset, None)
        if entry is not None:
            self._counter.remove(entry.group, entry.state, entry.since)
        elif self._rows and (birth := self._rows.birth_of(offset)) is not None:
            self._rows.remove(offset)
            group, born = birth
            self._counter.remove(group, TransactionState.PENDING, born)

    def settle(self, offset: int) -> None:
        """The low watermark has passed this offset."""
        entry = self._objects.get(offset)
        if entry is not None and entry.is_plain:
            # It is counted already: a row is pending, too.
            del self._objects[offset]
            self._rows.put(entry.to_row())

    def adopt(self, rows: ParkedTable) -> None:
        """Take over a sorted table, to be empty before."""
        self._rows = rows
        for (group, slot), number in rows.births(SLOT_MS).items():
            self._counter.add_pending(group, slot, number)

    def schedule_of(self, offset: int) -> tuple[int, int, int] | None:
        """Of a pending one: when its next check is due, how many were sent, and from when its age counts."""
        entry = self._objects.get(offset)
        if entry is None:
            return self._rows.schedule_of(offset)
        return (entry.next_due, entry.checks, entry.since) if entry.state is TransactionState.PENDING else None

    def counts(self) -> Mapping[TransactionState, int]:
        """How many of each state."""
        return self._counter.totals()

    def open_counts(self) -> OpenCounts:
        """How many, by group, state and age; for any thread."""
        return self._counter.count()
