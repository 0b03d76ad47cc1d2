"""One partition of the simulated Kafka: records and transaction markers, and their visibility for kinds of readers."""

from __future__ import annotations

from dataclasses import dataclass, field

from txbridge.core.names import Headers


@dataclass(slots=True, eq=False)
class Stored:
    """The content of one offset. `kind` is "data", "commit" or "abort"; the last two are transaction markers."""

    offset: int
    kind: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    #: Append time, or the producer's timestamp (ms).
    timestamp: int
    #: Append time by the world's clock, whatever the topic's timestamps are (ms).
    appended: int
    producer_id: int = -1
    epoch: int = -1
    #: Number of the Kafka transaction, unique in the world; 0 is none.
    transaction: int = 0
    is_aborted: bool = False
    #: Epoch of the leader that appended it. A log that has lost its tail goes on with a higher one.
    leader_epoch: int = 0


@dataclass(slots=True)
class ProducerState:
    """A partition leader's state of a producer."""

    epoch: int
    last_sequence: int = -1
    #: First sequence and first offset of the last batches. A repeated batch is answered with its offset.
    batches: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class LostTail:
    """The lost tail of a log."""

    #: The log before the loss.
    whole: list[Stored]
    #: Offsets of committed records that it has lost.
    missing: list[int]
    #: "records" or "markers": until these have taken the lost offsets, the next Kafka transactions there are aborted,
    #: and the producer does not learn where anything has landed. Otherwise empty.
    hidden_by: str
    #: Whether a take-over has reported it.
    was_refused: bool = False


class PartitionLog:
    """The log of one partition. It has one replica, so an appended record is below the high watermark at once."""

    __slots__ = ("entries", "leader_epoch", "open", "partition", "producers", "topic")

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.entries: list[Stored] = []
        #: Open transactions: producer id to the offset of its first record here.
        self.open: dict[int, int] = {}
        self.producers: dict[int, ProducerState] = {}
        self.leader_epoch = 0

    def lose(self, count: int) -> None:
        """Remove the last records, as when they are lost with their leader and another goes on without them."""
        del self.entries[len(self.entries) - count :]
        self.leader_epoch += 1

    @property
    def high_watermark(self) -> int:
        return len(self.entries)

    @property
    def last_stable_offset(self) -> int:
        return min(self.open.values()) if self.open else len(self.entries)

    def append(self, stored: Stored) -> None:
        """Append what was built for the offset at the end."""
        stored.leader_epoch = self.leader_epoch
        if stored.transaction:
            self.open.setdefault(stored.producer_id, stored.offset)
        self.entries.append(stored)

    def mark(self, producer_id: int, epoch: int, now: int, *, commit: bool) -> list[Stored]:
        """Write a transaction marker. Returns the records that it decides."""
        first = self.open.pop(producer_id, None)
        decided = []
        if first is not None:
            decided = [one for one in self.entries[first:] if one.producer_id == producer_id and one.kind == "data"]
            if not commit:
                for one in decided:
                    one.is_aborted = True
        known = self.producers.get(producer_id)
        if known is None or known.epoch < epoch:
            self.producers[producer_id] = ProducerState(epoch)
        kind = "commit" if commit else "abort"
        self.entries.append(Stored(len(self.entries), kind, None, None, (), now, now, producer_id, epoch))
        return decided

    def visible(self, offset: int, limit: int, *, committed: bool, end: int | None = None) -> tuple[list[Stored], int]:
        """Up to `limit` records from `offset` on (and below `end`), and the offset after all records that were read."""
        if end is None:
            end = self.last_stable_offset if committed else len(self.entries)
        found: list[Stored] = []
        while offset < end and len(found) < limit:
            stored = self.entries[offset]
            offset += 1
            if stored.kind == "data" and not (committed and stored.is_aborted):
                found.append(stored)
        # Markers and aborted records after the last found one need no further fetch.
        while offset < end and (self.entries[offset].kind != "data" or (committed and self.entries[offset].is_aborted)):
            offset += 1
        return found, offset
