"""Cost of a transaction in the client, by API, against a bare idempotent producer of the same records."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from confluent_kafka import Producer

from tests.bench.load import in_threads
from tests.bench.measure import PER_SECOND, Found, Ratio, Rounds, by_turns
from tests.bench.report import CPU
from tests.support.harness import Bridge
from tests.support.listeners import AsyncCommits, Commits
from txbridge import (
    AsyncTransactionProducer,
    Message,
    TransactionProducer,
)
from txbridge.core.half_message import half_headers
from txbridge.embedded import EmbeddedKafka

_GROUP = "bench"
_CLIENT_CPU = f"{CPU}client"
_TEN = "pipelined, ten messages each"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--transactions", type=int, default=50_000, help="per measurement (default 50,000)")
    parser.add_argument("--blocking", type=int, default=10_000, help="of the blocking API (default 10,000)")
    parser.add_argument("--size", type=int, default=100, help="bytes of each value (default 100)")
    parser.add_argument("--threads", type=int, default=32, help="of the blocking API (default 32)")
    parser.add_argument("--tasks", type=int, default=1_000, help="sends in flight of the asyncio API (default 1,000)")
    parser.add_argument("--rounds", type=int, default=5, help="medians of so many (default 5)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    with (
        EmbeddedKafka(jvm_profile="throughput", heap="1g") as kafka,
        Bridge(kafka.bootstrap_servers, "bench client", partitions=8) as bridge,
    ):
        bench = _Bench(bridge, options)
        many = options.transactions
        kinds: dict[str, tuple[Callable[[int], float], int]] = {
            "bare": (bench.bare, many),
            f"blocking, {options.threads} threads": (bench.blocking, options.blocking),
            "pipelined": (bench.pipelined, many),
            _TEN: (bench.pipelined_ten, many // 5),
            "asyncio": (lambda count: asyncio.run(bench.asyncio(count)), many),
        }
        measures = {name: partial(_measured, measure, count) for name, (measure, count) in kinds.items()}
        found = by_turns(options.rounds, measures)
    apis = [name for name in kinds if name not in {"bare", _TEN}]
    ratios = {f"client, {name} to bare": _to_bare(found, name).report() for name in apis}
    ten = found.ratio(lambda of: of(_TEN, _CLIENT_CPU) / of("pipelined", _CLIENT_CPU), 2.5, at_most=True)
    ratios["client, ten messages in a transaction to one, processor time"] = ten.report()
    return {"bytes_each": options.size, "figures": found.report(), "ratios": ratios}


def _to_bare(found: Rounds, name: str) -> Ratio:
    return found.ratio(lambda of: of(name, PER_SECOND) / of("bare", PER_SECOND))


def _measured(measure: Callable[[int], float], count: int) -> Found:
    before = time.process_time()
    seconds = measure(count)
    return {PER_SECOND: count / seconds, _CLIENT_CPU: (time.process_time() - before) / count * 1e6}


class _Bench:
    """Measurements that take the number of transactions and return the seconds until all ENDs are acknowledged."""

    def __init__(self, bridge: Bridge, options: argparse.Namespace) -> None:
        self._half = bridge.names.half
        self._options = options
        self._settings = {"bootstrap.servers": bridge.bootstrap_servers}
        self._namespace = bridge.namespace
        self._value = b"v" * options.size

    def bare(self, count: int) -> float:
        producer = Producer(
            {**self._settings, "enable.idempotence": True, "linger.ms": 0, "partitioner": "murmur2_random"}
        )
        headers = half_headers((), transaction_id="0" * 32, group=_GROUP, real_topic="real")
        since = time.monotonic()
        for number in range(count):
            while True:
                try:
                    producer.produce(
                        self._half, self._value, b"%d" % number, headers=headers, on_delivery=_must_be_delivered
                    )
                except BufferError:
                    producer.poll(0.01)
                else:
                    break
            producer.poll(0)
        producer.flush()
        seconds = time.monotonic() - since
        producer.close()
        return seconds

    def blocking(self, count: int) -> float:
        def send(number: int) -> None:
            producer.send_message_in_transaction(self._message(number))

        with TransactionProducer(_GROUP, Commits(), self._settings, namespace=self._namespace) as producer:
            since = time.monotonic()
            in_threads(self._options.threads, count, send)
            assert producer.flush() == 0
            return time.monotonic() - since

    def pipelined(self, count: int) -> float:
        return self._pipelined(
            count, lambda producer, number: producer.submit_message_in_transaction(self._message(number))
        )

    def pipelined_ten(self, count: int) -> float:
        return self._pipelined(
            count, lambda producer, number: producer.submit_messages_in_transaction([self._message(number)] * 10)
        )

    def _pipelined(self, count: int, submit: Callable[[TransactionProducer, int], Future[Any]]) -> float:
        decided = []
        with TransactionProducer(_GROUP, Commits(), self._settings, namespace=self._namespace) as producer:
            since = time.monotonic()
            for number in range(count):
                future = submit(producer, number)
                future.add_done_callback(lambda done: decided.append(done.result().half_offset))
            assert producer.flush() == 0
            seconds = time.monotonic() - since
        assert len(decided) == count
        return seconds

    async def asyncio(self, count: int) -> float:
        numbers = itertools.count()

        async def work() -> None:
            while (number := next(numbers)) < count:
                await producer.send_message_in_transaction(self._message(number))

        async with AsyncTransactionProducer(
            _GROUP, AsyncCommits(), self._settings, namespace=self._namespace
        ) as producer:
            since = time.monotonic()
            async with asyncio.TaskGroup() as group:
                for _ in range(self._options.tasks):
                    group.create_task(work())
            assert await producer.flush() == 0
            return time.monotonic() - since

    def _message(self, number: int) -> Message:
        return Message("real", self._value, b"%d" % number)


def _must_be_delivered(error: object, _: object) -> None:
    assert error is None, error
