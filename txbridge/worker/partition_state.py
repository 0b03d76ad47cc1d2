"""What an owner holds of its partition, and how it reads HALF."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Message
from confluent_kafka.admin import AdminClient

from txbridge.core.check_policy import CheckPolicy
from txbridge.core.checkpoint import Checkpoint
from txbridge.core.discard_record import MalformedRecord
from txbridge.core.fingerprint import Mark, digest
from txbridge.core.half_queue import HalfQueue
from txbridge.core.headers import MalformedRecordError
from txbridge.core.names import Names
from txbridge.core.transaction_size import Limits
from txbridge.kafka.body_cache import BodyCache, mark_of, offset_of, to_half
from txbridge.kafka.controller_requests import ControllerRequests
from txbridge.kafka.environment import OUTSIDE, Outside
from txbridge.kafka.group_membership import GroupMembership
from txbridge.kafka.headers import copyable_headers
from txbridge.kafka.partition_reader import PartitionReader
from txbridge.worker.commit.writer import TransactionalWriter
from txbridge.worker.ingest.end_inbox import EndEvent
from txbridge.worker.ingest.offset_gaps import Gaps
from txbridge.worker.observe.metrics import WorkerMetrics
from txbridge.worker.observe.no_longer_held import NoLongerHeld

#: Bytes of malformed records of HALF that are kept until they are set aside; beyond them they are read again then.
_MALFORMED_BYTES = 16 * 1024 * 1024
#: Malformed records set aside in one Kafka transaction when they have to be read again: their sizes are not known.
_UNREAD_LIMIT = 10


@dataclass(frozen=True, slots=True)
class PartitionContext:
    """What every partition of a worker shares."""

    kafka: Mapping[str, Any]
    admin: AdminClient
    #: What is asked about topics while the worker runs.
    requests: ControllerRequests
    membership: GroupMembership
    names: Names
    policy: CheckPolicy
    commit_timeout_ms: int
    payload_memory: int
    check_rate: int
    #: How much one Kafka transaction holds at most.
    largest: Limits = field(default_factory=Limits)
    outside: Outside = OUTSIDE
    metrics: WorkerMetrics = field(default_factory=WorkerMetrics)
    no_longer_held: NoLongerHeld = field(default_factory=NoLongerHeld)


@dataclass(frozen=True, slots=True)
class _Unread:
    """Why a record of HALF is set aside whose body is not kept until then."""

    error: str
    #: Half offset of the first, when it is a copy.
    copy_of: int | None


@dataclass(slots=True)
class PartitionState:
    """All that an owner holds of its partition."""

    partition: int
    names: Names
    queue: HalfQueue
    payloads: BodyCache
    writer: TransactionalWriter
    half_reader: PartitionReader
    #: Of END: sees its end. What is to be applied is read by the other, which passes over what was aborted.
    end_reader: PartitionReader
    decision_reader: PartitionReader
    half_gaps: Gaps
    end_gaps: Gaps
    #: The checkpoint that Kafka has committed last, and where it stands in OFFSET.
    checkpoint: Checkpoint
    checkpoint_offset: int
    #: Where the next record in OFFSET has to land, when OFFSET was read to its end and nothing was written since.
    offset_topic_end: int | None
    #: Whether the owner was told to stop: asked while something waits for Kafka.
    stopping: Callable[[], bool]
    #: The last record of END that was read.
    last_end: EndEvent | None = None
    _end_mark: Mark | None = None
    # The last record of HALF that was read, and its mark once it was asked for.
    _last_half: Message | None = None
    _last_id: str = ""
    _half_mark: Mark | None = None
    #: Records of HALF that were read and not yet set aside; an unread one has to be read again.
    _malformed: dict[int, MalformedRecord | _Unread] = field(default_factory=dict)
    _malformed_bytes: int = 0

    def take_in_half(self, limit: int, timeout: float) -> int:
        """Read what HALF has, up to `limit` records; returns how many came."""
        reader, queue = self.half_reader, self.queue
        before = reader.position
        messages = reader.poll(limit, timeout)
        if reader.position > before + len(messages):
            self.half_gaps.note(reader.position)
        for message in messages:
            try:
                half = to_half(message, self.names)
            except MalformedRecordError as error:
                self._last_id = ""
                self._take_in_malformed(message, str(error))
                continue
            self._last_id = half.transaction_id
            first = queue.note_id(half)
            if first is not None:
                self._take_in_malformed(message, f"a copy of the half message at offset {first}: the same id", first)
            elif queue.read(half):
                self.payloads.put(half)
        queue.advance_reader(reader.position)
        if messages:
            self._last_half, self._half_mark = messages[-1], None
        return len(messages)

    def marks(self) -> dict[str, Mark]:
        """The last records that were read, by this owner or the one before it."""
        marks = dict(self.checkpoint.marks)
        if self._last_half is not None and self._half_mark is None:
            self._half_mark = mark_of(self._last_half, self.names, self._last_id)
        last = self.last_end
        if last is not None and (self._end_mark is None or self._end_mark.offset != last.offset):
            self._end_mark = Mark(last.offset, digest(None, last.value), None, last.appended)
        for short, mark in (("half", self._half_mark), ("end", self._end_mark)):
            if mark is not None and (short not in marks or mark.offset > marks[short].offset):
                marks[short] = mark
        return marks

    def _take_in_malformed(self, message: Message, error: str, copy_of: int | None = None) -> None:
        offset, size = offset_of(message), len(message.value() or b"")
        if not self.queue.read_malformed(offset, size):
            return
        why = _Unread(error, copy_of)
        if self._malformed_bytes + size > _MALFORMED_BYTES:
            self._malformed[offset] = why
        else:
            self._malformed[offset] = self._as_malformed(message, why)
            self._malformed_bytes += size

    def _as_malformed(self, message: Message, why: _Unread) -> MalformedRecord:
        return MalformedRecord(
            topic=self.half_reader.topic,
            partition=self.partition,
            offset=offset_of(message),
            key=message.key(),
            value=message.value(),
            headers=copyable_headers(message),
            error=why.error,
            copy_of=why.copy_of,
        )

    def malformed_limit(self, limit: int) -> int:
        """How many malformed records of HALF, at most `limit`, to set aside in one Kafka transaction."""
        unread = any(isinstance(record, _Unread) for record in self._malformed.values())
        return min(limit, _UNREAD_LIMIT) if unread else limit

    def load_malformed(self, offsets: Iterable[int]) -> list[MalformedRecord]:
        """The malformed records of HALF at these offsets. Raises TimeoutError, KafkaException."""
        wanted = {offset: self._malformed[offset] for offset in offsets}
        found = {offset: record for offset, record in wanted.items() if isinstance(record, MalformedRecord)}
        unread = {offset: why for offset, why in wanted.items() if isinstance(why, _Unread)}
        if unread:
            for message in self.payloads.read_back(unread):
                offset = offset_of(message)
                found[offset] = self._as_malformed(message, unread[offset])
        return [found.get(offset) or self._gone(offset) for offset in sorted(wanted)]

    def _gone(self, offset: int) -> MalformedRecord:
        """Stands for a malformed record that retention has eaten meanwhile."""
        return MalformedRecord(self.half_reader.topic, self.partition, offset, None, None, (), "gone from the log")

    def drop_malformed(self, offsets: Iterable[int]) -> None:
        """They were set aside."""
        for offset in offsets:
            record = self._malformed.pop(offset)
            if isinstance(record, MalformedRecord):
                self._malformed_bytes -= len(record.value or b"")

    def close(self) -> None:
        """Let go of every connection; the partition's state is in the topics."""
        self.half_reader.close()
        self.end_reader.close()
        self.decision_reader.close()
        self.payloads.close()
