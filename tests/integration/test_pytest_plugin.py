"""The pytest plugin for users: its errors when it cannot do what a test asks for. No test here starts a Kafka."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def run(folder: Path, test: str, *arguments: str, ini: str = "", fails: bool = True, **environment: str) -> str:
    """Output of pytest on this test file, in a process of its own."""
    (folder / "test_service.py").write_text(test)
    (folder / "pytest.ini").write_text(f"[pytest]\n{ini}\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "txbridge.testing.pytest_plugin", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env={**os.environ, "DOCKER_HOST": "unix:///nowhere/docker.sock", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode != 0) is fails, done.stdout
    return done.stdout + done.stderr


KAFKA = "def test_it(txbridge): pass\n"
#: The listener of the test in docs/testing-your-service.md.
SERVICE = """
import pytest

ORDERS = {}

def store(number, transaction_id): ORDERS[transaction_id] = number

@pytest.fixture
def look_up(): return lambda message: message.transaction_id in ORDERS

"""


def test_without_docker_the_header_says_that_kafka_is_embedded(tmp_path: Path):
    output = run(tmp_path, "def test_it(): assert False\n")
    assert "txbridge: backend embedded (auto; Docker does not answer" in output


def test_containers_without_docker_end_the_run_with_one_line(tmp_path: Path):
    output = run(tmp_path, KAFKA, "--txbridge-backend=containers")
    assert "Start Docker, or use the embedded Kafka (--txbridge-backend=embedded)" in output
    assert "Traceback" not in output


@pytest.mark.parametrize("processes", [[], ["-n", "2"]], ids=["alone", "xdist"])
def test_without_docker_and_java_the_run_ends_with_one_line(tmp_path: Path, processes: list[str]):
    several = "import pytest\n\n@pytest.mark.parametrize('number', range(4))\ndef test_it(number, txbridge): pass\n"
    output = run(tmp_path, several, *processes, PATH="/nowhere", JAVA_HOME="/nowhere")
    assert output.count("txbridge: Kafka needs Java 17 or later: JAVA_HOME=/nowhere") == 1
    assert "INTERNALERROR" not in output
    assert "Traceback" not in output
    assert len(output.splitlines()) < 20


def test_the_test_of_the_page_needs_neither(tmp_path: Path):
    page = (ROOT / "docs" / "testing-your-service.md").read_text()
    [test] = re.findall(r"```python\n(from txbridge import Bridge, .*?)```", page, re.DOTALL)
    places = {"PATH": "/nowhere", "JAVA_HOME": "/nowhere", "PYTHONPATH": str(ROOT)}
    assert "1 passed" in run(tmp_path, SERVICE + test, fails=False, **places)


@pytest.mark.parametrize(
    ("ini", "arguments", "says"),
    [
        ("txbridge_backend = docker", [], "txbridge_backend must be one of auto, containers, embedded, not 'docker'"),
        ("txbridge_scope = test", [], "txbridge_scope must be one of function, class, module, package, session"),
        ("", ["--txbridge-backend=embedded", "--txbridge-worker-image=x"], "a worker image needs Docker"),
    ],
)
def test_what_can_not_be_is_named(tmp_path: Path, ini: str, arguments: list[str], says: str):
    assert says in run(tmp_path, KAFKA, *arguments, ini=ini)
