"""Parts of a planned Kafka transaction: what it delivers, in the order of END."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from txbridge.core.fresh_halves import Run
from txbridge.core.half_entry import HalfEntry
from txbridge.core.half_message import HalfMessage, delivered_headers, delivered_timestamp, deliveries

#: A record for a real topic: half offset, topic, value, key, partition (-1: by the key), timestamp and headers. A plain
#: tuple in the order in which confluent-kafka takes its arguments: one is made for every message.
Copy = tuple[int, str, Any, Any, int, int, list[tuple[str, bytes | None]]]
#: Bodies of messages that were read, by half offset.
Bodies = Mapping[int, HalfMessage]


@dataclass(slots=True)
class OneByOne:
    """Messages that were looked at one by one."""

    entries: list[HalfEntry] = field(default_factory=list)

    @property
    def commits(self) -> list[int]:
        """Half offsets of the messages that it delivers."""
        return [entry.offset for entry in self.entries]

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
        """The records of these messages, until they are finished."""
        for offset, half in zip(self.commits, self.halves(bodies), strict=True):
            if half.messages is None:
                to = -1 if half.real_partition is None else half.real_partition
                headers = delivered_headers(half, partition)
                yield offset, half.real_topic, half.value, half.key, to, delivered_timestamp(half), headers
                continue
            # The messages of one transaction, in their order. If one is refused, all count as refused.
            for topic, key, value, headers, real_partition, timestamp in deliveries(half, partition):
                yield offset, topic, value, key, -1 if real_partition is None else real_partition, timestamp, headers


#: Messages that are decided one after the other.
Part = Run | OneByOne
