"""Steps: the messages of a transaction that name different times of delivery, in the order in which they are delivered.

Messages with the same time are one step. Those without a time are the first one. `OneByOne` is a part of a planned
Kafka transaction: what it delivers, in the order of END.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import NamedTuple

from txbridge.core.fresh_halves import Run
from txbridge.core.half_entry import HalfEntry
from txbridge.core.half_message import Copy, HalfMessage, delivered_copies
from txbridge.core.message_frames import FramedMessage, joined_topics

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
