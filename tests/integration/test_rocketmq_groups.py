"""The front door by raw frames, on a real Kafka: groups that several doors share, and a leader that is silent."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from txbridge_rocketmq.outlet import Outlet

from tests.support.harness import Bridge, eventually, quiet
from tests.support.module_fixtures import module_bridge
from tests.support.rocketmq_door import Door, RawClient, answer_fields, heartbeat, send_fields, topic_of
from tests.support.second_broker import FIRST, SECOND, SecondBroker
from txbridge.client.kafka.connection import KafkaConnection
from txbridge.embedded import EmbeddedKafka

COMMIT = 8
SEND, HEARTBEAT, END = 310, 34, 37
bridge = module_bridge("groups", transaction_check_max=100)


def prepare(door: Door, group: str, topic: str) -> None:
    """Send a half message by a producer that has sent no heartbeat, and is gone."""
    with RawClient(door) as client:
        fields = send_fields(group, topic, TRAN_MSG="true", UNIQ_KEY=group)
        assert client.ask(SEND, fields, group.encode())[0]["code"] == 0


def commit_when_asked(door: Door, group: str) -> None:
    """Connect a producer that sends nothing but its heartbeat, and commit what the door asks about."""
    with RawClient(door) as client:
        assert client.ask(HEARTBEAT, {}, heartbeat(group))[0]["code"] == 0
        check, _ = client.next_check()
        assert check["extFields"]["transactionId"] == group
        assert client.ask(END, answer_fields(group, check, COMMIT))[0]["code"] == 0


def test_p6_who_prepares_before_the_first_heartbeat_is_asked_by_any_door(bridge: Bridge) -> None:
    """The door is killed at once. A group that only its process knew was never asked."""
    topic = topic_of(bridge, "restarted")
    with Door(bridge) as door:
        prepare(door, "restarted", topic)
        door.kill()
    with Door(bridge) as again, Door(bridge) as other:
        commit_when_asked(again, "restarted")
        bridge.wait_visible(topic, [b"restarted"])
        # The first one lives, and nothing connects it with the producer any more.
        prepare(again, "moved", topic)
        commit_when_asked(other, "moved")
        bridge.wait_visible(topic, [b"restarted", b"moved"])


def test_a_door_makes_a_bounded_number_of_check_topics_and_refuses_no_message(bridge: Bridge) -> None:
    """Clients without a key may send any group."""
    topic, groups = topic_of(bridge, "bounded"), [f"bounded-{number}" for number in range(5)]
    with Door(bridge, "--max-groups=2") as door:
        for group in groups:
            prepare(door, group, topic)
        found = bridge.admin.list_topics(timeout=60).topics
        assert [group for group in groups if bridge.names.check(group) in found] == groups[:2]
        # A producer that connects to this door is asked all the same.
        commit_when_asked(door, groups[-1])
        eventually(lambda: bridge.visible(topic), 30)
        assert len(door.events("too_many_groups")) == 1


TOPIC, MANY = "led-by-two", 40


@pytest.fixture(scope="module")
def second() -> Iterator[SecondBroker]:
    """The leader of partition 1, beside one that leads partition 0."""
    with EmbeddedKafka() as first, SecondBroker(first) as second:
        topic = NewTopic(TOPIC, 2, replica_assignment=[[FIRST], [SECOND]])
        admin = AdminClient(quiet(first.bootstrap_servers))
        admin.create_topics([topic])[TOPIC].result(120)
        yield second


@pytest.mark.long
async def test_a_leader_that_is_away_holds_up_no_other_partition_and_its_records_keep_their_order(
    second: SecondBroker,
) -> None:
    settings = {"bootstrap.servers": second.bootstrap_servers, "enable.idempotence": True, "linger.ms": 0.5}
    outlet = Outlet(settings, KafkaConnection(second.bootstrap_servers), "messages")
    await asyncio.to_thread(outlet.start, asyncio.get_running_loop(), TOPIC)
    try:
        async with asyncio.timeout(120):
            await asyncio.gather(*send_many(outlet, 1))
            os.kill(second.pid, signal.SIGSTOP)
            waiting = send_many(outlet, 1)
            for already in (0, MANY):
                stored = await asyncio.gather(*send_many(outlet, 0))
                assert stored == [(None, 0, already + number) for number in range(MANY)]
            assert not any(answer.done() for answer in waiting)
            os.kill(second.pid, signal.SIGCONT)
            assert await asyncio.gather(*waiting) == [(None, 1, MANY + number) for number in range(MANY)]
    finally:
        await asyncio.to_thread(outlet.close)


async def test_a_record_that_is_alone_waits_for_no_other_and_many_keep_their_order(kafka: EmbeddedKafka) -> None:
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "enable.idempotence": True, "linger.ms": 2_000}
    admin = AdminClient(quiet(kafka.bootstrap_servers))
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(120)
    outlet = Outlet(settings, KafkaConnection(kafka.bootstrap_servers), "messages")
    await asyncio.to_thread(outlet.start, asyncio.get_running_loop(), TOPIC)
    try:
        async with asyncio.timeout(2):
            alone = [await outlet.send_record(TOPIC, b"x", None, [], partition=0) for _ in range(5)]
        async with asyncio.timeout(120):
            stored = [*alone, *await asyncio.gather(*send_many(outlet, 0))]
    finally:
        await asyncio.to_thread(outlet.close)
    assert stored == [(None, 0, offset) for offset in range(5 + MANY)]


def send_many(outlet: Outlet, partition: int) -> list[asyncio.Future[Any]]:
    return [outlet.send_record(TOPIC, b"%d" % number, None, [], partition=partition) for number in range(MANY)]
