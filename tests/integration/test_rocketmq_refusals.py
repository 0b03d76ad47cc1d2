"""Whom and what the door refuses, and what reaches the application of the client."""

from __future__ import annotations

import json
import re
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from confluent_kafka.admin import NewTopic
from txbridge_rocketmq.grpc_messages import definition, service

from tests.support.grpc_door import path_of, sending
from tests.support.harness import Bridge, eventually
from tests.support.rocketmq_door import (
    Door,
    GoClient,
    GrpcClient,
    JavaClient,
    RawClient,
    heartbeat,
    send_fields,
    signed,
    tls_options,
    topic_of,
)
from txbridge.embedded import EmbeddedKafka
from txbridge.embedded.ports import free_port

SEND, HEARTBEAT, UNREGISTER, END, ROUTE = 310, 34, 35, 37, 105
TRACES, TRACER = "RMQ_SYS_TRACE_TOPIC", "_INNER_TRACE_PRODUCER-orders-PRODUCE-1"
PAGE = Path(__file__).parents[2] / "docs" / "rocketmq.md"
KEYS = '[[key]]\naccess_key = "ak"\nsecret_key = "the secret key"\ngroups = ["mine"]\n'


@pytest.fixture(scope="module")
def bridge(kafka: EmbeddedKafka) -> Iterator[Bridge]:
    with Bridge(kafka.bootstrap_servers, "refusals") as made:
        yield made


@pytest.fixture(scope="module")
def door(bridge: Bridge) -> Iterator[Door]:
    with Door(bridge, metrics_port=free_port()) as made:
        yield made


def test_a_namespace_of_either_kind_is_refused_and_nothing_is_written(bridge: Bridge, door: Door) -> None:
    """In a topic that two tenants share, each would see the other's messages."""
    topic = topic_of(bridge, "tenants")
    with RawClient(door) as client:
        tenant = {"ns": "tenant", "nsd": "true"}
        # With a route the client sends, and the answer to the SEND reaches its application.
        assert client.ask(ROUTE, {"topic": topic, **tenant})[0]["code"] == 0
        answers = [
            client.ask(SEND, send_fields("tenants", topic) | tenant, b"x")[0],
            client.ask(HEARTBEAT, tenant, heartbeat("tenants"))[0],
            client.ask(END, tenant)[0],
            client.ask(SEND, send_fields("tenant%tenants", topic), b"x")[0],
            client.ask(SEND, send_fields("tenants", f"tenant%{topic}"), b"x")[0],
            client.ask(HEARTBEAT, {}, heartbeat("tenant%tenants"))[0],
        ]
    assert {one["code"] for one in answers} == {29}
    assert all("does not support RocketMQ namespaces" in one["remark"] for one in answers)
    assert bridge.read(topic) == []


def test_p6_a_group_that_can_never_be_checked_is_refused_by_either_protocol(bridge: Bridge) -> None:
    """Kafka takes `orders_eu` and `orders.eu` for the same, so only the first of them can have a check topic."""
    topic = topic_of(bridge, "alike_topic")
    with Door(bridge, "--grpc-listen=127.0.0.1:0", metrics_port=free_port()) as door, RawClient(door) as client:

        def prepare(group: str) -> dict[str, Any]:
            return client.ask(SEND, send_fields(group, topic, TRAN_MSG="true", UNIQ_KEY=group), b"x")[0]

        assert prepare("orders.eu")["code"] == prepare(topic.replace("_", "."))["code"] == 0
        refused = prepare("orders_eu")
        assert (refused["code"], "differ only in '.' and '_'" in refused["remark"]) == (29, True)
        # Without a transaction nobody is asked.
        assert client.ask(SEND, send_fields("orders_eu", topic), b"x")[0]["code"] == 0
        request = sending()
        request.messages[0].topic.name = topic
        with grpc.insecure_channel(door.grpc_address) as channel:
            answer = channel.unary_unary(path_of("SendMessage"))(request.SerializeToString(), timeout=60)
        status = service.SendMessageResponse.FromString(answer).status
        assert (status.code, "differ only in '.' and '_'" in status.message) == (definition.BAD_REQUEST, True)
        assert [one["group"] for one in door.events("check_topic_not_made")] == ["orders_eu", topic]
        assert door.reasons() == [], "one client's name takes no door from all others"
    assert [len(bridge.read(one)) for one in (topic, bridge.names.half)] == [1, 2]


