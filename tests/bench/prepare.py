"""Time until a half message is acknowledged, call by call in one thread, against a bare idempotent produce and wait."""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from confluent_kafka import Producer

from tests.bench.feed import PATIENCE_S
from tests.bench.measure import Found, Ratio, Rounds, by_turns
from tests.support.harness import Bridge
from txbridge import LocalTransactionState, Message, TransactionListener, TransactionProducer
from txbridge.core.half_message import half_headers
from txbridge.embedded import EmbeddedKafka
from txbridge.kafka.config import half_producer_config

_OURS, _BARE, _SERVED = "half message", "bare produce and poll", "bare, with a thread that polls"
_EACH = "us, median"


def add_options(parser: argparse.ArgumentParser) -> None:
    # A client joins its group in the first second, which would be a large part of fewer calls.
    parser.add_argument("--calls", type=int, default=10_000, help="per measurement (default 10,000)")
    parser.add_argument("--size", type=int, default=100, help="bytes of each value (default 100)")
    parser.add_argument("--rounds", type=int, default=5, help="medians of so many (default 5)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    # There is no worker: only the call itself is measured. The END after each call is sent as usual.
    with (
        EmbeddedKafka(jvm_profile="throughput", heap="1g") as kafka,
        Bridge(kafka.bootstrap_servers, "bench prepare", partitions=1) as bridge,
    ):
        real = bridge.create_topic("real", partitions=1)
        bench = _Bench(bridge, real, b"v" * options.size, options.calls)
        found = by_turns(options.rounds, {_OURS: bench.ours, _BARE: bench.bare, _SERVED: bench.bare_served})
    ratios = {
        "prepare, 1 thread, to a bare produce and wait": _times(found, _BARE, 1.2),
        "prepare, 1 thread, to a bare produce with a thread that polls": _times(found, _SERVED),
    }
    return {
        "bytes_each": options.size,
        "figures": found.report(),
        "ratios": {name: ratio.report() for name, ratio in ratios.items()},
    }


def _times(found: Rounds, whose: str, goal: float | None = None) -> Ratio:
    return found.ratio(lambda of: of(_OURS, _EACH) / of(whose, _EACH), goal, at_most=True)


class _Notes(TransactionListener):
    """A listener that commits and notes the time: it is called as soon as the half message is acknowledged."""

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
        """Measure from the call until the local transaction is called."""
        notes, times = _Notes(), []
        with TransactionProducer("bench", notes, self._settings, namespace=self._bridge.namespace) as producer:
            for number in range(self._calls):
                message = Message(self._real, self._value, b"%d" % number)
                since = time.perf_counter()
                producer.send_message_in_transaction(message)
                times.append(notes.called - since)
        return _found(times)

    def bare(self) -> Found:
        """Measure the same record with the same settings, while the thread itself waits in poll: nothing is faster."""

        def call(number: int) -> None:
            produce(number, lambda error, _: stored.append(error))
            while len(stored) <= number:
                producer.poll(1.0)

        stored: list[object] = []
        producer, produce = self._bare_producer()
        found = self._timed(call)
        producer.close()
        assert not any(stored), stored
        return found

    def bare_served(self) -> Found:
        """Measure the same with a polling thread, as in a client for any number of threads: the cost of wake-ups."""
        stopped = threading.Event()

        def serve() -> None:
            while not stopped.is_set():
                producer.poll(0.1)

        def call(number: int) -> None:
            stored = threading.Event()
            produce(number, lambda *_: stored.set())
            assert stored.wait(PATIENCE_S)

        producer, produce = self._bare_producer()
        server = threading.Thread(target=serve)
        server.start()
        found = self._timed(call)
        stopped.set()
        server.join()
        producer.close()
        return found

    def _bare_producer(self) -> tuple[Producer, Callable[[int, Callable[..., None]], None]]:
        producer = Producer(half_producer_config(self._settings, max_message_bytes=1024 * 1024))
        topic, headers = (
            self._bridge.names.half,
            half_headers((), transaction_id="0" * 32, group="bench", real_topic=self._real),
        )

        def produce(number: int, on_delivery: Callable[..., None]) -> None:
            producer.produce(topic, self._value, b"%d" % number, headers=headers, on_delivery=on_delivery)

        return producer, produce

    def _timed(self, call: Callable[[int], None]) -> Found:
        times = []
        for number in range(self._calls):
            since = time.perf_counter()
            call(number)
            times.append(time.perf_counter() - since)
        return _found(times)


def _found(seconds: list[float]) -> Found:
    # The first calls of a client wait for its connection.
    ordered = sorted(seconds[len(seconds) // 20 :])
    return {_EACH: median(ordered) * 1e6, "us, p99": ordered[int(len(ordered) * 0.99)] * 1e6}
