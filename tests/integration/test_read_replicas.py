"""Workers and clients with `client.rack`, on brokers that let them read from the replica in their rack."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.broker_metadata import BrokerMetadata, ask_metadata, wait_in_sync
from tests.support.harness import COMMIT, ROLLBACK, Bridge, eventually
from tests.support.listeners import UNKNOWN, Answers
from tests.support.module_fixtures import module_kafka
from txbridge import Message, PrepareError, TransactionProducer
from txbridge.embedded import EmbeddedKafka, Node
from txbridge.kafka.config import librdkafka_logger

#: Three brokers for these tests alone.
pytestmark = pytest.mark.long

#: Kafka's default sessions: with shorter ones a busy machine moves leaderships to the broker that must only follow.
CONFIG = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}
#: Short, but above Kafka's heartbeats of 3 s.
SESSION_MS = 6_000


@dataclass
class Replicas:
    """A namespace with leaders on other brokers than the one that is read from."""

    kafka: EmbeddedKafka
    bridge: Bridge
    topic: str
    #: Broker in the rack of the readers. It leads no partition.
    follower: Node

    @property
    def rack(self) -> str:
        return f"rack-{self.follower.node_id}"


def told(node: Node) -> BrokerMetadata:
    metadata: BrokerMetadata = eventually(lambda: ask_metadata(node.port))
    return metadata


kafka = module_kafka(brokers=3, config=CONFIG)


@pytest.fixture
def replicas(kafka: EmbeddedKafka, request: pytest.FixtureRequest) -> Iterator[Replicas]:
    with Bridge(kafka.bootstrap_servers, request.node.name, partitions=1) as bridge:
        topic = bridge.create_topic("real", partitions=1)
        follower = kafka.brokers[1]
        # A broker that restarts hands its leaderships over, and gets them back only after minutes.
        follower.restart()
        wait_in_sync(kafka)
        leaders = told(kafka.brokers[0]).partitions
        ours = {name: one.leader for name, one in leaders.items() if name.startswith(bridge.namespace)}
        assert follower.node_id not in ours.values(), ours
        yield Replicas(kafka, bridge, topic, follower)


def read_from(lines: list[str], broker: int) -> set[str]:
    """Topics that librdkafka fetches from this follower, according to its debug log."""
    moved = re.compile(rf"Topic (\S+) \[0\]: migrating from broker \d+ to {broker} .*preferred replica updated")
    return {found[1] for line in lines if (found := moved.search(line))}


def test_p2_p3_an_owner_reads_from_the_follower_and_is_right(
    replicas: Replicas, caplog: pytest.LogCaptureFixture
) -> None:
    """The follower may not have the latest records of the former owner at a take-over."""
    bridge, names = replicas.bridge, replicas.bridge.names
    kafka = {"client.rack": replicas.rack, "debug": "topic"}
    values = [b"%d" % number for number in range(400)]
    with caplog.at_level(logging.DEBUG, librdkafka_logger().name):
        for round_ in range(4):
            part = values[round_ * 100 : (round_ + 1) * 100]
            with bridge.local_owner(kafka=kafka):
                prepared = bridge.prepare_many(replicas.topic, part)
                bridge.decide_many(prepared[:50], COMMIT)
                # The decisions follow at once, so that the follower may have a decision before its half message.
                bridge.decide_many(prepared[50:], ROLLBACK)
                bridge.wait_visible(replicas.topic, part[:50])
        bridge.local_owner(kafka=kafka).wait_serving().stop()
    committed = [value for number, value in enumerate(values) if number % 100 < 50]
    assert bridge.visible(replicas.topic) == dict.fromkeys(committed, 1)
    eventually(lambda: len(bridge.outcomes()) == len(values))
    assert all(len(outcomes) == 1 for outcomes in bridge.outcomes().values())
    # Nothing was discarded, and no record was taken for malformed or a copy.
    assert bridge.discarded() == []
    lines = [record.getMessage() for record in caplog.records]
    assert read_from(lines, replicas.follower.node_id) >= {names.half, names.end, names.op, names.offset}


def of_the_others(replicas: Replicas) -> Bridge:
    """The same namespace through the other brokers, so that the test's own clients do not depend on the follower."""
    bridge = replicas.bridge
    others = (node.bootstrap_servers for node in replicas.kafka.brokers if node is not replicas.follower)
    same = Bridge(",".join(others), bridge.test)
    same.namespace, same.names = bridge.namespace, bridge.names
    return same


