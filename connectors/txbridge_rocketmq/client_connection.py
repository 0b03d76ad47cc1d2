"""Clients of either protocol: their listener, plain or TLS by the first byte, and what every connection has."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import time
from abc import abstractmethod
from collections.abc import Callable, Collection

from txbridge.errors import LocalProblemError
from txbridge.log import get_logger
from txbridge_rocketmq.access import Certificate
from txbridge_rocketmq.door_options import spawn_task
from txbridge_rocketmq.memory import Receiver, RequestMemory
from txbridge_rocketmq.message import address_of, text_of

#: Bytes of answers that a client has not taken, beyond which nothing is read from it and no check is sent to it.
_WRITE_HIGH = 256 * 1024
#: A client that takes no answers for this time (s) is cut off.
STUCK_S = 30.0
#: A connection without any traffic is closed after this time (s), RocketMQ's serverChannelMaxIdleTimeSeconds. A
#: producer sends a heartbeat every 30 s.
IDLE_S = 120.0

#: Connections that the kernel holds while the loop is busy; a restart brings all clients back at once.
_BACKLOG = 1_024
#: A connection without a first byte is closed after this time (s). A client sends at once, a probe closes at once.
_FIRST_BYTE_S = 30.0
#: Time-out of a TLS handshake (s), which takes three trips through the network.
_HANDSHAKE_S = 10.0
#: Pause (s) when the process has no file descriptor left. Connections end all the time.
_EXHAUSTED_PAUSE_S = 0.2
#: Bytes of a refused client that are dropped. The first ones of TLS and HTTP/2 have a few hundred.
_UNREAD = 64 * 1024
#: Seconds between two looks for connections that have to be closed. The shortest of their time limits is a second.
_LOOK_S = 1.0
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
#: The first byte of a TLS handshake. A frame begins with the highest byte of its length: 1 at most. HTTP/2's is P.
_TLS = b"\x16"

_log = get_logger("txbridge.rocketmq")


class ClientConnection(asyncio.BufferedProtocol, Receiver):
    """Connection of one client, for the event loop only."""

    def __init__(self, memory: RequestMemory) -> None:
        self._memory = memory
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        #: Whether a request waits for memory, and since when nothing is read, for whatever reason.
        self._waits_to_receive = False
        self._paused_at: float | None = None
        #: Answers of this turn of the event loop.
        self._answers: list[bytes] = []
        self._write_paused_at: float | None = None
        self._last_traffic = time.monotonic()
        self._is_closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=_WRITE_HIGH)
        peer = transport.get_extra_info("peername")
        self.peer = text_of(address_of(*peer[:2])) if peer else ""

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  the signature is asyncio's
        # For any other protocol, asyncio makes 256 KiB for each call of the system: 15 µs instead of 2.
        return self._memory.chunk

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(self._memory.chunk[:nbytes])

    @abstractmethod
    def data_received(self, data: bytes | memoryview) -> None:
        """Take bytes away: the next ones of any connection overwrite them."""

    def pause_writing(self) -> None:
        self._write_paused_at = time.monotonic()

    @abstractmethod
    def close_if_stuck(self, now: float) -> None:
        """Close the connection if it is stuck, slow or idle. Called every second."""

    def close(self) -> None:
        """Close it once all answers have left."""
        if self._transport is not None:
            self._write_answers()
            self._transport.close()

    def _is_stuck(self, now: float) -> bool:
        """Whether the client takes no answers."""
        return self._write_paused_at is not None and now - self._write_paused_at > STUCK_S

    def _abort_connection(self, what: str | None) -> None:
        """Close it at once, with a line in the log if `what` says what is wrong."""
        if self._is_closed or self._transport is None:
            return
        if what is not None:
            _log.warning("connection_closed", peer=self.peer, reason=what)
        self._transport.abort()
        self._is_closed = True

    def _queue_answer(self, content: bytes) -> None:
        if not self._answers:
            asyncio.get_running_loop().call_soon(self._write_answers)
        self._answers.append(content)

    def _write_answers(self) -> None:
        """Write what there is, in one call: each call of the system takes longer than it takes to make an answer."""
        assert self._transport is not None
        if self._answers and not self._transport.is_closing():
            self._last_traffic = time.monotonic()
            self._transport.write(b"".join(self._answers))
        self._answers.clear()

    def _read_on(self, received: int, *, is_wanted: bool) -> float:
        """Receive more, if that is wanted and there is memory beside what is `received` (bytes).

        Returns for how long (s) nothing had been read until now.
        """
        if self._transport is None or self._is_closed:
            return 0.0
        self._memory.count_received(self, received)
        if is_wanted and not self._waits_to_receive:
            self._waits_to_receive = not self._memory.may_receive(self)
        if not is_wanted or self._waits_to_receive:
            self._paused_at = self._paused_at or time.monotonic()
            self._transport.pause_reading()
            return 0.0
        paused = 0.0 if self._paused_at is None else time.monotonic() - self._paused_at
        self._paused_at = None
        self._transport.resume_reading()
        return paused


class ClientListener:
    """Listener of one of the protocols, for the event loop only."""

    def __init__(
        self, most: int, tls: Certificate | None, option: str = "--listen", *, needs_tls: bool = False
    ) -> None:
        """`option` is the one that names the port. With `needs_tls` no client may do without TLS."""
        self._most = most
        self._tls = tls
        self._option = option
        self._needs_tls = needs_tls
        self._sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._greeting = 0

    def listen_on(self, host: str, port: int) -> int:
        """Bind a port and return it (0: any). Raises LocalProblemError."""
        try:
            made = _bound(host, port)
        except OSError as error:
            self.close()
            raise LocalProblemError(
                f"cannot listen on port {port} of {host} for RocketMQ clients: {error.strerror or error}. Choose "
                f"another with {self._option}"
            ) from None
        made.setblocking(False)
        self._sockets.append(made)
        return int(made.getsockname()[1])

    def start(self, make: Callable[[], ClientConnection], connections: Collection[ClientConnection]) -> None:
        """Take connections from now on. `make` makes one of a socket; those that are open are `connections`."""
        self._make = make
        self._connections = connections
        for one in self._sockets:
            spawn_task(self._tasks, self._accept_clients(one))
        spawn_task(self._tasks, self._watch_connections())

    def close(self) -> None:
        """Take no more connections. Existing ones stay open."""
        for task in self._tasks:
            task.cancel()
        for one in self._sockets:
            one.close()
        self._sockets.clear()

    async def _accept_clients(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(listening)
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    _log.error("no_more_connections", reason=error.strerror, connections=len(self._connections))
                    await asyncio.sleep(_EXHAUSTED_PAUSE_S)
                # Otherwise the client has closed the connection already.
                continue
            if len(self._connections) + self._greeting >= self._most:
                _log.warning("connection_refused", most=self._most)
                accepted.close()
                continue
            spawn_task(self._tasks, self._greet_client(accepted, text_of(address_of(*address[:2]))))

    async def _greet_client(self, accepted: socket.socket, peer: str) -> None:
        """Wait for the first byte, and make a connection of the socket."""
        loop = asyncio.get_running_loop()
        self._greeting += 1
        is_connected = False
        try:
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(_FIRST_BYTE_S):
                first = await _peek(loop, accepted)
            if first == _TLS and self._tls is None:
                _log.warning(
                    "connection_closed", peer=peer, reason="the client speaks TLS, and the door has no certificate"
                )
            elif first and first != _TLS and self._needs_tls:
                _log.warning("connection_closed", peer=peer, reason="the client does not speak TLS, as this port does")
            elif first:
                tls = self._tls.context if self._tls is not None and first == _TLS else None
                limit = _HANDSHAKE_S if tls else None
                await loop.connect_accepted_socket(self._make, accepted, ssl=tls, ssl_handshake_timeout=limit)
                is_connected = True
        except TimeoutError:
            pass
        except OSError as error:
            # Also an error of TLS: the client speaks something else, or does not trust the door's certificate.
            _log.warning("connection_closed", peer=peer, reason=f"the connection could not be set up: {error}")
        finally:
            self._greeting -= 1
            if not is_connected:
                # With unread bytes the client would get a reset, which libraries report as a failure of the network.
                with contextlib.suppress(OSError):
                    accepted.recv(_UNREAD)
                accepted.close()

    async def _watch_connections(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            now = time.monotonic()
            for connection in list(self._connections):
                connection.close_if_stuck(now)


def _bound(host: str, port: int) -> socket.socket:
    """Bind the first address of a host. An empty host means all addresses, of IPv4 and IPv6, as for gRPC."""
    if not host:
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        return socket.create_server(("", port), family=family, backlog=_BACKLOG, dualstack_ipv6=both)
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return socket.create_server(found[0][4], family=found[0][0], backlog=_BACKLOG)


async def _peek(loop: asyncio.AbstractEventLoop, accepted: socket.socket) -> bytes:
    """The first byte, which is read again later; empty if the client closes."""
    while True:
        ready = asyncio.Event()
        loop.add_reader(accepted, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(accepted)
        with contextlib.suppress(BlockingIOError):
            return accepted.recv(1, socket.MSG_PEEK)
