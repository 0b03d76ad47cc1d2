"""A worker and its machine: limits of file descriptors, a wrong clock, and the environment of other programs."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path

import pytest
from faust.types.settings import Settings

from tests.support.harness import COMMIT, Bridge, WorkerProcess, eventually
from txbridge.kafka.descriptors import capacity, needed, of_a_client
from txbridge.kafka.environment import Outside

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


HOURS = 3_600_000


class WrongClock(Outside):
    """A machine whose clock is ahead by this number of hours."""

    def __init__(self, hours: int) -> None:
        self.hours = hours

    def now(self) -> int:
        return super().now() + self.hours * HOURS


def test_p7_a_worker_whose_clock_is_73_hours_ahead_discards_nothing_and_goes_on(bridge: Bridge) -> None:
    # A former worker discarded all undecided messages as EXPIRED two seconds after its take-over, without a check.
    topic = bridge.create_topic("real")
    waiting = bridge.prepare_many(topic, [b"waiting %d" % number for number in range(20)], partition=0)
    committed = bridge.prepare(topic, b"committed", partition=0)
    options = {"transaction_max_age": 72 * HOURS, "transaction_check_max": 100}
    with bridge.member() as member, bridge.local_owner(outside=WrongClock(73), **options) as local:
        bridge.decide(committed, COMMIT)
        bridge.wait_visible(topic, [b"committed"])
        # Checks follow the brokers' clock.
        eventually(lambda: all(member.checks(one) for one in waiting), 30, "not checked")
        time.sleep(2)
        counts = local.owner.partition_facts().open
        assert counts is not None
        assert counts.others == {}
        assert "ahead of that of the broker" in (local.owner.status.clock or "")
        bridge.decide_many(waiting, COMMIT)
        bridge.wait_visible(topic, [b"committed", *(b"waiting %d" % number for number in range(20))])


def test_a_worker_whose_clock_is_behind_delivers_and_says_that_it_is_behind(bridge: Bridge) -> None:
    topic = bridge.create_topic("real")
    undecided = bridge.prepare(topic, b"undecided", partition=0)
    committed = bridge.prepare(topic, b"committed", partition=0)
    with bridge.member() as member, bridge.local_owner(outside=WrongClock(-73)) as local:
        bridge.decide(committed, COMMIT)
        bridge.wait_visible(topic, [b"committed"])
        assert "behind that of the broker" in (local.owner.status.clock or "")
        time.sleep(3)
        assert member.checks(undecided) == []


def test_variables_of_other_programs_neither_stop_nor_redirect_a_worker(bridge: Bridge, tmp_path: Path) -> None:
    """Kubernetes sets WEB_PORT for a Service called web, Celery has BROKER_URL, and images carry APP_VERSION."""
    hostile = {str(param.env_name): "tcp://10.0.0.1:80" for param in Settings.SETTINGS.values() if param.env_name}
    hostile |= {
        "APP_VERSION": "1.4.2",
        "BROKER_URL": "kafka://127.0.0.1:1",
        "CONSUMER_GROUP_INSTANCE_ID": "one",
        "F_WEB_PORT": "tcp://10.0.0.1:80",
        "FAUST_BLOCKING_TIMEOUT": "soon",
        "DJANGO_SETTINGS_MODULE": "no.such.settings",
        "PROMETHEUS_MULTIPROC_DIR": "/nowhere",
        "TMPDIR": str(tmp_path),
    }
    # A file at the place that every worker of this user once used as a folder.
    (tmp_path / f"txbridge-faust-{os.getuid()}").write_text("not a folder")
    topic = bridge.create_topic("real")
    worker = bridge.worker(environment=hostile)
    bridge.decide(bridge.prepare(topic, b"value"), COMMIT)
    bridge.wait_visible(topic, [b"value"])
    assert worker.stop() == 0
    assert "Traceback" not in worker.log
    assert [event["level"] for event in worker.events("worker_started")] == ["info"]
