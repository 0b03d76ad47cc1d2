"""Bytes of each topic in Kafka's log, counted in the segments of an embedded broker on this machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

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
    found = 0
    for segment in Path(kafka.data_dir).rglob(f"{topic}-[0-9]*/*.log"):
        data, at = segment.read_bytes(), 0
        # A batch begins with its first offset, and the length of the rest behind these 12 bytes.
        while at + 61 <= len(data):
            found += 1
            at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    return found
