"""Cuts: fixed end offsets of the topics, taken in an order that makes every verdict sound on a live system.

A cut is a prefix of each partition. Records appear in Kafka in a causal order: the half message, the END, then one
Kafka transaction that writes real records, OP, OFFSET and discard together. The markers of that transaction reach its
partitions at different times. So no single order of cuts is right for every verdict:

- LEAKED and PHANTOM say "visible, but nothing allows it". Records that allow it must be read *after* it. So the real
  topics are cut first (`before`), then OP, discard, END and HALF.
- LOST says "recorded as committed, but not visible". It needs the real topics cut *after* OP, and settled: their last
  stable offset has passed the high watermark that was requested after the OP cut. Records written together with an OP
  record in the cut lie below that high watermark, and are decided by then (`settle`).
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

from txbridge_audit.judge.facts import TopicPartition

Ends = Mapping[TopicPartition, int]

#: Seconds that a cut waits for open Kafka transactions. Kafka aborts those of txbridge after 10 s
#: (transaction.timeout.ms), which its coordinator enforces every 10 s. One that is open longer is not txbridge's.
SETTLE_TIMEOUT = 30.0
#: Pauses between two requests for stable offsets, seconds. The first ones suit a commit in progress (a few ms).
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5


class Offsets(Protocol):
    """The requests to a cluster that the cuts need."""

    def high_watermarks(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """End of the log, open Kafka transactions included."""

    def stable_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Last stable offset: the first offset of the oldest open Kafka transaction, else the high watermark."""


@dataclass(frozen=True, slots=True)
class AuditCut:
    """End offsets (exclusive) up to which each partition is read."""

    ends: Ends
    #: Partitions in which a Kafka transaction stayed open, with the high watermark that their end did not reach.
    unsettled: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Range:
    """The offsets that are read of one partition: `start` inclusive, `end` exclusive."""

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
) -> AuditCut:
    """Take a cut below which every Kafka transaction that had written by now is committed or aborted.

    Requests the high watermarks, then waits until the last stable offsets have reached them, `timeout` seconds at most.
    Other partitions are cut at their last stable offset and named in `unsettled`.
    """
    targets = offsets.high_watermarks(partitions)
    deadline, pause = clock() + timeout, _FIRST_PAUSE
    while True:
        stable = offsets.stable_offsets(partitions)
        unsettled = {key: target for key, target in targets.items() if stable[key] < target}
        if not unsettled or clock() >= deadline:
            return AuditCut(stable, unsettled)
        sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)
