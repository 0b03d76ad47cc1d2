"""What a transaction costs the client, by its face, against a bare idempotent producer of the same records."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import threading
import time
from typing import Any

from confluent_kafka import Producer

from tests.harness import Bridge
from txbridge import (
    AsyncTransactionListener,
    AsyncTransactionProducer,
    LocalTransactionState,
    Message,
    TransactionListener,
    TransactionProducer,
)
from txbridge.core.half_message import half_headers
from txbridge.embedded import EmbeddedKafka

_COMMIT = LocalTransactionState.COMMIT_MESSAGE
_GROUP = "bench"


class _Commits(TransactionListener):
    def execute_local_transaction(self, message, arg):
        return _COMMIT

    def check_local_transaction(self, message):
        return _COMMIT


class _CommitsOnTheLoop(AsyncTransactionListener):
    async def execute_local_transaction(self, message, arg):
        return _COMMIT

    async def check_local_transaction(self, message):
        return _COMMIT


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--transactions", type=int, default=50_000, help="per measurement (default 50,000)")
    parser.add_argument("--size", type=int, default=100, help="bytes of each value (default 100)")
    parser.add_argument("--threads", type=int, default=32, help="of the blocking face (default 32)")
    parser.add_argument("--tasks", type=int, default=1_000, help="sends in flight of the asyncio face (default 1,000)")
    parser.add_argument("--rounds", type=int, default=3, help="the best of so many counts (default 3)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    with (
        EmbeddedKafka(jvm_profile="throughput", heap="1g") as kafka,
        Bridge(kafka.bootstrap_servers, "bench client", partitions=8) as bridge,
    ):
        bench = _Bench(bridge, options)
        kinds = {
            "bare": bench.bare,
            "blocking": bench.blocking,
            "pipelined": bench.pipelined,
            "asyncio": lambda count: asyncio.run(bench.asyncio(count)),
        }
        # By turns, so that a machine that is busy for a while is so for all of them; the first round warms up.
        best: dict[str, dict[str, float]] = {}
        for number, (name, measure) in itertools.product(range(options.rounds + 1), kinds.items()):
            count = options.transactions if number else options.transactions // 10
            before = time.process_time()
            seconds = measure(count)
            found = {
                "per_second": round(count / seconds),
                "cpu_us_each": round((time.process_time() - before) / count * 1e6, 1),
            }
            print(f"{time.strftime('%H:%M:%S')} {name} {found}", file=sys.stderr, flush=True)
            if number and (name not in best or found["per_second"] > best[name]["per_second"]):
                best[name] = found
    return {
        "transactions": options.transactions,
        "bytes_each": options.size,
        **best,
        "of_bare": {name: round(best[name]["per_second"] / best["bare"]["per_second"], 3) for name in kinds},
    }


class _Bench:
    """Each measurement takes the number of transactions and returns the seconds until all ENDs are acknowledged."""

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
        numbers = itertools.count()

        def work() -> None:
            while (number := next(numbers)) < count:
                producer.send_message_in_transaction(self._message(number))

        with TransactionProducer(_GROUP, _Commits(), self._settings, namespace=self._namespace) as producer:
            threads = [threading.Thread(target=work) for _ in range(self._options.threads)]
            since = time.monotonic()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert producer.flush() == 0
            return time.monotonic() - since

    def pipelined(self, count: int) -> float:
        decided = []
        with TransactionProducer(_GROUP, _Commits(), self._settings, namespace=self._namespace) as producer:
            since = time.monotonic()
            for number in range(count):
                future = producer.submit_message_in_transaction(self._message(number))
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
            _GROUP, _CommitsOnTheLoop(), self._settings, namespace=self._namespace
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
