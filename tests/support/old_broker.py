"""A proxy in front of a real Kafka that hides the support of some requests.

Kafka must advertise the proxy's port, so that every client connects through it.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Collection, Iterator
from types import TracebackType
from typing import Self

_API_VERSIONS = 18
#: From this version on, arrays are compact and every element ends with tags.
_FLEXIBLE = 3


class OldBroker:
    """Removes requests from the answers to ApiVersions and passes on everything else unchanged."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._open: list[socket.socket] = []
        #: Kafka's numbers of the hidden requests.
        self.hidden: Collection[int] = ()

    def connect_to(self, port: int) -> None:
        """Accept clients from now on and connect them to the broker's own port."""
        threading.Thread(target=self._accept, args=(port,), daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for one in self._open:
            one.close()

    def _accept(self, port: int) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return  # closed
            try:
                broker = socket.create_connection(("127.0.0.1", port))
            except OSError:
                client.close()
                continue
            self._open += [client, broker]
            #: Version by correlation id, of requests without an answer yet.
            asked: dict[int, int] = {}
            threading.Thread(target=self._requests, args=(client, broker, asked), daemon=True).start()
            threading.Thread(target=self._answers, args=(client, broker, asked), daemon=True).start()

    def _requests(self, client: socket.socket, broker: socket.socket, asked: dict[int, int]) -> None:
        with _both_end(client, broker):
            while frame := _frame(client):
                key, version, correlation = struct.unpack_from(">hhi", frame)
                if key == _API_VERSIONS:
                    asked[correlation] = version
                broker.sendall(struct.pack(">i", len(frame)) + frame)

    def _answers(self, client: socket.socket, broker: socket.socket, asked: dict[int, int]) -> None:
        with _both_end(client, broker):
            while frame := _frame(broker):
                (correlation,) = struct.unpack_from(">i", frame)
                version = asked.pop(correlation, None)
                if version is not None:
                    frame = self._without_hidden(frame, version)
                client.sendall(struct.pack(">i", len(frame)) + frame)

    def _without_hidden(self, frame: bytes, version: int) -> bytes:
        """The same answer to ApiVersions with fewer requests. Their array follows correlation id and error."""
        (error,) = struct.unpack_from(">h", frame, 4)
        if error:
            return frame
        if version >= _FLEXIBLE:
            count, at = _varint(frame, 6)
            count, size = count - 1, 7  # Each element has one byte for its number of tags, which is 0.
        else:
            (count,) = struct.unpack_from(">i", frame, 6)
            at, size = 10, 6
        entries = [frame[at + number * size : at + (number + 1) * size] for number in range(count)]
        kept = [one for one in entries if struct.unpack_from(">h", one)[0] not in self.hidden]
        head = _to_varint(len(kept) + 1) if version >= _FLEXIBLE else struct.pack(">i", len(kept))
        return frame[:6] + head + b"".join(kept) + frame[at + count * size :]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned varint, and the position after it."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value, at


def _to_varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


@contextlib.contextmanager
def _both_end(client: socket.socket, broker: socket.socket) -> Iterator[None]:
    """End both connections when one side closes."""
    try:
        yield
    except OSError:
        pass  # One side has closed, and so has the connection.
    finally:
        for one in (client, broker):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def _frame(one: socket.socket) -> bytes:
    """One request or answer without its length, or empty when the other side has closed the connection."""
    head = _exactly(one, 4)
    return _exactly(one, struct.unpack(">i", head)[0]) if head else b""


def _exactly(one: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = one.recv(size - len(parts))
        if not part:
            return b""
        parts += part
    return bytes(parts)
