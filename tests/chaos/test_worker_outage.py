"""Kafka outages during a worker's run or at its start: reported once, waited for quietly, and nothing is lost."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest

from tests.support.harness import COMMIT, ROLLBACK, Bridge, Prepared, WorkerProcess, eventually
from txbridge.embedded import EmbeddedKafka
from txbridge.embedded.ports import free_port

#: A session shorter than the broker's restart of 2 to 3 s would test less. It outlives a restart but not the long
#: outage.
_SESSION_MS = 4_000


def _load(worker: WorkerProcess, seconds: float) -> float:
    """Share of a core that the worker uses over some seconds."""
    before, since = worker.cpu_seconds, time.monotonic()
    eventually(lambda: time.monotonic() - since > seconds)
    return (worker.cpu_seconds - before) / (time.monotonic() - since)


class Traffic:
    """Transactions that go on through all outages. Acknowledged ones must be right in the end."""

    def __init__(self, bridge: Bridge, topic: str) -> None:
        self._bridge, self._topic = bridge, topic
        self.committed: list[bytes] = []
        self.rolled_back: list[bytes] = []
        #: Decisions that Kafka has not acknowledged: they may count or not.
        self.unsure: list[tuple[bytes, Prepared, int]] = []
        self._done = threading.Event()
        # A failed test must not leave it running, so it is a daemon, stopped with its bridge.
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._done.is_set():
            number += 1
            values = [b"%d-%d" % (number, one) for one in range(10)]
            prepared = self._bridge.prepare_many(self._topic, values)
            if len(prepared) < len(values):
                continue
            for value, one in zip(values, prepared, strict=True):
                decision = ROLLBACK if value.endswith(b"0") else COMMIT
                try:
                    self._bridge.decide(one, decision)
                except AssertionError:
                    self.unsure.append((value, one, decision))
                else:
                    (self.committed if decision == COMMIT else self.rolled_back).append(value)
            self._done.wait(0.02)

    def stop(self) -> None:
        self._done.set()
        self._thread.join(300)
        assert not self._thread.is_alive()

    def verify(self) -> None:
        for _, one, decision in self.unsure:
            self._bridge.decide(one, decision)
        committed = {*self.committed, *(value for value, _, decision in self.unsure if decision == COMMIT)}
        self._bridge.wait_visible(self._topic, sorted(committed), 60)
        visible = self._bridge.visible(self._topic)
        assert set(visible.values()) == {1}, "doubled"
        assert set(visible) == committed
        assert committed, "no traffic"
        finished = Counter(outcome for found in self._bridge.outcomes().values() for outcome in found)
        assert finished["commit"] == len(committed)


def _restart(kafka: EmbeddedKafka) -> None:
    kafka.restart()


def _crash(kafka: EmbeddedKafka) -> None:
    kafka.kill()
    kafka.restart()


def _freeze(kafka: EmbeddedKafka) -> None:
    """Connections stay open without answers for longer than a commit may take."""
    kafka.pause()
    threading.Event().wait(6)
    kafka.resume()


@pytest.mark.long
@pytest.mark.parametrize(
    "outage",
    [_restart, _crash, _freeze],
    ids=lambda outage: outage.__name__.strip("_"),
)
def test_p10_kafka_goes_and_comes_back_midway(
    own_kafka: EmbeddedKafka, outage: Callable[[EmbeddedKafka], None]
) -> None:
    with Bridge(own_kafka.bootstrap_servers, f"outage {outage.__name__}") as bridge:
        topic = bridge.create_topic("real")
        options = {"session_timeout": _SESSION_MS, "commit_timeout": 4_000}
        workers = [bridge.worker(**options), bridge.worker(wait=1, **options)]
        traffic = Traffic(bridge, topic)
        eventually(lambda: len(traffic.committed) > 100)
        for _ in range(2):
            outage(own_kafka)
            before, back = len(traffic.committed), time.monotonic()
            eventually(lambda before=before: len(traffic.committed) > before + 100, 60)
            bridge.wait_visible(topic, traffic.committed[-1:], 60)
            print(f"{outage.__name__}: visible again {time.monotonic() - back:.1f} s after Kafka was back")
        traffic.stop()
        traffic.verify()
        assert [worker.returncode for worker in workers] == [None, None]


@pytest.mark.long
def test_p10_a_long_outage_costs_little_and_is_told_once(own_kafka: EmbeddedKafka) -> None:
    with Bridge(own_kafka.bootstrap_servers, "long outage") as bridge:
        topic = bridge.create_topic("real")
        worker = bridge.worker(session_timeout=_SESSION_MS)
        waiting = bridge.prepare(topic, b"waiting")
        bridge.decide(bridge.prepare(topic, b"before"), COMMIT)
        bridge.wait_visible(topic, [b"before"])
        own_kafka.kill()
        worker.wait_logged('"kafka_unavailable"')
        size = len(worker.log)
        load = _load(worker, 12)
        print(f"{load:.0%} of a core and {len(worker.log) - size} bytes of log in 12 s of outage")
        assert load < 0.3
        assert len(worker.log) - size < 20_000
        assert worker.returncode is None
        own_kafka.restart()
        back = time.monotonic()
        bridge.decide(waiting, COMMIT)
        bridge.wait_visible(topic, [b"waiting"], 60)
        print(f"visible again {time.monotonic() - back:.1f} s after Kafka was back")
        bridge.decide(bridge.prepare(topic, b"after"), COMMIT)
        bridge.wait_visible(topic, [b"after"])
        assert set(bridge.visible(topic).values()) == {1}
        # The worker can be stopped while Kafka is away, in bounded time.
        own_kafka.kill()
        worker.wait_logged('"kafka_unavailable"')
        since = time.monotonic()
        assert worker.stop() is not None
        print(f"stopped in {time.monotonic() - since:.1f} s without Kafka")
        own_kafka.restart()


@pytest.mark.long
def test_p10_kafka_is_not_there_at_the_start(own_kafka: EmbeddedKafka) -> None:
    with Bridge(own_kafka.bootstrap_servers, "not there") as bridge:
        topic = bridge.create_topic("real")
        prepared = bridge.prepare(topic, b"value")
        bridge.decide(prepared, COMMIT)
        own_kafka.kill()
        worker = bridge.worker(wait=0)
        worker.wait_logged('"kafka_unreachable"')
        load = _load(worker, 3)
        print(f"{load:.0%} of a core while Kafka is not there")
        assert load < 0.3
        assert len(worker.events("kafka_unreachable")) == 1
        own_kafka.restart()
        bridge.wait_visible(topic, [b"value"], 60)
        worker.wait_logged('"kafka_reachable"')
        assert worker.stop() == 0


def test_p10_a_worker_that_waits_for_kafka_ends_when_it_is_told_to() -> None:
    with contextlib.closing(Bridge(f"127.0.0.1:{free_port()}", "nobody there")) as bridge:
        worker = bridge.worker(wait=0)
        worker.wait_logged('"kafka_unreachable"', 60)
        since = time.monotonic()
        worker.stop()
        # Its own time limit is 15 s, after which it would give up.
        assert time.monotonic() - since < 14
