"""Ways to misuse a program's port, each of which keeps on until it is closed."""

from __future__ import annotations

import contextlib
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

#: Connections of one attack: as many as a process may open by default.
MANY = 1_000


def connect(port: int, receive_buffer: int | None = None) -> socket.socket:
    """A connection to this port of 127.0.0.1, which never waits for what is read or written later."""
    made = socket.socket()
    if receive_buffer is not None:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    made.settimeout(30)
    made.connect(("127.0.0.1", port))
    made.setblocking(False)
    return made


def try_send(connection: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):
        connection.send(data)


def silent(_port: int, _connections: list[socket.socket]) -> None:
    """Connects, and says nothing."""


def drip(_port: int, connections: list[socket.socket]) -> None:
    """Sends the head of a request byte by byte, without an end."""
    for connection in connections:
        try_send(connection, b"G")


def read_slowly(_port: int, connections: list[socket.socket]) -> None:
    """Asks for the largest page, and takes nothing of the answer."""
    for connection in connections:
        try_send(connection, b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")


def pipeline(_port: int, connections: list[socket.socket]) -> None:
    """Sends requests and bytes that are none, more than anybody reads."""
    for connection in connections:
        try_send(connection, b"GET /livez HTTP/1.1\r\n\r\n" * 5_000 + b"\x00\xff" * 50_000)


def post(_port: int, connections: list[socket.socket]) -> None:
    """Sends bodies: a length of 5,000 digits, and JSON that is deeply nested."""
    for connection in connections:
        head = b"POST /metrics HTTP/1.1\r\nContent-Length: " + b"9" * 5_000 + b"\r\n\r\n"
        try_send(connection, head + b"[" * 20_000)


ATTACKS: dict[str, Callable[[int, list[socket.socket]], None]] = {
    "silent": silent,
    "drip": drip,
    "slow readers": read_slowly,
    "pipelined junk": pipeline,
    "bodies": post,
}


@contextmanager
def under(attack: str, port: int, number: int = MANY) -> Iterator[None]:
    """Open this many connections, and renew those that the server has closed, until the block ends."""
    _allow_descriptors()
    ended, begun = threading.Event(), threading.Event()

    def run() -> None:
        with ExitStack() as at_last:
            connections: list[socket.socket] = []
            at_last.callback(lambda: [one.close() for one in connections])
            while not ended.is_set():
                for one in [one for one in connections if _is_closed(one)]:
                    connections.remove(one)
                    one.close()
                # A server without descriptors lets connections wait for it, and then refuses them.
                with contextlib.suppress(OSError):
                    while len(connections) < number and not ended.is_set():
                        connections.append(connect(port, 4_096 if attack == "slow readers" else None))
                        if len(connections) % 50 == 0:
                            ATTACKS[attack](port, connections[-50:])
                if attack == "drip":
                    drip(port, connections)
                begun.set()
                ended.wait(1)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        assert begun.wait(60), "the connections could not be opened"
        yield
    finally:
        ended.set()
        thread.join(60)


def _is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _allow_descriptors() -> None:
    """A test may attack three programs at the same time."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 4 * MANY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4 * MANY, hard), hard))
