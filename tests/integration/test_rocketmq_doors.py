"""Several front doors of which one is dead before a client starts, with unmodified clients of RocketMQ."""

from __future__ import annotations

import re
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.balancer import Balancer, haproxy
from tests.support.harness import Bridge, eventually
from tests.support.module_fixtures import module_bridge
from tests.support.rocketmq_door import (
    Client,
    Door,
    GoClient,
    GrpcClient,
    JavaClient,
    RawClient,
    SpringClient,
    topic_of,
)
from txbridge.embedded.ports import free_port

PAGE = (Path(__file__).parents[2] / "docs" / "rocketmq.md").read_text("utf-8")
#: One instance in a JVM, not registered before the first send, and the newest.
VERSIONS = ["4.8.0", "5.1.4", "5.5.0"]
SENT = "requests_total{request=SEND_MESSAGE_V2,response=SUCCESS}"
_GRPC = ("python", "java", "node", "spring-grpc")
bridge = module_bridge("doors", transaction_check_max=100)


def _client(kind: str, ports: list[int], topic: str) -> Client:
    doors = [SimpleNamespace(address=f"127.0.0.1:{port}", grpc_address=f"127.0.0.1:{port}") for port in ports]
    if kind.startswith("spring"):
        return SpringClient(kind.removeprefix("spring-"), doors, topic)
    if kind in _GRPC:
        return GrpcClient(kind, doors, [topic])
    return GoClient(doors, topic) if kind == "go" else JavaClient(kind, doors, topic)


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        ("python", "list"),
        *(pytest.param(kind, "haproxy", marks=pytest.mark.long) for kind in ("java", "4.9.8")),
        *(
            pytest.param(kind, way, marks=pytest.mark.long)
            for kind in (*_GRPC, "4.9.8", "5.3.2", "go", "spring-remoting", "spring-stream")
            for way in ("list", "balancer")
            # The client of Node does not understand a list of several addresses.
            if (kind, way) not in {("python", "list"), ("node", "list")}
        ),
    ],
)
def test_a_client_starts_sends_and_is_checked_while_one_of_two_doors_is_dead(
    bridge: Bridge, kind: str, way: str, tmp_path: Path
) -> None:
    topic, dead, living = topic_of(bridge, f"{kind}-{way}".replace(".", "-")), free_port(), free_port()
    metrics = free_port()
    with ExitStack() as stack:
        ports = [dead, living]
        if way == "haproxy":
            [listing] = re.findall(r"```haproxy\n(.*?\n) *```", PAGE, re.DOTALL)
            part, doors = "grpc" if kind in _GRPC else "remoting", [(dead, dead), (living, metrics)]
            ports = [stack.enter_context(haproxy(listing, tmp_path, part, doors))]
        if way == "balancer":
            ports = [stack.enter_context(Balancer(ports)).port]
        if kind in _GRPC:
            door = Door(bridge, f"--grpc-listen=127.0.0.1:{living}", metrics_port=metrics)
        else:
            advertised = ",".join(f"127.0.0.1:{port}" for port in ports)
            door = Door(bridge, f"--advertised={advertised}", listen=f"127.0.0.1:{living}", metrics_port=metrics)
        stack.enter_context(door)
        client = stack.enter_context(_client(kind, ports, topic))
        answers = {"m0": "commit", "m1": "commit", "m2": "commit", "rolled back": "rollback", "checked": "unknown"}
        for text, answer in answers.items():
            sent = ("transaction", topic, text, answer, "rollback" if answer == "rollback" else "commit", "", "", "")
            # The first route query of Java's 5.3.2 may go to the dead door, and that of Go may choose it three times in
            # a row. Then an application has to send again.
            eventually(lambda sent=sent: client.try_(*sent)[0] == "done", 10)  # type: ignore[misc]
        expected = [b"m0", b"m1", b"m2", b"checked"]
        bridge.wait_visible(topic, expected, 60)
    assert bridge.visible(topic) == Counter(expected)


@pytest.mark.parametrize(
    "version", [pytest.param(one, marks=[pytest.mark.long] * (one == "5.5.0")) for one in VERSIONS]
)
def test_ordered_sends_survive_a_door_behind_one_address_and_no_other(bridge: Bridge, version: str) -> None:
    """A client knows one address of a queue. With several advertised ones, those of a dead door's queues fail."""
    topic, ports = topic_of(bridge, f"ordered-{version.replace('.', '')}", 2), [free_port(), free_port()]
    with Balancer(ports) as balancer:
        for advertised in (ports, [balancer.port]):
            addresses = [f"127.0.0.1:{port}" for port in advertised]
            options = [f"--advertised={','.join(addresses)}"]
            with ExitStack() as stack:
                doors = [stack.enter_context(Door(bridge, *options, listen=f"127.0.0.1:{port}")) for port in ports]
                said = [bool(door.events("ordered_sends_need_one_address")) for door in doors]
                assert said == [len(advertised) > 1] * 2
                client = stack.enter_context(_client(version, advertised, topic))
                queues = range(2 * len(advertised))

                def send_ordered() -> list[str]:
                    return [client.try_("selected", topic, "x", str(queue))[0] for queue in queues]  # noqa: B023

                assert send_ordered() == ["done"] * len(queues)
                doors[0].kill()
                if len(advertised) > 1:
                    assert sorted(send_ordered()) == ["done", "done", "error", "error"]
                    assert sorted(send_ordered()) == ["done", "done", "error", "error"]
                else:
                    # At most the send that finds the connection dead fails.
                    send_ordered()
                    assert send_ordered() == ["done"] * len(queues)


@pytest.mark.parametrize(
    ("version", "instance", "goes_to"), [("4.8.0", "", 0), ("4.8.0", "moved", 1), ("4.9.8", "", 1)]
)
def test_before_4_9_a_producer_sends_to_where_an_old_consumer_of_its_process_is(
    bridge: Bridge, version: str, instance: str, goes_to: int
) -> None:
    topic, metrics = topic_of(bridge, f"moved-{version[2]}-{instance}"), [free_port(), free_port()]
    with ExitStack() as stack:
        old, new = doors = [stack.enter_context(Door(bridge, metrics_port=port)) for port in metrics]
        options = [f"-Ddoor.old={old.address}", *[f"-Ddoor.instance={instance}"] * bool(instance)]
        client = stack.enter_context(JavaClient(version, [new], topic, *options))
        assert client.ask("plain", topic, "x")[0] == "SEND_OK"
        assert [door.metrics()[SENT] for door in doors] == [1 - goes_to, goes_to]


@pytest.mark.long
@pytest.mark.parametrize(
    ("version", "named", "is_member"),
    [("4.8.0", 0, True), ("5.1.4", 0, False), ("5.5.0", 0, False), ("5.5.0", 1, True)],
)
def test_who_can_be_asked_before_the_first_send(bridge: Bridge, version: str, named: int, is_member: bool) -> None:
    topic = topic_of(bridge, f"idle-{version[2]}-{named}")
    options = [f"-Ddoor.topic={topic}"] * named
    with Door(bridge) as door, JavaClient(version, [door], topic, *options) as client:
        client.ask("sent")
        # The second heartbeat comes 31 seconds after the start.
        time.sleep(5 if is_member else 35)
        with RawClient(door) as asker:
            assert (asker.ask(204, {"producerGroup": topic})[0]["code"] == 0) == is_member