def test_traces_are_stored_in_their_topic_or_dropped_without_a_word(own_kafka: EmbeddedKafka) -> None:
    """Their topic has the same name in every namespace, so this Kafka is the test's own."""
    with Bridge(own_kafka.bootstrap_servers, "traces") as bridge, Door(bridge, metrics_port=free_port()) as door:
        topic = topic_of(bridge, "traced")
        with RawClient(door) as client:
            sent, _ = client.ask(SEND, send_fields("orders", topic), b"x")
            assert sent["extFields"]["TRACE_ON"] == "true"
            for trace_topic in (TRACES, "traces-of-orders"):
                dropped, _ = client.ask(SEND, send_fields(TRACER, trace_topic, 3, KEYS="id"), b"Pub\x01dropped")
                assert dropped["code"] == 0
            assert door.metrics()["traces_dropped_total"] == 2
            # Messages of the application are never dropped, nor transactions.
            assert client.ask(SEND, send_fields("orders", "traces-of-orders"), b"x")[0]["code"] == 17
            half = send_fields(TRACER, "traces-of-orders", TRAN_MSG="true", PGROUP=TRACER)
            assert client.ask(SEND, half, b"x")[0]["code"] == 17
            for other in ("RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_OTHER"):
                assert client.ask(SEND, send_fields(TRACER, other), b"x")[0]["code"] == 16
            assert client.ask(HEARTBEAT, {}, heartbeat(TRACER))[0]["code"] == 0
            bridge.admin.create_topics([NewTopic(TRACES, 2, 1)])[TRACES].result(60)

            def queues() -> int:
                return int(json.loads(client.ask(ROUTE, {"topic": TRACES})[1])["queueDatas"][0]["writeQueueNums"])

            eventually(lambda: queues() == 2)
            assert client.ask(SEND, send_fields(TRACER, TRACES, 1, KEYS="id"), b"Pub\x01stored")[0]["code"] == 0
        [record] = bridge.read(TRACES)
        assert (record.key(), record.value()) == (b"id", b"Pub\x01stored")


def test_a_client_without_the_right_key_gets_a_text_and_the_door_a_line(bridge: Bridge, tmp_path: Path) -> None:
    topic, keys = topic_of(bridge, "keys"), tmp_path / "keys.toml"
    keys.write_text(KEYS)
    with Door(bridge, "--grpc-listen=127.0.0.1:0", f"--access-keys={keys}") as door:
        with RawClient(door) as client:
            # Any topic has the same route, so nobody learns whether it exists.
            routes = [client.ask(ROUTE, {"topic": one}) for one in (topic, "no-such-topic")]
            assert [header["code"] for header, _ in routes] == [0, 0]
            assert routes[0][1] == routes[1][1]
            for key, words in (("", "the request has no AccessKey"), ("eve", "the AccessKey is unknown")):
                signed = {"AccessKey": key, "Signature": "x"} if key else {}
                for code, fields in ((SEND, send_fields("mine", topic)), (END, {}), (HEARTBEAT, {}), (UNREGISTER, {})):
                    answer, _ = client.ask(code, fields | signed, b"{}")
                    assert answer["code"] == 16
                    assert words in answer["remark"]
        with GrpcClient("python", [door], keys=["mallory", "the secret key"]) as client:
            assert client.try_("plain", topic, "x")[0] == "error"
        lines = door.events("access_refused")
        assert [one["access_key"] for one in lines] == ["", "eve", "mallory"]
        assert {one["peer"].partition(":")[0] for one in lines} == {"127.0.0.1"}
        assert "the secret key" not in door.log
    assert bridge.read(topic) == []


