"""Much that is well formed, by hand, at a front door with a real Kafka: it costs nobody else anything, and passes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from txbridge_rocketmq.topics import look_up

from tests.support.harness import Bridge, at_this_load, eventually, quiet
from tests.support.module_fixtures import module_bridge
from tests.support.rocketmq_door import Door, RawClient, end_fields, frame, send_fields, topic_of
from txbridge.embedded import EmbeddedKafka
from txbridge.embedded.ports import free_port
from txbridge.kafka.admin import KafkaCluster

COMMIT = 8
SEND, HEARTBEAT, END, ROUTE = 310, 34, 37, 105
TOPIC_NOT_EXIST = 17
#: A SEND takes milliseconds, and a client waits for three seconds (s).
ANSWERED_S = 8.0
#: The page promises the end within this time after SIGTERM (s).
END_S = 20.0
bridge = module_bridge("much", transaction_check_max=100)


@pytest.fixture
def door(bridge: Bridge) -> Iterator[Door]:
    with Door(bridge, metrics_port=free_port()) as made:
        yield made


def heartbeat(groups: Sequence[str]) -> bytes:
    body = {"clientID": "many", "producerDataSet": [{"groupName": one} for one in groups], "consumerDataSet": []}
    return json.dumps(body).encode()


def made_up(count: int, kind: str) -> list[str]:
    return [f"{kind}-0b7b8f4e-5b4c-4c5e-9d64-{number:012}" for number in range(count)]


def memory_of(door: Door) -> int:
    """Resident memory of the door's process, in MiB."""
    with Path(f"/proc/{door.pid}/status").open() as status:
        return next(int(line.split()[1]) // 1024 for line in status if line.startswith("VmRSS"))


def send_in_time(door: Door, topic: str, uniq_key: str) -> None:
    """A producer that has just connected sends a transaction, and is answered in time."""
    began = time.monotonic()
    with RawClient(door) as client:
        sent, _ = client.ask(SEND, send_fields("orders", topic, TRAN_MSG="true", UNIQ_KEY=uniq_key), b"body")
        assert client.ask(END, end_fields("orders", sent, COMMIT))[0]["code"] == 0
    assert time.monotonic() - began < at_this_load(ANSWERED_S)


def test_look_ups_leave_no_name_in_librdkafka(bridge: Bridge) -> None:
    """Names that stay make each later request slower: 0.1 s each after some thousands."""
    seen: list[dict[str, Any]] = []

    def admin() -> AdminClient:
        take = lambda text: seen.append(json.loads(text))  # noqa: E731
        return AdminClient({**quiet(bridge.bootstrap_servers), "statistics.interval.ms": 50, "stats_cb": take})

    def kept(client: AdminClient) -> tuple[int, int]:
        seen.clear()
        eventually(lambda: client.poll(0.1) or len(seen) > 1, 20)
        return len(seen[-1]["topics"]), seen[-1]["metadata_cache_cnt"]

    client, there = admin(), topic_of(bridge, "real")
    assert look_up(KafkaCluster(lambda: client), [there, *made_up(99, "name")])[there] == 4
    # What it tells first may be older than the answer.
    eventually(lambda: kept(client) in {(0, 0), (0, 1)})
    other = admin()
    other.list_topics("missing", 60)
    assert kept(other)[0] == 1


def test_thousands_of_groups_without_transactions_stop_nobody_and_leave_nothing(bridge: Bridge, door: Door) -> None:
    """A fleet that connects again after a restart, with a made-up group in each of its producers."""
    first, second = topic_of(bridge, "before"), topic_of(bridge, "after")
    send_in_time(door, first, "first")
    before, groups = memory_of(door), made_up(20_000, "plain")
    with contextlib.ExitStack() as stack:
        for start in range(0, len(groups), 100):
            client = stack.enter_context(RawClient(door))
            client.send(frame(HEARTBEAT, {}, heartbeat(groups[start : start + 100])))
        # This topic is not known to the door yet, and its group has a check topic.
        send_in_time(door, second, "second")
        with RawClient(door) as client:
            client.ask(HEARTBEAT, {}, heartbeat(["orders"]))
            eventually(lambda: door.metrics()["groups"] == 1, 20)
            eventually(lambda: door.metrics()["requests_total{request=HEART_BEAT,response=SUCCESS}"] == 201, 60)
    eventually(lambda: door.metrics()["connections"] == 0, 60)
    assert memory_of(door) - before < 64
    assert door.events("kafka_connection_lost") == []


@pytest.mark.parametrize(
    ("connections", "hosts", "sent"),
    [(60, 1, 0), (60, 1, 1024 * 1024), (300, 3, 1024 * 1024)],
    ids=["little", "a part of them", "a part of them, by several hosts"],
)
def test_announced_bytes_stop_nobody(bridge: Bridge, door: Door, connections: int, hosts: int, sent: int) -> None:
    """Many connections announce frames of 16 MiB, and never send all of them."""
    topic = topic_of(bridge, f"announced-{hosts}-{sent}")
    with contextlib.ExitStack() as stack:
        for number in range(connections):
            client = stack.enter_context(RawClient(door, source=f"127.0.0.{2 + number % hosts}"))
            client.socket.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                client.send((16 * 1024 * 1024 - 4).to_bytes(4, "big") + b"x" * sent)
        for number in range(5):
            send_in_time(door, topic, f"small-{number}")
        with RawClient(door) as client:
            fields = send_fields("orders", topic, UNIQ_KEY="large")
            for _ in range(5):
                began = time.monotonic()
                assert client.ask(SEND, fields, b"x" * 900_000)[0]["code"] == 0
                assert time.monotonic() - began < at_this_load(ANSWERED_S)
        assert memory_of(door) < 400


def test_a_door_ends_in_time_whatever_waits(own_kafka: EmbeddedKafka) -> None:
    """Groups are to be looked up and to be joined, and Kafka stands still."""
    with Bridge(own_kafka.bootstrap_servers, "end") as bridge, Door(bridge) as door, RawClient(door) as client:
        topic = topic_of(bridge, "topic")
        for number in range(10):
            group = f"joined-{number}"
            fields = send_fields(group, topic, TRAN_MSG="true", UNIQ_KEY=group)
            assert client.ask(SEND, fields, b"body")[0]["code"] == 0
        client.ask(HEARTBEAT, {}, heartbeat([f"joined-{number}" for number in range(5)]))
        eventually(lambda: len(door.events("group_joined")) == 5, 60)
        own_kafka.pause()
        try:
            client.ask(HEARTBEAT, {}, heartbeat([f"joined-{number}" for number in range(10)] + made_up(900, "plain")))
            began = time.monotonic()
            os.kill(door.pid, signal.SIGTERM)
            assert door.wait_dead(120) == 0
            assert time.monotonic() - began < at_this_load(END_S)
        finally:
            own_kafka.resume()
