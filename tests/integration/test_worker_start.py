"""Workers that start while their group has no member, on a Kafka that lets the first member wait for others."""

from __future__ import annotations

from tests.support.harness import COMMIT, Bridge, eventually
from tests.support.module_fixtures import module_kafka

#: The first assignment of an empty group takes this long: far more than a take-over, even on a busy machine.
_DELAY_MS = 10_000
kafka = module_kafka(config={"group.initial.rebalance.delay.ms": str(_DELAY_MS)})


def test_p10_a_lone_worker_serves_before_its_group_has_assigned_anything(bridge: Bridge) -> None:
    topic = bridge.create_topic("real")
    first = bridge.worker(wait=0)
    bridge.deliver(topic, b"first start")
    assert not first.events("partitions_assigned")
    first.wait_logged("partitions_assigned")
    # The group confirms what it serves already.
    assert (first.owned(), len(first.events("partition_taken_over"))) == ({0, 1}, 2)
    assert first.stop() == 0
    second = bridge.worker(wait=0)
    bridge.deliver(topic, b"restart")
    assert not second.events("partitions_assigned")
    # It finishes its Kafka transactions, although it is no member yet.
    assert second.stop() == 0
    assert bridge.visible(topic) == {b"first start": 1, b"restart": 1}


def test_p3_workers_that_start_together_share_the_partitions_once_the_group_has_assigned_them(bridge: Bridge) -> None:
    topic = bridge.create_topic("real")
    both = [bridge.worker(wait=0) for _ in range(2)]
    values = [b"%d" % number for number in range(40)]
    bridge.decide_many(bridge.prepare_many(topic, values[:20]), COMMIT)
    bridge.wait_visible(topic, values[:20])
    eventually(lambda: sorted(partition for one in both for partition in one.owned()) == [0, 1], 60)
    bridge.decide_many(bridge.prepare_many(topic, values[20:]), COMMIT)
    bridge.wait_visible(topic, values)
    assert set(bridge.visible(topic).values()) == {1}
