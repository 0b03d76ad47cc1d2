"""A front door in a process of its own, RocketMQ's Java clients of any version, and a client that writes raw frames."""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, Self

import pytest
from confluent_kafka.admin import NewTopic
from prometheus_client.parser import text_string_to_metric_families
from txbridge_rocketmq.access import signature

from tests.peer.client import compiled
from tests.peer.jars import client_class_path
from tests.peer.native import GO_GRPC, GO_REMOTING, NODE, go_client, node_packages, rust_client
from tests.support import http
from tests.support.command_line import MODULE
from tests.support.forked import LoggedProgram
from tests.support.harness import Bridge
from tests.support.line_process import LineProcess
from txbridge.embedded.java import find_java

SECRET = "the secret of all doors of a test"
_PEER = Path(__file__).parents[1] / "peer"
_CLIENT, _GRPC_JAVA, _GRPC_PYTHON = (_PEER / name for name in ("DoorClient.java", "GrpcClient.java", "grpc_client.py"))
#: The first time, a program is compiled, which takes seconds on a quiet machine.
_ANSWER_S = 300.0


class Reachable(Protocol):
    """The addresses that a client needs of a door."""

    @property
    def address(self) -> str: ...

    @property
    def grpc_address(self) -> str: ...


class Door(LoggedProgram):
    """A `txbridge rocketmq` process, started as by an operator."""

    def __init__(
        self, bridge: Bridge, *arguments: str, listen: str = "127.0.0.1:0", secret: str = SECRET, metrics_port: int = 0
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="txbridge-door-")
        self._metrics_port = metrics_port
        command = [MODULE, "rocketmq", f"--listen={listen}", *arguments]
        command.append(f"--metrics-port={metrics_port}")
        command += [f"--bootstrap-servers={bridge.bootstrap_servers}", f"--namespace={bridge.namespace}"]
        # The last one is a variable of another program: prometheus_client would write there.
        environment = {
            "TXBRIDGE_ROCKETMQ_SECRET": secret,
            "TXBRIDGE_LOG_FORMAT": "json",
            "PROMETHEUS_MULTIPROC_DIR": "/nowhere",
        }
        super().__init__(command, Path(self._folder.name) / "log", environment)

    def __enter__(self) -> Self:
        self.wait_logged('"door_started"', 180)
        started = self.events("door_started")[0]
        self.port = int(started["port"])
        self.grpc_port = started.get("grpc_port")
        return self

    def __exit__(self, _kind: object, error: object, _trace: object) -> None:
        self.stop()
        if error is not None:
            print(f"--- log of the door ---\n{self.log[-6000:]}")
        self._folder.cleanup()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def grpc_address(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    def page(self, path: str) -> http.Answer:
        """A page of a door's operations port, with status 0 while nobody answers."""
        return http.ask_if_there(f"http://127.0.0.1:{self._metrics_port}{path}")

    def reasons(self) -> list[str] | None:
        """The reasons why the door is not ready. None while nobody answers."""
        answer = self.page("/readyz")
        if not answer.status:
            return None
        found: list[str] = json.loads(answer.body)["reasons"]
        assert answer.status == (503 if found else 200)
        return found

    def metrics(self) -> Counter[str]:
        """The door's metrics: "name" or "name{label=value,...}" without the common prefix, to the value."""
        return Counter(
            {
                sample.name.removeprefix("txbridge_rocketmq_")
                + ("{" + ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items())) + "}")
                * bool(sample.labels): int(sample.value)
                for family in text_string_to_metric_families(self.page("/metrics").text)
                for sample in family.samples
                if not sample.name.endswith(("_created", "_bucket", "_sum"))
            }
        )


