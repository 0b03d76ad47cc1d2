"""Processor time of each of a worker's steps for a delivered message, in one thread, one step at a time.

The steps are those of the worker and use its own code on records from a real Kafka. They handle 10,000 records at a
time, as its Kafka transactions do, and in runs, as for nearly all records. The time in confluent-kafka and librdkafka
(`library`) is the lower bound for a worker in Python: a bare loop does nothing else. The rest is ours. The steps leave
out only small parts or parts outside Python: librdkafka's threads, the commit, Faust's events.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from typing import Any, TypeVar

from confluent_kafka import Producer

from tests.bench.feed import MOST_ENTRIES, PATIENCE_S, Feed, end_values
from tests.bench.measure import ROUNDS, SIZE, Found, by_turns
from tests.support.harness import Bridge
from txbridge.core.check_policy import CheckPolicy
from txbridge.core.checkpoint import encode_ops
from txbridge.core.decision_record import parse_end
from txbridge.core.fresh_halves import FreshHalves, read_plain
from txbridge.core.half_queue import HalfQueue
from txbridge.core.plan.choice import EndChoice
from txbridge.core.plan.draft import Draft
from txbridge.core.transaction_size import Limits
from txbridge.embedded import EmbeddedKafka
from txbridge.kafka.body_cache import offset_of
from txbridge.kafka.headers import headers_of_all
from txbridge.kafka.partition_reader import PartitionReader
from txbridge.worker.app import COLLECT_SELDOM

_T = TypeVar("_T")

#: Steps of confluent-kafka and librdkafka.
_CONSUME, _HEADERS, _PRODUCE = (f"library: {what}, us" for what in ("consume", "headers of a record", "produce"))
_READ = "read a half message, us"
_BUDGET = 64 * 1024 * 1024


OPTIONS = {"transactions": (100_000, "per round"), "size": SIZE, "rounds": ROUNDS}


def run(options: argparse.Namespace) -> dict[str, Any]:
    with (
        EmbeddedKafka(jvm_profile="throughput", heap="1g") as kafka,
        Bridge(kafka.bootstrap_servers, "bench steps", partitions=1) as bridge,
    ):
        real = bridge.create_topic("real", partitions=1)
        Feed(bridge).prepare(real, options.transactions, options.size, b"committed")
        gc.set_threshold(*COLLECT_SELDOM)
        found = by_turns(options.rounds, {"a delivered message": lambda: _Steps(bridge, options.transactions).run()})
    return {"figures": found.report()}


class _Steps:
    """All transactions once, with this thread's processor time (s) of each step."""

    def __init__(self, bridge: Bridge, count: int) -> None:
        self._bridge = bridge
        self._count = count
        self._seconds: dict[str, float] = {}

    def _step(self, name: str, work: Callable[[], _T]) -> _T:
        since = time.thread_time()
        result = work()
        self._seconds[name] = self._seconds.get(name, 0.0) + time.thread_time() - since
        return result

    def run(self) -> Found:
        """Microseconds for each transaction, by step and in total."""
        servers = {"bootstrap.servers": self._bridge.bootstrap_servers}
        reader = PartitionReader(servers, self._bridge.names.half, 0, committed=False, on_demand=1)
        reader.start(0)
        queue = HalfQueue(CheckPolicy())
        producer = Producer({**servers, "linger.ms": 100, "queue.buffering.max.messages": self._count + 1})
        done = 0
        while done < self._count:
            count = self._read(reader, queue)
            if count:
                self._deliver(queue, producer)
            done += count
        producer.flush()
        producer.close()
        reader.close()
        each = {name: seconds / self._count * 1e6 for name, seconds in self._seconds.items()}
        library = sum(each[name] for name in (_CONSUME, _HEADERS, _PRODUCE))
        return {**each, "library in sum, us": library, "ours in sum, us": sum(each.values()) - library}

    def _read(self, reader: PartitionReader, queue: HalfQueue) -> int:
        step = self._step
        messages = step(_CONSUME, lambda: reader.poll(MOST_ENTRIES, PATIENCE_S))
        if not messages:
            return 0
        headers = step(_HEADERS, lambda: headers_of_all(messages))

        def read() -> FreshHalves | None:
            return read_plain(
                offset_of(messages[0]),
                [message.timestamp()[1] for message in messages],
                [message.key() for message in messages],
                [message.value() for message in messages],
                [*headers],
                self._bridge.names.namespace,
            )

        halves = step(_READ, read)
        assert halves is not None
        assert step("look for copies and take it in, us", lambda: queue.take_fresh(halves))
        return len(messages)

    def _deliver(self, queue: HalfQueue, producer: Producer) -> None:
        step, headers, fresh = self._step, self._bridge.end_headers(), queue.fresh
        halves = [half for half in map(fresh.open_at, range(fresh.first, fresh.stop)) if half is not None]
        values = list(end_values([(half.offset, half.transaction_id) for half in halves]))
        first = queue.next_end
        ends = step(
            "read its END, us",
            lambda: [parse_end(first + number, value, headers, 0) for number, value in enumerate(values)],
        )
        draft = Draft(queue, halves[-1].born)
        choice = EndChoice(queue, Limits(bytes=2 * _BUDGET), due=0)
        runs = step("choose what goes together, us", lambda: [run for end in ends if (run := choice.run_of(end))])
        assert step("its limits, us", lambda: all(map(choice.take_run, runs)))
        step("decide, us", lambda: [draft.apply_run(run) for run in runs])
        draft.park_entries(MOST_ENTRIES, grown_old=False)
        copies: list[Any] = step(
            "headers of its copy, us", lambda: [copy for run in runs for copy in run.copies(0, {})]
        )
        reports: dict[object, object] = {}
        report, produce = reports.__setitem__, producer.produce

        def produce_all() -> None:
            for _, topic, value, key, _, timestamp, its_headers in copies:
                produce(topic, value, key, 0, report, None, timestamp, its_headers)

        step(_PRODUCE, produce_all)
        step("name it in OP, us", lambda: [encode_ops(named) for _, named in draft.ops()])
        step("make it the state, us", lambda: draft.apply(draft.now))
        queue.fresh.forget_entered()
