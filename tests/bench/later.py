"""Messages that name a time: how late they are at a steady rate, and how fast many that are due at once drain."""

from __future__ import annotations

import argparse
import time
from os import getloadavg
from typing import Any

from confluent_kafka import KafkaError, Message, Producer, TopicPartition

from tests.bench.feed import PATIENCE_S, Feed, memory, reader, say
from tests.bench.measure import Ratio, percentiles, summary
from tests.support.harness import Bridge, eventually
from txbridge.core import names as header_names
from txbridge.embedded import EmbeddedKafka

_MIB = 1024 * 1024
#: What is promised: so late (s) at the 99th percentile at 1,000 due a second; so many a second that are due at once.
_LATE_S, _DRAINED = 0.1, 10_000
#: Between the last commit and the first time that comes.
_HEADSTART_S = 5.0


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rate", type=int, default=1_000, help="messages due a second (default 1,000)")
    parser.add_argument("--seconds", type=int, default=20, help="of that rate (default 20)")
    parser.add_argument("--at-once", type=int, default=20_000, help="due in the same second (default 20,000)")
    parser.add_argument("--size", type=int, default=100, help="bytes of each (default 100)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    with (
        EmbeddedKafka(jvm_profile="throughput", heap="2g") as kafka,
        Bridge(kafka.bootstrap_servers, "bench later", partitions=1) as bridge,
    ):
        worker = bridge.worker(session_timeout=6_000, transaction_timeout=3_600_000)
        bench = _Bench(bridge, options.size)
        bench.lateness([0] * 1_000)
        before = getloadavg()[0]
        say(f"{options.rate:,} due a second for {options.seconds} s")
        count = options.rate * options.seconds
        late = bench.lateness([number * 1_000 // options.rate for number in range(count)])
        say(f"{options.at_once:,} due in the same second")
        resident = memory(worker)
        at_once = bench.lateness([number * 1_000 // options.at_once for number in range(options.at_once)])
        drained = options.at_once / (max(at_once) + 1.0)
        ordered = sorted(late)
        p99 = ordered[int(len(ordered) * 0.99)]
        return {
            "due_per_second": options.rate,
            "due_at_once": options.at_once,
            "load": {"before": round(before, 1), "after": round(getloadavg()[0], 1)},
            "worker_mib": {"before": resident // _MIB, "after": memory(worker) // _MIB},
            "figures": {
                "lateness": _told(percentiles(late)),
                "lateness, all at once": _told(percentiles(at_once)),
            },
            "ratios": {
                "lateness at p99 (s)": Ratio(p99, _LATE_S, at_most=True).report(),
                "drained a second": Ratio(drained, _DRAINED).report(),
            },
        }


def _told(found: dict[str, float]) -> dict[str, dict[str, float]]:
    """Of one run."""
    return {what: summary([value]) for what, value in found.items()}


class _Bench:
    def __init__(self, bridge: Bridge, size: int) -> None:
        self._bridge = bridge
        self._feed = Feed(bridge)
        self._size = size
        self._real = bridge.create_topic("real", partitions=1)
        self._producer = Producer(
            {
                "bootstrap.servers": bridge.bootstrap_servers,
                "enable.idempotence": True,
                "linger.ms": 5,
                "queue.buffering.max.messages": 1_000_000,
            }
        )

    def lateness(self, offsets: list[int]) -> list[float]:
        """How late each became visible to a reader (s); they are due so many ms after the first."""
        # As long as it takes to prepare and commit them, at 10,000 a second.
        start = time.time_ns() // 1_000_000 + int(_HEADSTART_S * 1_000) + len(offsets) // 10
        prepared: list[tuple[int, str]] = []
        for offset in offsets:
            self._prepare(start + offset, prepared)
        assert self._producer.flush(PATIENCE_S) == 0
        consumer = reader(self._bridge.bootstrap_servers)
        end = consumer.get_watermark_offsets(TopicPartition(self._real, 0), 10)[1]
        consumer.assign([TopicPartition(self._real, 0, end)])
        self._feed.commit(prepared)
        names = self._bridge.names
        eventually(lambda: self._bridge.checkpoint(0)["end"] == self._bridge.bounds(names.end, 0)[1], PATIENCE_S)
        if time.time_ns() // 1_000_000 >= start:
            say("  some were due before all were scheduled: the machine is too slow for this bench")
        found: list[float] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(found) < len(offsets):
            assert time.monotonic() < deadline, f"{len(found):,} of {len(offsets):,} became visible"
            messages = consumer.consume(10_000, 0.005)
            now = time.time()
            found += [now - int((message.value() or b"").split(b" ")[0]) / 1000 for message in messages]
        consumer.close()
        assert min(found) >= 0, "early"
        return found

    def _prepare(self, due: int, prepared: list[tuple[int, str]]) -> None:
        headers = [*self._bridge.half_headers(self._real), (header_names.DELIVER_AT, b"%d" % due)]
        transaction_id = dict(headers)["UNIQ_KEY"].decode()

        def report(error: KafkaError | None, message: Message) -> None:
            assert error is None, error
            prepared.append((message.offset() or 0, transaction_id))

        value = (b"%d " % due).ljust(self._size, b"x")
        while True:
            try:
                self._producer.produce(
                    self._bridge.names.half, value=value, headers=headers, partition=0, on_delivery=report
                )
                break
            except BufferError:
                self._producer.poll(0.1)
        self._producer.poll(0)
