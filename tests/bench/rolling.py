"""A rolling restart of two workers under a steady load: longest pauses of partitions, and a check for lost messages."""

from __future__ import annotations

import argparse
import itertools
import os
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from tests.bench.beside import beside
from tests.bench.feed import PATIENCE_S, say
from tests.bench.measure import Ratio, summary
from tests.chaos.checker import violations
from tests.chaos.reader import WatchingReader, sighting
from tests.support import http
from tests.support.harness import Bridge, WorkerProcess, eventually
from tests.support.listeners import Commits
from txbridge import Message, TransactionProducer, TransactionSendResult
from txbridge.embedded import EmbeddedKafka
from txbridge.embedded.ports import free_port

#: The goal for the median of the longest pauses (s).
_GOAL_S = 3.0
#: Time between two steps: the pause of one is over before the next begins, and the group is at rest.
_CALM_S = 4.0
#: The default settings of a worker: a rolling restart is measured with the settings of a new installation.
_DEFAULTS = {"session_timeout": 6_000, "transaction_timeout": 6_000, "transaction_check_interval": 30_000}


OPTIONS = {
    "rate": (400, "transactions a second"),
    "runs": (5, "of both workers restarted in turn"),
    "partitions": (4, "of HALF and END"),
}


def run(options: argparse.Namespace) -> dict[str, Any]:
    with (
        EmbeddedKafka(heap="1g", jvm_profile="throughput") as kafka,
        Bridge(kafka.bootstrap_servers, "bench rolling", partitions=options.partitions) as bridge,
    ):
        rolling, load = _Rolling(bridge, options.partitions), _Load()
        settings = {"bootstrap.servers": bridge.bootstrap_servers}
        with WatchingReader(bridge.bootstrap_servers, [rolling.topic], options.partitions) as reader:
            with (
                TransactionProducer("bench", Commits(), settings, namespace=bridge.namespace) as producer,
                beside(partial(load.send, producer, rolling.topic, options.rate)),
            ):
                time.sleep(_CALM_S)
                runs = [
                    _restart(f"{number} of {options.runs}", rolling, load, reader)
                    for number in range(1, options.runs + 1)
                ]
            assert not load.failed, load.failed[:3]
            eventually(
                lambda: len({one.transaction_id for one in reader.sightings}) >= len(load.decided),
                PATIENCE_S,
                lambda: f"{len(load.decided):,} committed, {len(reader.sightings):,} seen",
            )
            # A wrong delivery may come late.
            time.sleep(2)
            watched = list(reader.sightings)
        final = [sighting(message, 0.0) for message in bridge.read(rolling.topic)]
    results = ((name, "C", True) for name in load.decided)
    wrong = violations(dict.fromkeys(load.decided, True), results, watched, final)
    longest = [one["longest_pause_s"] for one in runs]
    return {
        "transactions": len(load.decided),
        "violations": wrong[:20],
        "violated": len(wrong),
        "figures": {
            "longest pause, s": {
                "of both": summary(longest),
                **{step: summary([one["by_step_s"][step] for one in runs]) for step in runs[0]["by_step_s"]},
            }
        },
        "runs": runs,
        "ratios": {"longest pause, median (s)": Ratio(median(longest), _GOAL_S, at_most=True, rounds=longest)},
    }


class _Load:
    """Transactions at a steady rate, all committed."""

    def __init__(self) -> None:
        self.failed: list[BaseException] = []
        #: Transactions whose commit Kafka has acknowledged, and the times (time.monotonic()) by half partition.
        self.decided: list[str] = []
        self.arrivals: dict[int, list[float]] = {}

    def send(self, producer: TransactionProducer, topic: str, rate: int, ended: threading.Event) -> None:
        since = time.monotonic()
        for number in itertools.count():
            if ended.wait(max(0.0, since + number / rate - time.monotonic())):
                return
            sent = producer.submit_message_in_transaction(Message(topic, b"v" * 100, key=str(number)))
            sent.add_done_callback(self._note_sent)

    def _note_sent(self, sent: Future[TransactionSendResult]) -> None:
        if not self._has_failed(sent):
            result = sent.result()
            result.end.add_done_callback(lambda end: self._note_end(result, end))

    def _note_end(self, result: TransactionSendResult, end: Future[None]) -> None:
        if not self._has_failed(end):
            self.arrivals.setdefault(result.half_partition, []).append(time.monotonic())
            self.decided.append(result.transaction_id)

    def _has_failed(self, future: Future[Any]) -> bool:
        error = future.exception()
        if error is not None:
            self.failed.append(error)
        return error is not None


