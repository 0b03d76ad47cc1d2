"""HALF, read as far as decisions name it, and the judgement that something named is not there."""

from __future__ import annotations

from collections.abc import Sequence

from txbridge.broker.outside import Outside
from txbridge.broker.state import PartitionState
from txbridge.broker.transaction import MalformedRecord
from txbridge.core.end_transaction import EndRecord

#: Records of HALF read at a time, so that a backlog there does not keep decisions waiting.
HALF_BATCH = 10_000
#: Reading HALF up to an offset that an END names: a fetch takes milliseconds. After so long, Kafka is asked whether it
#: goes there at all.
_HALF_SOON_S = 0.05
#: Reading HALF up to an offset that Kafka says is there: without a record for this long, something is wrong.
_HALF_TIMEOUT_S = 10.0
#: What an END of a client's names is stored. Kafka has no read that proves the contrary: a former leader answers as of
#: when it led. So every answer of this long has to say that HALF ends before it, each from whom the brokers then take
#: for the leader. A broker that goes on after it stood still learns who leads within a fetch of the metadata log; five
#: seconds are ten times that.
_ABSENT_AFTER_S = 5.0
#: Between two of these answers.
_ASK_EVERY_S = 0.25
#: How often HALF is compared with how far it was read: a reader at its end learns nothing of a log that was cut and
#: grows again.
_LOOK_EVERY_S = 5.0
#: Share of the time that the judgement may take of all decisions of the partition, which wait for it: whoever writes
#: forged ENDs all the time must not stop the others. Under such an attack fewer answers have to do.
_MOST_OF_TIME = 0.1

Batch = Sequence[EndRecord | MalformedRecord]


class HalfLog:
    """Reads HALF of one partition for its decisions."""

    def __init__(self, state: PartitionState, outside: Outside) -> None:
        self._state = state
        self._outside = outside
        #: The END that waits for something of HALF, since when, and when something of HALF came last.
        self._waits: int | None = None
        self._came_at = 0.0
        #: Since when every answer says that it is not there, when Kafka was asked last, and what it said.
        self._absent_since: float | None = None
        self._asked_at = float("-inf")
        self._judged_at = float("-inf")
        #: END offset below which all is judged: a record may be applied in several Kafka transactions.
        self._judged_to = 0
        self._looked_at = outside.monotonic()

    def look(self) -> None:
        """See from time to time that HALF still reaches what was read of it. Raises LogGoneError, KafkaException."""
        now = self._outside.monotonic()
        if now - self._looked_at >= _LOOK_EVERY_S:
            self._looked_at = now
            reader = self._state.half_reader
            reader.end_from(max(reader.position, self._state.progress.read or 0))

    def ready(self, batch: Batch) -> int:
        """Read HALF for these ENDs; how many of them, from the first on, can be applied now.

        What one names is then read, or is not there for certain. Raises TimeoutError, LogGoneError, KafkaException.
        """
        reader = self._state.half_reader
        target = max((_highest(record) for record in batch), default=-1) + 1
        if reader.position >= target or all(self._lowest_unread(record) is None for record in batch):
            return len(batch)
        until = self._outside.monotonic() + _HALF_SOON_S
        while reader.position < target and not self._state.queue.must_park:
            came = self._state.take_in_half(HALF_BATCH, _HALF_SOON_S)
            if came:
                self._came_at = self._outside.monotonic()
            elif self._outside.monotonic() >= until:
                break
        waits = next((number for number, record in enumerate(batch) if self._lowest_unread(record) is not None), None)
        if waits is None:
            return len(batch)
        if waits or self._state.queue.must_park:
            return waits
        return self._judge(batch)

    def _lowest_unread(self, record: EndRecord | MalformedRecord) -> int | None:
        """The lowest half offset that it names and of which only reading HALF can tell what it is."""
        if not isinstance(record, EndRecord):
            return None
        position, queue = self._state.half_reader.position, self._state.queue
        if record.offset < self._judged_to:
            return None
        # Below the watermark: one that is open is known, another may be a copy.
        unread = (
            entry.half_offset
            for entry in record.entries
            if entry.half_offset >= position
            and (entry.half_offset >= queue.half_position or queue.entry(entry.half_offset) is None)
        )
        return min(unread, default=None)

    def _judge(self, batch: Batch) -> int:
        """The first END waits: what it names is on its way, or not there."""
        reader, now = self._state.half_reader, self._outside.monotonic()
        first = batch[0]
        if self._waits != first.offset:
            self._waits, self._came_at, self._absent_since = first.offset, now, None
        if now - self._asked_at < _ASK_EVERY_S:
            return 0
        end = reader.end_from(reader.position)
        self._asked_at = now = self._outside.monotonic()
        lowest = self._lowest_unread(first)
        assert lowest is not None
        if end is None or end > lowest:
            self._absent_since = None
            if now - self._came_at > _HALF_TIMEOUT_S:
                raise TimeoutError(f"{reader.topic}[{reader.partition}] did not come up to offset {lowest + 1}")
            return 0
        if self._absent_since is None:
            self._absent_since = now
        since = min(self._absent_since, now)
        if now - since < min(_ABSENT_AFTER_S, (since - self._judged_at) * _MOST_OF_TIME):
            return 0
        self._judged_at, self._absent_since = now, None
        judged = 0
        for record in batch:
            unread = self._lowest_unread(record)
            if unread is not None and unread < end:
                break
            judged += 1
            self._judged_to = record.offset + 1
        return judged


def _highest(record: EndRecord | MalformedRecord) -> int:
    if not isinstance(record, EndRecord):
        return -1
    return max((entry.half_offset for entry in record.entries), default=-1)
