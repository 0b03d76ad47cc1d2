"""The relay's side of Kafka: batches of rows with their progress, and what the progress says."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, Message, Producer

from txbridge.client.base.log import report
from txbridge.client.message import Message as UserMessage
from txbridge.client.message import now_ms
from txbridge.core.headers import MalformedRecordError
from txbridge.core.names import OUTBOX_BATCH, PROTOCOL_VERSION, UNIQ_KEY, VERSION, Names
from txbridge.core.outbox_progress import BatchProgress, Ownership, decode_progress, encode_batch
from txbridge.failpoints import fault_point
from txbridge.kafka.admin import KafkaCluster
from txbridge.kafka.config import user_config
from txbridge.kafka.environment import OUTSIDE, Outside
from txbridge.kafka.errors import UNKNOWN_TOPIC, LogGoneError, RecordKind, TakeOverRefusedError, UnansweredError
from txbridge.kafka.fenced_producer import FencedProducer, TransactionFailedError, guarded
from txbridge.kafka.headers import offset_of
from txbridge.kafka.partition_reader import PartitionReader
from txbridge.kafka.produced_records import ProducedRecords
from txbridge.kafka.record_failures import Reports
from txbridge.kafka.topic_lookup import TOO_LARGE, LookedUpTopic, TopicMemory, partition_problem
from txbridge.topics.verify import OutboxLayout, verify_relay_topic
from txbridge_sqlalchemy.outbox_messages import OutboxRow

#: As a worker's `commit_timeout` (ms). A batch takes milliseconds; records are given up after half of it.
_COMMIT_TIMEOUT_MS = 10_000
#: Seconds after which a batch takes long. A healthy one needs milliseconds.
_SLOW_S = 1.0
#: Seconds for which an answer about a topic is believed: asking costs 9 ms of processor time.
_BELIEVED_S = 10.0
#: Bytes of a batch of Kafka's with one record beyond its key, value and headers: our two headers are among them.
_BATCH_BYTES = 256
#: Bytes of librdkafka's largest batch. A topic that takes less needs smaller ones.
_LIBRDKAFKA_BATCH = 2**20
#: Digits of the identity in a delivered record.
_IDENTITY_DIGITS = 8


class ProgressPlace(NamedTuple):
    """The progress of an outbox in Kafka: the topic's id, the partition, and its log start and end."""

    topic_id: str
    partition: int
    start: int
    end: int


class RowRefusal(NamedTuple):
    """Why a row cannot be sent. `whole_topic`: nothing for its topic can be."""

    reason: str
    whole_topic: bool = False


