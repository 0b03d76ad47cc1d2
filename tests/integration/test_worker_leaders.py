"""Brokers that lead no more, are cut off or frozen: records they lack are not taken for absent, and others go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass

import pytest
from confluent_kafka import Message
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.broker_metadata import BrokerMetadata, ask_metadata, wait_in_sync
from tests.support.harness import COMMIT, Bridge, eventually, quiet
from tests.support.kafka_cluster import KafkaCluster
from txbridge.embedded import EmbeddedKafka, Node
from txbridge.kafka.each_broker import KeptConnections
from txbridge.kafka.log_ends import LogEnds
from txbridge.kafka.partition_reader import PartitionReader
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


class FormerLeader:
    """Answers readers of one topic, in this process, with the records from before it lost its leadership."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, topic: str) -> None:
        self.end: int | None = None
        self.asked = 0
        poll: Callable[[PartitionReader, int, float], list[Message]] = PartitionReader.poll
        ask_end: Callable[[LogEnds, str, int], int] = LogEnds._ask_end

        def stale_poll(reader: PartitionReader, limit: int, timeout: float) -> list[Message]:
            end = self.end
            if end is None or reader.topic != topic:
                return poll(reader, limit, timeout)
            if reader.position >= end:
                time.sleep(timeout)
                return []
            found = [message for message in poll(reader, limit, timeout) if (message.offset() or 0) < end]
            if reader.position > end:
                reader.start(end)
            return found

        def stale_end(ends: LogEnds, asked_topic: str, partition: int) -> int:
            end = ask_end(ends, asked_topic, partition)
            if self.end is not None and asked_topic == topic:
                self.asked += 1
                return min(end, self.end)
            return end

        monkeypatch.setattr(PartitionReader, "poll", stale_poll)
        monkeypatch.setattr(LogEnds, "_ask_end", stale_end)


def test_p2_a_decision_waits_while_a_former_leader_of_half_does_not_know_its_message(
    bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = bridge.create_topic("real")
    former = FormerLeader(monkeypatch, bridge.names.half)
    with bridge.local_owner():
        bridge.deliver(topic, b"before")
        former.end = bridge.bounds(bridge.names.half, 0)[1]
        prepared = bridge.prepare(topic, b"acknowledged", partition=0)
        bridge.decide(prepared, COMMIT)
        eventually(lambda: former.asked >= 3, 20, "nobody asked where HALF ends")
        former.end = None
        bridge.wait_visible(topic, [b"acknowledged"])


def test_p8_what_is_not_in_half_is_refused_in_the_end_and_stops_nobody_for_long(bridge: Bridge) -> None:
    topic = bridge.create_topic("real")
    with bridge.local_owner():
        first = bridge.prepare(topic, b"first", partition=0)
        bridge.decide(first, COMMIT)
        for number in range(20):
            bridge.end([f"{10**12 + number},{'F' * 32},8"], 0)
        bridge.decide(bridge.prepare(topic, b"second", partition=0), COMMIT)
        bridge.wait_visible(topic, [b"first", b"second"], 20)
        # Many unknown half messages wait together. They do not delay the decisions between them once each.
        started = time.monotonic()
        for number in range(10):
            bridge.end([f"{10**12 + number},{'F' * 32},8"], 0)
            bridge.decide(bridge.prepare(topic, b"%d" % number, partition=0), COMMIT)
        bridge.wait_visible(topic, [b"%d" % number for number in range(10)], 40)
        assert time.monotonic() - started < 60


@pytest.mark.parametrize("short", ["offset", "op"])
def test_p3_a_take_over_that_a_former_leader_answers_writes_nothing(
    bridge: Bridge, monkeypatch: pytest.MonkeyPatch, short: str
) -> None:
    topic = bridge.create_topic("real")
    with bridge.local_owner(park_after=600_000):
        undecided = bridge.prepare(topic, b"undecided", partition=0)
        early = {name: bridge.bounds(getattr(bridge.names, name), 0)[1] for name in ("offset", "op")}
        prepared = bridge.prepare_many(topic, [b"%d" % number for number in range(5)], partition=0)
        bridge.decide_many(prepared, COMMIT)
        bridge.wait_visible(topic, [b"%d" % number for number in range(5)])
    checkpoint = bridge.checkpoint(0)
    former = FormerLeader(monkeypatch, getattr(bridge.names, short))
    former.end = early[short]
    owner = bridge.local_owner(park_after=600_000)
    time.sleep(4)
    assert not owner.owner.status.serving
    assert bridge.checkpoint(0) == checkpoint
    former.end = None
    owner.wait_serving(60)
    bridge.decide(undecided, COMMIT)
    bridge.wait_visible(topic, [b"undecided"])
    assert set(bridge.visible(topic).values()) == {1}
    owner.stop()


#: Partitions by their brokers. The first one leads.
REPLICAS = [[1, 2, 3], [2, 3, 1], [3, 1, 2]] * 2
LED_BY = [first for first, *_ in REPLICAS]


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedKafka]:
    # Long: the frozen broker leads until the end.
    with KafkaCluster(config={"broker.session.timeout.ms": "60000"}) as cluster:
        admin = AdminClient(quiet(cluster.bootstrap_servers))
        admin.create_topics([NewTopic("half", 6, replica_assignment=REPLICAS)])["half"].result(120)
        wait_in_sync(cluster)
        yield cluster


@pytest.mark.parametrize("is_connected", [True, False], ids=["connected", "not connected yet"])
def test_p8_where_other_logs_end_is_learnt_while_a_broker_is_frozen(kafka: EmbeddedKafka, is_connected: bool) -> None:
    victim = kafka.brokers[0]
    with closing(KeptConnections({"bootstrap.servers": kafka.bootstrap_servers})) as brokers:
        ends = LogEnds(brokers)
        questions = [lambda n: ends.bounds("half", n), lambda n: ends.end_from("half", n, 0)]
        if is_connected:
            assert [ends.bounds("half", number) for number in range(6)] == [(0, 0)] * 6
            questions.append(lambda n: proven_end(brokers, "half", n))
        victim.pause()
        try:
            with ThreadPoolExecutor(20) as threads:
                asked = [(LED_BY[n], threads.submit(ask, n)) for ask in questions for n in [0, 3, 1, 2, 4, 5]]
                others = [answer for leader, answer in asked if leader != victim.node_id]
                wait(others, 60)
                assert {answer.result(0) for answer in others} <= {0, (0, 0)}
                assert not any(answer.done() for leader, answer in asked if leader == victim.node_id)
        finally:
            victim.resume()
