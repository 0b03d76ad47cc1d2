"""Unclean elections: an out-of-sync replica becomes the leader, and acknowledged records are lost. Three real brokers.

In one outage all followers are away while records are written, and then the leader dies. Each namespace allows the
unclean election on one of its topics, and the last one on none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.support.broker_metadata import ask_metadata, wait_in_sync
from tests.support.harness import COMMIT, Bridge, Prepared, eventually
from tests.support.kafka_cluster import KafkaCluster
from txbridge.core.offset_topic import OffsetTopic
from txbridge.errors import EnvironmentProblemError
from txbridge.kafka.config import producer_config
from txbridge.operations import acknowledge_loss
from txbridge.operations.acknowledge_loss import acknowledge
from txbridge.operations.reading import read_offset
from txbridge.worker import partitions as worker_partitions

#: These tests need six processes of Kafka.
pytestmark = pytest.mark.long

#: Internal topics that an owner reads, by their short names.
SHORT = ("half", "end", "op", "offset")
NONE = "none"
#: Writes must succeed with one broker, so that records are lost by the election and not refused before it.
CONFIG = {"transaction.state.log.min.isr": "1", "broker.session.timeout.ms": "3000"}


@dataclass
class Damaged:
    """A namespace after the outage."""

    bridge: Bridge
    topic: str
    #: Messages that were delivered or open before the followers went away.
    before: Prepared
    open_before: Prepared
    #: Messages that were delivered or open while the followers were away.
    delivered: list[Prepared] = field(default_factory=list)


def partitions(kafka: KafkaCluster, asked: int) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Leader and in-sync replicas by "topic/number", as this broker knows them."""
    told = eventually(lambda: ask_metadata(kafka.brokers[asked - 1].port))
    return {name: (one.leader, one.in_sync) for name, one in told.partitions.items()}


@pytest.fixture(scope="module")
def damaged() -> Iterator[dict[str, Damaged]]:
    with KafkaCluster(separate_controllers=True, config=CONFIG) as kafka, ExitStack() as stack:
        found = {kind: _used(stack, kafka, kind) for kind in (*SHORT, NONE)}
        wait_in_sync(kafka)
        first, *followers = kafka.brokers
        for one in followers:
            one.kill()
        eventually(lambda: set(partitions(kafka, 1).values()) == {(1, (1,))}, 60, "the first does not lead all")
        for one in found.values():
            with one.bridge.local_owner(park_after=100):
                one.delivered = one.bridge.prepare_many(one.topic, [b"lost %d" % number for number in range(3)])
                one.bridge.decide_many(one.delivered, COMMIT)
                one.bridge.wait_visible(one.topic, [b"lost %d" % number for number in range(3)])
        first.kill()
        for one in followers:
            one.start()
        allowed = {f"{getattr(found[kind].bridge.names, kind)}/0" for kind in SHORT}
        eventually(
            lambda: {name for name, (leader, _) in partitions(kafka, 2).items() if leader in {2, 3}} == allowed,
            60,
            lambda: f"not exactly {allowed} have a leader: {partitions(kafka, 2)}",
        )
        first.start()
        wait_in_sync(kafka)
        # Kafka refuses the old client, which has numbered the lost records. A new one notices nothing.
        for one in found.values():
            one.bridge._producer = Producer(producer_config({"bootstrap.servers": one.bridge.bootstrap_servers}))
        yield found


def _used(stack: ExitStack, kafka: KafkaCluster, kind: str) -> Damaged:
    bridge = stack.enter_context(Bridge(kafka.bootstrap_servers, f"unclean {kind}", partitions=1))
    topic = bridge.create_topic("real", partitions=1, min_insync_replicas="1")
    names = bridge.names
    for name in (names.half, names.end, names.op, names.offset):
        bridge.alter_topic(name, min_insync_replicas="1")
    if kind != NONE:
        bridge.alter_topic(getattr(names, kind), unclean_leader_election_enable="true")
    with bridge.local_owner(park_after=100):
        before = bridge.prepare(topic, b"before")
        bridge.decide(before, COMMIT)
        bridge.wait_visible(topic, [b"before"])
        open_before = bridge.prepare(topic, b"open")
        eventually(lambda: bridge.parked_states(0) == ["pending"])
    return Damaged(bridge, topic, before, open_before)


def as_a_former_leader(*question: Any) -> tuple[OffsetTopic, list[str]]:
    """Read OFFSET as from a broker without its last record."""
    offset_topic, warnings = read_offset(*question)
    offset_topic.position -= 1
    return offset_topic, warnings


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ("half", "holds another record at offset"),
        ("end", "holds another record at offset"),
        ("op", "the log was cut"),
        ("offset", "[0] has lost its last records"),
    ],
)
def test_p2_p3_what_was_lost_is_noticed_and_what_was_decided_since_is_applied(
    damaged: dict[str, Damaged], monkeypatch: pytest.MonkeyPatch, lost: str, said: str
) -> None:
    monkeypatch.setattr(worker_partitions, "REFUSED_RETRY_S", 0.5)
    one = damaged[lost]
    bridge = one.bridge
    if lost == "half":
        others = bridge.prepare_many(one.topic, [b"other %d" % number for number in range(5)])
        assert others[0].offset == one.delivered[0].offset
    if lost == "end":
        for _ in range(3):
            bridge.decide(one.open_before, COMMIT)
    refused = bridge.local_owner()
    refused.wait_error(f"{getattr(bridge.names, lost)}[0]", said)
    # Nothing but the topic itself, restored, brings back what only OFFSET had.
    if lost != "offset":
        refused.wait_error("txbridge acknowledge 0")
        with monkeypatch.context() as patch:
            patch.setattr(acknowledge_loss, "read_offset", as_a_former_leader)
            with pytest.raises(EnvironmentProblemError, match="nothing was written, run the command again"):
                acknowledge(bridge.connection(), 0, reason="power loss", operator="ann")
        assert "cut" not in bridge.checkpoint(0)
        assert acknowledge(bridge.connection(), 0, reason="power loss", operator="ann").is_written
        refused.wait_serving()
        if lost != "end":
            bridge.decide(one.open_before, COMMIT)
        bridge.wait_visible(one.topic, [b"open"])
    assert set(bridge.visible(one.topic).values()) == {1}
    refused.stop()


def test_p2_without_unclean_elections_nothing_is_lost(damaged: dict[str, Damaged]) -> None:
    one = damaged[NONE]
    with one.bridge.local_owner():
        one.bridge.decide(one.open_before, COMMIT)
        values = [b"before", b"open", *(b"lost %d" % number for number in range(3))]
        one.bridge.wait_visible(one.topic, values)
        assert set(one.bridge.visible(one.topic).values()) == {1}
