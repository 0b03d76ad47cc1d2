"""Bytes of each topic in Kafka's log, counted in the segments of an embedded broker on this machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, TopicPartition

from tests.support.harness import quiet
from txbridge.embedded import EmbeddedKafka


def log_bytes(kafka: EmbeddedKafka, topics: Iterable[str]) -> Counter[str]:
    """Bytes of all record batches by topic, transaction markers included."""
    found: Counter[str] = Counter()
    for topic in topics:
        # A segment's file is as long as what was appended to it; only its indexes are allocated ahead.
        segments = Path(kafka.data_dir).rglob(f"{topic}-[0-9]*/*.log")
        found[topic] = sum(segment.stat().st_size for segment in segments)
    return found


def batches(kafka: EmbeddedKafka, topic: str) -> int:
    """Number of record batches in a topic, transaction markers included: the number of produce requests for it."""
    return len(_batches(kafka, topic))


def markers(kafka: EmbeddedKafka, topic: str) -> int:
    """Number of transaction markers in a topic, in all replicas."""
    return sum(one.is_marker for one in _batches(kafka, topic))


def appended(kafka: EmbeddedKafka, topic: str) -> int:
    """Number of records in a topic, in all replicas, markers included."""
    return sum(one.records for one in _batches(kafka, topic))


class _Batch(NamedTuple):
    is_marker: bool
    records: int


def _batches(kafka: EmbeddedKafka, topic: str) -> list[_Batch]:
    # In Kafka's record format each batch begins with its first offset and the length of the rest after these twelve
    # bytes. Byte 21 has its attributes, of which one bit marks transaction markers. Byte 57 has the number of records.
    found = []
    for segment in Path(kafka.data_dir).rglob(f"{topic}-[0-9]*/*.log"):
        data, at = segment.read_bytes(), 0
        while at + 61 <= len(data):
            attributes = int.from_bytes(data[at + 21 : at + 23], "big")
            count = int.from_bytes(data[at + 57 : at + 61], "big")
            found.append(_Batch(bool(attributes & 0x20), count))
            at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    return found


def records(servers: str, topic: str) -> int:
    """Records in partition 0 that a read_committed reader sees."""
    consumer = Consumer(
        {
            **quiet(servers),
            "group.id": "counts",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    count = 0
    try:
        while (message := consumer.poll(10)) is not None and message.error() is None:
            count += 1
    finally:
        consumer.close()
    return count


def growth(after: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    """Difference between two counts."""
    return {topic: after[topic] - before[topic] for topic in after}
