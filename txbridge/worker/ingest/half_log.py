"""HALF of one partition: half messages, malformed records, and the proof that a message which END names is absent."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from confluent_kafka import Message

from txbridge.core.checkpoint import Mark
from txbridge.core.decision_record import DecisionRecord
from txbridge.core.fresh_halves import FreshHalves, read_plain
from txbridge.core.half_message import OBJECT_BYTES, HalfMessage
from txbridge.core.headers import MalformedRecordError
from txbridge.core.names import Headers
from txbridge.core.plan.choice import Waiting
from txbridge.core.plan.draft import Draft
from txbridge.core.plan.effects import MalformedRecord
from txbridge.kafka.body_cache import mark_of, to_half
from txbridge.kafka.broker_clock import BrokerClock
from txbridge.kafka.environment import Outside
from txbridge.kafka.headers import copyable_headers, headers_of_all, offset_of
from txbridge.kafka.proven_end import EachBroker, proven_end
from txbridge.worker.partition_context import PartitionState

#: Records of HALF read at a time, so that a backlog there does not keep decisions waiting.
HALF_BATCH = 10_000
#: Time for reading HALF up to an offset that END names: a fetch takes milliseconds. After it, Kafka is asked whether
#: HALF reaches that offset at all. A client that names offsets which are not there delays the others by it.
_HALF_SOON_S = 0.01
#: Longest time without a record and without a proof of absence, while HALF is read up to an offset that END names. Then
#: something is wrong.
_HALF_TIMEOUT_S = 10.0
#: Least time between two proofs of HALF's end. One proof serves all END records that were read by then. It takes
#: milliseconds, and the partition waits for it.
_PROVE_EVERY_S = 0.05
#: If more time than this lies between two looks, this process stood still, and only this much of it counts.
_MOST_APART_S = 3.0
#: How often the end of HALF is compared with the position that was read. A reader at the end does not notice that the
#: log was cut and grows again.
_LOOK_EVERY_S = 5.0
#: A reader that was not needed for this long gives up its connection. Connecting again takes some 10 ms of processor
#: time. Under load END's may be needed several times a second.
_UNUSED_S = 10.0

#: Bytes of malformed records of HALF that are kept until they are copied to the discard topic. Records beyond that are
#: read again.
_MALFORMED_BYTES = 16 * 1024 * 1024
#: Most malformed records that one Kafka transaction copies if they have to be read again: their sizes are not known.
_UNREAD_LIMIT = 10


class _Proof(NamedTuple):
    """A proven end of HALF."""

    end: int
    #: END offset up to which records had been read before the question. The half messages that they name were stored
    #: earlier. So one at or above `end` is absent, and one below it is on its way.
    known: int


@dataclass(frozen=True, slots=True)
class _Unread:
    """The reason why a record of HALF is malformed, if its body is not kept."""

    error: str
    #: Half offset of the first one, if it is a copy.
    copy_of: int | None


class HalfLog:
    """Reads HALF of one partition: as far as decisions name it, and ahead of them."""

    def __init__(self, state: PartitionState, outside: Outside, brokers: EachBroker, clock: BrokerClock) -> None:
        self._state = state
        self._outside = outside
        self._clock = clock
        self._brokers = brokers
        #: END offset of the record that waits for a half message. Then the seconds for which neither a record of HALF
        #: nor a proof of absence has come. Time in which this process stood still does not count.
        self._waits: int | None = None
        self._vain = 0.0
        self._counted_at = 0.0
        self._proven_at = float("-inf")
        self._proof = _Proof(0, 0)
        #: END offset below which all records are judged. A record may be applied in several Kafka transactions.
        self._judged_to = 0
        self._looked_at = outside.monotonic()
        #: Malformed records, by half offset, until they are copied to the discard topic. An unread one has to be read
        #: again.
        self._malformed: dict[int, MalformedRecord | _Unread] = {}
        self._malformed_bytes = 0
        # The last record of HALF that was read, and its transaction id. The mark of it, or of an earlier one.
        self._last_half: Message | None = None
        self._last_id = ""
        self._mark = state.checkpoint.marks.get("half")

    def take_in(self, limit: int, timeout: float) -> int:
        """Read up to `limit` records of HALF, and return how many came."""
        state = self._state
        reader, queue = state.half_reader, state.queue
        before = reader.position
        messages = reader.poll(limit, timeout)
        # After the fetch: to a time from before it, a birth would seem to be in the future.
        queue.note_time(self._clock.now_at_latest())
        if reader.position > before + len(messages):
            state.half_gaps.note_position(reader.position)
        queue.fresh.forget_entered()
        if messages:
            self._last_half = messages[-1]
            headers = headers_of_all(messages)
            if not self._take_in_fresh(messages, headers):
                self.enter_fresh(queue.read_position)
                self._take_in_each(messages, headers)
        if not queue.fresh:
            queue.advance_reader(reader.position)
        return len(messages)

    def _take_in_fresh(self, messages: Sequence[Message], headers: Sequence[Headers | MalformedRecordError]) -> bool:
        """Take in all of them as fresh. False when one is not plain or may be known, or without memory for bodies."""
        state, queue, first = self._state, self._state.queue, offset_of(messages[0])
        if offset_of(messages[-1]) - first + 1 != len(messages) or MalformedRecordError in map(type, headers):
            return False
        halves = read_plain(
            first,
            [message.timestamp()[1] for message in messages],
            [message.key() for message in messages],
            [message.value() for message in messages],
            [*headers],
            state.names.namespace,
        )
        if halves is None or not state.bodies.reserve(_memory_of(queue.fresh) + _memory_of(halves)):
            return False
        if first > queue.read_position:
            # The missing offsets are markers of strangers.
            self.enter_fresh(queue.read_position)
            queue.advance_reader(first)
        is_taken = queue.take_fresh(halves)
        self.settle_memory()
        if is_taken:
            self._last_id = (halves.ids[-1] or b"").decode()
        return is_taken

    def enter_fresh(self, until: int) -> None:
        """Make entries of the fresh half messages below this HALF offset."""
        entered = self._state.queue.enter_fresh(until)
        self.settle_memory()
        for half in entered:
            self._state.bodies.put(half)

    def load_frames(self, offsets: Collection[int]) -> Mapping[int, HalfMessage]:
        """The half messages at these offsets, to look at their frames. What fits into the memory stays for a moment.

        Raises as BodyCache.load.
        """
        bodies = self._state.bodies
        halves = bodies.load(offsets)
        for half in halves.values():
            bodies.put(half)
        bodies.yield_room(halves)
        return halves

    def settle_memory(self) -> None:
        """Leave the cache the part of the budget for bodies that fresh messages do not need."""
        self._state.bodies.reserve(_memory_of(self._state.queue.fresh))

    def _take_in_each(self, messages: Sequence[Message], headers: Sequence[Headers | MalformedRecordError]) -> None:
        state, queue = self._state, self._state.queue
        for message, its in zip(messages, headers, strict=True):
            if isinstance(its, MalformedRecordError):
                self._last_id = ""
                self._take_in_malformed(message, (), str(its))
                continue
            try:
                half = to_half(message, state.names, its)
            except MalformedRecordError as error:
                self._last_id = ""
                self._take_in_malformed(message, its, str(error))
                continue
            self._last_id = half.transaction_id
            first = queue.note_id(half)
            if first is not None:
                copied = f"a copy of the half message at offset {first}: the same id"
                self._take_in_malformed(message, its, copied, first)
            elif (why := queue.why_not_read(half)) is not None:
                self._take_in_malformed(message, its, why)
            elif queue.read_half(half):
                state.bodies.put(half)

    def mark_of_last(self) -> Mark | None:
        """The mark of the last record of HALF that was read, by this owner or the one before it."""
        last, mark = self._last_half, self._mark
        if last is not None and (mark is None or offset_of(last) > mark.offset):
            self._mark = mark_of(last, self._state.names, self._last_id)
        return self._mark

    def _take_in_malformed(self, message: Message, headers: Headers, error: str, copy_of: int | None = None) -> None:
        offset, size = offset_of(message), len(message.value() or b"")
        if not self._state.queue.read_malformed(offset, size):
            return
        why = _Unread(error, copy_of)
        if self._malformed_bytes + size > _MALFORMED_BYTES:
            self._malformed[offset] = why
        else:
            self._malformed[offset] = self._as_malformed(message, headers, why)
            self._malformed_bytes += size

    def _as_malformed(self, message: Message, headers: Headers, why: _Unread) -> MalformedRecord:
        where = self._state.half_reader.topic, self._state.partition, offset_of(message)
        return MalformedRecord(*where, message.key(), message.value(), headers, why.error, why.copy_of)

    @property
    def most_malformed(self) -> int:
        """The number of malformed records of HALF that one Kafka transaction may copy."""
        unread = any(isinstance(record, _Unread) for record in self._malformed.values())
        return _UNREAD_LIMIT if unread else sys.maxsize

    def load_malformed(self, offsets: Iterable[int]) -> list[MalformedRecord]:
        """The malformed records of HALF at these offsets. Raises TimeoutError, KafkaException."""
        wanted = {offset: self._malformed[offset] for offset in offsets}
        found = {offset: record for offset, record in wanted.items() if isinstance(record, MalformedRecord)}
        unread = {offset: why for offset, why in wanted.items() if isinstance(why, _Unread)}
        if unread:
            for message in self._state.bodies.read_back(unread):
                offset = offset_of(message)
                found[offset] = self._as_malformed(message, copyable_headers(message), unread[offset])
        for offset in wanted - found.keys():
            # Retention has deleted it meanwhile.
            topic, partition = self._state.half_reader.topic, self._state.partition
            found[offset] = MalformedRecord(topic, partition, offset, None, None, (), "no longer in the log")
        return [found[offset] for offset in sorted(wanted)]

    def on_committed(self, draft: Draft) -> None:
        """Forget what a committed draft has finished: bodies, and malformed records that are in the discard topic."""
        self.settle_memory()
        bodies = self._state.bodies
        for _, half_offsets in draft.ops():
            bodies.drop(half_offsets)
        bodies.yield_room([*(entry.offset for entry in (*draft.parked, *draft.scheduled)), *draft.unfinished])
        for offset in draft.malformed:
            record = self._malformed.pop(offset)
            if isinstance(record, MalformedRecord):
                self._malformed_bytes -= len(record.value or b"")

    def look_at_end(self) -> None:
        """Check from time to time that HALF still reaches what was read of it. Raises LogGoneError, UnansweredError."""
        now = self._outside.monotonic()
        if now - self._looked_at >= _LOOK_EVERY_S:
            self._looked_at = now
            reader = self._state.half_reader
            # This reader would answer only after its fetch, and decisions and due work would wait as long. So it is not
            # asked for the end.
            reader.ask_who_leads()
            # What an owner before this one has read is not read yet, after a take-over.
            reached = max(reader.position, self._state.checkpoint.read or 0)
            self._state.ends.end_from(reader.topic, reader.partition, reached, _LOOK_EVERY_S / 2)
            self._state.body_reader.close_if_unused(_UNUSED_S)
            self._state.decision_reader.close_if_unused(_UNUSED_S)

    def count_ready(self, records: Waiting, end_position: int) -> int:
        """Read HALF for these END records, and return how many of them, from the first on, can be applied now.

        A half message that such a record names is then read, or proven to be absent. END is read up to `end_position`.

        Raises TimeoutError, LogGoneError, KafkaException.
        """
        reader = self._state.half_reader
        target = max((_highest(record) for record in records), default=-1) + 1
        if reader.position >= target or all(self._lowest_unread(record) is None for record in records):
            return len(records)
        until = self._outside.monotonic() + _HALF_SOON_S
        while reader.position < target and not self._state.queue.must_park:
            if self.take_in(HALF_BATCH, _HALF_SOON_S):
                self._vain = 0.0
            # This limit also holds while messages keep coming: a record that names an absent message must be judged.
            if self._outside.monotonic() >= until:
                break
        waits = next((number for number, record in enumerate(records) if self._lowest_unread(record) is not None), None)
        if waits is None:
            return len(records)
        if waits or self._state.queue.must_park:
            return waits
        return self._judge_waiting(records, end_position)

    def _lowest_unread(self, record: DecisionRecord | MalformedRecord) -> int | None:
        """The lowest half offset in the record that only reading HALF can explain; None if there is none."""
        if not isinstance(record, DecisionRecord):
            return None
        position, queue = self._state.half_reader.position, self._state.queue
        if record.offset < self._judged_to:
            return None
        # Below the watermark an open message is known. Another offset may be that of a copy.
        unread = (
            offset
            for offset in record.half_offsets
            if offset >= position and (offset >= queue.read_position or queue.entry(offset) is None)
        )
        return min(unread, default=None)

    def _judge_waiting(self, records: Waiting, end_position: int) -> int:
        """Judge records of END, of which the first waits for a half message. Return how many can be applied.

        That message is still on its way, or absent.
        """
        now, first = self._outside.monotonic(), records[0]
        if self._waits != first.offset:
            self._waits, self._vain, self._counted_at = first.offset, 0.0, now
        if first.offset >= self._proof.known and now - self._proven_at >= _PROVE_EVERY_S:
            self._prove_end(end_position)
        judged = 0
        for record in records:
            unread = self._lowest_unread(record)
            # One that this record names is absent for certain if the proof is from after the record.
            if unread is not None and (record.offset >= self._proof.known or unread < self._proof.end):
                break
            judged += 1
            self._judged_to = record.offset + 1
        if not judged:
            self._count_in_vain(first)
        return judged

    def _prove_end(self, end_position: int) -> None:
        """Prove where HALF ends: a decision is refused for an absent message only if the absence is certain."""
        reader = self._state.half_reader
        end = proven_end(self._brokers, reader.topic, reader.partition)
        self._proven_at = self._outside.monotonic()
        # An end below what was read shows that the log was cut, which is found out elsewhere.
        if end is not None and end >= reader.position:
            self._proof = _Proof(end, end_position)

    def _count_in_vain(self, record: DecisionRecord | MalformedRecord) -> None:
        """Raise TimeoutError when what this record of END names neither comes for long nor is proven to be absent."""
        now, reader = self._outside.monotonic(), self._state.half_reader
        self._vain += min(now - self._counted_at, _MOST_APART_S)
        self._counted_at = now
        if self._vain > _HALF_TIMEOUT_S:
            raise TimeoutError(
                f"{reader.topic}[{reader.partition}] did not come up to offset {_highest(record) + 1}, nor does a "
                f"majority of its brokers say who leads it, and that leader that it ends before"
            )


def _memory_of(halves: FreshHalves) -> int:
    return halves.bytes + halves.unfinished * OBJECT_BYTES


def _highest(record: DecisionRecord | MalformedRecord) -> int:
    if not isinstance(record, DecisionRecord):
        return -1
    return max(record.half_offsets, default=-1)