def tls_options(folder: Path, days: int = 2) -> list[str]:
    """Options of a door with TLS. Its new key and certificate are in this folder."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", str(days), "-subj", "/CN=localhost"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    return [f"--tls-certificate={certificate}", f"--tls-key={key}"]


def topic_of(bridge: Bridge, name: str, partitions: int = 4) -> str:
    """A real topic whose name has no dots, which RocketMQ's clients refuse."""
    topic = f"{bridge.namespace}-{name}"
    bridge.admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(120)
    bridge.await_topic(topic)
    return topic


class Client:
    """A program with an unmodified client of RocketMQ, in a process of its own."""

    #: Fields of a check that the program prints.
    _CHECK: Sequence[str]

    def __init__(self, command: Sequence[str | Path], **environment: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="txbridge-client-")
        # Clients write logs below HOME. Java takes the home from the user's entry instead.
        home = {"HOME": self._folder.name, "JAVA_TOOL_OPTIONS": f"-Duser.home={self._folder.name}"}
        self._process = LineProcess(command, Path(self._folder.name) / "errors", {**os.environ, **home, **environment})

    def ask(self, *command: str) -> list[str]:
        """Send a command and return the fields of its answer. Raises AssertionError with the text of an error."""
        answer = self.try_(*command)
        assert answer[0] == "done", answer
        return answer[1:]

    def try_(self, *command: str) -> list[str]:
        """Send a command and return "done" or "error", and the fields."""
        answer = self._process.ask("\t".join(command), _ANSWER_S)
        assert answer, self._process.errors[-3000:]
        return answer.split("\t")

    def kill(self) -> None:
        self._process.kill()

    @property
    def log(self) -> str:
        """What RocketMQ's library has logged: that of Java to files, the others to standard error."""
        files = sorted(Path(self._folder.name).rglob("*.log"))
        return "".join(one.read_text("utf-8", "replace") for one in files) + self._process.errors

    def stop(self) -> int | None:
        """Let it end by itself, and return its exit code."""
        self._process.end(60)
        return self._process.code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._folder.cleanup()

    def sent(self) -> list[tuple[str, str]]:
        """Id and text of each message whose local transaction has run."""
        (told,) = self.ask("sent")
        return [(one.partition("|")[0], one.partition("|")[2]) for one in told.split(";")] if told else []

    def transaction(
        self,
        topic: str,
        body: str,
        answer: str,
        checks: str = "unknown",
        *,
        tags: str = "",
        keys: str = "",
        p: str = "",
    ) -> Any:
        """Run one transaction and return the result that the producer got."""
        return self._result(self.ask("transaction", topic, body, answer, checks, tags, keys, p))

    def _result(self, fields: list[str]) -> Any:
        """The result of a transaction: of the gRPC protocol it is the message's id."""
        (message_id,) = fields
        return message_id

    def checks(self) -> list[dict[str, str]]:
        """The checks that its listener has received."""
        (rows,) = self.ask("checks")
        return [dict(zip(self._CHECK, one.split("|"), strict=True)) for one in rows.split(";")] if rows else []


class RemotingClient(Client):
    """A producer of the remoting protocol: a program with its arguments, the doors, and a group."""

    _CHECK = ("text", "transaction_id", "topic", "tags", "keys", "p", "times", "group", "length", "born_host")

    def __init__(
        self,
        program: Sequence[str | Path],
        doors: Sequence[Reachable],
        group: str,
        keys: Sequence[str] = (),
        **environment: str,
    ) -> None:
        super().__init__([*program, ";".join(door.address for door in doors), group, *keys], **environment)

    def _result(self, fields: list[str]) -> Any:
        names = ("status", "msg_id", "transaction_id", "queue", "offset", "state", "message_transaction_id")
        return dict(zip(names, fields, strict=True))


class JavaClient(RemotingClient):
    """RocketMQ's own producer in Java."""

    def __init__(
        self, version: str, doors: Sequence[Reachable], group: str, *options: str, keys: Sequence[str] = ()
    ) -> None:
        jars = os.pathsep.join(map(client_class_path, (version, "codecs")))
        # The netty of clients before 4.9 looks into classes that Java 17 closes.
        flags = ["-Xmx128m", "--add-opens=java.base/java.nio=ALL-UNNAMED", *options]
        super().__init__(_java_program(_CLIENT, jars, *flags), doors, group, keys)