def test_new_keys_and_a_new_certificate_count_while_the_door_runs(bridge: Bridge, tmp_path: Path) -> None:
    """What cannot be used changes nothing. A client that loses its key is asked no more, on the connection it has."""
    topic, keys, group = topic_of(bridge, "renewed"), tmp_path / "keys.toml", "renewed"
    old, new = ("ak", "the secret key"), ("ak", "the next secret")
    keys.write_text(f'[[key]]\naccess_key = "ak"\nsecret_key = "{old[1]}"\n')
    files, port = tls_options(tmp_path), free_port()
    with (
        Door(bridge, "--grpc-listen=127.0.0.1:0", f"--access-keys={keys}", *files, metrics_port=port) as door,
        RawClient(door) as client,
    ):

        def served() -> set[str]:
            return {ssl.get_server_certificate(("127.0.0.1", one)) for one in (door.port, door.grpc_port)}

        def told(key: tuple[str, str]) -> int:
            half = send_fields(group, topic, TRAN_MSG="true", UNIQ_KEY="one")
            return int(client.ask(SEND, signed(key, half, b"x"), b"x")[0]["code"])

        assert told(old) == 0
        body = heartbeat(group)
        assert client.ask(HEARTBEAT, signed(old, {}, body), body)[0]["code"] == 0
        eventually(lambda: door.events("group_joined"))
        [first] = served()
        (tmp_path / "key.pem").rename(tmp_path / "old.pem")
        keys.write_text("no toml")
        eventually(lambda: len(door.events("files_not_read")) == 2)
        assert (served(), told(old)) == ({first}, 0)
        tls_options(tmp_path, days=13)
        keys.write_text(f'[[key]]\naccess_key = "ak"\nsecret_key = "{new[1]}"\n')
        eventually(lambda: len(door.events("files_read")) == 2)
        assert first not in served()
        assert (told(old), told(new)) == (16, 0)
        eventually(lambda: door.events("group_left"))
        assert client.ask(HEARTBEAT, signed(new, {}, body), body)[0]["code"] == 0
        eventually(lambda: len(door.events("group_joined")) == 2)
        assert [one["days"] for one in door.events("certificate_expires")] == [2.0]
        until = door.metrics()[f"certificate_expiry_timestamp_seconds{{file={tmp_path / 'certificate.pem'}}}"]
        assert until == pytest.approx(time.time() + 13 * 86_400, abs=3_600)