class BatchWriter:
    """Writes the batches of one outbox. All methods belong to one thread."""

    def __init__(self, kafka: Mapping[str, Any], names: Names, outside: Outside = OUTSIDE) -> None:
        # Not the fence's lz4, which costs Kafka a tenth of a transaction with a few rows.
        self._kafka = {"compression.type": "none", **user_config(kafka)}
        self._names = names
        self._outside = outside
        self._cluster = KafkaCluster.connect(kafka)
        self._memory = TopicMemory(_BELIEVED_S)
        self._producer: FencedProducer | None = None
        self._identity = ""
        self._partition = -1
        #: The offset behind the record of the last take-over.
        self.position = -1

    def verify_topic(self) -> OutboxLayout:
        """Verify the topic of the progress. Raises LayoutError, KafkaUnreachableError."""
        return verify_relay_topic(self._cluster, self._names)

    def greet_kafka(self) -> None:
        """Have any broker answer. Thread-safe. Raises KafkaUnreachableError, EnvironmentProblemError."""
        self._cluster.read_greeting(self._names.outbox)

    def find_place(self, identity: str, known: tuple[str | None, int | None]) -> ProgressPlace:
        """Where the progress of this outbox is. `known`: the topic's id and the partition, as the state has them.

        Raises LayoutError if the topic is missing or not as it must be, KafkaUnreachableError, KafkaException.
        """
        topic = self.verify_topic().topic
        partition = known[1]
        if topic.topic_id != known[0] or partition is None:
            # One that other outboxes may share. A relay that stands still holds up only those that start again.
            partition = zlib.crc32(identity.encode()) % topic.partitions
        with closing(self._reader(partition, committed=False)) as reader:
            return ProgressPlace(topic.topic_id, partition, *reader.watermarks())

    def _reader(self, partition: int, *, committed: bool) -> PartitionReader:
        return PartitionReader(self._kafka, self._names.outbox, partition, committed=committed, outside=self._outside)

    def take_over(
        self, identity: str, owner: str, batch: int, place: ProgressPlace, position: int
    ) -> Iterator[tuple[BatchProgress, int]]:
        """Fence all earlier relays, and yield the batches behind `batch` that they have made visible.

        Each comes with the offset behind it. They are read from `position` to a record of our own: what earlier relays
        have committed is before it, whichever broker answers. Raises FencedError, TakeOverRefusedError,
        HangingTransactionError, KafkaException.
        """
        topic, self._identity, self._partition = self._names.outbox, identity, place.partition
        transactional_id = self._names.relay_transactional_id(identity)
        # What it follows, as a time-out, may be because of a topic that was deleted.
        self._memory.forget()
        self._producer = FencedProducer(self._kafka, transactional_id, topic, _COMMIT_TIMEOUT_MS, self._outside)
        self._producer.take_fence()
        fault_point("takeover.fenced")
        self.position = end = self._commit([], Ownership(owner, batch).encode())
        fault_point("relay.owned")
        newest: Ownership | BatchProgress | None = None
        try:
            for newest, behind in self._read_progress(position, end):
                if isinstance(newest, BatchProgress) and newest.batch > batch:
                    yield newest, behind
                    batch = newest.batch
        except LogGoneError as error:
            raise TakeOverRefusedError(str(error)) from error
        if not isinstance(newest, Ownership) or newest.owner != owner:
            raise TakeOverRefusedError(f"{topic}[{place.partition}] does not have the record that was written last")

    def find_other_owner(self, owner: str, position: int) -> bool:
        """Whether the progress behind this offset has an owner that is not this one. Raises as `take_over`."""
        return any(isinstance(one, Ownership) and one.owner != owner for one, _ in self._read_progress(position, None))

    def _read_progress(self, position: int, end: int | None) -> Iterator[tuple[Ownership | BatchProgress, int]]:
        """The records of this outbox from an offset up to `end`, None for all, each with the offset behind it."""
        with closing(self._reader(self._partition, committed=True)) as reader:
            end = reader.watermarks()[1] if end is None else end
            reader.start(position)
            for message in reader.read_below(end, lambda: False):
                found = self._decode(message) if message.key() == self._identity.encode() else None
                if found is not None:
                    yield found, offset_of(message) + 1

    def _decode(self, message: Message) -> Ownership | BatchProgress | None:
        """The content of a record, None for one that no relay has written. Raises TakeOverRefusedError."""
        where = f"{self._names.outbox}[{self._partition}] at offset {message.offset()}"
        if (VERSION, PROTOCOL_VERSION) not in (message.headers() or []):
            raise TakeOverRefusedError(f"{where} is of another version of txbridge: use the newer one")
        try:
            return decode_progress(message.value())
        except MalformedRecordError as error:
            report(logging.ERROR, "progress_malformed", where=where, reason=str(error))
            return None

    def list_refusals(self, rows: Sequence[OutboxRow]) -> dict[Any, RowRefusal]:
        """Why rows cannot be sent, by their ids, as far as Kafka tells it before. Raises UnansweredError."""
        topics = {str(row.topic) for row in rows if row.message is not None}
        known = self._memory.look_up(self._cluster, topics, self._outside.monotonic())
        refusals: dict[Any, RowRefusal] = {}
        for row in rows:
            message = row.message
            refusal = RowRefusal(str(row.reason)) if message is None else _refusal_of(message, known[message.topic])
            if refusal is not None:
                refusals[row.id] = refusal
        return refusals

    def write_batch(self, batch: int, rows: Sequence[OutboxRow]) -> int:
        """Commit these rows and their progress as this batch. Returns the offset behind the progress.

        Raises RecordsRefusedError, AbortedError, FencedError, IndefiniteError: behind each of them `take_over` follows.
        """
        named = ((row.name, row.message_id, row.topic or "") for row in rows)
        return self._commit(rows, encode_batch(batch, named), b"%d" % batch)

    def _commit(self, rows: Sequence[OutboxRow], progress: bytes, batch: bytes = b"") -> int:
        assert self._producer is not None
        reports, landed = Reports(), list[Message]()
        mark = f"{self._identity[:_IDENTITY_DIGITS]}:".encode() + batch

        def fill(producer: Producer) -> None:
            records = ProducedRecords(producer, _COMMIT_TIMEOUT_MS / 1000, reports, self._limits_of(rows))
            for number, row in enumerate(rows):
                one = row.message
                assert one is not None
                headers = [*one.headers, (UNIQ_KEY, row.message_id.encode()), (OUTBOX_BATCH, mark)]
                partition = -1 if one.partition is None else one.partition
                records.deliver(number, one.topic, one.value, one.key, partition, one.timestamp or 0, headers)
            fault_point("relay.produced")
            key, headers = self._identity.encode(), [(VERSION, PROTOCOL_VERSION)]
            record = (None, self._names.outbox, progress, key, self._partition, 0, headers)
            records.produce_record(RecordKind.INTERNAL, record, landed.append)
            if guarded(producer.flush, _SLOW_S):
                self._blame_closed_topics(rows, reports)
            records.flush()

        self._producer.commit_records(fill, reports)
        return (landed[0].offset() or 0) + 1

    def _blame_closed_topics(self, rows: Sequence[OutboxRow], reports: Reports) -> None:
        """Look at the topics of a batch that takes long, as one may have been deleted since the last look.

        Raises TransactionFailedError if one takes no records: the others need not wait for its time-out.
        """
        self._memory.forget()
        refusals: dict[Any, RowRefusal] = {}
        # Where Kafka does not answer, the time-out tells.
        with suppress(UnansweredError):
            refusals = self.list_refusals(rows)
        for number, row in enumerate(rows):
            refusal = refusals.get(row.id)
            if refusal is not None and refusal.whole_topic:
                error = KafkaError(UNKNOWN_TOPIC, refusal.reason)
                reports.note_refused(RecordKind.REAL, str(row.topic), number, error)
                raise TransactionFailedError

    def _limits_of(self, rows: Sequence[OutboxRow]) -> dict[str, int]:
        """Bytes of records that may go together, for topics that take less than a batch of librdkafka's."""
        largest = ((topic, one.rules.largest_batch) for topic, one in self._memory.known.items())
        small = {topic: most for topic, most in largest if most is not None and most < _LIBRDKAFKA_BATCH}
        return small and {topic: small[topic] for topic in {str(row.topic) for row in rows} if topic in small}


def _refusal_of(message: UserMessage, topic: LookedUpTopic) -> RowRefusal | None:
    reason = None
    if topic.problem is not None:
        return RowRefusal(topic.problem, whole_topic=True)
    if topic.lacks_leader:
        return RowRefusal(f"a partition of topic {message.topic} has no leader", whole_topic=True)
    if message.partition is not None and topic.partitions is not None:
        reason = partition_problem(message.topic, topic.partitions, message.partition)
    if message.timestamp is not None:
        reason = reason or topic.rules.refusal_of_time(message.timestamp, now_ms())
    if message.key is None:
        reason = reason or topic.rules.refusal_of(None, now_ms(), now_ms())
    largest = topic.rules.largest_batch
    if reason is None and largest is not None and message.size + _BATCH_BYTES > largest:
        reason = TOO_LARGE
    return None if reason is None else RowRefusal(reason)