class GoClient(RemotingClient):
    """RocketMQ's own producer in Go, `rocketmq-client-go`."""

    def __init__(self, doors: Sequence[Reachable], group: str, keys: Sequence[str] = (), **environment: str) -> None:
        _require("Go", "golang-go", "go")
        super().__init__([go_client(GO_REMOTING)], doors, group, keys, **environment)


class GrpcClient(Client):
    """RocketMQ's own producer of the gRPC protocol in Python, Node, Go, Rust, or Java, of which "java-5.0.0" is one."""

    _CHECK = ("text", "message_id", "topic", "tag", "keys", "p", "length", "corrupted", "born_host")

    def __init__(
        self,
        language: str,
        doors: Sequence[Reachable],
        topics: Sequence[str] = (),
        *,
        keys: Sequence[str] = ("", ""),
        tls: bool = False,
    ) -> None:
        arguments = [";".join(door.grpc_address for door in doors), ",".join(topics), *keys, str(tls).lower()]
        super().__init__([*_grpc_program(language), *arguments])


class SpringClient(Client):
    """An application with a Spring starter for RocketMQ: of "remoting", of "grpc", or that of Spring Cloud "stream"."""

    _CHECK = ("text", "topic", "keys", "p", "length")

    _TLS = MappingProxyType(
        {"remoting": "rocketmq.producer.tls-enable", "grpc": "rocketmq.producer.ssl-enabled", "stream": "tls.enable"}
    )

    def __init__(self, starter: str, doors: Sequence[Reachable], topic: str, *, tls: bool = False) -> None:
        locks = ["spring-stream"] if starter == "stream" else [f"spring-{starter}", "spring"]
        flags = ["-Xmx128m", "-XX:ActiveProcessorCount=16"]
        flags += [f"-D{self._TLS[starter]}=true"] * tls
        program = _PEER / f"Spring{starter.capitalize()}.java"
        addresses = [door.grpc_address if starter == "grpc" else door.address for door in doors]
        jars = os.pathsep.join(map(client_class_path, locks))
        super().__init__([*_java_program(program, jars, *flags), ";".join(addresses), topic])


def _grpc_program(language: str) -> list[str | Path]:
    match language:
        case "python":
            return [sys.executable, _GRPC_PYTHON]
        case "node":
            _require("Node", "nodejs npm", "node", "npm")
            return ["env", f"NODE_PATH={node_packages()}", "node", NODE / "client.js"]
        case "go":
            _require("Go", "golang-go", "go")
            return [go_client(GO_GRPC)]
        case "rust":
            _require("Rust", "cargo", "cargo")
            return [rust_client()]
    # The client answers checks in as many threads as there are processors, and the same threads have to take the
    # answers to its ENDs. On two processors it hangs forever after two checks at a time (docs/rocketmq.md).
    flags = ["-Xmx128m", "-XX:ActiveProcessorCount=16", "-Drocketmq.log.level=warn"]
    jars = client_class_path("java-5.2.0" if language == "java" else language)
    return _java_program(_GRPC_JAVA, jars, *flags)


def _java_program(source: Path, jars: str, *flags: str) -> list[str | Path]:
    """A client that lives for seconds: its start costs a third without the thorough compilers of Java."""
    java = find_java()
    quick = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    return [java.executable, *quick, *flags, "-cp", compiled(java, jars, source), source.stem]


def _require(language: str, packages: str, *programs: str) -> None:
    """Skip the test if one of these programs is not on the PATH."""
    if not all(map(shutil.which, programs)):
        pytest.skip(f"NO {language.upper()}: RocketMQ's client in it is not tested here; apt-get install {packages}")


