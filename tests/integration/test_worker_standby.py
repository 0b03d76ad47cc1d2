"""Members of the workers' group without a partition, and members that Faust or aiokafka serves no more.

A worker that leaves its group joins it again, or says so and ends. Otherwise nobody takes over when an owner dies.
"""

from __future__ import annotations

import time

import pytest

from tests.support import http
from tests.support.failing_worker import FAULTS, SHORT_POLL_INTERVAL_S
from tests.support.harness import COMMIT, Bridge, eventually
from txbridge.embedded.ports import free_port


def _members(bridge: Bridge) -> int:
    group = bridge.names.worker_group
    return len(bridge.admin.describe_consumer_groups([group])[group].result(120).members)


def test_p10_a_member_without_a_partition_stays_one_and_takes_over(bridge: Bridge) -> None:
    """aiokafka ends the membership of a consumer that fetches nothing, and such a member has nothing to fetch."""
    topic = bridge.create_topic("real")
    workers = [bridge.worker(wait=0, failing="short-poll-interval") for _ in range(bridge.partitions + 2)]
    eventually(lambda: _members(bridge) == len(workers), 60)
    eventually(lambda: set().union(*(worker.owned() for worker in workers)) == set(range(bridge.partitions)), 60)
    # The time of three intervals is the condition here: nothing else tells that it has passed.
    until = time.monotonic() + 3 * SHORT_POLL_INTERVAL_S
    eventually(lambda: time.monotonic() > until)
    assert _members(bridge) == len(workers)
    for worker in [worker for worker in workers if worker.owned()]:
        worker.kill()
    values = [b"%d" % number for number in range(20)]
    bridge.decide_many(bridge.prepare_many(topic, values), COMMIT)
    bridge.wait_visible(topic, values)


@pytest.mark.parametrize(
    "fault",
    [
        "coordination-ends",
        *(
            pytest.param(fault, marks=pytest.mark.long)
            for fault in sorted(FAULTS.keys() - {"coordination-ends", "short-poll-interval"})
        ),
    ],
)
def test_p10_a_worker_whose_faust_fails_joins_again_or_ends_with_a_word(bridge: Bridge, fault: str) -> None:
    topic = bridge.create_topic("real")
    failing = bridge.worker(failing=fault, metrics_port=free_port())
    failing.fail()
    # A rebalance needs every part of a member.
    other = bridge.worker(wait=0)
    eventually(lambda: len(failing.owned()) == 1 or failing.returncode is not None, 60)
    other.kill()
    values = [b"%d" % partition for partition in range(bridge.partitions)]
    for partition, value in enumerate(values):
        bridge.decide(bridge.prepare(topic, value, partition=partition), COMMIT)
    eventually(lambda: set(bridge.visible(topic)) == set(values) or failing.returncode is not None, 60)
    if failing.returncode is None:
        eventually(lambda: failing.owned() == {0, 1}, 20, lambda: failing.log[-5000:])
        assert http.ask(f"http://127.0.0.1:{failing.events('metrics_served')[0]['port']}/livez", 5)[0] == 200
    else:
        assert failing.returncode == 1
        assert [event["level"] for event in failing.events("worker_hangs")] == ["error"]
