"""Kafka's own time for records that are produced one by one, each with a wait for its acknowledgement."""

from __future__ import annotations

import threading
import time

from confluent_kafka import Producer

from tests.bench.beside import served
from tests.bench.feed import PATIENCE_S
from tests.bench.load import in_threads
from tests.bench.measure import PER_SECOND, Found
from tests.bench.values import Values
from tests.support.harness import Bridge


def produce_and_wait(bridge: Bridge, threads: int, count: int, size: int) -> Found:
    """Produce with idempotence from so many threads. One more thread serves the acknowledgements."""
    topic = bridge.create_topic(f"bare-{time.monotonic_ns()}", partitions=1)
    producer = Producer({"bootstrap.servers": bridge.bootstrap_servers, "enable.idempotence": True, "linger.ms": 0})
    values = Values(size)

    def send(number: int) -> None:
        stored = threading.Event()
        producer.produce(topic, values[number], b"%d" % number, on_delivery=lambda *_: stored.set())
        assert stored.wait(PATIENCE_S)

    with served(producer):
        since = time.monotonic()
        in_threads(threads, count, send)
        return {PER_SECOND: count / (time.monotonic() - since)}