def frame(code: int, fields: dict[str, str], body: bytes = b"", *, opaque: int = 1, flag: int = 0) -> bytes:
    """A request in JSON, built from the description of the protocol."""
    header = json.dumps(
        {"code": code, "flag": flag, "language": "JAVA", "opaque": opaque, "version": 477, "extFields": fields}
    ).encode()
    return struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body


class RawClient:
    """A connection of which a test writes every byte."""

    def __init__(self, door: Door, port: int | None = None, source: str = "127.0.0.1") -> None:
        self.socket = socket.create_connection(("127.0.0.1", port or door.port), 60, (source, 0))
        self.socket.settimeout(120)
        self.checks: list[tuple[dict[str, Any], bytes]] = []

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self) -> tuple[dict[str, Any], bytes]:
        """Header and body of the next frame. ConnectionError at the end."""
        (length,) = struct.unpack(">i", self._exactly(4))
        content = self._exactly(length)
        (header,) = struct.unpack_from(">i", content)
        return json.loads(content[4 : 4 + header]), content[4 + header :]

    def ask(self, code: int, fields: dict[str, str], body: bytes = b"", **more: int) -> tuple[dict[str, Any], bytes]:
        self.send(frame(code, fields, body, **more))
        while True:
            header, content = self.receive()
            if header["flag"] & 1:
                return header, content
            # A request of the door that arrived before the answer.
            self.checks.append((header, content))

    def next_check(self) -> tuple[dict[str, Any], bytes]:
        """The next check, also one that came while the test waited for something else."""
        return self.checks.pop(0) if self.checks else self.receive()

    def is_closed(self) -> bool:
        """Wait until the door closes the connection."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def _exactly(self, length: int) -> bytes:
        found = b""
        while len(found) < length:
            part = self.socket.recv(length - len(found))
            if not part:
                raise ConnectionError("the door has closed the connection")
            found += part
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def send_fields(group: str, topic: str, queue_id: int = 0, **properties: str) -> dict[str, str]:
    """The fields of a SEND_MESSAGE_V2."""
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    return {
        "a": group,
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": str(queue_id),
        "f": "0",
        # Kafka soon deletes records that are older than a week.
        "g": str(int(time.time() * 1000)),
        "h": "0",
        "i": text,
        "j": "0",
        "k": "false",
        "m": "false",
    }


def signed(key: tuple[str, str], fields: dict[str, str], body: bytes = b"") -> dict[str, str]:
    """The fields with the signature of a key and its secret."""
    named = {**fields, "AccessKey": key[0]}
    return {**named, "Signature": signature(key[1].encode(), named, body)}


def heartbeat(group: str) -> bytes:
    """Body of a heartbeat."""
    return json.dumps(
        {"clientID": "by-hand", "producerDataSet": [{"groupName": group}], "consumerDataSet": []}
    ).encode()


def end_fields(group: str, sent: dict[str, Any], decision: int, **more: str) -> dict[str, str]:
    """Fields of an END_TRANSACTION, as a client builds them from the answer to its SEND."""
    told = sent["extFields"]
    return {
        "producerGroup": group,
        "tranStateTableOffset": told["queueOffset"],
        "commitLogOffset": str(int(told["msgId"][-16:], 16)),
        "commitOrRollback": str(decision),
        "fromTransactionCheck": "false",
        "msgId": told["transactionId"],
        "transactionId": told["transactionId"],
        **more,
    }


def answer_fields(group: str, check: dict[str, Any], decision: int) -> dict[str, str]:
    """Fields of the END_TRANSACTION that answers a check."""
    told = check["extFields"]
    back = ("tranStateTableOffset", "commitLogOffset", "msgId", "transactionId")
    given = {"producerGroup": group, "commitOrRollback": str(decision), "fromTransactionCheck": "true"}
    return {**given, **{name: told[name] for name in back}}
