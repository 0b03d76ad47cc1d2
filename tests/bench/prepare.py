"""Until a half message is acknowledged, call by call in one thread, against a bare idempotent produce and wait."""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Any

from confluent_kafka import Producer

from tests.bench.measure import Found, Ratio, by_turns
from tests.harness import Bridge
from txbridge import LocalTransactionState, Message, TransactionListener, TransactionProducer
from txbridge.core.half_message import half_headers
from txbridge.embedded import EmbeddedKafka
from txbridge.kafka_config import half_producer_config

_OURS, _BARE = "half message", "bare produce and poll"
_EACH = "us, median"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--calls", type=int, default=3_000, help="per measurement (default 3,000)")
    parser.add_argument("--size", type=int, default=100, help="bytes of each value (default 100)")
    parser.add_argument("--rounds", type=int, default=5, help="medians of so many (default 5)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    # No worker: the price of the call itself is asked for. The ENDs that follow each call are sent as ever.
    with (
        EmbeddedKafka(jvm_profile="throughput", heap="1g") as kafka,
        Bridge(kafka.bootstrap_servers, "bench prepare", partitions=1) as bridge,
    ):
        real = bridge.create_topic("real", partitions=1)
        bench = _Bench(bridge, real, b"v" * options.size, options.calls)
        found = by_turns(options.rounds, {_OURS: bench.ours, _BARE: bench.bare})
    value = found.median(_OURS, _EACH) / found.median(_BARE, _EACH)
    return {
        "bytes_each": options.size,
        "figures": found.report(),
        "ratios": {"prepare, 1 thread, to a bare produce and wait": Ratio(value, 1.3, at_most=True).report()},
    }


class _Notes(TransactionListener):
    """Commits, and notes when: the local transaction is called as soon as the half message is acknowledged."""

    def __init__(self) -> None:
        self.called = 0.0

    def execute_local_transaction(self, message, arg):
        self.called = time.perf_counter()
        return LocalTransactionState.COMMIT_MESSAGE

    def check_local_transaction(self, message):
        return LocalTransactionState.COMMIT_MESSAGE


class _Bench:
    def __init__(self, bridge: Bridge, real: str, value: bytes, calls: int) -> None:
        self._bridge, self._real, self._value, self._calls = bridge, real, value, calls
        self._settings = {"bootstrap.servers": bridge.bootstrap_servers}

    def ours(self) -> Found:
        """From the call until the local transaction is called."""
        notes, times = _Notes(), []
        with TransactionProducer("bench", notes, self._settings, namespace=self._bridge.namespace) as producer:
            for number in range(self._calls):
                message = Message(self._real, self._value, b"%d" % number)
                since = time.perf_counter()
                producer.send_message_in_transaction(message)
                times.append(notes.called - since)
        return _found(times)

    def bare(self) -> Found:
        """The same record, with the same settings, and the thread itself waits in poll: there is nothing quicker."""
        producer = Producer(half_producer_config(self._settings, max_message_bytes=1024 * 1024))
        headers = half_headers((), transaction_id="0" * 32, group="bench", real_topic=self._real)
        stored: list[object] = []
        times = []
        for number in range(self._calls):
            since = time.perf_counter()
            producer.produce(
                self._bridge.names.half,
                self._value,
                b"%d" % number,
                headers=headers,
                on_delivery=lambda error, _: stored.append(error),
            )
            while len(stored) <= number:
                producer.poll(1.0)
            times.append(time.perf_counter() - since)
        producer.close()
        assert not any(stored), stored
        return _found(times)


def _found(seconds: list[float]) -> Found:
    # The first calls of a client wait for its connection.
    ordered = sorted(seconds[len(seconds) // 20 :])
    return {_EACH: median(ordered) * 1e6, "us, p99": ordered[int(len(ordered) * 0.99)] * 1e6}
