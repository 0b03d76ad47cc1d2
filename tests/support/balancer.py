"""Load balancers for TCP connections: our own, which takes the next server that accepts one, and HAProxy."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import pytest

from txbridge.embedded.ports import free_port

_CHUNK = 64 * 1024


class Balancer:
    """One address in front of several ports of the loopback address."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = list(ports)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._open: list[socket.socket] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for one in [self._server, *self._open]:
            _end(one)
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the end of the test
            while True:
                client, _ = self._server.accept()
                server = self._next_server()
                if server is None:
                    client.close()
                    continue
                self._open += [client, server]
                for source, target in ((client, server), (server, client)):
                    threading.Thread(target=_forward, args=(source, target), daemon=True).start()

    def _next_server(self) -> socket.socket | None:
        for _ in self._ports:
            port = self._ports.pop(0)
            self._ports.append(port)
            with contextlib.suppress(OSError):
                return socket.create_connection(("127.0.0.1", port))
        return None


@contextlib.contextmanager
def haproxy(listing: str, folder: Path, name: str, doors: Sequence[tuple[int, int]]) -> Iterator[int]:
    """HAProxy with the listing of docs/rocketmq.md. `doors` are pairs of a door's port and the port of its metrics.

    Yields the port of the listing's part `name`.
    """
    if shutil.which("haproxy") is None:
        pytest.skip("NO HAPROXY: the listing of docs/rocketmq.md is not tested here; apt-get install haproxy")
    for number, (port, metrics) in enumerate(doors, 1):
        listing = re.sub(rf"door-{number}:\d+ check port 9465", f"127.0.0.1:{port} check port {metrics}", listing)
    ports = {"remoting": free_port(), "grpc": free_port()}
    for part, port in ports.items():
        listing = re.sub(rf"(listen {part}\n +bind) :\d+", rf"\1 127.0.0.1:{port}", listing)
    (folder / "haproxy.cfg").write_text(listing)
    process = subprocess.Popen(["haproxy", "-db", "-f", folder / "haproxy.cfg"])
    try:
        yield ports[name]
    finally:
        process.terminate()
        process.wait(60)


def _forward(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK):
            target.sendall(data)
    _end(target)


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
