"""The files and commands of docs/tutorial.md, used as a reader does."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.support import http
from tests.support.harness import WorkerProcess, eventually
from txbridge.embedded import EmbeddedKafka
from txbridge.embedded.ports import free_port
from txbridge.testing.inspection import read_committed

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text("utf-8")
SERVERS = "127.0.0.1:9092"


def files() -> dict[str, str]:
    """Code blocks that begin with a comment with their file name."""
    return dict(re.findall(r"^```\w+\n# ([\w.]+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))


def commands() -> list[list[str]]:
    lines = re.findall(r"^\$ (.+)$", PAGE, re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


def place(port: int, order: bytes) -> int:
    """HTTP status; 0 while the shop does not answer."""
    return http.ask_if_there(urllib.request.Request(f"http://127.0.0.1:{port}/", order, method="POST")).status


@pytest.mark.long
def test_the_shop(own_kafka: EmbeddedKafka, tmp_path: Path) -> None:
    assert set(files()) == {"worker.toml", "shop.py", "billing.py", "conftest.py", "test_shop.py"}
    servers = own_kafka.bootstrap_servers
    worker_port, shop_port, metrics_port = (free_port() for _ in range(3))
    for name, text in files().items():
        (tmp_path / name).write_text(text.replace(SERVERS, servers).replace("9464", str(worker_port)), "utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "TXBRIDGE_"))}
    txbridge = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True, "timeout": 120}

    def run(command: list[str], code: int = 0) -> None:
        done = subprocess.run([sys.executable, "-m", "txbridge.cli.main", *command[1:]], check=False, **txbridge)
        assert done.returncode == code, done.stdout + done.stderr

    for command in commands():
        if command[:2] == ["txbridge", "topics"]:
            # The exit code of a plan shows that there is something to do.
            run(command, 1 if "plan" in command else 0)
    [worker] = [one for one in commands() if one[:2] == ["txbridge", "worker"]]
    assert worker[2:] == ["--config", "worker.toml"]
    running = WorkerProcess(["--config", str(tmp_path / "worker.toml")], tmp_path / "worker.log", environment)
    service = subprocess.Popen(
        [sys.executable, "shop.py", servers, str(shop_port), str(metrics_port)], cwd=tmp_path, env=environment
    )
    try:
        eventually(lambda: place(shop_port, b'{"number": "A0", "amount": 1}') in {201, 409}, 60)
        assert place(shop_port, b'{"number": "A1", "amount": 250}') == 201
        assert place(shop_port, b'{"number": "A1", "amount": 250}') == 409
        kafka = {"bootstrap.servers": servers, "log_level": 0}
        seen = lambda: [one.key() for one in read_committed(kafka, "orders.placed", 4)]  # noqa: E731
        eventually(lambda: sorted(seen()) == [b"A0", b"A1"], 60)
        told = {worker_port: "txbridge_half_oldest_pending_seconds", metrics_port: "txbridge_client_ends_total"}
        for port, metric in told.items():
            assert metric in http.ask(f"http://127.0.0.1:{port}/metrics").text
        [doctor] = [one for one in commands() if one[:2] == ["txbridge", "doctor"]]
        run(doctor)
        billing = subprocess.run([sys.executable, "billing.py", servers], check=False, **txbridge)
        assert sorted(billing.stdout.splitlines()) == [
            '{"number": "A0", "amount": 1}',
            '{"number": "A1", "amount": 250}',
        ]
    finally:
        service.kill()
        service.wait()
        running.stop()


@pytest.mark.long
def test_the_tests_of_the_shop_pass(tmp_path: Path) -> None:
    for name in ("shop.py", "conftest.py", "test_shop.py"):
        (tmp_path / name).write_text(files()[name], "utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--txbridge-backend=embedded"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
