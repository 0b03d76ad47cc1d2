"""Cuts: fixed end offsets of the topics, taken in an order that makes every verdict sound on a live system.

A cut is a prefix of each partition. Records appear in Kafka in a causal order: the half message, the END, then one
Kafka transaction that writes real records, OP, OFFSET and discard together. The markers of that transaction reach its
partitions at different times. So no single order of cuts is right for every verdict:

- LEAKED and PHANTOM say "visible, but nothing allows it". What allows it must be read *after* it. So the real topics
  are cut first (`before`), then OP, discard, END and HALF.
- LOST says "recorded as committed, but not visible". It needs the real topics cut *after* OP, and settled: their last
  stable offset has passed the high watermark that was asked for after the OP cut. What was written together with an OP
  record in the cut lies below that high watermark, and is decided by then (`settle`).
- CHECKED_AFTER_DECISION needs the check topics cut before discard and END.
- EXPIRED needs the log start of HALF before the cut of OFFSET.
- "Applied, but with no outcome" needs OP cut after OFFSET, and settled.

So the real topics have two cuts. The later one is read, and rows below the earlier one are marked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

#: (topic, partition)
TopicPartition = tuple[str, int]
Ends = Mapping[TopicPartition, int]

#: How long a cut waits for open Kafka transactions, seconds. txbridge's own are aborted by Kafka after
#: transaction.timeout.ms (10 s), which its coordinator enforces every 10 s; what is open longer is somebody else's.
SETTLE_TIMEOUT = 30.0
#: Pause between two looks at the stable offsets, seconds: the first ones catch a commit in flight (a few ms).
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5


class Offsets(Protocol):
    """What the cuts ask of a cluster."""

    def high_watermarks(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """End of the log, open Kafka transactions included."""

    def stable_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Last stable offset: the first offset of the oldest open Kafka transaction, else the high watermark."""


@dataclass(frozen=True, slots=True)
class Cut:
    """End offsets (exclusive) up to which each partition is read."""

    ends: Ends
    #: Partitions in which a Kafka transaction stayed open: their end, and the high watermark it did not reach.
    unsettled: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Range:
    """What is read of one partition: `start` inclusive, `end` exclusive."""

    start: int
    end: int

    @property
    def empty(self) -> bool:
        return self.end <= self.start


def ranges(starts: Ends, ends: Ends) -> dict[TopicPartition, Range]:
    """Start and end of each partition in `ends`. A log start past the end (retention meanwhile) gives an empty one."""
    return {key: Range(min(starts[key], end), end) for key, end in ends.items()}


def settle(
    offsets: Offsets,
    partitions: Collection[TopicPartition],
    *,
    timeout: float = SETTLE_TIMEOUT,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Cut:
    """Cut where every Kafka transaction that had written by now is committed or aborted.

    Asks for the high watermarks, then waits until the last stable offsets have reached them, `timeout` seconds at most.
    Partitions that did not get there are cut at their last stable offset and named in `unsettled`.
    """
    targets = offsets.high_watermarks(partitions)
    deadline, pause = clock() + timeout, _FIRST_PAUSE
    while True:
        stable = offsets.stable_offsets(partitions)
        unsettled = {key: target for key, target in targets.items() if stable[key] < target}
        if not unsettled or clock() >= deadline:
            return Cut(stable, unsettled)
        sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)
