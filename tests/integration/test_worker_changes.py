"""Workers that come, go and die: exactly once in all cases."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest
from confluent_kafka.admin import NewPartitions

from tests.support import http
from tests.support.harness import COMMIT, ROLLBACK, Bridge, WorkerProcess, eventually
from txbridge.embedded import EmbeddedKafka
from txbridge.embedded.ports import free_port
from txbridge.topics.plan import PlanOptions
from txbridge.topics.verify import plan


class Stream:
    """Prepares and decides messages without a pause; every tenth is rolled back."""

    def __init__(self, bridge: Bridge, topic: str) -> None:
        self._bridge = bridge
        self._topic = topic
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.committed: list[bytes] = []

    def _run(self) -> None:
        number = 0
        while not self._stopping.is_set():
            values = [b"%d" % (number + step) for step in range(20)]
            number += 20
            halves = self._bridge.prepare_many(self._topic, values)
            self._bridge.decide_many([half for step, half in enumerate(halves) if step % 10], COMMIT)
            self._bridge.decide_many([half for step, half in enumerate(halves) if step % 10 == 0], ROLLBACK)
            self.committed += [value for step, value in enumerate(values) if step % 10]
            self._stopping.wait(0.02)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()


def assert_exactly_once(bridge: Bridge, topic: str, stream: Stream) -> None:
    bridge.wait_visible(topic, stream.committed, 90)
    # There is no second copy, and no message that was rolled back.
    assert bridge.visible(topic) == Counter(dict.fromkeys(stream.committed, 1))
    outcomes = bridge.outcomes()
    assert all(len(named) == 1 for named in outcomes.values())


def moved_on(bridge: Bridge, topic: str) -> None:
    """Wait until more messages are delivered."""
    before = len(bridge.read(topic))
    eventually(lambda: len(bridge.read(topic)) > before + 20, 60, "deliveries did not go on")


@pytest.fixture
def wide(kafka: EmbeddedKafka) -> Iterator[Bridge]:
    with Bridge(kafka.bootstrap_servers, "changes", partitions=6) as made:
        yield made


def test_p2_p3_workers_join_leave_and_die(wide: Bridge) -> None:
    topic = wide.create_topic("orders")
    # The second one comes to a group with a member, and so assumes nothing.
    first, second = wide.worker(), wide.worker(wait=1)
    with Stream(wide, topic) as stream:
        moved_on(wide, topic)
        third = wide.worker(wait=1)
        moved_on(wide, topic)
        assert second.stop() == 0
        moved_on(wide, topic)
        third.kill()
        # The first worker is alone, after the session time-out of the dead one.
        moved_on(wide, topic)
        first.wait_serving(6, 60)
        moved_on(wide, topic)
    assert_exactly_once(wide, topic, stream)
    assert first.returncode is None
    # The partition that the first worker never lost was taken over only once.
    assert min(Counter(_taken_over(first)).values()) == 1


def _taken_over(worker: WorkerProcess) -> list[str]:
    return [line.split('"partition": ')[1][0] for line in worker.log.splitlines() if "partition_taken_over" in line]


def test_p2_p3_kafka_restarts_and_dies_midway(own_kafka: EmbeddedKafka) -> None:
    """Acknowledged decisions are delivered once, and the worker recovers by itself."""
    with Bridge(own_kafka.bootstrap_servers, "outage") as bridge:
        topic = bridge.create_topic("orders")
        worker = bridge.worker()
        values: list[bytes] = []

        def decide(name: str) -> None:
            batch = [b"%s-%d" % (name.encode(), number) for number in range(200)]
            bridge.decide_many(bridge.prepare_many(topic, batch), COMMIT)
            values.extend(batch)

        decide("before")
        own_kafka.restart()
        decide("after-restart")
        own_kafka.kill()
        own_kafka.restart()
        decide("after-kill")
        bridge.wait_visible(topic, values, 90)
        assert bridge.visible(topic) == Counter(dict.fromkeys(values, 1))
        assert worker.returncode is None
        assert "unexpected_error" not in worker.log


def test_faust_command_line(bridge: Bridge, tmp_path: Path) -> None:
    """`faust -A txbridge.broker.app worker` does the same as `txbridge worker`."""
    topic = bridge.create_topic("orders")
    half = bridge.prepare(topic, b"by faust")
    bridge.decide(half, COMMIT)
    log = (tmp_path / "faust.log").open("wb")
    worker = subprocess.Popen(
        [sys.executable, "-m", "faust", "-A", "txbridge.broker.app", "worker", "-l", "info"],
        env={
            **os.environ,
            "TXBRIDGE_BOOTSTRAP_SERVERS": bridge.bootstrap_servers,
            "TXBRIDGE_NAMESPACE": bridge.namespace,
        },
        cwd=tmp_path,
        stdout=log,
        stderr=log,
    )
    try:
        bridge.wait_visible(topic, [b"by faust"], 60)
    finally:
        worker.terminate()
        worker.wait(120)
        log.close()
    # Faust's own data folder is not in the working directory.
    assert [file.name for file in tmp_path.iterdir()] == ["faust.log"]


@pytest.mark.long
def test_partitions_added_to_half_at_run_time_are_told(bridge: Bridge) -> None:
    port = free_port()
    topic = bridge.create_topic("real")
    worker = bridge.worker(metrics_port=port)
    eventually(lambda: _ready(port)[0] == 200)
    bridge.admin.create_partitions([NewPartitions(bridge.names.half, 3)])[bridge.names.half].result(120)
    worker.wait_logged("topics_changed")
    status, body = _ready(port)
    assert status == 503
    assert f"{bridge.names.half} has 3 partitions, {bridge.names.end} 2 and " in body
    # The other partitions go on.
    prepared = bridge.prepare(topic, b"value", partition=1)
    bridge.decide(prepared, COMMIT)
    bridge.wait_visible(topic, [b"value"], 10)
    # Doctor and plan report the same.
    options = PlanOptions(longest_wait=72 * 3_600_000)
    plans = {one.topic: one for one in plan(bridge.cluster, bridge.names, options)}
    assert "HALF, END, OP and OFFSET have the same number" in plans[bridge.names.end].reasons[0]


def _ready(port: int) -> tuple[int, str]:
    answer = http.ask_if_there(f"http://127.0.0.1:{port}/readyz", 5)
    return answer.status, answer.text
