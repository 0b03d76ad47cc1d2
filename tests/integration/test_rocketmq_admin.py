"""Topics and administrators at the front door: mqadmin, the admin client of Go, and frames made by hand."""

from __future__ import annotations

import json
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from txbridge_rocketmq.grpc_messages import definition, service

from tests.peer.mqadmin import Mqadmin
from tests.peer.native import GO_REMOTING, go_client
from tests.support.command_line import run_txbridge
from tests.support.harness import Bridge
from tests.support.module_fixtures import module_bridge
from tests.support.rocketmq_door import SECRET, Door, RawClient, end_fields, heartbeat, send_fields, signed, topic_of
from txbridge.kafka.admin import FoundTopic

SEND, HEARTBEAT, END, ROUTE = 310, 34, 37, 105
CREATE, RUNTIME, CLUSTER, PRODUCERS = 17, 28, 106, 204
COMMIT = 8
OPERATORS, ORDERS, HELPERS = ("operators", "a long secret"), ("orders", "another secret"), ("helpers", "a third secret")
bridge = module_bridge("admin")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("keys") / "keys.toml"
    file.write_text(
        f'[[key]]\naccess_key = "{OPERATORS[0]}"\nsecret_key = "{OPERATORS[1]}"\nadmin = true\n'
        f'[[key]]\naccess_key = "{ORDERS[0]}"\nsecret_key = "{ORDERS[1]}"\ngroups = ["orders"]\n'
        f'[[key]]\naccess_key = "{HELPERS[0]}"\nsecret_key = "{HELPERS[1]}"\nadmin = true\ntopics = ["help"]\n'
    )
    return file


def topic_fields(topic: str, queues: int, perm: int = 6) -> dict[str, str]:
    """Fields of an UPDATE_AND_CREATE_TOPIC, as mqadmin sends them."""
    return {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": str(perm),
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }


def partitions_of(bridge: Bridge, topic: str) -> int | None:
    [sight] = bridge.cluster.read_topics([topic]).values()
    return sight.partitions if isinstance(sight, FoundTopic) else None


def test_topics_that_clients_name_are_created_if_a_door_is_told_to(bridge: Bridge) -> None:
    """By routes and SENDs, once for all who ask at a time. The topics of the system are not."""
    name = f"{bridge.namespace}-new"
    with Door(bridge, "--auto-create-topics=3", "--grpc-listen=127.0.0.1:0") as door, RawClient(door) as client:

        def queues(topic: str) -> int:
            with RawClient(door) as asker:
                answer, body = asker.ask(ROUTE, {"topic": topic})
            return json.loads(body)["queueDatas"][0]["writeQueueNums"] if answer["code"] == 0 else -answer["code"]

        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(queues, [f"{name}-1"] * 4)) == [3] * 4
        [sight] = bridge.cluster.read_topics([f"{name}-1"]).values()
        assert isinstance(sight, FoundTopic)
        # As of `txbridge topics apply --real-topic`: HALF takes messages of 1,000,000 bytes, and has one copy here.
        assert (sight.partitions, sight.replication_factor, sight.config["max.message.bytes"]) == (3, 1, "1131072")

        sent, _ = client.ask(SEND, send_fields("new", f"{name}-2", TRAN_MSG="true", UNIQ_KEY="one"), b"first")
        assert client.ask(END, end_fields("new", sent, COMMIT))[0]["code"] == 0
        bridge.wait_visible(f"{name}-2", [b"first"])
        with grpc.insecure_channel(door.grpc_address) as channel:
            query = channel.unary_unary(
                "/apache.rocketmq.v2.MessagingService/QueryRoute",
                request_serializer=service.QueryRouteRequest.SerializeToString,
                response_deserializer=service.QueryRouteResponse.FromString,
            )
            place = definition.Endpoints(
                scheme=definition.IPv4, addresses=[definition.Address(host="127.0.0.1", port=door.grpc_port)]
            )
            request = service.QueryRouteRequest(topic=definition.Resource(name=f"{name}-3"), endpoints=place)
            route = query(request, timeout=60)
        assert len(route.message_queues) == 3
        assert partitions_of(bridge, f"{name}-3") == 3

        never = ["SCHEDULE_TOPIC_XXXX", "%RETRY%readers", bridge.names.discard, "RMQ_SYS_TRACE_TOPIC"]
        # The last one has a route all the same, and what is sent to it is dropped.
        assert [queues(topic) for topic in never] == [-17, -17, -17, 4]
        assert client.ask(SEND, send_fields("new", "TBW102", UNIQ_KEY="two"), b"x")[0]["code"] == 17
        assert {one["by"] for one in door.events("topic_created")} == {"--auto-create-topics"}
    there = set(bridge.admin.list_topics(timeout=60).topics)
    assert there & {"TBW102", *never} == {bridge.names.discard}


