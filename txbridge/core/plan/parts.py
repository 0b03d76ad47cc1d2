"""Parts of a planned Kafka transaction: what it delivers, in the order of END."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import chain

from txbridge.core.fresh_halves import Run
from txbridge.core.half_copies import Copy, delivered_copies
from txbridge.core.half_entry import HalfEntry
from txbridge.core.half_message import HalfMessage
from txbridge.core.steps import DuePart

#: Bodies of messages that were read, by half offset.
Bodies = Mapping[int, HalfMessage]


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