@pytest.mark.parametrize(("away", "back"), [("kill", "start"), ("pause", "resume")])
def test_p2_p10_the_follower_goes_away(replicas: Replicas, away: str, back: str) -> None:
    """With a dead or silent follower the worker that reads from it goes on, and so does its successor."""
    bridge, topic = replicas.bridge, replicas.topic
    options: dict[str, Any] = {
        "kafka": f"client.rack={replicas.rack}",
        "session_timeout": SESSION_MS,
        "commit_timeout": 5_000,
    }
    first = bridge.worker(**options)
    bridge.decide(bridge.prepare(topic, b"before"), COMMIT)
    bridge.wait_visible(topic, [b"before"])
    open_before = bridge.prepare(topic, b"open")
    others = of_the_others(replicas)
    getattr(replicas.follower, away)()
    try:
        others.decide(others.prepare(topic, b"meanwhile"), COMMIT)
        others.wait_visible(topic, [b"before", b"meanwhile"])
        first.kill()
        second = bridge.worker(**options)
        others.decide(open_before, COMMIT)
        others.wait_visible(topic, [b"before", b"meanwhile", b"open"])
    finally:
        getattr(replicas.follower, back)()
        wait_in_sync(replicas.kafka)
        others.close()
    bridge.decide(bridge.prepare(topic, b"after"), COMMIT)
    bridge.wait_visible(topic, [b"after"])
    assert bridge.visible(topic) == dict.fromkeys((b"before", b"meanwhile", b"open", b"after"), 1)
    assert [*first.events("end_refused"), *second.events("end_refused")] == []
    assert bridge.discarded() == []


@pytest.mark.parametrize(("away", "back"), [("kill", "start"), ("pause", "resume")])
def test_p8_a_client_reads_its_checks_from_the_follower_and_goes_on_without_it(
    replicas: Replicas, caplog: pytest.LogCaptureFixture, away: str, back: str
) -> None:
    bridge, topic, follower = replicas.bridge, replicas.topic, replicas.follower
    check = f"{bridge.names.check('orders')}/0"
    # Many checks are allowed, because the test is about the way of a check, not about their number.
    bridge.worker(session_timeout=SESSION_MS, commit_timeout=5_000, transaction_check_max=100)
    settings = {
        "bootstrap.servers": bridge.bootstrap_servers,
        "client.rack": replicas.rack,
        "session.timeout.ms": SESSION_MS,
        "debug": "topic",
    }
    with (
        caplog.at_level(logging.DEBUG, librdkafka_logger().name),
        TransactionProducer("orders", Answers(UNKNOWN), settings, namespace=bridge.namespace) as producer,
    ):

        def send(value: bytes) -> None:
            producer.send_message_in_transaction(Message(topic, value))

        send(b"first")
        bridge.wait_visible(topic, [b"first"])
        # The check topic was created when the client started, and any broker may lead it.
        follower.restart()
        wait_in_sync(replicas.kafka)
        assert told(replicas.kafka.brokers[0]).partitions[check].leader != follower.node_id
        send(b"second")
        bridge.wait_visible(topic, [b"second"])
        eventually(
            lambda: (
                bridge.names.check("orders")
                in read_from([record.getMessage() for record in caplog.records], follower.node_id)
            )
        )
        others = of_the_others(replicas)
        getattr(follower, away)()
        try:
            eventually(lambda: sends(send, b"third"), 60)
            others.wait_visible(topic, [b"third"])
        finally:
            getattr(follower, back)()
            wait_in_sync(replicas.kafka)
            others.close()
        send(b"fourth")
        bridge.wait_visible(topic, [b"fourth"])
    values = bridge.visible(topic)
    # A prepare that failed may be stored nevertheless; its client rolls it back.
    assert values == dict.fromkeys((b"first", b"second", b"third", b"fourth"), 1)
    assert bridge.discarded() == []


def sends(send: Callable[[bytes], None], value: bytes) -> bool:
    """Whether a send succeeds, because enough replicas are in sync again."""
    try:
        send(value)
    except PrepareError:
        return False
    return True
