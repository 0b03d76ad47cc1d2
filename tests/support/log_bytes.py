"""How many bytes Kafka's log holds of each topic: counted in the segments of an embedded broker on this machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from tests.support.harness import quiet
from txbridge.embedded import EmbeddedKafka


def log_bytes(kafka: EmbeddedKafka, topics: Iterable[str]) -> Counter[str]:
    """Bytes of all record batches, transaction markers included, by topic."""
    found: Counter[str] = Counter()
    for topic in topics:
        # A segment's file is as long as what was appended to it; only its indexes are allocated ahead.
        segments = Path(kafka.data_dir).rglob(f"{topic}-[0-9]*/*.log")
        found[topic] = sum(segment.stat().st_size for segment in segments)
    return found


def batches(kafka: EmbeddedKafka, topic: str) -> int:
    """Record batches in a topic, transaction markers included: that is, how many produce requests came for it."""
    return sum(len(_batch_offsets(segment)) for segment in Path(kafka.data_dir).rglob(f"{topic}-[0-9]*/*.log"))


def _batch_offsets(segment: Path) -> list[int]:
    # Each batch begins with its first offset and the length of what follows these twelve bytes (Kafka's record format).
    data, at, offsets = segment.read_bytes(), 0, []
    while at + 12 <= len(data):
        offsets.append(int.from_bytes(data[at : at + 8], "big"))
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    return offsets


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
    """What came between two counts."""
    return {topic: after[topic] - before[topic] for topic in after}
