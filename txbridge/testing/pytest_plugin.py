"""Fixtures for tests of a transactional service; opt in with `-p txbridge.testing.pytest_plugin`, or in conftest.py:

    pytest_plugins = ["txbridge.testing.pytest_plugin"]

docs/testing-your-service.md shows a service and its tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from txbridge.errors import TxBridgeError
from txbridge.testing.backends import Backend, EmbeddedBackend, RunningWorker
from txbridge.testing.memory import MemoryBridge
from txbridge.testing.sandbox import Sandbox

_CHOICES = ("auto", "containers", "embedded")
_SCOPES = ("function", "class", "module", "package", "session")
#: Number of characters of a worker's log that a failed test shows, from the end.
_SHOWN = 4_000


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add options of the command line. Each may be in the configuration file as well, under its name with `_`."""
    group = parser.getgroup("txbridge", "tests of transactional services on a real Kafka")
    group.addoption(
        "--txbridge-backend",
        choices=_CHOICES,
        help="where Kafka runs: in a container, embedded (needs Java 17), or auto: in a container if there is Docker",
    )
    group.addoption(
        "--txbridge-worker-image",
        help="run workers in containers of this image, too, instead of as processes of the installed txbridge",
    )
    parser.addini("txbridge_backend", f"{', '.join(_CHOICES)} (default auto)", default="auto")
    parser.addini("txbridge_worker_image", "see --txbridge-worker-image", default="")
    parser.addini("txbridge_scope", f"of the sandbox: {', '.join(_SCOPES)} (default function)", default="function")


def pytest_report_header(config: pytest.Config) -> str:
    """A line about the chosen backend, with the reason."""
    _, why = _choice(config)
    return f"txbridge: {why}"


def _option(config: pytest.Config, name: str) -> str:
    return str(config.getoption(name) or config.getini(name))


def _choice(config: pytest.Config) -> tuple[str, str]:
    """The backend, and a line about it for people."""
    chosen = _option(config, "txbridge_backend")
    if chosen not in _CHOICES:
        raise pytest.UsageError(f"txbridge_backend must be one of {', '.join(_CHOICES)}, not {chosen!r}")
    if chosen != "auto":
        return chosen, f"backend {chosen}"
    try:
        # The extra `testing` has it. Without the extra the embedded Kafka runs.
        from txbridge.testing.containers import docker_problem  # noqa: PLC0415
    except ImportError:
        return "embedded", "backend embedded (auto; testcontainers is not installed: pip install 'txbridge[testing]')"
    problem = docker_problem()
    if problem is None:
        return "containers", "backend containers (auto; Docker answers)"
    return "embedded", f"backend embedded (auto; {problem})"


def _scope(fixture_name: str, config: pytest.Config) -> Any:  # noqa: ARG001  pytest calls it with these names
    scope = str(config.getini("txbridge_scope"))
    if scope not in _SCOPES:
        raise pytest.UsageError(f"txbridge_scope must be one of {', '.join(_SCOPES)}, not {scope!r}")
    return scope


@pytest.fixture
def txbridge_memory() -> Iterator[MemoryBridge]:
    """A bridge in memory: it needs no Kafka, and a test with it takes milliseconds."""
    with MemoryBridge() as bridge:
        yield bridge


@pytest.fixture(scope="session")
def txbridge_backend(pytestconfig: pytest.Config, request: pytest.FixtureRequest) -> Iterator[Backend]:
    """A running Kafka, for the whole session. Override it to use another (`ProcessBackend(servers)`)."""
    chosen, _ = _choice(pytestconfig)
    image = _option(pytestconfig, "txbridge_worker_image")
    backend: Backend
    if chosen == "containers":
        from txbridge.testing.containers import ContainerBackend  # noqa: PLC0415 - needs the extra

        backend = ContainerBackend(image)
    elif image:
        raise pytest.UsageError("a worker image needs Docker: use --txbridge-backend=containers with it")
    else:
        backend = EmbeddedBackend()
    try:
        backend.start()
    except TxBridgeError as error:
        # Every test would fail in the same way, with a traceback that adds nothing.
        why = f"txbridge: {error}"
        if hasattr(pytestconfig, "workerinput"):
            # A process of pytest-xdist. The main process ends with the reason of the first one that stops.
            request.session.shouldstop = why
            pytest.skip(why)
        pytest.exit(why, returncode=pytest.ExitCode.USAGE_ERROR)
    yield backend
    backend.stop()


@pytest.fixture(scope=_scope)
def txbridge_options() -> dict[str, object]:
    """Options of all workers; override it. No check comes by itself unless you set `transaction_timeout`."""
    return {}


@pytest.fixture(scope=_scope)
def txbridge(
    txbridge_backend: Backend, txbridge_options: dict[str, object], request: pytest.FixtureRequest
) -> Iterator[Sandbox]:
    """Topics of a fresh namespace, and everything that a test can do with them; no worker runs yet."""
    failed = request.session.testsfailed
    with Sandbox(txbridge_backend, options=txbridge_options) as sandbox:
        yield sandbox
    if request.session.testsfailed > failed:
        for number, worker in enumerate(sandbox.workers, 1):
            print(f"--- end of the log of txbridge worker {number} ---\n{worker.log[-_SHOWN:]}")


@pytest.fixture(scope=_scope)
def txbridge_worker(txbridge: Sandbox) -> RunningWorker:
    """A worker of the sandbox that serves."""
    return txbridge.start_worker()
