"""The steps of docs/rocketmq.md, executed as an operator does, with two doors and RocketMQ's own clients."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.command_line import PROGRAM
from tests.support.harness import WorkerProcess, eventually
from tests.support.rocketmq_door import GrpcClient, JavaClient
from txbridge.embedded import EmbeddedKafka
from txbridge.embedded.ports import free_port
from txbridge.testing import backends

PAGE = (Path(__file__).parents[2] / "docs" / "rocketmq.md").read_text("utf-8")
TOPIC = "OrderPaid"


@dataclass(frozen=True)
class Host:
    """One of the hosts that the page calls door-1 and door-2."""

    name: str
    port: int
    grpc_port: int
    metrics_port: int

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def grpc_address(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"


def section(heading: str) -> str:
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def commands() -> list[str]:
    return re.findall(r"^    \$ (.+)$", section("Step by step"), re.MULTILINE)


def meant(text: str, hosts: list[Host], here: Host) -> list[str]:
    """Words of a command on one of the hosts, with this machine's addresses in place of the page's."""
    for host in hosts:
        text = text.replace(f"{host.name}:9876", host.address).replace(f"{host.name}:8081", host.grpc_address)
    text = text.replace("0.0.0.0:9876", here.address).replace("0.0.0.0:8081", here.grpc_address)
    return shlex.split(text.replace("9465", str(here.metrics_port)))


@pytest.mark.long
def test_the_steps(own_kafka: EmbeddedKafka, tmp_path: Path) -> None:
    servers = own_kafka.bootstrap_servers
    (export, topics, worker, secret, door, doctor) = commands()
    assert export == "export TXBRIDGE_BOOTSTRAP_SERVERS=kafka:9092"
    assert worker == "txbridge worker"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "TXBRIDGE_"))}
    environment |= {"TXBRIDGE_BOOTSTRAP_SERVERS": servers, "TXBRIDGE_LOG_FORMAT": "json"}
    hosts = [Host(f"door-{number}", free_port(), free_port(), free_port()) for number in (1, 2)]
    [grpc] = re.findall(r"Add `(--grpc-listen [^`]+)`", section("Step by step"))
    assert "`door-1:9876;door-2:9876`" in PAGE, "what the clients below are given"
    assert "`door-1:8081;door-2:8081`" in PAGE

    def run(command: list[str]) -> str:
        made = txbridge(command) if command[0] == "txbridge" else command
        done = subprocess.run(
            made, check=False, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    with ExitStack() as stack:
        run(shlex.split(topics))
        working = WorkerProcess([], tmp_path / "worker.log", environment)
        stack.callback(working.stop)
        run(["sh", "-c", secret])
        for host in hosts:
            running = _door([*meant(door, hosts, host), *meant(grpc, hosts, host)], tmp_path, host, environment)
            stack.callback(running.stop)
            running.wait_logged("door_started", 180)
        working.wait_serving(1)
        told = run(meant(doctor, hosts, hosts[0]))
        assert all(f"{host.address} answers, and sends clients to" in told for host in hosts), told
        consumer = _consumer(tmp_path, servers, environment)
        stack.callback(consumer.stop)
        classic = stack.enter_context(JavaClient("4.9.8", hosts, "orders-service"))
        modern = stack.enter_context(GrpcClient("python", hosts, [TOPIC]))
        first = classic.transaction(TOPIC, "paid by card", "commit", tags="vip", keys="A1")
        asked = classic.transaction(TOPIC, "paid later", "unknown", "commit", tags="vip", keys="A2")
        classic.transaction(TOPIC, "not paid", "rollback", tags="vip", keys="A3")
        classic.transaction(TOPIC, "paid by others", "commit", tags="usual", keys="A4")
        other = modern.transaction(TOPIC, "paid in Python", "commit", tags="vip", keys="A5")
        expected = {
            f"{first['msg_id']} A1 paid by card",
            f"{asked['msg_id']} A2 paid later",
            f"{other} A5 paid in Python",
        }
        # The second message is checked after the worker's default time-out.
        eventually(lambda: expected <= set(consumer.log.splitlines()), 90, lambda: consumer.log)
        assert sorted(consumer.log.splitlines()) == sorted(expected)


def txbridge(command: list[str]) -> list[str]:
    return [*PROGRAM, *command[1:]]


def _door(command: list[str], folder: Path, host: Host, environment: Mapping[str, str]) -> backends.WorkerProcess:
    # The secret's file is where the page creates it.
    made = ["env", "-C", str(folder), *txbridge(command)]
    return backends.WorkerProcess(made, folder / f"{host.name}.log", environment)


def _consumer(folder: Path, servers: str, environment: Mapping[str, str]) -> backends.WorkerProcess:
    [program] = re.findall(r"^```python\n(.*?)^```$", section("Consumers"), re.MULTILINE | re.DOTALL)
    (folder / "consumer.py").write_text(program.replace("kafka:9092", servers), "utf-8")
    command = [sys.executable, str(folder / "consumer.py")]
    return backends.WorkerProcess(command, folder / "consumer.log", environment)
