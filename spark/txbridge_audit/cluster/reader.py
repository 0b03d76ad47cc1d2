"""Records of Kafka topics between fixed offsets, read once with confluent-kafka."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from confluent_kafka import TIMESTAMP_CREATE_TIME, Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from txbridge.core.names import READER_GROUP
from txbridge.kafka.errors import AUTO_OFFSET_RESET, LOG_TRUNCATION, PARTITION_EOF, UNREADABLE, unreadable_batch
from txbridge.kafka.headers import headers_of_all
from txbridge_audit.cluster.cuts import Range
from txbridge_audit.cluster.kafka_admin import kind_of
from txbridge_audit.cluster.kafka_config import KafkaSettings
from txbridge_audit.errors import CouldNotAuditError, ElectionError
from txbridge_audit.judge.facts import TopicPartition
from txbridge_audit.protocol.record import KafkaRecord

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
) -> Iterator[KafkaRecord]:
    """The records of the spans, those of a partition in their order.

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
        yield from _until_the_ends(consumer, wanted)
    except KafkaException as error:
        raise kind_of(error.args[0])(f"Kafka cannot be read: {error}") from error
    finally:
        consumer.close()


def _until_the_ends(consumer: Consumer, wanted: Mapping[TopicPartition, Range]) -> Iterator[KafkaRecord]:
    open_ends = {key: span.end for key, span in wanted.items()}
    deadline = time.monotonic() + SILENCE
    while open_ends:
        done: list[TopicPartition] = []
        for message in consumer.consume(_BATCH, _WAIT):
            key = str(message.topic()), int(message.partition() or 0)
            if key not in open_ends:
                continue
            if (error := message.error()) is not None:
                if _is_end(error, key):
                    done.append(key)
                    del open_ends[key]
                continue
            # Errors that pass come for as long as a broker is away: they are no progress.
            deadline = time.monotonic() + SILENCE
            offset = int(message.offset() or 0)
            if offset < open_ends[key]:
                yield _record_of(message, key, offset)
            if offset >= open_ends[key] - 1:
                done.append(key)
                del open_ends[key]
        if done and open_ends:
            # So that a busy partition is not read on while others are.
            consumer.incremental_unassign([KafkaPartition(*key) for key in done])
        if done:
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
    if code in {AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}:
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


def _record_of(message: Message, key: TopicPartition, offset: int) -> KafkaRecord:
    kind, timestamp = message.timestamp()
    key_bytes: Any = message.key()
    value: Any = message.value()
    # This client cannot read names that are not UTF-8. Such a record is malformed, whatever its topic.
    [headers] = headers_of_all([message])
    has_headers = not isinstance(headers, Exception)
    return KafkaRecord(
        *key,
        offset,
        timestamp,
        kind == TIMESTAMP_CREATE_TIME,
        key_bytes,
        value,
        () if isinstance(headers, Exception) else headers,
        has_headers,
    )
