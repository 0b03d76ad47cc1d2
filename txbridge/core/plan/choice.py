"""EndChoice: the part of END for one Kafka transaction, in the order of END. TransactionSize: its limits.

Steps: the messages of a transaction that name different times of delivery, in the order in which they are delivered.
Messages with the same time are one step. Those without a time are the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import NamedTuple

from txbridge.core.decision_record import GIVE_UP, Decision, DecisionRecord
from txbridge.core.fresh_halves import Run
from txbridge.core.half_entry import HalfEntry
from txbridge.core.half_message import Copy, HalfMessage, delivered_copies
from txbridge.core.half_queue import HalfQueue
from txbridge.core.message_frames import FramedMessage, joined_topics
from txbridge.core.plan.effects import MalformedRecord

#: Bodies of messages that were read, by half offset.
Bodies = Mapping[int, HalfMessage]


class _Step(NamedTuple):
    #: ms; 0 for messages without a time.
    time: int
    #: Number of messages in this step and all before it.
    stop: int
    #: Of this step alone.
    topics: str
    size: int


def _order_of(messages: Sequence[FramedMessage]) -> list[int]:
    """Indices of the messages in the order of steps. Within a step they keep the order of the frames."""
    return sorted(range(len(messages)), key=lambda index: messages[index].deliver_at or 0)


def _steps_of(messages: Sequence[FramedMessage]) -> list[_Step]:
    steps, stop = [], 0
    ordered = [messages[index] for index in _order_of(messages)]
    for time, its in groupby(ordered, key=lambda message: message.deliver_at or 0):
        step = list(its)
        stop += len(step)
        steps.append(_Step(time, stop, joined_topics(step), sum(message.size for message in step)))
    return steps


class DuePart(NamedTuple):
    """What is due of a committed transaction."""

    #: The entry with topics, size and number of the messages that are due.
    entry: HalfEntry
    #: These messages, in the order of steps.
    first: int
    stop: int
    #: Time (ms) of the next ones; None if these are the last.
    next_time: int | None

    def indices_in(self, messages: Sequence[FramedMessage]) -> list[int]:
        """Indices of the messages that are due, in no order."""
        return _order_of(messages)[self.first : self.stop]


class KnownSteps:
    """Steps of the half messages that were looked at. An entry knows the next time only; the frames in HALF have all.

    `load` reads half messages by offset, and leaves out those that are gone.
    """

    def __init__(self, load: Callable[[Collection[int]], Mapping[int, HalfMessage]]) -> None:
        self._load = load
        #: None for a message that is gone.
        self._steps: dict[int, list[_Step] | None] = {}

    def forget(self) -> None:
        """Forget all of them, so that they do not fill the memory."""
        self._steps.clear()

    def are_known(self, entry: HalfEntry) -> bool:
        """Whether `due_part` can tell what is due of this entry. If not, `look_at` comes first."""
        return not entry.is_timed or entry.offset in self._steps

    def look_at(self, entries: Iterable[HalfEntry]) -> None:
        """Read the frames of those entries whose messages name different times. Raises as `load`."""
        wanted = {entry.offset: entry for entry in entries if not self.are_known(entry)}
        halves = self._load(wanted) if wanted else {}
        for offset, entry in wanted.items():
            half = halves.get(offset)
            # Where another message stands, the delivery will be refused.
            is_there = half is not None and half.transaction_id == entry.transaction_id and half.last_time is not None
            self._steps[offset] = _steps_of(half.framed) if half is not None and is_there else None

    def due_part(self, entry: HalfEntry, due: int) -> DuePart:
        """What is due at this time (ms) of a committed message with different times."""
        steps, first = self._steps[entry.offset], entry.delivered or 0
        if steps is None:
            return DuePart(entry, first, entry.messages, None)
        # What was due once stays due, even if the clock has gone back since.
        until = max(due, entry.deliver_at or 0)
        now = [step for step in steps if step.stop > first and step.time <= until]
        topics = dict.fromkeys(topic for step in now for topic in step.topics.split(","))
        stop, size = now[-1].stop if now else first, sum(step.size for step in now)
        part = entry._replace(real_topic=",".join(topics), size=size, messages=stop - first)
        return DuePart(part, first, stop, next((step.time for step in steps if step.time > until), None))


@dataclass(slots=True)
class OneByOne:
    """Messages that were looked at one by one."""

    entries: list[HalfEntry] = field(default_factory=list)
    #: By half offset, what is due of those whose messages name different times.
    steps: dict[int, DuePart] = field(default_factory=dict)

    @property
    def commits(self) -> list[int]:
        """Half offsets of the messages that it delivers for good: nothing of them is to come later."""
        if not self.steps:
            return [entry.offset for entry in self.entries]
        later = {offset for offset, step in self.steps.items() if step.next_time is not None}
        return [entry.offset for entry in self.entries if entry.offset not in later]

    @property
    def rollbacks(self) -> list[int]:
        """None of its own: those that are looked at one by one are in the draft."""
        return []

    @property
    def births(self) -> list[int]:
        """Births (ms) of the messages that it delivers. Those of a run are known until HALF is read again."""
        return [entry.born for entry in self.entries]

    @property
    def topics(self) -> AbstractSet[str]:
        return set(chain.from_iterable(entry.topics for entry in self.entries))

    def halves(self, bodies: Bodies) -> Iterator[HalfMessage]:
        """The messages that it delivers, until they are finished."""
        return (bodies[entry.offset] for entry in self.entries)

    def copies(self, partition: int, bodies: Bodies) -> Iterator[Copy]:
        """The records of these messages, until they are finished. If one of a transaction is refused, all count so."""
        for half in self.halves(bodies):
            step = self.steps.get(half.offset)
            yield from delivered_copies(half, partition, None if step is None else step.indices_in(half.framed))


#: Messages that are decided one after the other.
Part = Run | OneByOne


#: Divisor of the size after a time-out. A link that carried a part of the transaction in time carries that.
_SHRINK = 4
#: Growth of the limits after a full transaction in time. Twenty of them, a fifth of a second on a healthy cluster, lead
#: from one message back to the largest.
_GROW = 1.5
#: The same for one that took longer than _QUICK_S. The next one is to stay well below the produce time-out (5 s), which
#: a transaction that is too large costs.
_GROW_CAREFULLY = 1.1
_QUICK_S = 1.0
_LONG_S = 2.5
#: A transaction of this size or less was slow for another reason, unless the link carries less than 25 KB/s.
_SMALL_BYTES = 64 * 1024
_SMALL_ENTRIES = 100


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one Kafka transaction. A message that is larger goes alone."""

    #: END entries. 10,000 messages of 1 KB take about 0.2 s, well within transaction.timeout.ms.
    entries: int = 10_000
    #: Bytes of messages. More makes readers of the real topics wait without making the worker faster.
    bytes: int = 16 * 1024 * 1024


