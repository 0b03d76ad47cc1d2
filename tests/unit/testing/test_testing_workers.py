"""Workers of a user's tests: waits for lines in their log, their configuration, and the error without Docker."""

from __future__ import annotations

import gc
import socket
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from txbridge.config.sources import load_settings
from txbridge.embedded.ports import free_port
from txbridge.testing import backends
from txbridge.testing.backends import WorkerProcess, environment
from txbridge.testing.containers import docker_problem


class Counted(WorkerProcess):
    """Counts the bytes that a wait reads."""

    read = 0

    def log_from(self, position: int) -> bytes:
        new = super().log_from(position)
        self.read += len(new)
        return new


def started(folder: Path, program: str) -> Counted:
    return Counted([sys.executable, "-uc", f"import sys, time\n{program}"], folder / "log", {})


def test_a_long_log_is_read_once(tmp_path, monkeypatch):
    monkeypatch.setattr(backends, "_POLL_S", 0.001)
    program = """
for number in range(200):
    print("x" * 10_000)
    time.sleep(0.005)
print('{"partition": 0, "seconds": 0.1}\\\\n{"partition": 1, "seconds": 0.1}')
time.sleep(60)
"""
    worker = started(tmp_path, program.replace("\\\\n", "\\n"))
    worker.wait_serving(2)
    assert worker.read < 2 * len(worker.log)
    worker.wait_logged('"partition": 1')
    assert worker.stop() == -15


def test_a_line_that_is_written_in_two_parts_is_found(tmp_path):
    program = """
for part in ('{"parti', 'tion": 0, "se', 'conds": 0.1, "note": "d\\xc3', '\\xb6ne"}\\n'):
    sys.stdout.buffer.write(part.encode('latin-1'))
    time.sleep(0.2)
time.sleep(60)
"""
    worker = started(tmp_path, program)
    worker.wait_serving(1)
    worker.wait_logged("döne")
    worker.kill()


def test_partitions_are_counted_once_and_not_only_the_new_ones(tmp_path):
    program = """
for partition in (0, 0, 1):
    print('{"partition": %d, "seconds": 0.1}' % partition)
    time.sleep(0.2)
print("all")
time.sleep(60)
"""
    worker = started(tmp_path, program)
    worker.wait_serving(2)
    worker.wait_logged("all")
    with pytest.raises(AssertionError, match=r'(?s)did not take over 3 partitions in 0\.2 s:\n.*"partition": 1'):
        worker.wait_serving(3, 0.2)
    worker.kill()


def test_a_worker_that_ends_is_not_waited_for(tmp_path):
    worker = started(tmp_path, "print('last words', end='')")
    worker.wait_logged("last words")
    with pytest.raises(AssertionError, match="the worker ended and did not log 'more':\nlast words"):
        worker.wait_logged("more", 3_600)
    with pytest.raises(AssertionError, match="the worker ended:\nlast words"):
        worker.wait_serving(1, 3_600)


def test_variables_of_the_service_under_test_do_not_reach_the_workers_of_a_sandbox():
    services = {
        "TXBRIDGE_BOOTSTRAP_SERVERS": "production:9092",
        "TXBRIDGE_CONFIG": "/etc/service/txbridge.toml",
        "TXBRIDGE_KAFKA": '{"security.protocol": "ssl"}',
        "TXBRIDGE_METRICS_PORT": "9464",
        "TXBRIDGE_NAMESPACE": "production",
    }
    given = environment({"bootstrap_servers": "127.0.0.1:1", "transaction_timeout": "1000"})
    settings = load_settings({}, environ={**services, **given})
    assert settings.bootstrap_servers == "127.0.0.1:1"
    assert settings.transaction_timeout == 1_000
    assert settings.log_format == "json"
    assert (settings.namespace, settings.metrics_port, settings.kafka) == ("", 0, {})


def problem(monkeypatch: pytest.MonkeyPatch, host: str) -> str | None:
    monkeypatch.setenv("DOCKER_HOST", host)
    with warnings.catch_warnings(record=True) as left:
        warnings.simplefilter("always")
        found = docker_problem()
        gc.collect()
    assert [str(one.message) for one in left if issubclass(one.category, ResourceWarning)] == []
    return found


def served(path: Path, answer: bytes) -> Iterator[None]:
    with closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind(str(path))
        server.listen()

        def serve() -> None:
            with closing(server.accept()[0]) as client:
                client.recv(1_000)
                client.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield


def test_no_socket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = problem(monkeypatch, f"unix://{tmp_path}/none.sock")
    assert found is not None
    assert found.startswith("Docker does not answer: ")


def test_a_socket_that_nobody_listens_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as dead:
        dead.bind(f"{tmp_path}/dead.sock")
    assert "Connection refused" in str(problem(monkeypatch, f"unix://{tmp_path}/dead.sock"))


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.0 503 Service Unavailable\r\n\r\n"])
def test_somebody_who_is_no_docker_daemon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer: bytes) -> None:
    path = tmp_path / "odd.sock"
    for _ in served(path, answer):
        assert str(problem(monkeypatch, f"unix://{path}")).startswith("Docker does not answer: ")


def test_nobody_at_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    assert str(problem(monkeypatch, f"tcp://127.0.0.1:{free_port()}")).startswith("Docker does not answer: ")
