"""The front door for RocketMQ clients: unmodified Java clients, and frames made by hand, with a real Kafka."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from txbridge_rocketmq.identity import delayed_id, fingerprint_of, half_partition, transaction_id, unpacked

from tests.support.command_line import run_txbridge
from tests.support.harness import Bridge, eventually
from tests.support.module_fixtures import module_bridge
from tests.support.rocketmq_door import (
    SECRET,
    Door,
    GoClient,
    JavaClient,
    RawClient,
    answer_fields,
    end_fields,
    frame,
    heartbeat,
    send_fields,
    tls_options,
    topic_of,
)
from txbridge.embedded import EmbeddedKafka
from txbridge.embedded.ports import free_port, is_free

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
SEND, HEARTBEAT, UNREGISTER, END, CHECK, ROUTE = 310, 34, 35, 37, 39, 105
bridge = module_bridge("door", transaction_check_max=100)


def port_above_another() -> int:
    """Find a free port with another free port two below it."""
    port = free_port()
    while not is_free(port - 2):
        port = free_port()
    return port


@pytest.fixture(scope="module")
def door(bridge: Bridge) -> Iterator[Door]:
    listen = f"127.0.0.1:{port_above_another()}"
    with Door(bridge, "--old-port", listen=listen, metrics_port=free_port()) as made:
        yield made


@pytest.mark.parametrize(
    ("version", "options"),
    [
        ("4.9.8", ()),
        pytest.param("5.3.2", ("-Drocketmq.message.compressType=LZ4",), marks=pytest.mark.long),
        ("5.3.2", ("-Drocketmq.serialize.type=ROCKETMQ", "-Drocketmq.message.compressType=ZSTD")),
        pytest.param("go", (), marks=pytest.mark.long),
    ],
)
def test_an_unmodified_client(bridge: Bridge, door: Door, version: str, options: tuple[str, ...]) -> None:
    """Commit, rollback, unknown and an exception, each with its checks, and sends without a transaction.

    Clients compress above 4,096 bytes. That of Go uses the long form of SEND, and has a channel of its own for checks.
    """
    is_java = version != "go"
    name = f"client-{version.replace('.', '')}-{len(options)}"
    topic = topic_of(bridge, name)
    with JavaClient(version, [door], name, *options) if is_java else GoClient([door], name) as client:
        # This send comes before any heartbeat can.
        told = client.transaction(topic, "committed", "commit", tags="tagA", keys="k1 k2", p="v")
        assert told["status"] == "SEND_OK"
        assert told["state"] == "COMMIT_MESSAGE"
        assert told["msg_id"] == told["transaction_id"] == told["message_transaction_id"]
        # RocketMQ's second delay level is five seconds.
        sent = time.monotonic()
        assert client.ask("delayed", topic, "late", "2")[0] == "SEND_OK"
        client.transaction(topic, "rolled back", "rollback", "commit")
        asked = client.transaction(topic, "asked", "unknown", "unknown,commit", tags="tagB", keys="k3", p="w")
        client.transaction(topic, "asked and rolled back", "unknown", "rollback")
        client.transaction(topic, "x*100000", "unknown", "commit")
        assert client.ask("plain", topic, "plain")[0] == "SEND_OK"
        client.ask("oneway", topic, "oneway")
        assert client.ask("batch", topic, "b1,b2,b3")[0] == "SEND_OK"
        large = b"x" * 100_000
        expected = [b"committed", b"asked", large, b"plain", b"oneway", b"b1", b"b2", b"b3"]
        if is_java:
            client.transaction(topic, "fails", "throw", "commit")
            assert client.ask("selected", topic, "selected", "3")[3] == "3"
            assert client.ask("async", topic, "async")[0] == "SEND_OK"
            assert client.ask("queues", topic) == ["4"]
            expected += [b"fails", b"selected", b"async"]
        bridge.wait_visible(topic, expected, 60)
        expected.append(b"late")
        bridge.wait_visible(topic, expected, 60)
        assert time.monotonic() - sent > 5
        eventually(lambda: "asked and rolled back" in {one["text"] for one in client.checks()}, 60)
        checks = client.checks()

        assert "no-such-topic" in str(client.try_("plain", "no-such-topic", "x"))
        # Its size is that of the application's bytes.
        assert "max_message_size" in str(client.try_("plain", topic, "z*1100000"))
        assert not is_java or "isolation.level=read_committed" in str(client.try_("consume", topic))

    assert bridge.visible(topic) == Counter(expected)
    # Decided transactions get no checks. The others get them in RocketMQ's form.
    assert {one["text"] for one in checks} == {"asked", "asked and rolled back", "x*100000", *["fails"] * is_java}
    first, second = [one for one in checks if one["text"] == "asked"][:2]
    assert (first["times"], second["times"]) == ("1", "2")
    assert first["transaction_id"] == asked["transaction_id"]
    assert (first["topic"], first["tags"], first["keys"], first["p"]) == (topic, "tagB", "k3", "w")
    assert (first["group"], first["born_host"]) == (name, "127.0.0.1")
    assert {one["length"] for one in checks if one["text"] == "x*100000"} == {"100000"}
    # The record is as docs/rocketmq.md describes it.
    (record,) = [one for one in bridge.read(topic) if one.value() == b"committed"]
    found = dict(record.headers() or ())
    assert record.key() == b"k1"
    assert not is_java or str(record.partition()) == told["queue"]
    assert (found["TAGS"], found["KEYS"], found["p"]) == (b"tagA", b"k1 k2", b"v")
    assert found["ROCKETMQ_UNIQ_KEY"].decode() == told["msg_id"]
    fingerprint = f"{int(told['offset']):012X}"
    assert found["UNIQ_KEY"].decode() == transaction_id(SECRET.encode(), name, told["msg_id"], fingerprint)
    assert {"TRAN_MSG", "PGROUP", "WAIT"} & found.keys() == set()


def test_the_door_is_a_member_of_a_group_while_a_producer_is_connected(bridge: Bridge, door: Door) -> None:
    topic, group = topic_of(bridge, "liveness"), "liveness"
    with RawClient(door) as client:
        # END and SEND need no heartbeat, but checks go only to clients with one.
        sent, _ = client.ask(SEND, send_fields(group, topic, TRAN_MSG="true", UNIQ_KEY="one"), b"one")
        assert client.ask(HEARTBEAT, {}, heartbeat(group))[0]["code"] == 0
        check, body = client.next_check()
        assert (check["code"], check["flag"]) == (CHECK, 2)
        told = check["extFields"]
        assert (told["msgId"], told["transactionId"], told["topic"]) == ("one", "one", topic)
        assert told["commitLogOffset"] == str(int(sent["extFields"]["msgId"][-16:], 16))
        assert b"one" in body
        assert client.ask(UNREGISTER, {"producerGroup": group, "clientID": "by-hand"})[0]["code"] == 0
        eventually(lambda: group in {one["group"] for one in door.events("group_left")}, 30)
    # A process that has not sent anything answers for its predecessors.
    with RawClient(door) as client:
        client.ask(HEARTBEAT, {}, heartbeat(group))
        check, _ = client.next_check()
        assert client.ask(END, answer_fields(group, check, COMMIT))[0]["code"] == 0
        bridge.wait_visible(topic, [b"one"])


def test_p2_a_delayed_message_whose_commit_got_lost_is_committed_and_no_listener_is_asked(
    bridge: Bridge, door: Door
) -> None:
    """A door that ends between half message and commit leaves it so. Its client sends again, or never gets an answer.

    A listener knows no local transaction of it. Its rollback would lose a message that the next attempt acknowledges.
    """
    topic, group = topic_of(bridge, "lost-commit"), "lost-commit"

    secret, given = SECRET.encode(), {"DELAY": "1", "UNIQ_KEY": "repeated"}
    lost = delayed_id(secret, group, "lost", "ABCDEF012345")
    fingerprint = fingerprint_of(secret, "127.0.0.1", topic, b"repeated", 0, given)
    repeated = delayed_id(secret, group, "repeated", fingerprint)

    with RawClient(door) as client:
        client.ask(HEARTBEAT, {}, heartbeat(group))
        fields = send_fields(group, topic, TRAN_MSG="true", PGROUP=group, UNIQ_KEY="transaction")
        assert client.ask(SEND, fields, b"transaction")[0]["code"] == 0
        # Two seconds ago, as a door makes it of a SEND with a delay.
        mine = [("ROCKETMQ_UNIQ_KEY", b"lost"), *bridge.half_headers(topic, group, lost)]
        bridge.produce(bridge.names.half, value=b"lost", headers=mine, partition=0)
        # Its client sends it again: the same transaction, and one copy.
        again = send_fields(group, topic, **given)
        mine = [("ROCKETMQ_UNIQ_KEY", b"repeated"), *bridge.half_headers(topic, group, repeated)]
        bridge.produce(bridge.names.half, value=b"repeated", headers=mine, partition=half_partition(repeated, None, 2))
        bridge.wait_visible(topic, [b"lost"])
        # Otherwise the client may commit it before the worker asks.
        eventually(lambda: door.metrics()["checks_total{result=answered}"] >= 2, 30)
        assert client.ask(SEND, again, b"repeated")[0]["code"] == 0
        bridge.wait_visible(topic, [b"repeated"])
        # Checks reach the client, and none of them is about a delayed message.
        assert client.next_check()[0]["extFields"]["msgId"] == "transaction"
        client.ask(HEARTBEAT, {}, heartbeat(group))
        assert {header["extFields"]["msgId"] for header, _ in client.checks} <= {"transaction"}
        client.ask(UNREGISTER, {"producerGroup": group, "clientID": "by-hand"})
    assert bridge.visible(topic) == Counter({b"lost": 1, b"repeated": 1})
    assert door.metrics()["checks_total{result=answered}"] >= 2


def test_a_delayed_message_without_an_id_gets_one(bridge: Bridge, door: Door) -> None:
    topic = topic_of(bridge, "no-id")
    with RawClient(door) as client:
        assert client.ask(SEND, send_fields("no-id", topic, DELAY="1"), b"late")[0]["code"] == 0
        bridge.wait_visible(topic, [b"late"])
    [record] = bridge.read(topic)
    assert len(dict(record.headers())["ROCKETMQ_UNIQ_KEY"]) == 32


def test_an_empty_host_listens_on_all_addresses(bridge: Bridge) -> None:
    port = free_port()
    with Door(bridge, f"--advertised=127.0.0.1:{port}", listen=f":{port}") as door:
        hosts = ["127.0.0.1", *(["::1"] if socket.has_dualstack_ipv6() else [])]
        for host in hosts:
            with socket.create_connection((host, door.port), 60) as wire:
                wire.sendall(frame(ROUTE, {"topic": "none"}))
                assert wire.recv(4)


def test_an_address_that_is_taken_is_an_error_of_one_line(bridge: Bridge, door: Door) -> None:
    where = [f"--bootstrap-servers={bridge.bootstrap_servers}", f"--namespace={bridge.namespace}"]
    free, taken = "127.0.0.1:0", door.address
    for option, addresses in {"--listen": (taken, free), "--grpc-listen": (free, taken)}.items():
        given = [f"--listen={addresses[0]}", f"--grpc-listen={addresses[1]}", f"--metrics-port={free_port()}"]
        done = run_txbridge("rocketmq", *given, *where, env={**os.environ, "TXBRIDGE_ROCKETMQ_SECRET": SECRET})
        assert done.returncode == 2
        assert re.fullmatch(rf"error: cannot listen on port {door.port} of .* {option}\n", done.stderr), done.stderr


@pytest.mark.long
def test_a_java_client_that_sends_to_the_port_two_below(bridge: Bridge, door: Door) -> None:
    """4.9.8 has that option, as clients up to 4.4 do it. It cannot send to a door that does not listen there."""
    topic, flag = topic_of(bridge, "vip"), "-Dcom.rocketmq.sendMessageWithVIPChannel=true"
    with JavaClient("4.9.8", [door], "vip", flag) as client:
        client.transaction(topic, "committed", "commit")
        client.transaction(topic, "asked", "unknown", "commit")
        client.transaction(topic, "rolled back", "rollback")
        assert client.ask("plain", topic, "plain")[0] == "SEND_OK"
        bridge.wait_visible(topic, [b"committed", b"asked", b"plain"], 60)
        assert {one["text"] for one in client.checks()} == {"asked"}
    with (
        Door(bridge, listen=f"127.0.0.1:{port_above_another()}") as other,
        JavaClient("4.9.8", [other], "vip", flag) as client,
    ):
        assert f"127.0.0.1:{other.port - 2}" in str(client.try_("plain", topic, "lost"))
    assert bridge.visible(topic) == Counter({b"committed": 1, b"asked": 1, b"plain": 1})


def test_what_a_door_did_can_be_scraped(bridge: Bridge, door: Door) -> None:
    topic, group = topic_of(bridge, "counted"), "counted"
    assert door.page("/livez").status == 200
    assert door.reasons() == []
    # Wait until the connections of other tests are gone.
    eventually(lambda: door.metrics()["connections"] == door.metrics()["groups"] == 0)
    before = door.metrics()
    with RawClient(door) as client, RawClient(door) as bad:
        answers = []
        for number, decision in enumerate((COMMIT, ROLLBACK, UNKNOWN)):
            fields = send_fields(group, topic, TRAN_MSG="true", UNIQ_KEY=f"counted-{number}")
            sent, _ = client.ask(SEND, fields, b"%d" % number)
            answers.append(client.ask(END, end_fields(group, sent, decision))[0]["code"])
        answers.append(client.ask(SEND, send_fields(group, topic), b"plain")[0]["code"])
        assert answers == [0, 0, 0, 0]
        assert client.ask(SEND, send_fields(group, "no-such-topic"), b"x")[0]["code"] == 17
        assert client.ask(4711, {})[0]["code"] == 3
        assert client.ask(HEARTBEAT, {}, heartbeat(group))[0]["code"] == 0
        assert client.next_check()[0]["extFields"]["transactionId"] == "counted-2"
        bad.send(b"\xff\xff\xff\xff")
        assert bad.is_closed()
        counted = door.metrics() - before
        assert counted["requests_total{request=SEND_MESSAGE_V2,response=SUCCESS}"] == 4
        assert counted["requests_total{request=SEND_MESSAGE_V2,response=TOPIC_NOT_EXIST}"] == 1
        assert counted["requests_total{request=END_TRANSACTION,response=SUCCESS}"] == 3
        assert counted["requests_total{request=HEART_BEAT,response=SUCCESS}"] == 1
        assert counted["requests_total{request=(other),response=REQUEST_CODE_NOT_SUPPORTED}"] == 1
        assert counted["send_seconds_count"] == 4
        assert counted["checks_total{result=sent}"] >= 1
        assert counted["connections_closed_total{reason=malformed}"] == 1
        assert counted["ends_not_acknowledged_total"] == 0
        # One of two connections is left, and its group is still a group of this door.
        assert counted["connections"] == counted["groups"] == 1
        assert counted["streams"] == 0
    eventually(lambda: door.metrics()["connections"] == door.metrics()["groups"] == 0)


@pytest.mark.long
def test_a_door_is_ready_while_its_kafka_answers_and_it_goes_on(own_kafka: EmbeddedKafka) -> None:
    """No client sends meanwhile, so only the probe of readiness can keep clients away from a door without Kafka."""
    lost = ["Kafka cannot be reached"]
    with Bridge(own_kafka.bootstrap_servers, "ready") as bridge, Door(bridge, metrics_port=free_port()) as door:
        topic = topic_of(bridge, "real")
        assert door.reasons() == []
        own_kafka.pause()
        eventually(lambda: door.reasons() == lost, 40)
        assert door.page("/livez").status == 200
        own_kafka.resume()
        eventually(lambda: door.reasons() == [], 40)
        own_kafka.kill()
        eventually(lambda: door.reasons() == lost, 40)
        assert door.page("/livez").status == 200
        own_kafka.restart()
        eventually(lambda: door.reasons() == [], 60)
        # The request at hand is answered before the door ends. Until then its readiness says that it is stopping.
        with RawClient(door) as client:
            eventually(lambda: client.ask(ROUTE, {"topic": topic})[0]["code"] == 0)
            own_kafka.pause()
            client.send(frame(SEND, send_fields("ready", topic), b"late", opaque=2))
            # The door has read the first request when it answers the second, which needs no Kafka.
            assert client.ask(4711, {})[0]["code"] == 3
            os.kill(door.pid, signal.SIGTERM)
            eventually(lambda: "the door is stopping" in (door.reasons() or []))
            answer, _ = client.receive()
            assert (answer["opaque"], answer["code"]) == (2, 14)
        own_kafka.resume()
        assert door.wait_dead(60) == 0
        assert door.page("/livez").status == 0


def test_a_door_that_ends_answers_all_requests_that_it_has_begun(bridge: Bridge) -> None:
    """Clients send without waiting for answers, so there is no moment without a request. A busy door refuses some."""
    topic = topic_of(bridge, "ends")
    answered: list[int] = []
    with Door(bridge) as door, contextlib.ExitStack() as clients:

        def send(client: RawClient) -> None:
            with contextlib.suppress(OSError):
                for opaque in itertools.count(1):
                    client.send(frame(SEND, send_fields("ends", topic), b"x", opaque=opaque))
                    time.sleep(0.001)

        def count(client: RawClient) -> None:
            with contextlib.suppress(OSError):
                while True:
                    answered.append(client.receive()[0]["code"])

        threads = []
        for _ in range(4):
            client = clients.enter_context(RawClient(door))
            threads += [threading.Thread(target=work, args=[client]) for work in (send, count)]
        for thread in threads:
            thread.start()
        eventually(lambda: len(answered) > 1_000, 60)
        os.kill(door.pid, signal.SIGTERM)
        for thread in threads:
            thread.join(60)
        assert door.wait_dead(60) == 0
    assert answered.count(0) <= len(bridge.read(topic)) <= len(answered)


def test_requests_that_can_not_be_served_are_refused_with_a_sentence(bridge: Bridge, door: Door) -> None:
    topic, group = topic_of(bridge, "refused"), "refused"
    fields = send_fields(group, topic, TRAN_MSG="true", UNIQ_KEY="one")
    with RawClient(door) as client:

        def refusal(code: int, fields: dict[str, str], body: bytes = b"x") -> tuple[int, str]:
            answer, _ = client.ask(code, fields, body)
            return answer["code"], answer["remark"]

        assert refusal(SEND, {**fields, "b": "no-such-topic"})[0] == 17
        assert refusal(SEND, fields, b"")[0] == 13
        assert refusal(SEND, {**fields, "f": "1"}, b"no zlib")[0] == 13
        assert refusal(SEND, {**fields, "g": "yesterday"})[0] == 29
        assert refusal(
            END,
            end_fields(
                group, {"extFields": {"queueOffset": "1", "msgId": "0" * 31 + "2", "transactionId": "x"}}, COMMIT
            ),
        ) == (1, "The transaction state table offset wrong")
        assert refusal(11, {}) == refusal(200050, {})
        assert refusal(4711, {}) == (3, " request type 4711 not supported")
        consumers = {"clientID": "c", "producerDataSet": [], "consumerDataSet": [{"groupName": "consumers"}]}
        code, remark = refusal(HEARTBEAT, {}, json.dumps(consumers).encode())
        assert code == 16
        assert "isolation.level=read_committed" in remark
        # An answer to a check decides nothing when it names another group than the message's.
        sent, _ = client.ask(SEND, fields, b"mine")
        assert client.ask(END, end_fields("another", sent, COMMIT))[0]["code"] == 0
        assert client.ask(END, end_fields(group, sent, ROLLBACK))[0]["code"] == 0
        where = unpacked(int(sent["extFields"]["msgId"][-16:], 16))
        eventually(lambda: bridge.outcomes().get(where) == ["rollback"], 30)
    assert bridge.visible(topic) == Counter()


@pytest.mark.long
@pytest.mark.parametrize("version", ["4.7.1", "4.9.8", "5.3.2", "5.5.0", "go"])
def test_a_real_client_signs_its_requests(bridge: Bridge, version: str, tmp_path: Path) -> None:
    """And sends no field that the door does not expect. With another group or topic its application learns why not."""
    name = f"signed-{version.replace('.', '')}"
    topic, other, keys = topic_of(bridge, name), topic_of(bridge, f"{name}-other"), tmp_path / "keys.toml"
    limits = f'groups = ["{name}", "{name}-plain"]\ntopics = ["{topic}"]\n'
    keys.write_text(f'[[key]]\naccess_key = "ak"\nsecret_key = "the secret key"\n{limits}')

    def start(group: str, *key: str) -> JavaClient | GoClient:
        return GoClient([door], group, keys=key) if version == "go" else JavaClient(version, [door], group, keys=key)

    with Door(bridge, f"--access-keys={keys}") as door:
        with start(name, "ak", "the secret key") as client:
            client.transaction(topic, "signed", "unknown", "commit")
            assert client.ask("plain", topic, "plain")[0] == client.ask("batch", topic, "b1,b2")[0] == "SEND_OK"
            client.ask("oneway", topic, "oneway")
            bridge.wait_visible(topic, [b"signed", b"plain", b"b1", b"b2", b"oneway"], 60)
            assert f"may not send to the topic {other}" in str(client.try_("plain", other, "x"))
        with start("another", "ak", "the secret key") as client:
            assert "may not speak for the group another" in str(client.try_("plain", topic, "x"))
        with start(name, "ak", "another key") as client:
            assert "the AccessKey is unknown or the Signature is wrong" in str(client.try_("plain", topic, "x"))
        with start(name) as client:
            assert "the request has no AccessKey" in str(client.try_("plain", topic, "x"))
        assert [one["access_key"] for one in door.events("access_refused")] == ["ak", ""]
        assert "the secret key" not in door.log
    assert bridge.visible(topic) == Counter({b"signed": 1, b"plain": 1, b"b1": 1, b"b2": 1, b"oneway": 1})


@pytest.mark.long
def test_tls_and_plain_connections_share_the_port(bridge: Bridge, tmp_path: Path) -> None:
    topic = topic_of(bridge, "tls")
    with Door(bridge, *tls_options(tmp_path)) as door:
        flags = ("-Dtls.enable=true", "-Dtls.client.authServer=false")
        with JavaClient("5.3.2", [door], "tls", *flags) as client:
            client.transaction(topic, "x*20000", "unknown", "commit")
            bridge.wait_visible(topic, [b"x" * 20_000], 60)
            # Not sooner: only a client that is silent for 30 s is cut off.
            with RawClient(door) as plain:
                assert plain.ask(ROUTE, {"topic": topic})[0]["code"] == 0
    with Door(bridge) as door, RawClient(door) as client:
        client.send(b"\x16\x03\x01\0\0")
        assert client.is_closed()