def test_an_administrator_creates_topics_and_sees_what_the_door_knows(bridge: Bridge, keys: Path) -> None:
    new = f"{bridge.namespace}-created"
    with Door(bridge, f"--access-keys={keys}") as door, RawClient(door) as client:

        def refusal(code: int, fields: dict[str, str], key: tuple[str, str] = OPERATORS) -> tuple[int, str]:
            answer, _ = client.ask(code, signed(key, fields))
            return answer["code"], answer.get("remark", "")

        assert client.ask(ROUTE, signed(ORDERS, {"topic": new}))[0]["code"] == 17
        assert client.ask(CREATE, signed(OPERATORS, topic_fields(new, 5)))[0]["code"] == 0
        # A client that was just told that there is none finds it at once.
        assert client.ask(ROUTE, signed(ORDERS, {"topic": new}))[0]["code"] == 0
        assert partitions_of(bridge, new) == 5
        assert client.ask(CREATE, signed(OPERATORS, topic_fields(new, 5)))[0]["code"] == 0
        code, remark = refusal(CREATE, topic_fields(new, 8))
        assert (code, "exists, and has 5 partitions" in remark) == (29, True)
        assert refusal(CREATE, topic_fields(new, 5, perm=4))[0] == 29
        assert refusal(CREATE, topic_fields(new, 0))[0] == 29
        assert refusal(CREATE, topic_fields(bridge.names.half, 2))[0] == 16
        assert refusal(CREATE, topic_fields("no topic", 2))[0] == 17
        code, remark = refusal(CREATE, topic_fields(f"{new}-2", 2), ORDERS)
        assert (code, "admin = true" in remark) == (16, True)
        assert refusal(CREATE, topic_fields(f"{new}-2", 2), HELPERS)[0] == 16
        assert partitions_of(bridge, f"{new}-2") is None

        client.ask(HEARTBEAT, signed(ORDERS, {}, heartbeat("orders")), heartbeat("orders"))
        _, body = client.ask(PRODUCERS, signed(ORDERS, {"producerGroup": "orders"}))
        host, port = client.socket.getsockname()
        assert [one["clientAddr"] for one in json.loads(body)["connectionSet"]] == [f"{host}:{port}"]
        assert refusal(PRODUCERS, {"producerGroup": "others"}) == (
            1,
            "no producer of the group others is connected to this door and has sent a heartbeat",
        )
        assert refusal(PRODUCERS, {"producerGroup": "others"}, ORDERS)[0] == 16

        _, body = client.ask(CLUSTER, signed(ORDERS, {}))
        assert json.loads(body)["clusterAddrTable"] == {"txbridge": [f"door-{door.address}"]}
        _, body = client.ask(RUNTIME, signed(ORDERS, {}))
        assert json.loads(body)["table"]["brokerVersionDesc"].startswith("txbridge ")


def test_the_doctor_says_what_an_option_creates(bridge: Bridge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXBRIDGE_ROCKETMQ_SECRET", SECRET)
    missing = f"--real-topic={bridge.namespace}-not-yet"
    with Door(bridge) as door:
        place = [f"--bootstrap-servers={bridge.bootstrap_servers}", f"--namespace={bridge.namespace}"]
        place += ["--door", f"--listen={door.address}", missing]
        without = run_txbridge("doctor", *place).stdout
        told = run_txbridge("doctor", *place, "--auto-create-topics=3").stdout
    assert "the door answers TOPIC_NOT_EXIST" in without
    assert "the door creates it when it is named" in told
    assert "TOPIC_NOT_EXIST" not in told
    assert partitions_of(bridge, missing.partition("=")[2]) is None


@pytest.mark.long
def test_mqadmin_and_the_admin_client_of_go(bridge: Bridge, keys: Path) -> None:
    topic, new = topic_of(bridge, "seen"), f"{bridge.namespace}-made"
    with Door(bridge) as door, RawClient(door) as client, Mqadmin() as mqadmin:
        client.ask(HEARTBEAT, {}, heartbeat("shop"))
        at = ("-n", door.address)
        [line] = [one for one in mqadmin("clusterList", *at).splitlines() if one.startswith("txbridge")]
        assert line.split()[1:6] == [f"door-{door.address}", "0", door.address, "txbridge", line.split()[5]]
        host, port = client.socket.getsockname()
        assert f"{host}:{port}" in mqadmin("producerConnection", "-g", "shop", "-t", topic, *at)
        refused = mqadmin("updateTopic", "-b", door.address, "-t", new, "-w", "3", *at)
        assert "CODE: 16" in refused
        assert "admin = true" in refused
        if shutil.which("go") is not None:

            def go(*command: str) -> str:
                return subprocess.run(
                    [go_client(GO_REMOTING, "admin"), door.address, *command],
                    capture_output=True,
                    text=True,
                    check=True,
                ).stdout

            # Its client takes any answer for success, so there is none.
            assert go("create", new, "3") == "error request timeout\n"
    assert partitions_of(bridge, new) is None
    with Door(bridge, f"--access-keys={keys}") as door, Mqadmin(OPERATORS) as mqadmin:
        made = mqadmin("updateTopic", "-c", "txbridge", "-t", new, "-w", "3", "-n", door.address)
        assert f"create topic to {door.address} success" in made
        assert door.address in mqadmin("clusterList", "-n", door.address)
        assert "txbridge" in mqadmin("brokerStatus", "-b", door.address, "-n", door.address)
        told = mqadmin("producerConnection", "-g", "shop", "-t", topic, "-n", door.address)
        assert "no producer of the group shop" in told
    assert partitions_of(bridge, new) == 3
