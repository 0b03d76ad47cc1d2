"""Unmodified producers of many languages and versions at the front door: one scenario for all."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.support.harness import Bridge, eventually
from tests.support.module_fixtures import module_bridge
from tests.support.rocketmq_door import (
    Client,
    Door,
    GoClient,
    GrpcClient,
    JavaClient,
    SpringClient,
    tls_options,
    topic_of,
)
from txbridge.embedded.ports import free_port, is_free

REMOTING = ("4.3.0", "4.7.1", "4.9.8", "5.3.2", "5.5.0", "go")
GRPC = ("java-5.0.0", "java-5.0.8", "java-5.1.0", "java-5.2.0", "go", "rust", "python", "node")
SPRING = ("remoting", "grpc", "stream")
#: The first of them has nothing else.
TLS = {"grpc-java-5.0.0", *(f"spring-{one}" for one in SPRING)}
#: Clients that open a new telemetry stream minutes after the end of the old one, or never. docs/rocketmq.md says when.
SLOW = {"grpc-go", "grpc-rust", "grpc-python"}
bridge = module_bridge("clients", transaction_check_max=100)


def start(client: str, door: Door, topic: str) -> Client:
    """A client of this name. The topic is its group, as gRPC has it."""
    protocol, _, which = client.partition("-")
    if protocol == "grpc":
        return GrpcClient(which, [door], [topic], tls=client in TLS)
    if protocol == "spring":
        return SpringClient(which, [door], topic, tls=client in TLS)
    return GoClient([door], topic) if which == "go" else JavaClient(which, [door], topic)


@pytest.mark.long
@pytest.mark.parametrize(
    "client",
    [*(f"remoting-{one}" for one in REMOTING), *(f"grpc-{one}" for one in GRPC), *(f"spring-{one}" for one in SPRING)],
)
def test_an_unmodified_client_and_a_door_that_is_killed_and_comes_back(
    bridge: Bridge, client: str, tmp_path: Path
) -> None:
    """Messages without a transaction, committed, rolled back, and decided by a check. An open one survives the door."""
    topic = topic_of(bridge, client.replace(".", ""))
    port = free_port()
    while not is_free(port - 2):
        port = free_port()
    options = ["--old-port", f"--grpc-listen=127.0.0.1:{free_port()}"]
    if client in TLS:
        options += tls_options(tmp_path)
    with Door(bridge, *options, listen=f"127.0.0.1:{port}") as door, start(client, door, topic) as running:
        expected = []
        for number in range(4):
            running.ask("plain", topic, f"p{number}")
            running.transaction(topic, f"c{number}", "commit", tags="tagA", keys="k1 k2", p="v")
            running.transaction(topic, f"r{number}", "rollback", "commit")
            for kind, answer in (("u", "commit"), ("d", "rollback")):
                running.transaction(topic, f"{kind}{number}", "unknown", answer, keys="k3", p="w")
            expected += [f"{kind}{number}".encode() for kind in "pcu"]
        bridge.wait_visible(topic, expected, 60)
        eventually(lambda: len(running.checks()) >= 8, 60)
        asked = {one["text"]: (one["topic"], one["keys"], one["p"], one["length"]) for one in running.checks()}
        assert asked == {f"{kind}{number}": (topic, "k3", "w", "2") for kind in "ud" for number in range(4)}
        headers = {one.value(): dict(one.headers() or ()) for one in bridge.read(topic)}
        assert (headers[b"c0"]["TAGS"], headers[b"c0"]["p"]) == (b"tagA", b"v")
        # The Python client keeps keys in a set.
        assert headers[b"c0"]["KEYS"] in {b"k1 k2", b"k2 k1"}

        running.transaction(topic, "open", "unknown", "commit")
        door.kill()
        with Door(bridge, *options, listen=f"127.0.0.1:{port}") as back:
            eventually(lambda: running.try_("plain", topic, "after")[0] == "done", 60)
            running.transaction(topic, "committed after", "commit")
            expected += [b"after", b"committed after"]
            if client in SLOW:
                with start(client, back, topic) as new:
                    eventually(lambda: "open" in {one["text"] for one in new.checks()}, 60)
            else:
                expected.append(b"open")
            bridge.wait_visible(topic, expected, 60)
            assert running.stop() == 0
    assert bridge.visible(topic) == Counter(expected)
