"""A proxy between Kafka and its clients that breaks the connection exactly at a commit, or acts as a slow link.

Kafka must advertise the proxy's port, so that every client connects through it.
"""

from __future__ import annotations

import contextlib
import enum
import socket
import struct
import threading
import time
from typing import Self

from tests.support.harness import eventually

_PRODUCE, _END_TXN = 0, 26


class Cut(enum.Enum):
    """Fate of one EndTxn request."""

    #: The connection ends. The broker has not received the request.
    BEFORE = enum.auto()
    #: The broker has executed the request. The connection ends before the answer.
    AFTER = enum.auto()
    #: The connection stays open, but no more bytes pass. The broker has not received the request.
    SILENT_BEFORE = enum.auto()
    #: The connection stays open, but no more bytes pass. The broker has executed the request.
    SILENT_AFTER = enum.auto()
    #: The connection ends. The broker receives the request on it later, when the test says.
    LATE = enum.auto()


class EndTxnProxy:
    """Passes everything on. `arm` chooses the fate of the next EndTxn that commits."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._broker_port = 0
        self._armed: Cut | None = None
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        #: Rate of the link for records in Kafka transactions (bytes/s). Everything else passes without delay.
        self.rate: float | None = None
        #: Records for this topic that are written in Kafka transactions never arrive.
        self.swallowed: str | None = None
        self._link = threading.Lock()
        #: The fates of the matched requests, oldest first.
        self.met: list[Cut] = []
        self._late: tuple[socket.socket, bytes] | None = None

    def connect_to(self, port: int) -> None:
        """Accept clients from now on and connect them to this port of the broker."""
        self._broker_port = port
        threading.Thread(target=self._accept, daemon=True).start()

    def arm(self, cut: Cut) -> None:
        with self._lock:
            self._armed = cut

    def wait_met(self, number: int = 1) -> None:
        eventually(lambda: len(self.met) >= number, 30, "no commit came by")

    def deliver_late(self) -> None:
        """Pass the request of Cut.LATE to the broker now."""
        assert self._late is not None
        broker, request = self._late
        broker.sendall(request)

    def end_all(self) -> None:
        """End all open connections."""
        for one in self._open:
            _end(one)

    def close(self) -> None:
        self._server.close()
        for one in self._open:
            one.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return  # closed
            try:
                broker = socket.create_connection(("127.0.0.1", self._broker_port))
            except OSError:
                client.close()
                continue
            for one in (client, broker):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open += [client, broker]
            connection = _Connection(self, client, broker)
            threading.Thread(target=connection.requests, daemon=True).start()
            threading.Thread(target=connection.answers, daemon=True).start()

    def take(self, request: bytes) -> Cut | None:
        """Return the fate of a request. None: pass it on."""
        key, version, _, client_id_length = struct.unpack_from(">hhih", request, 4)
        if key != _END_TXN:
            return None
        # Header version 2 from EndTxn v3 on: a byte of tags, and compact strings.
        at = 14 + max(client_id_length, 0)
        if version >= 3:
            at += 1
            name_length = request[at] - 1
            at += 1
        else:
            (name_length,) = struct.unpack_from(">h", request, at)
            at += 2
        at += name_length + 8 + 2  # producer id and epoch
        commits = request[at] == 1
        with self._lock:
            if self._armed is None or not commits:
                return None
            cut, self._armed = self._armed, None
            return cut

    def carry(self, request: bytes) -> bool:
        """Wait as long as the link needs for the request. False if it gets lost."""
        if (self.rate is None and self.swallowed is None) or not _is_transactional_produce(request):
            return True
        if self.swallowed is not None and self.swallowed.encode() in request:
            return False
        if self.rate is not None:
            with self._link:
                time.sleep(len(request) / self.rate)
        return True

    def keep_late(self, broker: socket.socket, request: bytes) -> None:
        self._late = (broker, request)


class _Connection:
    def __init__(self, proxy: EndTxnProxy, client: socket.socket, broker: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._broker = broker
        #: Correlation id of the answer at which to break the connection, and whether it then stays open and silent.
        self._break_at: tuple[int, bool] | None = None
        self._silent = False

    def requests(self) -> None:
        keep_broker = False
        try:
            while (frame := _frame(self._client)) is not None:
                cut = self._proxy.take(frame)
                if cut is Cut.BEFORE:
                    self._proxy.met.append(cut)
                    return
                if cut is Cut.LATE:
                    keep_broker = True
                    self._proxy.keep_late(self._broker, frame)
                    self._proxy.met.append(cut)
                    return
                if cut is Cut.SILENT_BEFORE:
                    self._silent = True
                    self._proxy.met.append(cut)
                    continue
                if cut in {Cut.AFTER, Cut.SILENT_AFTER}:
                    (correlation,) = struct.unpack_from(">i", frame, 8)
                    self._break_at = (correlation, cut is Cut.SILENT_AFTER)
                if not self._silent and self._proxy.carry(frame):
                    self._broker.sendall(frame)
        except OSError:
            pass  # One side has closed, and so has the connection.
        finally:
            _end(self._client)
            if not keep_broker:
                _end(self._broker)

    def answers(self) -> None:
        try:
            while (frame := _frame(self._broker)) is not None:
                (correlation,) = struct.unpack_from(">i", frame, 4)
                if self._break_at is not None and correlation == self._break_at[0]:
                    silent = self._break_at[1]
                    self._proxy.met.append(Cut.SILENT_AFTER if silent else Cut.AFTER)
                    if not silent:
                        _end(self._client)
                        return
                    self._silent = True
                if not self._silent:
                    self._client.sendall(frame)
        except OSError:
            pass
        finally:
            if not self._silent:
                _end(self._client)


def _is_transactional_produce(request: bytes) -> bool:
    key, version, _, client_id_length = struct.unpack_from(">hhih", request, 4)
    if key != _PRODUCE:
        return False
    at = 14 + max(client_id_length, 0)
    # From v9 on: a byte of tags, and a compact string, whose length is 0 for null.
    return request[at + 1] > 0 if version >= 9 else struct.unpack_from(">h", request, at)[0] >= 0


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


def _frame(one: socket.socket) -> bytes | None:
    """One request or answer with its length, or None when the other side has closed the connection."""
    head = _exactly(one, 4)
    if head is None:
        return None
    rest = _exactly(one, struct.unpack(">i", head)[0])
    return None if rest is None else head + rest


def _exactly(one: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = one.recv(size - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)
