"""The error without a Docker daemon. No socket stays open, because services' tests turn warnings into errors."""

from __future__ import annotations

import gc
import socket
import threading
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from txbridge.embedded.ports import free_port
from txbridge.testing.containers import docker_problem


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
