"""A rolling restart of two workers under a steady load: longest pauses of partitions, and a check for lost messages."""

from __future__ import annotations

import argparse
import itertools
import os
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any, Self

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
from txbridge.topics.plan import DEFAULT_PARTITIONS

#: The goal for the median of the longest pauses (s).
_GOAL_S = 3.0
#: Time between two steps: the pause of one is over before the next begins, and the group is at rest.
_CALM_S = 4.0
#: The default settings of a worker: a rolling restart is measured with the settings of a new installation.
_DEFAULTS = {"session_timeout": 6_000, "transaction_timeout": 6_000, "transaction_check_interval": 30_000}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rate", type=int, default=400, help="transactions a second (default 400)")
    parser.add_argument("--runs", type=int, default=5, help="of both workers restarted in turn (default 5)")
    parser.add_argument(
        "--partitions", type=int, default=DEFAULT_PARTITIONS, help=f"of HALF and END (default {DEFAULT_PARTITIONS})"
    )


def run(options: argparse.Namespace) -> dict[str, Any]:
    runs: list[dict[str, Any]] = []
    with (
        EmbeddedKafka(heap="1g", jvm_profile="throughput") as kafka,
        Bridge(kafka.bootstrap_servers, "bench rolling", partitions=options.partitions) as bridge,
    ):
        rolling = _Rolling(bridge, options.partitions)
        with (
            WatchingReader(bridge.bootstrap_servers, [rolling.topic], options.partitions) as reader,
            _Load(bridge, rolling.topic, options.rate) as load,
        ):
            time.sleep(_CALM_S)
            for number in range(1, options.runs + 1):
                steps = rolling.restart_both()
                found = {"load": round(os.getloadavg()[0], 1), **_found(steps, load, reader)}
                say(f"run {number} of {options.runs}: {found}")
                runs.append(found)
            load.stop()
            eventually(
                lambda: len({one.transaction_id for one in reader.sightings}) >= len(load.decided),
                PATIENCE_S,
                lambda: f"{len(load.decided):,} committed, {len(reader.sightings):,} seen",
            )
            # A wrong delivery may come late.
            time.sleep(2)
            watched = list(reader.sightings)
        final = [sighting(message, 0.0) for message in bridge.read(rolling.topic)]
    wrong = violations(dict.fromkeys(load.decided, True), load.told(), watched, final)
    longest = [one["longest_pause_s"] for one in runs]
    return {
        "rate": options.rate,
        "partitions": options.partitions,
        "transactions": len(load.decided),
        "violations": wrong[:20],
        "violated": len(wrong),
        "longest_pause_s": summary(longest),
        "by_step_s": {
            step: summary([one["by_step_s"][step] for one in runs]) for step in (runs[0]["by_step_s"] if runs else ())
        },
        "runs": runs,
        "ratios": {"longest pause, median (s)": Ratio(median(longest), _GOAL_S, at_most=True, rounds=longest).report()},
    }


# --- the load ---------------------------------------------------------------------------------------------------------


class _Load:
    """Transactions at a steady rate, all committed, from one thread until it is stopped."""

    def __init__(self, bridge: Bridge, topic: str, rate: int) -> None:
        self._topic, self._rate = topic, rate
        self._producer = TransactionProducer(
            "bench", Commits(), {"bootstrap.servers": bridge.bootstrap_servers}, namespace=bridge.namespace
        )
        self._stopping = threading.Event()
        self._failed: list[BaseException] = []
        #: Transactions whose commit Kafka has acknowledged, and the times (time.monotonic()) by half partition.
        self.decided: list[str] = []
        self.arrivals: dict[int, list[float]] = {}
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        since = time.monotonic()
        for number in itertools.count():
            if self._stopping.wait(max(0.0, since + number / self._rate - time.monotonic())):
                return
            sent = self._producer.submit_message_in_transaction(Message(self._topic, b"v" * 100, key=str(number)))
            sent.add_done_callback(self._sent)

    def _sent(self, sent: Future[TransactionSendResult]) -> None:
        error = sent.exception()
        if error is not None:
            self._failed.append(error)
            return
        result = sent.result()
        result.end.add_done_callback(lambda end: self._ended(result, end))

    def _ended(self, result: TransactionSendResult, end: Future[None]) -> None:
        error = end.exception()
        if error is not None:
            self._failed.append(error)
            return
        self.arrivals.setdefault(result.half_partition, []).append(time.monotonic())
        self.decided.append(result.transaction_id)

    def told(self) -> Iterator[tuple[str, str, bool]]:
        """The results that the client got, in the form that the checker needs."""
        return ((name, "C", True) for name in self.decided)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(PATIENCE_S)
        self._producer.flush(PATIENCE_S)
        assert not self._failed, self._failed[:3]

    def __enter__(self) -> Self:
        self._producer.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._producer.close(PATIENCE_S)


# --- the workers ------------------------------------------------------------------------------------------------------


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
        self._ports = [free_port()]
        while len(self._ports) < 2:
            self._ports = [*{*self._ports, free_port()}]
        self._workers: list[WorkerProcess] = []
        for place, port in enumerate(self._ports):
            self._workers.append(self._start(port))
            self._wait_ready(place)

    def _start(self, port: int) -> WorkerProcess:
        return self._bridge.worker(wait=0, metrics_port=port, **_DEFAULTS)

    def _wait_ready(self, place: int) -> None:
        """Wait until /readyz answers 200, as docs/health.md describes."""
        eventually(lambda: _is_ready(self._ports[place]), 60, lambda: self._workers[place].log[-3_000:])

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


def _is_ready(port: int) -> bool:
    return http.ask_if_there(f"http://127.0.0.1:{port}/readyz", 2).status == 200


# --- the pauses -------------------------------------------------------------------------------------------------------


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


def _found(steps: Sequence[_Step], load: _Load, reader: WatchingReader) -> dict[str, Any]:
    seen: dict[int, list[float]] = {}
    for one in list(reader.sightings):
        seen.setdefault(int(one.half.partition(":")[0]), []).append(one.seen)

    def longest(begin: float, end: float) -> dict[int, float]:
        return {
            partition: round(longest_pause(sorted(times), seen.get(partition, ()), begin, end), 2)
            for partition, times in sorted(load.arrivals.items())
        }

    whole: Mapping[int, float] = longest(steps[0].begin, steps[-1].end)
    return {
        "longest_pause_s": max(whole.values()),
        "by_partition_s": whole,
        "by_step_s": {step.name: max(longest(step.begin, step.end).values()) for step in steps},
        "took_s": {step.name: round(step.took, 2) for step in steps},
    }
