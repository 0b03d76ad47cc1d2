"""A leader that is cut off from the other brokers, but not from clients: its log end proves nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import pytest

from tests.support.broker_metadata import BrokerMetadata, ask_metadata
from tests.support.harness import COMMIT, Bridge, eventually
from tests.support.kafka_cluster import KafkaCluster
from txbridge.embedded import Node
from txbridge.kafka.each_broker import KeptConnections
from txbridge.kafka.proven_end import LATEST, proven_end


def told(node: Node) -> BrokerMetadata:
    return eventually(lambda: ask_metadata(node.port))


def proven(servers: str, topic: str) -> int | None:
    with closing(KeptConnections({"bootstrap.servers": servers})) as brokers:
        return proven_end(brokers, topic, 0)


@dataclass
class CutOff:
    """A cluster in which the leader of HALF's first partition is cut off, and the others have elected a new one."""

    kafka: KafkaCluster
    bridge: Bridge
    topic: str
    victim: Node
    healthy: list[Node]


@pytest.fixture
def cut_off(request: pytest.FixtureRequest) -> Iterator[CutOff]:
    config = {"broker.session.timeout.ms": "3000"}
    with (
        KafkaCluster(can_cut_off=True, config=config) as kafka,
        Bridge(kafka.bootstrap_servers, request.node.name, partitions=1) as bridge,
    ):
        topic = bridge.create_topic("real", partitions=1)
        bridge.worker()
        bridge.decide(bridge.prepare(topic, b"before"), COMMIT)
        bridge.wait_visible(topic, [b"before"])
        half = f"{bridge.names.half}/0"
        victim = kafka.brokers[told(kafka.brokers[0]).partitions[half].leader - 1]
        healthy = [node for node in kafka.brokers if node is not victim]
        kafka.cut_off(victim)
        eventually(lambda: told(healthy[0]).partitions[half].leader != victim.node_id)
        yield CutOff(kafka, bridge, topic, victim, healthy)


@pytest.mark.long
def test_p2_no_decision_is_refused_by_the_word_of_a_leader_that_is_cut_off(cut_off: CutOff) -> None:
    """The new leaders have the half message and its decision, while the worker is connected to the former ones."""
    bridge, victim = cut_off.bridge, cut_off.victim
    names, half = bridge.names, f"{bridge.names.half}/0"
    # The victim still reports itself as the leader, with its former log end.
    with closing(KeptConnections({"bootstrap.servers": victim.bootstrap_servers})) as brokers:
        assert dict(brokers.views_of(names.half, 0))[victim.node_id].leader == victim.node_id
        former_ends = brokers.offsets_of(victim.node_id, names.half, [0], LATEST)
    # Clients that do not know the former leader.
    fresh = Bridge(",".join(node.bootstrap_servers for node in cut_off.healthy), "fresh", partitions=1)
    fresh.namespace, fresh.names = bridge.namespace, bridge.names
    try:
        fresh.decide(fresh.prepare(cut_off.topic, b"after"), COMMIT)
        assert told(cut_off.healthy[0]).partitions[half].leader != victim.node_id
        for servers in (victim.bootstrap_servers, cut_off.kafka.bootstrap_servers):
            end = eventually(lambda servers=servers: proven(servers, names.half))
            assert former_ends == {0: end - 1}
        cut_off.kafka.join_again(victim)
        fresh.wait_visible(cut_off.topic, [b"before", b"after"], 120)
    finally:
        fresh.close()
    [worker] = bridge.workers
    assert worker.events("end_refused") == []
