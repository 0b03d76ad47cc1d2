"""File descriptors of a worker: it raises its soft limit, and where the hard limit is too low it says so."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path

import pytest

from tests.support.harness import COMMIT, Bridge, WorkerProcess, eventually
from txbridge.kafka.descriptors import capacity, needed, of_a_client

PARTITIONS = 32
#: The soft limit of most systems.
USUAL = 1_024


@pytest.fixture
def wide(bridge: Bridge) -> Iterator[Bridge]:
    """A namespace with many partitions, and a half message in each."""
    with Bridge(bridge.bootstrap_servers, "wide", partitions=PARTITIONS) as wide:
        yield wide


def _limited(bridge: Bridge, soft: int, hard: int) -> WorkerProcess:
    worker = bridge.worker(wait=0)
    # Python alone takes longer to start than this call.
    resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (soft, hard))
    return worker


def _descriptors(worker: WorkerProcess) -> int:
    return len(list(Path(f"/proc/{worker.pid}/fd").iterdir()))


def _without_slot(worker: WorkerProcess) -> list[int]:
    """Partitions that wait for a slot now. On a busy machine a take-over may fail, and give its slot to another one."""
    events = worker.events("no_slot") + worker.events("partition_taken_over")
    last = {event["partition"]: event["event"] for event in sorted(events, key=itemgetter("timestamp"))}
    return [partition for partition, event in last.items() if event == "no_slot"]


def test_a_worker_raises_the_usual_soft_limit_and_takes_over_every_partition(wide: Bridge) -> None:
    topic = wide.create_topic("real")
    values = [b"%d" % partition for partition in range(PARTITIONS)]
    for partition, value in enumerate(values):
        wide.decide(wide.prepare(topic, value, partition=partition), COMMIT)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    worker = _limited(wide, USUAL, hard)
    worker.wait_serving(PARTITIONS, 120)
    wide.wait_visible(topic, values)
    assert USUAL < resource.prlimit(worker.pid, resource.RLIMIT_NOFILE)[0] == needed(PARTITIONS, 1)
    assert _descriptors(worker) <= needed(PARTITIONS, 1)
    assert worker.events("few_file_descriptors") == []
    # The transactional producer and the reader of HALF are left, and what the process itself has.
    eventually(lambda: _descriptors(worker) <= needed(0, 1) + 2 * PARTITIONS * of_a_client(1))


def test_a_worker_with_a_low_hard_limit_serves_what_it_can_and_says_what_it_needs(wide: Bridge) -> None:
    worker = _limited(wide, USUAL, USUAL)
    serves = capacity(USUAL, 1)
    assert serves == 29
    worker.wait_serving(serves, 120)
    [warning] = worker.events("few_file_descriptors")
    assert warning["note"] == (
        "this process may have 1024 file descriptors open, enough for 29 of 32 partitions: raise its hard limit "
        "(ulimit -Hn, LimitNOFILE) to 1120, or start more workers"
    )
    eventually(lambda: len(_without_slot(worker)) == PARTITIONS - serves)
    assert {event["error"] for event in worker.events("no_slot")} == {warning["note"]}
    # Nobody has to act when a partition only waits for its turn.
    assert worker.events("refused") == []
    assert "Too many open files" not in worker.log
    assert _descriptors(worker) < USUAL
    # The others are served as soon as there is room for them.
    other = wide.worker(wait=0)
    eventually(lambda: len(other.owned()) == PARTITIONS / 2, 60)
    other.wait_serving(PARTITIONS // 2, 120)
