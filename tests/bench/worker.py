"""A worker alone, fed from a full END topic, against a bare loop that copies the same records in Kafka transactions.

The worker serves and is stopped (SIGSTOP) while HALF and END are filled. When it goes on, all decisions are waiting and
it has read none of the messages. So all its work for them is measured, and nothing of its start. (A worker that starts
on full topics would read HALF to its end before it serves.) The bare loop begins with a connection and nothing read. It
copies all records, including those that a worker rolls back or leaves undecided.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.bench.feed import MOST_ENTRIES, Feed
from tests.bench.measure import PER_SECOND, ROUNDS, SIZE, Found, Ratio, Rounds, by_turns
from tests.bench.reader_process import ReaderProcess
from tests.bench.report import CPU
from tests.support.harness import COMMIT, ROLLBACK, UNKNOWN, Bridge
from txbridge.embedded import EmbeddedKafka

#: Prepared and decided messages wait for the worker, and none of them may become due (ms).
_NEVER = 3_600_000
#: Far longer than the worker is stopped, so that its group keeps it (ms). Faust takes up to 90 s.
_SESSION = 60_000
_ITS_CPU = f"{CPU}its process"
_WORKER, _BARE = "worker", "bare loop"
_TEN = "worker, ten messages each"
_MIXED, _BARE_MIXED = "worker, four topics and three groups", "bare loop, four topics"
_DECISIONS = "worker, 90/5/5"
#: Each combination of four topics and three groups comes once in twelve messages.
_TOPICS, _GROUPS = 4, ("one", "two", "three")


OPTIONS = {"transactions": (100_000, "per measurement"), "size": SIZE, "rounds": ROUNDS}


def run(options: argparse.Namespace) -> dict[str, Any]:
    with (
        EmbeddedKafka(jvm_profile="throughput", heap="1g") as kafka,
        Bridge(kafka.bootstrap_servers, "bench worker", partitions=1) as bridge,
    ):
        real, copies = (
            [bridge.create_topic(f"{name}-{number}", partitions=1) for number in range(_TOPICS)]
            for name in ("real", "copies")
        )
        with (
            ReaderProcess(kafka.bootstrap_servers, *real) as delivered,
            ReaderProcess(kafka.bootstrap_servers, *copies) as copied,
        ):
            bench = _Bench(bridge, options, real, copies)
            found = by_turns(
                options.rounds,
                # The loop copies the records that the worker has just delivered.
                {
                    _WORKER: lambda: bench.worker(delivered),
                    _BARE: lambda: bench.bare(copied, 1),
                    _MIXED: lambda: bench.mixed(delivered),
                    _BARE_MIXED: lambda: bench.bare(copied, _TOPICS),
                    _DECISIONS: lambda: bench.decisions(delivered),
                    _TEN: lambda: bench.worker(delivered, 10),
                },
            )
    return {
        "figures": found.report(),
        "ratios": {
            "worker alone to a bare loop": _to(found, _WORKER, _BARE, 0.8),
            "worker alone to a bare loop, four topics and three groups": _to(found, _MIXED, _BARE_MIXED, 0.8),
            "worker alone to a bare loop, 90/5/5": _to(found, _DECISIONS, _BARE, 0.5),
            "worker, ten messages in a transaction to one, processor time": found.ratio(
                lambda of: of(_TEN, _ITS_CPU) / of(_WORKER, _ITS_CPU), 2.5, at_most=True
            ),
        },
    }


def _to(found: Rounds, ours: str, bare: str, goal: float) -> Ratio:
    return found.ratio(lambda of: of(ours, PER_SECOND) / of(bare, PER_SECOND), goal)


def _decision(number: int) -> int:
    """The decision of a message: of a hundred, five are rolled back and five are unknown."""
    return {0: ROLLBACK, 1: UNKNOWN}.get(number % 20, COMMIT)


class _Bench:
    def __init__(self, bridge: Bridge, options: argparse.Namespace, real: list[str], copies: list[str]) -> None:
        self._bridge = bridge
        self._count = options.transactions
        self._size = options.size
        self._real, self._copies = real, copies
        self._feed = Feed(bridge)
        self._worker = bridge.worker(
            transaction_timeout=_NEVER, transaction_check_interval=_NEVER, session_timeout=_SESSION
        )
        self._from = 0

    def worker(self, seen: ReaderProcess, messages: int | None = None) -> Found:
        """Measure from SIGCONT until a reader has seen the last message.

        Figures are per transaction, even with several messages.
        """
        self._worker.pause()
        count = self._count if messages is None else self._count // messages
        prepared = self._feed.prepare(self._real[0], count, self._size, b"committed", messages)
        self._feed.commit(prepared)
        if messages is None:
            self._from = prepared[0][0]
        return self._go_on(seen, count, count * (messages or 1))

    def mixed(self, seen: ReaderProcess) -> Found:
        """Measure with topics and groups that take turns in HALF. An END record belongs to one group."""
        self._worker.pause()
        prepared = self._feed.prepare(self._real, self._count, self._size, b"committed", groups=_GROUPS)
        self._feed.commit(prepared, _GROUPS)
        self._from = prepared[0][0]
        return self._go_on(seen, self._count, self._count)

    def decisions(self, seen: ReaderProcess) -> Found:
        """Measure a mix of decisions. Unknown ones stay open, and are rolled back after the measurement."""
        self._worker.pause()
        prepared = self._feed.prepare(self._real[0], self._count, self._size, b"committed")
        self._feed.decide(prepared, _decision)
        decided = [_decision(number) for number in range(self._count)]
        found = self._go_on(seen, self._count, decided.count(COMMIT))
        unknown = [one for one, decision in zip(prepared, decided, strict=True) if decision == UNKNOWN]
        self._feed.decide(unknown, lambda _: ROLLBACK)
        # END is applied in order: when this one is visible, all others are finished.
        seen.expect(1)
        self._feed.commit(self._feed.prepare(self._real[0], 1, self._size, b"committed"))
        seen.last_seen()
        return found

    def _go_on(self, seen: ReaderProcess, count: int, visible: int) -> Found:
        seen.expect(visible)
        since, cpu = time.monotonic(), self._worker.cpu_seconds
        self._worker.resume()
        seconds = seen.last_seen() - since
        return self._found(seconds, self._worker.cpu_seconds - cpu, count)

    def bare(self, seen: ReaderProcess, topics: int) -> Found:
        """Measure from the first read record until a reader has seen the last one. Topics take turns."""
        servers = self._bridge.bootstrap_servers
        consumer = Consumer({"bootstrap.servers": servers, "group.id": "bench", "enable.auto.commit": False})
        producer = Producer({"bootstrap.servers": servers, "transactional.id": "bare", "linger.ms": 5})
        producer.init_transactions(30)
        consumer.list_topics(timeout=10)
        seen.expect(self._count)
        since, cpu = time.monotonic(), time.process_time()
        consumer.assign([TopicPartition(self._bridge.names.half, 0, self._from)])
        done = 0
        while done < self._count:
            producer.begin_transaction()
            end = min(done + MOST_ENTRIES, self._count)
            while done < end:
                for message in consumer.consume(end - done, 1.0):
                    topic = self._copies[done % topics]
                    producer.produce(topic, message.value(), message.key(), headers=message.headers(), partition=0)
                    done += 1
                producer.poll(0)
            producer.commit_transaction(30)
        cpu = time.process_time() - cpu
        seconds = seen.last_seen() - since
        consumer.close()
        producer.close()
        return self._found(seconds, cpu, self._count)

    @staticmethod
    def _found(seconds: float, cpu_seconds: float, count: int) -> Found:
        return {PER_SECOND: count / seconds, _ITS_CPU: cpu_seconds / count * 1e6}
