"""Time until a half message is acknowledged, call by call in one thread, against a bare idempotent produce and wait."""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from confluent_kafka import Producer

from tests.bench.beside import served
from tests.bench.feed import PATIENCE_S
from tests.bench.measure import ROUNDS, SIZE, Found, Ratio, Rounds, by_turns
from tests.support.harness import Bridge
from tests.support.listeners import Commits
from txbridge import LocalTransactionState, Message, TransactionProducer
from txbridge.core.half_message import half_headers
from txbridge.embedded import EmbeddedKafka
from txbridge.kafka.config import half_producer_config

_OURS, _BARE, _SERVED = "half message", "bare produce and poll", "bare, with a thread that polls"
_EACH = "us, median"

OPTIONS = {
    # A client joins its group in the first second, which would be a large part of fewer calls.
    "calls": (10_000, "per measurement"),
    "size": SIZE,
    "rounds": ROUNDS,
}


def run(options: argparse.Namespace) -> dict[str, Any]:
    # There is no worker: only the call itself is measured. The END after each call is sent as usual.
    with (
        EmbeddedKafka(jvm_profile="throughput", heap="1g") as kafka,
        Bridge(kafka.bootstrap_servers, "bench prepare", partitions=1) as bridge,
    ):
        bench = _Bench(bridge, bridge.create_topic("real", partitions=1), b"v" * options.size, options.calls)
        found = by_turns(options.rounds, {_OURS: bench.ours, _BARE: bench.bare, _SERVED: bench.bare_served})
    ratios = {
        "prepare, 1 thread, to a bare produce and wait": _times(found, _BARE, 1.2),
        "prepare, 1 thread, to a bare produce with a thread that polls": _times(found, _SERVED),
    }
    return {"figures": found.report(), "ratios": ratios}


def _times(found: Rounds, whose: str, goal: float | None = None) -> Ratio:
    return found.ratio(lambda of: of(_OURS, _EACH) / of(whose, _EACH), goal, at_most=True)


class _Notes(Commits):
    """Notes the time: it is called as soon as the half message is acknowledged."""

    def __init__(self) -> None:
        self.called = 0.0

    def execute_local_transaction(self, message: object, arg: object) -> LocalTransactionState:
        self.called = time.perf_counter()
        return LocalTransactionState.COMMIT_MESSAGE


class _Bench:
    def __init__(self, bridge: Bridge, real: str, value: bytes, calls: int) -> None:
        self._bridge, self._real, self._value, self._calls = bridge, real, value, calls
        self._settings = {"bootstrap.servers": bridge.bootstrap_servers}
        self._headers = half_headers((), transaction_id="0" * 32, group="bench", real_topic=real)

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
        stored: list[object] = []

        def call(number: int) -> None:
            self._produce(producer, number, lambda error, _: stored.append(error))
            while len(stored) <= number:
                producer.poll(1.0)

        producer = self._producer()
        found = self._timed(call)
        producer.close()
        assert not any(stored), stored
        return found

    def bare_served(self) -> Found:
        """Measure the same with a polling thread, as in a client for any number of threads: the cost of wake-ups."""

        def call(number: int) -> None:
            stored = threading.Event()
            self._produce(producer, number, lambda *_: stored.set())
            assert stored.wait(PATIENCE_S)

        producer = self._producer()
        with served(producer):
            return self._timed(call)

    def _producer(self) -> Producer:
        return Producer(half_producer_config(self._settings, max_message_bytes=1024 * 1024))

    def _produce(self, producer: Producer, number: int, on_delivery: Callable[..., None]) -> None:
        half, key = self._bridge.names.half, b"%d" % number
        producer.produce(half, self._value, key, headers=self._headers, on_delivery=on_delivery)

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