@dataclass(slots=True)
class _Step:
    """A step after which the group shares its partitions anew, from its beginning to calm (time.monotonic())."""

    name: str
    begin: float
    end: float = 0.0
    #: Seconds from the beginning until the process had ended, or was ready.
    took: float = 0.0


class _Rolling:
    """Two workers with default settings."""

    def __init__(self, bridge: Bridge, partitions: int) -> None:
        self._bridge = bridge
        self.topic = bridge.create_topic("real", partitions=partitions)
        self._ports = [free_port() for _ in range(2)]
        self._workers: list[WorkerProcess] = []
        for place, port in enumerate(self._ports):
            self._workers.append(self._start(port))
            self._wait_ready(place)

    def _start(self, port: int) -> WorkerProcess:
        return self._bridge.worker(wait=0, metrics_port=port, **_DEFAULTS)

    def _wait_ready(self, place: int) -> None:
        """Wait until /readyz answers 200, as docs/health.md describes."""
        address = f"http://127.0.0.1:{self._ports[place]}/readyz"
        eventually(lambda: http.ask_if_there(address, 2).status == 200, 60, lambda: self._workers[place].log[-3_000:])

    def restart_both(self) -> list[_Step]:
        return [step for place in range(2) for step in self._restart(place)]

    def _restart(self, place: int) -> Iterator[_Step]:
        name = ("first", "second")[place]
        with self._step(f"{name} ends") as step:
            assert self._workers[place].stop() == 0
        yield step
        with self._step(f"{name} starts") as step:
            self._workers[place] = self._start(self._ports[place])
            self._wait_ready(place)
        yield step

    @contextmanager
    def _step(self, name: str) -> Iterator[_Step]:
        step = _Step(name, time.monotonic())
        yield step
        step.took = time.monotonic() - step.begin
        time.sleep(_CALM_S)
        step.end = time.monotonic()


def longest_pause(arrivals: Sequence[float], sightings: Sequence[float], begin: float, end: float) -> float:
    """The longest time between `begin` and `end` in which decisions were waiting and none became visible.

    It is counted from the first decision after the last sighting until the next sighting. Both are times in rising
    order.
    """
    longest, before = 0.0, begin
    for seen in (*(one for one in sightings if begin < one < end), end):
        first = bisect_right(arrivals, before)
        if first < len(arrivals):
            longest = max(longest, seen - arrivals[first])
        before = seen
    return longest


def _restart(name: str, rolling: _Rolling, load: _Load, reader: WatchingReader) -> dict[str, Any]:
    steps = rolling.restart_both()
    seen: dict[int, list[float]] = {}
    for one in list(reader.sightings):
        seen.setdefault(int(one.half.partition(":")[0]), []).append(one.seen)

    def longest(begin: float, end: float) -> float:
        pauses = (
            longest_pause(sorted(times), seen.get(partition, ()), begin, end)
            for partition, times in load.arrivals.items()
        )
        return round(max(pauses), 2)

    found = {
        "load": round(os.getloadavg()[0], 1),
        "longest_pause_s": longest(steps[0].begin, steps[-1].end),
        "by_step_s": {step.name: longest(step.begin, step.end) for step in steps},
        "took_s": {step.name: round(step.took, 2) for step in steps},
    }
    say(f"run {name}: {found}")
    return found
