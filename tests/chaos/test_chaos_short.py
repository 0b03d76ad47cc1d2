"""A short `make chaos`: a cell for each kind of process with fewer transactions, and outages that a worker sits out."""

from __future__ import annotations

import time

import pytest

from tests.chaos.cells import CELLS, run_cell
from tests.chaos.door_cells import DOOR_CELLS
from tests.support.harness import COMMIT, Bridge, WorkerProcess, eventually
from txbridge.embedded import EmbeddedKafka

LONG = pytest.mark.long


@pytest.mark.parametrize(
    ("cell", "transactions"),
    [
        ("worker kill -9", 3_000),
        pytest.param("client kill -9", 5_000, marks=LONG),
        pytest.param("kafka kill -9", 5_000, marks=LONG),
    ],
)
def test_p3_p10_nothing_is_lost_doubled_or_leaked_under(cell: str, transactions: int) -> None:
    report = run_cell(cell, CELLS[cell], transactions)
    print(report)
    assert report.violations == []
    # 90 of 100 commit at once and 3 by a check. Open transactions of a dead client are rolled back.
    assert report.committed > 0.8 * transactions
    assert report.rolled_back > 0.04 * transactions
    # Two of eleven are of this kind, and 93 of 100 commit.
    assert report.several > 0.12 * transactions
    assert report.delayed > 0.12 * transactions


@pytest.mark.long
@pytest.mark.parametrize(("cell", "visits"), [("doors kill -9 in turns", 4), ("worker and kafka die behind doors", 3)])
def test_p3_p10_doors_serve_clients_that_come_and_go_while(cell: str, visits: int) -> None:
    """Every client starts and sends after a death. What it was told agrees with what readers see."""
    report = run_cell(cell, DOOR_CELLS[cell], 600)
    print(report)
    assert report.violations == []
    # Those that stay send 600 or more, and the two of each visit 100 each. 93 of 100 commit.
    assert report.committed > 0.8 * (600 + visits * 200)


#: A session shorter than the broker's restart of 2 to 3 s would test less. It outlives a restart but not the long
#: outage.
_SESSION_MS = 4_000


def _load(worker: WorkerProcess, seconds: float) -> float:
    """Share of a core that the worker uses over some seconds."""
    before, since = worker.cpu_seconds, time.monotonic()
    eventually(lambda: time.monotonic() - since > seconds)
    return (worker.cpu_seconds - before) / (time.monotonic() - since)


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
        bridge.decide(waiting, COMMIT)
        bridge.wait_visible(topic, [b"waiting"], 60)
        bridge.decide(bridge.prepare(topic, b"after"), COMMIT)
        bridge.wait_visible(topic, [b"after"])
        assert set(bridge.visible(topic).values()) == {1}
        # The worker can be stopped while Kafka is away, in bounded time.
        own_kafka.kill()
        worker.wait_logged('"kafka_unavailable"')
        assert worker.stop() is not None
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