def test_a_mistake_of_a_client_gives_a_warning_with_either_protocol(bridge: Bridge, tmp_path: Path) -> None:
    """Those in the table of the page. Each client makes each mistake twice, and there is one line for both."""
    keys, topic = tmp_path / "keys.toml", topic_of(bridge, "mistaken")
    keys.write_text(KEYS)
    consumers = b'{"clientID": "c", "consumerDataSet": [{"groupName": "readers"}]}'
    group = definition.Resource(name="readers")
    beat = service.HeartbeatRequest(client_type=definition.PUSH_CONSUMER, group=group).SerializeToString()
    half = sending(message_id="same")
    half.messages[0].topic.name = topic
    mistakes = {
        "it is a consumer": ((HEARTBEAT, {}, consumers), ("Heartbeat", beat)),
        "its request is no request": (b"\0\0\0\4nope", ("QueryRoute", b"nope")),
        "it speaks TLS to a door without": (b"\x16\3\1", b"\x16\3\1"),
        "its ids are not its own": (
            (SEND, send_fields("mistaken", topic, TRAN_MSG="true", UNIQ_KEY="same"), b"x"),
            ("SendMessage", half),
        ),
        "it has no access key": ((HEARTBEAT, {}, heartbeat("mine")), ("Heartbeat", beat)),
    }
    page = re.findall(r"^\| (its? [^|]+) \| `(\w+)` \| `(\w+)` \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert [mistake for mistake, _, _ in page] == list(mistakes)
    for protocol, label in enumerate(("remoting", "grpc")):
        with (
            Door(bridge, "--grpc-listen=127.0.0.1:0", metrics_port=free_port()) as open_,
            Door(bridge, "--grpc-listen=127.0.0.1:0", f"--access-keys={keys}") as closed,
        ):
            for mistake, *names in page:
                door, name = closed if "key" in mistake else open_, names[protocol]
                before = len(door.events(name))
                for number in range(2):
                    _make_mistake(door, protocol, mistakes[mistake][protocol], number)
                eventually(lambda: len(door.events(name)) > before, 30)  # noqa: B023
                assert "127.0.0.1" in str(door.events(name)[-1])
            [line] = open_.events("consumer_refused")
            assert (line["group"], line["protocol"]) == ("readers", label)
            assert open_.metrics()[f"consumers_refused_total{{protocol={label}}}"] == 2


def _make_mistake(door: Door, protocol: int, how: Any, number: int) -> None:
    if isinstance(how, bytes):
        with RawClient(door, port=door.port if protocol == 0 else door.grpc_port) as raw:
            raw.send(how)
            assert raw.is_closed()
    elif protocol == 0:
        code, fields, body = how
        with RawClient(door) as client:
            client.ask(code, fields, body + b"%d" % number if code == SEND else body)
    else:
        method, content = how
        if method == "SendMessage":
            content.messages[0].body = b"%d" % number
            content = content.SerializeToString()
        with grpc.insecure_channel(door.grpc_address) as channel:
            channel.unary_unary(path_of(method))(content, timeout=60, metadata=(("x-mq-client-id", "c"),))


@pytest.mark.parametrize(
    "version", ["5.1.4", *(pytest.param(one, marks=pytest.mark.long) for one in ("4.8.0", "5.5.0"))]
)
def test_a_push_consumer_starts_is_deaf_and_is_warned_of(bridge: Bridge, door: Door, version: str) -> None:
    """Nothing makes its start fail but a filter of SQL92, about which it asks the broker."""
    topic = topic_of(bridge, f"deaf-{version.replace('.', '')}")
    before = len(door.events("consumer_refused"))
    with JavaClient(version, [door], topic) as client:
        assert client.ask("listen", door.address, topic, "") == ["started"]
        eventually(lambda: "listeners" in {one["group"] for one in door.events("consumer_refused")[before:]}, 60)
    with JavaClient(version, [door], topic) as client:
        for command in (("listen", door.address, topic, "a > 1"), ("consume", topic)):
            assert "isolation.level=read_committed" in str(client.try_(*command))


def test_a_transaction_whose_check_could_not_be_read_is_refused(bridge: Bridge, door: Door) -> None:
    """The clients of Java up to 4 send to topics of up to 255 characters, and read a length with a sign."""
    with RawClient(door) as client:
        for length, code in ((127, 0), (128, 13)):
            topic = topic_of(bridge, "t" * (length - len(bridge.namespace) - 1))
            assert client.ask(SEND, send_fields("long", topic), b"x")[0]["code"] == 0
            half = send_fields("long", topic, TRAN_MSG="true", UNIQ_KEY=topic)
            assert client.ask(SEND, half, b"x")[0]["code"] == code


@pytest.mark.long
@pytest.mark.parametrize("version", ["4.9.8", "5.3.2"])
def test_what_the_application_of_a_java_client_is_told(bridge: Bridge, door: Door, version: str) -> None:
    """`request` fails at once, but sometimes without a cause: the client wakes its caller before it sets the cause."""
    topic = topic_of(bridge, f"java-{version.replace('.', '')}")
    with JavaClient(version, [door], "asks") as client:
        eventually(lambda: "does not support request and reply" in str(client.try_("request", topic, "question")), 60)
        assert "does not support priorities" in str(client.try_("property", topic, "x", "_SYS_MSG_PRIORITY_", "3"))
    for option in ("namespace", *(["namespaceV2"] if version == "5.3.2" else [])):
        with JavaClient(version, [door], "tenants", f"-Ddoor.{option}=tenant") as client:
            for command in (("plain", topic, "x"), ("transaction", topic, "x", "commit", "commit", "", "", "")):
                assert "does not support RocketMQ namespaces" in str(client.try_(*command))
    assert bridge.read(topic) == []


@pytest.mark.long
@pytest.mark.parametrize("version", ["4.9.8", "5.3.2", "go"])
def test_a_client_that_traces_logs_no_error(bridge: Bridge, door: Door, version: str) -> None:
    """The shared Kafka has no topic for traces. A client sends them five seconds later at the latest."""
    topic, before = topic_of(bridge, f"traces-{version.replace('.', '')}"), door.metrics()["traces_dropped_total"]
    is_java = version != "go"
    with (
        JavaClient(version, [door], "traced", "-Ddoor.trace=")
        if is_java
        else GoClient([door], "traced", DOOR_TRACE="1")
    ) as client:
        client.ask("plain", topic, "x")
        eventually(lambda: door.metrics()["traces_dropped_total"] > before, 60)
        assert "trace data failed" not in client.log
        assert "fetch publish message queues failed" not in client.log
