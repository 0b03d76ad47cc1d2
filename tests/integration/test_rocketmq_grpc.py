"""The front door's gRPC side: unmodified clients of RocketMQ 5, with a real Kafka."""

from __future__ import annotations

import json
import re
import socket
import ssl
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from txbridge_rocketmq.identity import transaction_id
from typer.testing import CliRunner

from tests.support.harness import Bridge, eventually
from tests.support.module_fixtures import module_bridge
from tests.support.rocketmq_door import (
    SECRET,
    Door,
    GrpcClient,
    RawClient,
    answer_fields,
    heartbeat,
    tls_options,
    topic_of,
)
from txbridge.cli.app import app

GRPC = "--grpc-listen=127.0.0.1:0"
bridge = module_bridge("grpc", transaction_check_max=100)


@pytest.fixture(scope="module")
def door(bridge: Bridge) -> Iterator[Door]:
    with Door(bridge, GRPC) as made:
        yield made


@pytest.mark.parametrize("language", ["python", "java", pytest.param("node", marks=pytest.mark.long)])
def test_an_unmodified_client(bridge: Bridge, door: Door, language: str) -> None:
    """Commit, rollback and unknown, each with its checks; several at once, in order, and without a transaction."""
    topic = topic_of(bridge, language)
    with GrpcClient(language, [door]) as client:
        committed = client.transaction(topic, "committed", "commit", tags="tagA", keys="k1 k2", p="v")
        client.transaction(topic, "rolled back", "rollback", "commit")
        asked = client.transaction(topic, "asked", "unknown", "unknown,commit", tags="tagB", keys="k3", p="w")
        client.transaction(topic, "asked and rolled back", "unknown", "rollback")
        client.transaction(topic, "x*100000", "unknown", "commit")
        client.ask("plain", topic, "plain")
        several = [f"s{number}" for number in range(20)]
        client.ask("several", topic, "commit", *several)
        client.ask("several", topic, "rollback", "no", "not this")
        for number in range(10):
            client.ask("fifo", topic, f"f{number}", "group")
        expected = [b"committed", b"asked", b"x" * 100_000, b"plain"]
        expected += [one.encode() for one in several] + [b"f%d" % number for number in range(10)]
        bridge.wait_visible(topic, expected, 60)
        eventually(lambda: "asked and rolled back" in {one["text"] for one in client.checks()}, 60)
        checks = client.checks()
        assert "no-such-topic" in str(client.try_("plain", "no-such-topic", "x"))
        client.ask("delayed", topic, "late", "2")
        expected.append(b"late")
        bridge.wait_visible(topic, expected, 60)
        assert "longest delay is 3d" in str(client.try_("delayed", topic, "too late", "400000"))
        refused = client.try_("consume", topic)
        # The Java client logs the sentence, and tells its application only that the stream has ended.
        assert refused[0] == "error"
        assert language == "java" or "isolation.level=read_committed" in str(refused)
        eventually(lambda: door.events("consumer_refused"), 30)

    assert bridge.visible(topic) == Counter(expected)
    # Decided transactions get no checks.
    assert {one["text"] for one in checks} == {"asked", "asked and rolled back", "x*100000"}
    first = next(one for one in checks if one["text"] == "asked")
    assert first == {
        "text": "asked",
        "message_id": asked,
        "topic": topic,
        "tag": "tagB",
        "keys": "k3",
        "p": "w",
        "length": "5",
        "corrupted": "False",
        "born_host": "127.0.0.1",
    }
    assert {(one["length"], one["corrupted"]) for one in checks if one["text"] == "x*100000"} == {("100000", "False")}
    # The record is as docs/rocketmq.md describes it.
    records = bridge.read(topic)
    (record,) = [one for one in records if one.value() == b"committed"]
    found = dict(record.headers() or ())
    assert (found["TAGS"], found["p"]) == (b"tagA", b"v")
    assert set(found["KEYS"].split()) == {b"k1", b"k2"}
    assert record.key() in {b"k1", b"k2"}
    assert found["ROCKETMQ_UNIQ_KEY"].decode() == committed
    transaction = found["UNIQ_KEY"].decode()
    assert transaction == transaction_id(SECRET.encode(), topic, committed, transaction[20:])
    assert {"TRAN_MSG", "PGROUP"} & found.keys() == set()
    # The messages of a group are in one partition, in order.
    in_order = [one for one in records if one.key() == b"group"]
    assert len({one.partition() for one in in_order}) == 1
    assert [one.value() for one in sorted(in_order, key=lambda one: one.offset())] == [b"f%d" % n for n in range(10)]


