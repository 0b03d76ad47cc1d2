"""Several front doors of which one is dead before a client starts, with unmodified clients of RocketMQ."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.balancer import Balancer, haproxy
from tests.support.harness import Bridge, eventually
from tests.support.module_fixtures import module_bridge
from tests.support.rocketmq_door import Client, Door, GoClient, GrpcClient, JavaClient, SpringClient, topic_of
from txbridge.embedded.ports import free_port

PAGE = (Path(__file__).parents[2] / "docs" / "rocketmq.md").read_text("utf-8")
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
