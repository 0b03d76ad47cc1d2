"""A worker alone, fed from a full END topic, against a bare loop that copies the same records in Kafka transactions."""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.bench.feed import EndOfTopic, Feed, say
from tests.harness import Bridge
from txbridge.embedded import EmbeddedKafka

#: As many as a worker puts into one Kafka transaction (broker/cycle.py).
_MOST_ENTRIES = 10_000
#: What was prepared and decided waits for the worker, so nothing must grow due.
_NEVER = 3_600_000


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--transactions", type=int, default=100_000, help="per measurement (default 100,000)")
    parser.add_argument("--size", type=int, default=100, help="bytes of each value (default 100)")
    parser.add_argument("--rounds", type=int, default=5, help="medians of so many (default 5)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, list[dict[str, float]]] = {"worker": [], "bare": []}
    with EmbeddedKafka(jvm_profile="throughput", heap="1g") as kafka:
        # By turns, so that a machine that is busy for a while is so for both; the first round warms Kafka up.
        for number in range(options.rounds + 1):
            with Bridge(kafka.bootstrap_servers, f"bench worker {number}", partitions=1) as bridge:
                bench = _Bench(bridge, options)
                for name, measure in (("worker", bench.worker), ("bare", bench.bare)):
                    one = measure()
                    say(f"{name} {one}")
                    if number:
                        found[name].append(one)
    medians = {
        name: {key: median(one[key] for one in each) for key in ("per_second", "cpu_us_each")}
        for name, each in found.items()
    }
    return {
        "transactions": options.transactions,
        "bytes_each": options.size,
        **medians,
        "rounds": found,
        "ratios": {"worker_of_bare_loop": round(medians["worker"]["per_second"] / medians["bare"]["per_second"], 2)},
    }


class _Bench:
    def __init__(self, bridge: Bridge, options: argparse.Namespace) -> None:
        self._bridge = bridge
        self._count = options.transactions
        self._real = bridge.create_topic("real", partitions=1)
        self._copies = bridge.create_topic("copies", partitions=1)
        feed = Feed(bridge)
        feed.commit(feed.prepare(self._real, self._count, b"c" * options.size, b"committed"))

    def worker(self) -> dict[str, float]:
        """From its take-over until a reader has seen the last one."""
        seen = EndOfTopic(self._bridge.bootstrap_servers, self._real)
        worker = self._bridge.worker(transaction_timeout=_NEVER, transaction_check_interval=_NEVER)
        since, cpu = time.monotonic(), worker.cpu_seconds
        seen.wait_for(self._count)
        return self._found(time.monotonic() - since, worker.cpu_seconds - cpu)

    def bare(self) -> dict[str, float]:
        """From the first record read until a reader has seen the last one; the reader is part of this process."""
        servers = self._bridge.bootstrap_servers
        seen = EndOfTopic(servers, self._copies)
        consumer = Consumer({"bootstrap.servers": servers, "group.id": "bench", "enable.auto.commit": False})
        producer = Producer({"bootstrap.servers": servers, "transactional.id": "bare", "linger.ms": 5})
        producer.init_transactions(30)
        consumer.assign([TopicPartition(self._bridge.names.half, 0, 0)])
        since, cpu = time.monotonic(), time.process_time()
        done = 0
        while done < self._count:
            producer.begin_transaction()
            end = min(done + _MOST_ENTRIES, self._count)
            while done < end:
                for message in consumer.consume(end - done, 1.0):
                    producer.produce(
                        self._copies, message.value(), message.key(), headers=message.headers(), partition=0
                    )
                    done += 1
                producer.poll(0)
            producer.commit_transaction(30)
        cpu = time.process_time() - cpu
        seen.wait_for(self._count)
        seconds = time.monotonic() - since
        consumer.close()
        producer.close()
        return self._found(seconds, cpu)

    def _found(self, seconds: float, cpu_seconds: float) -> dict[str, float]:
        return {
            "per_second": round(self._count / seconds),
            "cpu_us_each": round(cpu_seconds / self._count * 1e6, 1),
        }
