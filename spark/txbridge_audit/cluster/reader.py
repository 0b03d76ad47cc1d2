"""Records of Kafka topics between fixed offsets as Arrow batches, read once with confluent-kafka."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from operator import methodcaller
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]
from confluent_kafka import TIMESTAMP_CREATE_TIME, Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from txbridge.core.names import READER_GROUP
from txbridge.kafka.errors import LOG_TRUNCATION, OUT_OF_RANGE, PARTITION_EOF, UNREADABLE, unreadable_batch
from txbridge.kafka.headers import headers_of_all
from txbridge_audit.cluster.cuts import Range
from txbridge_audit.cluster.kafka_admin import kind_of
from txbridge_audit.cluster.kafka_config import KafkaSettings
from txbridge_audit.errors import CouldNotAuditError, ElectionError
from txbridge_audit.judge.facts import TopicPartition
from txbridge_audit.protocol.record import HIDDEN_NAME

#: The columns of a batch: those of Spark's Kafka source, but the timestamp is in ms.
RAW: Any = pa.schema(
    [
        *(("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), ("timestamp", pa.int64())),
        *(("timestampType", pa.int32()), ("key", pa.binary()), ("value", pa.binary())),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
#: Records of a batch, and the bytes of values from which on it takes no more. An array of Arrow holds 2 GiB.
_RECORDS, _BYTES = 8_000, 64 * 1024 * 1024
#: Seconds without any record before the end of all partitions. An election takes up to ten (broker.session.timeout.ms
#: is 9 s), and librdkafka's own requests time out in a minute; a cluster that is silent for longer is named.
SILENCE = 40.0
#: Records of one call, and the wait for so many, seconds. librdkafka returns fewer only when the time is over.
_BATCH, _WAIT = 2_000, 0.02
#: KiB fetched ahead of each partition. librdkafka's default is 64 MiB, too much for a thousand real topics.
_FETCH_AHEAD_KIB = 4_096
#: Pause of librdkafka when so much is fetched, ms (its default is 1,000), and the time for which a broker delays an
#: empty answer at the end of a partition, ms.
_FETCH_ON_MS, _END_WAIT_MS = 10, 10


def read(
    settings: KafkaSettings, spans: Mapping[TopicPartition, Range], *, committed: bool, may_vanish: bool = False
) -> Iterator[Any]:
    """The records of the spans in batches with the columns of RAW, those of a partition in their order.

    `committed` hides those of aborted Kafka transactions. If retention removes records while they are read, the audit
    fails; with `may_vanish` they are skipped. Then only records that are there prove anything.

    Raises CouldNotAuditError.
    """
    wanted = {key: span for key, span in spans.items() if not span.empty}
    if not wanted:
        return
    consumer = Consumer(
        {
            "queued.max.messages.kbytes": _FETCH_AHEAD_KIB,
            "fetch.queue.backoff.ms": _FETCH_ON_MS,
            "fetch.wait.max.ms": _END_WAIT_MS,
            **settings.librdkafka,
            # librdkafka requires a group. No offsets are committed.
            "group.id": READER_GROUP,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "auto.offset.reset": "earliest" if may_vanish else "error",
            "log_level": 0,
        }
    )
    try:
        consumer.assign([KafkaPartition(*key, span.start) for key, span in wanted.items()])
        waiting: list[Message] = []
        size = 0
        for messages in _until_the_ends(consumer, wanted):
            waiting += messages
            size += sum(map(len, messages))
            if len(waiting) >= _RECORDS or size >= _BYTES:
                yield batch_of(waiting)
                waiting, size = [], 0
        if waiting:
            yield batch_of(waiting)
    except KafkaException as error:
        raise kind_of(error.args[0])(f"Kafka cannot be read: {error}") from error
    finally:
        consumer.close()


def _until_the_ends(consumer: Consumer, wanted: Mapping[TopicPartition, Range]) -> Iterator[list[Message]]:
    """The messages within the spans, as they come."""
    open_ends = {key: span.end for key, span in wanted.items()}
    deadline = time.monotonic() + SILENCE
    while open_ends:
        done: list[TopicPartition] = []
        found: list[Message] = []
        for message in consumer.consume(_BATCH, _WAIT):
            key: Any = message.topic(), message.partition()
            if key not in open_ends:
                continue
            if (error := message.error()) is not None:
                if _is_end(error, key):
                    done.append(key)
                    del open_ends[key]
                continue
            left = open_ends[key] - (message.offset() or 0)
            if left > 0:
                found.append(message)
            if left <= 1:
                done.append(key)
                del open_ends[key]
        if found:
            yield found
        if done and open_ends:
            # So that a busy partition is not read on while others are.
            consumer.incremental_unassign([KafkaPartition(*key) for key in done])
        # Errors that pass come for as long as a broker is away: they are no progress.
        if done or found:
            deadline = time.monotonic() + SILENCE
        if open_ends and time.monotonic() >= deadline:
            topic, partition = next(iter(open_ends))
            raise ElectionError(
                f"{topic}/{partition} could not be read within {SILENCE:.0f} s: check the brokers, run it again"
            )


def _is_end(error: KafkaError, key: TopicPartition) -> bool:
    """Whether the event says that a partition is read to its end. A passing error is not: librdkafka tries again."""
    code = error.code()
    topic, partition = key
    if code == PARTITION_EOF:
        return True
    if code in OUT_OF_RANGE:
        raise CouldNotAuditError(
            f"retention removed records of {topic}/{partition} while they were being read: run the audit again"
        )
    if code == LOG_TRUNCATION:
        raise ElectionError(f"{topic}/{partition} lost records in an election while it was read: run it again")
    if code in UNREADABLE:
        raise CouldNotAuditError(str(unreadable_batch(error, topic, partition)))
    if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        raise CouldNotAuditError(f"missing right READ on topic {topic}: give it to the audit's user (docs/security.md)")
    # The group is never used, and no right on it is needed: librdkafka reads on without its coordinator.
    return False


_TOPIC, _PARTITION, _OFFSET, _KEY, _VALUE, _TIMESTAMP = map(
    methodcaller, ("topic", "partition", "offset", "key", "value", "timestamp")
)


def batch_of(messages: Sequence[Message]) -> Any:
    """The messages as a batch."""
    stamped = [*map(_TIMESTAMP, messages)]
    # This client cannot read names that are not UTF-8. Such a record is malformed, whatever its topic.
    headers = [[(HIDDEN_NAME, None)] if isinstance(found, Exception) else found for found in headers_of_all(messages)]
    flat = [*chain.from_iterable(headers)]
    edges = [0]
    for found in headers:
        edges.append(edges[-1] + len(found))
    names, values = (
        pa.array([name for name, _ in flat], pa.string()),
        pa.array([value for _, value in flat], pa.binary()),
    )
    pairs = pa.StructArray.from_arrays([names, values], ["key", "value"])
    columns = (
        *(map(_TOPIC, messages), map(_PARTITION, messages), map(_OFFSET, messages)),
        *((stamp for _, stamp in stamped), (int(kind != TIMESTAMP_CREATE_TIME) for kind, _ in stamped)),
        *(map(_KEY, messages), map(_VALUE, messages)),
    )
    arrays = [pa.array(list(column), field.type) for column, field in zip(columns, RAW, strict=False)]
    lists = pa.ListArray.from_arrays(pa.array(edges, pa.int32()), pairs)
    return pa.RecordBatch.from_arrays([*arrays, lists], schema=RAW)