def test_the_doctor_knows_the_door(bridge: Bridge, door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """Doctor reads the door's own variables."""
    topic = topic_of(bridge, "doctor")
    for name, value in (("SECRET", SECRET), ("LISTEN", door.address), ("GRPC_LISTEN", door.grpc_address)):
        monkeypatch.setenv(f"TXBRIDGE_ROCKETMQ_{name}", value)
    flags = ["--bootstrap-servers", bridge.bootstrap_servers, "--namespace", bridge.namespace]
    flags += ["--door", "--group", topic, "--real-topic", topic, "--real-topic", "no-such-topic"]
    result = CliRunner().invoke(app, ["doctor", *flags])
    lines = [re.sub(r" +", " ", line) for line in result.stdout.splitlines()]
    assert f"ok door {door.address} answers, and sends clients to {door.address}" in lines
    assert f"ok door {door.grpc_address} speaks gRPC" in lines
    assert f"ok door the secret has {len(SECRET)} characters" in lines
    [missing] = [line for line in lines if "no-such-topic does not exist" in line]
    assert missing.startswith("problem door ")
    assert SECRET not in result.stdout


def test_what_differs_between_doors_and_protocols_is_one_transaction(bridge: Bridge, door: Door) -> None:
    """The half message comes by gRPC; its check and END use the remoting protocol at another door."""
    topic = topic_of(bridge, "both")
    with Door(bridge) as other, RawClient(other) as there:
        with GrpcClient("python", [door]) as client:
            sent = client.transaction(topic, "one", "unknown")
        # gRPC producers have no group, so the topic's name is used. When a client sends a heartbeat, the other door
        # looks from time to time whether the group has a check topic.
        eventually(lambda: there.ask(34, {}, heartbeat(topic))[0]["code"] == 0 and there.checks, 90)
        check, body = there.next_check()
        told = check["extFields"]
        assert (told["transactionId"], told["topic"]) == (sent, topic)
        assert b"one" in body
        assert there.ask(37, answer_fields(topic, check, 8))[0]["code"] == 0
        bridge.wait_visible(topic, [b"one"])
    assert bridge.visible(topic) == Counter({b"one": 1})


@pytest.mark.long
@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Etc/GMT+12"])
@pytest.mark.parametrize("language", ["java", "python", "node", "go", "rust"])
def test_a_real_client_signs_in_any_time_zone(
    bridge: Bridge, language: str, zone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These are 14 hours ahead of UTC and 12 behind. With another topic its application learns why not."""
    name = f"{language}-{zone[:3]}"
    topic, other, keys = topic_of(bridge, name), topic_of(bridge, f"{name}-other"), tmp_path / "keys.toml"
    keys.write_text(f'[[key]]\naccess_key = "ak"\nsecret_key = "the secret key"\ntopics = ["{topic}"]\n')
    monkeypatch.setenv("TZ", zone)
    with (
        Door(bridge, GRPC, f"--access-keys={keys}") as door,
        GrpcClient(language, [door], [topic], keys=["ak", "the secret key"]) as client,
    ):
        client.transaction(topic, "signed", "unknown", "commit")
        bridge.wait_visible(topic, [b"signed"], 60)
        assert f"may not speak for the group {other}" in str(client.try_("plain", other, "x"))
    assert bridge.read(other) == []


@pytest.mark.long
def test_real_clients_sign_and_speak_tls(bridge: Bridge, tmp_path: Path) -> None:
    topic, keys = topic_of(bridge, "signed"), tmp_path / "keys.toml"
    other = topic_of(bridge, "another")
    keys.write_text(f'[[key]]\naccess_key = "ak"\nsecret_key = "the secret key"\ngroups = ["{topic}"]\n')
    with Door(bridge, GRPC, f"--access-keys={keys}", *tls_options(tmp_path)) as door:
        with GrpcClient("java", [door], keys=["ak", "the secret key"], tls=True) as client:
            client.transaction(topic, "signed", "unknown", "commit")
            bridge.wait_visible(topic, [b"signed"], 60)
            assert "may not speak for the group" in str(client.try_("plain", other, "x"))
        with GrpcClient("java", [door], keys=["ak", "another key"], tls=True) as client:
            assert "Signature is wrong" in str(client.try_("plain", topic, "x"))
        with socket.create_connection(("127.0.0.1", door.grpc_port), 60) as plain:
            plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            assert plain.recv(1) == b""
            peer = "{}:{}".format(*plain.getsockname())
        told = [line for line in map(json.loads, door.log.splitlines()) if line.get("peer") == peer]
        assert [(line["event"], line["reason"]) for line in told] == [
            ("connection_closed", "the client does not speak TLS, as this port does")
        ]
        assert {line[0] for line in door.log.splitlines()} == {"{"}
    with Door(bridge, GRPC, f"--access-keys={keys}") as door:
        with GrpcClient("python", [door], keys=["ak", "the secret key"]) as client:
            client.transaction(topic, "in plain", "unknown", "commit")
            bridge.wait_visible(topic, [b"signed", b"in plain"], 60)
        with socket.create_connection(("127.0.0.1", door.grpc_port), 60) as wire, pytest.raises(ssl.SSLError):
            ssl.create_default_context().wrap_socket(wire, server_hostname="localhost")
        assert "the client speaks TLS, and the door has no certificate" in door.log
        with GrpcClient("python", [door], keys=["nobody", "the secret key"]) as client:
            assert client.try_("plain", topic, "x")[0] == "error"
        assert "the secret key" not in door.log
    assert bridge.visible(topic) == Counter({b"signed": 1, b"in plain": 1})
