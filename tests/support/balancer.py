"""A load balancer for TCP connections: each goes to the next server that accepts it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Sequence
from typing import Self

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


def _forward(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK):
            target.sendall(data)
    _end(target)


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
