"""EndChoice: the part of END for one Kafka transaction, in the order of END. It may end inside a record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from txbridge.core.decision_record import GIVE_UP, Decision, DecisionRecord
from txbridge.core.fresh_halves import Run
from txbridge.core.half_entry import HalfEntry
from txbridge.core.half_queue import HalfQueue
from txbridge.core.plan.effects import MalformedRecord
from txbridge.core.steps import KnownSteps
from txbridge.core.transaction_size import Limits

#: Function that tells whether its topic has room for one more message. None: it cannot be delivered now, and needs no
#: room.
Room = Callable[[HalfEntry], bool | None]
#: Records of END that wait to be applied, in its order.
Waiting = Sequence[DecisionRecord | MalformedRecord]
#: Most malformed records of END in one Kafka transaction, and messages that one turn checks, discards or retries: one
#: of moderate size.
ROUND_LIMIT = 1_000


class Slice(NamedTuple):
    """Entries of one END record, from index `start` to before `stop`."""

    record: DecisionRecord
    start: int
    stop: int
    #: All of them as a run, if they were chosen as one.
    run: Run | None = None

    @property
    def is_whole(self) -> bool:
        """Whether nothing behind these entries is left of the record."""
        return self.stop >= len(self.record.entries)


class EndChoice:
    """Entries in the order of END, up to the first one without room.

    The entry of a transaction with several messages counts as that many.

    The counts assume that every topic takes its messages. HALF must be read beyond all offsets that the entries name.
    `due`: the time (ms) by which the draft decides whether a commit is early.

    `steps` are those of messages with different times. An entry whose frames were not looked at counts with its
    whole size and goes to `unread`. Without such a list, the choice ends before it.
    """

    def __init__(
        self,
        queue: HalfQueue,
        limits: Limits,
        room: Room | None = None,
        *,
        due: int,
        position: int = 0,
        steps: KnownSteps | None = None,
        unread: list[HalfEntry] | None = None,
    ) -> None:
        self._queue = queue
        self._steps, self._unread = steps, unread
        self._limits = limits
        self._room = room
        self.due = due
        #: END offset below which all is applied by the transaction. `position` until something has no room.
        self.end = position
        self.entries = 0
        self.bytes = 0
        self._decided: set[int] = set()
        self._has_any = False
        self.slices: list[Slice] = []
        self.malformed: list[MalformedRecord] = []
        #: Real topics of the commits.
        self.topics: set[str] = set()

    def take_entries(self, record: DecisionRecord) -> Slice:
        """Take as many entries as have room. Entries that are applied already are left out."""
        queue, room, limits = self._queue, self._room, self._limits
        find, first_of, topics = queue.entry, queue.first_of, self.topics
        start = queue.next_entry if record.offset == queue.next_end else 0
        # max(): a transaction with more messages than there was room for may have gone alone.
        most_entries = max(0, limits.entries - self.entries)
        entries = record.entries[start : start + most_entries]
        due = self.due
        stop, size, most, has_any = start, self.bytes, limits.bytes, self._has_any
        # Messages beyond one for each entry. The messages of one transaction are never divided.
        more = 0
        for command in entries:
            if more and stop - start + more >= most_entries:
                break
            if command.decision is Decision.COMMIT:
                entry = find(first_of(command.half_offset))
                # A discarded message counts as well, because an earlier entry may resume it.
                is_early = entry is not None and entry.deliver_at is not None and entry.deliver_at > due
                if entry is not None and not entry.state.is_committed and not is_early:
                    if entry.delivered is not None and (entry := self._due_of(entry)) is None:
                        break
                    has_room = True if room is None else room(entry)
                    if has_room is not None:
                        # A message that is too large by itself goes alone.
                        if not has_room or (has_any and size + entry.size > most):
                            break
                        if entry.messages > 1:
                            if has_any and stop - start + more + entry.messages > most_entries:
                                break
                            more += entry.messages - 1
                        size += entry.size
                        has_any = True
                    topics.update(entry.topics)
            elif record.source in GIVE_UP:
                # A copy of the message goes to the discard topic.
                entry = find(first_of(command.half_offset))
                if entry is not None and entry.state.is_committed:
                    if has_any and size + entry.size > most:
                        break
                    size += entry.size
                    has_any = True
            stop += 1
        self.entries += stop - start + more
        self.bytes, self._has_any = size, has_any
        taken = Slice(record, start, stop)
        if stop > start:
            self.slices.append(taken)
        return taken

    def _due_of(self, entry: HalfEntry) -> HalfEntry | None:
        """The entry with what is due of it. None if its frames have to be looked at first."""
        assert self._steps is not None
        if self._steps.are_known(entry):
            return self._steps.due_part(entry, self.due).entry
        if self._unread is None:
            return None
        self._unread.append(entry)
        # Its frames will be in memory. How many of its messages are due is not known.
        return entry._replace(messages=1)

    def run_of(self, record: DecisionRecord) -> Run | None:
        """The decisions of the record about fresh half messages, if they can be taken as a run.

        The caller must not take a run whose topics have limited room.
        """
        queue = self._queue
        if record.offset == queue.next_end and queue.next_entry:
            return None
        run = queue.fresh.run_of(record)
        return None if run is None or not self._decided.isdisjoint(run.commits + run.rollbacks) else run

    def take_run(self, run: Run) -> bool:
        """Take the whole run; False if it has no room."""
        entries = len(run.record.entries)
        if self.entries + entries > self._limits.entries or self.bytes + run.size > self._limits.bytes:
            return False
        self.entries += entries
        self.bytes += run.size
        self._has_any = True
        self._decided.update(run.commits, run.rollbacks)
        self.topics |= run.topics
        self.slices.append(Slice(run.record, 0, entries, run))
        return True

    @property
    def groups_to_reply(self) -> set[str]:
        """Producer groups whose records ask for a reply."""
        return {part.record.group for part in self.slices if part.record.reply is not None}

    @property
    def is_empty(self) -> bool:
        return not self.entries

    def take_malformed(self, record: MalformedRecord) -> bool:
        """Take a record that goes to the discard topic; False if it has no room."""
        size = len(record.value or b"")
        if (
            len(self.malformed) >= ROUND_LIMIT
            or self.entries >= self._limits.entries
            or (self._has_any and self.bytes + size > self._limits.bytes)
        ):
            return False
        self.entries += 1
        self.bytes += size
        self._has_any = True
        self.malformed.append(record)
        return True


def first_entries(queue: HalfQueue, waiting: Waiting, limit: int) -> Sequence[DecisionRecord | MalformedRecord]:
    """The next records of END, until they have `limit` entries to apply."""
    first: list[DecisionRecord | MalformedRecord] = []
    # Entries that are applied already do not count.
    entries = -queue.next_entry
    for record in waiting:
        if entries >= limit:
            break
        entries += len(record.entries) if isinstance(record, DecisionRecord) else 1
        first.append(record)
    return first


def lacks_the_rest(queue: HalfQueue, waiting: Waiting) -> bool:
    """Whether END holds another record at the offset of the one that is applied in part."""
    if not (queue.next_entry and waiting):
        return False
    first = waiting[0]
    count = len(first.entries) if isinstance(first, DecisionRecord) else 0
    return first.offset != queue.next_end or count <= queue.next_entry
