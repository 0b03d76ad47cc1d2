"""Where the time from a decision to its visibility goes, as far as it stands in Kafka's logs afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from statistics import median

from confluent_kafka import Consumer, Message, TopicPartition

from tests.bench.measure import Found
from tests.harness import Bridge

_STORED, _WRITTEN, _SEEN = "ms, decision to END stored", "ms, END to OP stored", "ms, OP stored to visible"
#: What the three stages are; each is a median, so that they add up to the whole only roughly.
STAGES = {
    _STORED: "the client batches and sends the decision, Kafka appends it to END",
    _WRITTEN: "the worker reads END, drafts, and writes the records, those of OP at the end of them",
    _SEEN: "the Kafka transaction commits, markers are written, the reader gets the record",
}
#: Kafka's append times are whole milliseconds, cut off: on the average half a millisecond is missing.
_CUT_OFF_S = 0.0005
TRANSACTIONS = "Kafka transactions per second"
#: Reading up to an offset that Kafka said is there; a machine that needs longer tells nothing.
_READ_S = 30.0


class Stages:
    """Of the transactions of partition 0 that are decided from now on."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._starts = {topic: bridge.bounds(topic, 0)[1] for topic in (bridge.names.end, bridge.names.op)}
        # Append times are on the wall clock.
        self._wall = time.time() - time.monotonic()

    def between(self, half_offsets: Sequence[int], decided: Sequence[float], seen: Sequence[float]) -> Found:
        """Medians (ms) of the transactions with these half offsets, decided and seen at these times (monotonic)."""
        ends = self._append_times(self._bridge.names.end, _entries_of_end)
        ops = self._append_times(self._bridge.names.op, _entries_of_op)
        all_of_them = list(zip(half_offsets, decided, seen, strict=True))
        return {
            _STORED: _median_ms(ends[offset] - since for offset, since, _ in all_of_them),
            _WRITTEN: _median_ms(ops[offset] - ends[offset] for offset, _, _ in all_of_them),
            _SEEN: _median_ms(at - ops[offset] for offset, _, at in all_of_them),
            # All are commits, so a Kafka transaction has one record of OP; those of one never share a time of append.
            TRANSACTIONS: len(set(ops.values())) / (max(seen) - min(decided)),
        }

    def _append_times(self, topic: str, entries: Callable[[bytes], Iterable[int]]) -> dict[int, float]:
        """By half offset, when the record that names it was stored (monotonic, s)."""
        found: dict[int, float] = {}
        for message in self._records(topic):
            at = message.timestamp()[1] / 1e3 + _CUT_OFF_S - self._wall
            for offset in entries(message.value() or b""):
                found.setdefault(offset, at)
        return found

    def _records(self, topic: str) -> Iterable[Message]:
        start, end = self._starts[topic], self._bridge.bounds(topic, 0)[1]
        consumer = Consumer(
            {
                "bootstrap.servers": self._bridge.bootstrap_servers,
                "group.id": "bench",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                # A log end is that of all records: a marker stands behind the last one of OP.
                "isolation.level": "read_uncommitted",
            }
        )
        try:
            consumer.assign([TopicPartition(topic, 0, start)])
            deadline = time.monotonic() + _READ_S
            position = start
            while position < end:
                assert time.monotonic() < deadline, f"{topic} was not read up to offset {end}"
                for message in consumer.consume(10_000, 0.1):
                    position = max(position, (message.offset() or 0) + (message.error() is None))
                    if message.error() is None:
                        yield message
        finally:
            consumer.close()


def _entries_of_end(value: bytes) -> Iterable[int]:
    return (int(line.split(b",", 1)[0]) for line in value.split(b"\n"))


def _entries_of_op(value: bytes) -> Iterable[int]:
    return map(int, value.split(b","))


def _median_ms(seconds: Iterable[float]) -> float:
    return median(seconds) * 1e3
