"""`txbridge doctor --door` with faulty doors. An integration test has a correct one."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from txbridge_rocketmq.access import Certificate
from txbridge_rocketmq.command import RemotingCommand, response
from txbridge_rocketmq.door_options import SECRET_VARIABLE
from txbridge_rocketmq.examination import examine_door

from tests.support.rocketmq_door import tls_options
from txbridge.cli.rocketmq import DoorPlace
from txbridge.doctor.finding import Finding
from txbridge.embedded.ports import free_port

SECRET = {SECRET_VARIABLE: "x" * 32}


def found(environ: Mapping[str, str] = SECRET, topics: tuple[str, ...] = (), **given: Any) -> list[Finding]:
    given.setdefault("listen", f"127.0.0.1:{free_port()}")
    return list(examine_door(DoorPlace(**given), topics, environ))


@contextlib.contextmanager
def listener(answer: bytes) -> Iterator[str]:
    """A server that answers the first bytes with these, and closes."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                accepted, _ = server.accept()
                with accepted:
                    accepted.recv(10_000)
                    accepted.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join(60)


def route(cluster: str, *addresses: str) -> bytes:
    brokers = [{"cluster": cluster, "brokerAddrs": {"0": address}} for address in addresses]
    return response(RemotingCommand(105, 1), 0, body=json.dumps({"brokerDatas": brokers}).encode())


def test_a_door_that_could_not_start() -> None:
    [one] = found({SECRET_VARIABLE: "short"})
    assert one.level.value == "problem"
    assert "has 5 characters, and 32 are needed" in one.text


def test_a_door_that_is_not_reached() -> None:
    secret, keys, silent = found()
    assert (secret.text, secret.level.value) == ("the secret has 32 characters", "ok")
    assert (keys.level.value, silent.level.value) == ("note", "problem")
    assert "serves everyone who can reach it" in keys.text
    assert "does not answer like a door" in silent.text


@pytest.mark.parametrize(
    ("answer", "level", "text"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "problem", "does not answer like a door"),
        (b"", "problem", "it closed the connection"),
        (route("DefaultCluster", "a:1"), "problem", "is not a txbridge door"),
        (response(RemotingCommand(105, 1), 17, "no route"), "problem", "is not a txbridge door"),
        (response(RemotingCommand(105, 1), 16, "wrong key"), "problem", "refuses the AccessKey: wrong key"),
        (route("txbridge", "other:9876"), "warning", "sends its clients to other:9876, not to 127.0.0.1:"),
    ],
)
def test_something_else_listens_there(answer: bytes, level: str, text: str) -> None:
    with listener(answer) as address:
        last = found(advertised=address)[-1]
    assert last.level.value == level
    assert text in last.text
    assert last.do


def test_a_door_that_has_other_keys_is_found_though_it_gives_everyone_a_route(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text('[[key]]\naccess_key = "ak"\nsecret_key = "a secret"\n')
    refused = response(RemotingCommand(35, 1), 16, "wrong key")
    with listener(refused + route("txbridge", "127.0.0.1:1")) as address:
        last = found(listen=address, access_keys=keys)[-1]
    assert (last.level.value, last.do) == ("problem", "give all doors the same keys")


def test_a_door_that_answers() -> None:
    with listener(route("txbridge", "127.0.0.1:1", "127.0.0.1:2")) as address:
        last = found(listen=address)[-1]
    assert last.level.value == "ok"
    assert last.text == f"{address} answers, and sends clients to 127.0.0.1:1, 127.0.0.1:2"


@pytest.mark.parametrize(
    ("answer", "level", "text"),
    [
        (b"\0\0\0\4\0\0\0\0\0", "ok", "speaks gRPC"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "problem", "does not speak gRPC"),
        (b"\0\0", "problem", "does not answer like a door"),
    ],
)
def test_the_address_of_grpc(answer: bytes, level: str, text: str) -> None:
    with listener(answer) as address:
        last = found(grpc_listen=address)[-1]
    assert last.level.value == level
    assert text in last.text


def test_files_and_topics(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text('[[key]]\naccess_key = "ak"\nsecret_key = "the secret key"\n')
    keys.chmod(0o644)
    lines = [one.text for one in found(access_keys=keys, topics=("orders", "orders.v2"))]
    assert f"every user of this machine can read or write {keys}" in lines
    assert any("AccessKeys without TLS" in one for one in lines)
    assert sum("has a dot in its name" in one for one in lines) == 1
    keys.chmod(0o640)
    assert not any("every user of this machine" in one.text for one in found(access_keys=keys))
    assert not any("the secret key" in one for one in lines)


def test_files_that_change_are_read_again_when_they_are_at_rest_and_good(tmp_path: Path) -> None:
    tls_options(tmp_path, days=20)
    tls = Certificate(tmp_path / "certificate.pem", tmp_path / "key.pem")
    first, old = tls.context, (tmp_path / "certificate.pem").read_bytes()
    assert tls.days_left == pytest.approx(20, abs=0.1)
    assert not tls.look_again()
    tls_options(tmp_path, days=10)
    given = {"tls_certificate": tmp_path / "certificate.pem", "tls_key": tmp_path / "key.pem"}
    assert [one.text for one in found(**given) if one.level.value == "warning"] == [
        "the certificate expires in 10 days"
    ]
    with capture_logs() as logged:
        # The first look finds a change. The second one finds no other.
        assert (tls.look_again(), tls.look_again(), tls.look_again()) == (False, True, False)
        assert tls.context is not first
        assert tls.days_left == pytest.approx(10, abs=0.1)
        (tmp_path / "certificate.pem").write_bytes(old)
        assert [tls.look_again() for _ in range(3)] == [False] * 3
        (tmp_path / "certificate.pem").unlink()
        assert [tls.look_again() for _ in range(3)] == [False] * 3
        assert tls.days_left == pytest.approx(10, abs=0.1)
    assert [one["event"] for one in logged] == ["files_read", "files_not_read", "files_not_read"]
    assert "KEY_VALUES_MISMATCH" in logged[1]["error"]
