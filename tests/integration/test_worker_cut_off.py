"""A leader that is cut off from the other brokers, and not from clients: its word for the log proves nothing."""

from __future__ import annotations

import pytest

from tests.support.harness import COMMIT, Bridge, eventually
from txbridge.embedded import EmbeddedKafka, Node
from txbridge.embedded.metadata import Metadata, ask

PARTITIONS = 4


def told(node: Node) -> Metadata:
    return eventually(lambda: ask(int(node.bootstrap_servers.rpartition(":")[2])))


@pytest.mark.long
def test_p2_p8_a_decision_is_applied_while_the_former_leader_is_cut_off(request: pytest.FixtureRequest) -> None:
    """Half messages and decisions are stored by the new leaders; the worker is connected to the former ones."""
    config = {"broker.session.timeout.ms": "3000"}
    with (
        EmbeddedKafka(brokers=3, can_cut_off=True, config=config) as kafka,
        Bridge(kafka.bootstrap_servers, request.node.name, partitions=PARTITIONS) as bridge,
    ):
        topic = bridge.create_topic("real", partitions=PARTITIONS)
        worker = bridge.worker()
        bridge.decide(bridge.prepare(topic, b"before"), COMMIT)
        bridge.wait_visible(topic, [b"before"])
        first_half = f"{bridge.names.half}/0"
        victim = kafka.brokers[told(kafka.brokers[0]).partitions[first_half].leader - 1]
        healthy = [node for node in kafka.brokers if node is not victim]
        victim.cut_off()
        eventually(lambda: told(healthy[0]).partitions[first_half].leader != victim.node_id)
        # Clients that have never heard of the former leader.
        fresh = Bridge(",".join(node.bootstrap_servers for node in healthy), "fresh", partitions=PARTITIONS)
        fresh.namespace, fresh.names = bridge.namespace, bridge.names
        values = [b"%d" % number for number in range(PARTITIONS)]
        for number, value in enumerate(values):
            fresh.decide(fresh.prepare(topic, value, partition=number), COMMIT)
        try:
            fresh.wait_visible(topic, values, 15)
        finally:
            refused = worker.events("end_refused")
            victim.join_again()
            fresh.close()
        assert refused == []