class TransactionSize:
    """The limits of the next Kafka transaction, which follow from the results of the last ones."""

    def __init__(self, largest: Limits) -> None:
        self._largest = self.limits = largest
        self._time_outs = 0

    @property
    def is_shrunk(self) -> bool:
        """Whether the limits are reduced, because a transaction timed out recently."""
        return self.limits != self._largest

    @property
    def is_smallest(self) -> bool:
        """Whether the next one holds a single message."""
        return self.limits.entries == 1

    def got_through(self, entries: int, size: int, seconds: float) -> None:
        """Note that a transaction of this size was committed after so many seconds."""
        self._time_outs = 0
        if not self.is_shrunk:
            return
        limits, largest = self.limits, self._largest
        if seconds < _QUICK_S or (size <= _SMALL_BYTES and entries <= _SMALL_ENTRIES):
            factor = _GROW
        elif seconds < _LONG_S:
            factor = _GROW_CAREFULLY
        else:
            return
        self.limits = Limits(
            _grown(limits.entries, entries, largest.entries, factor), _grown(limits.bytes, size, largest.bytes, factor)
        )

    def timed_out(self, entries: int, size: int, *, in_part: bool) -> None:
        """Note that a transaction was not committed in time. `in_part`: Kafka took some of its messages.

        Twice in a row, or with nothing taken, leads down to one message. If even that times out, the size is not the
        reason.
        """
        self._time_outs += 1
        if not in_part or self._time_outs > 1:
            self.limits = Limits(1, 1)
            return
        limits = self.limits
        self.limits = Limits(
            max(1, min(limits.entries, entries) // _SHRINK), max(1, min(limits.bytes, size) // _SHRINK)
        )


def _grown(limit: int, held: int, largest: int, factor: float) -> int:
    """The new limit. It does not grow after a transaction that was less than half full, which proves nothing."""
    if 2 * held < limit:
        return limit
    return min(largest, max(limit + 1, int(max(limit, held) * factor)))


#: Function that tells whether its topic has room for one more message. None: it cannot be delivered now, and needs no
#: room.
Room = Callable[[HalfEntry], bool | None]
#: Records of END that wait to be applied, in its order.
Waiting = Sequence[DecisionRecord | MalformedRecord]
#: Most malformed records of END in one Kafka transaction, and messages that one turn checks, discards or retries: one
#: of moderate size.
ROUND_LIMIT = 1_000


class EndSlice(NamedTuple):
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
        self.slices: list[EndSlice] = []
        self.malformed: list[MalformedRecord] = []
        #: Real topics of the commits.
        self.topics: set[str] = set()

    def take_entries(self, record: DecisionRecord) -> EndSlice:
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
        taken = EndSlice(record, start, stop)
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
        self.slices.append(EndSlice(run.record, 0, entries, run))
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
