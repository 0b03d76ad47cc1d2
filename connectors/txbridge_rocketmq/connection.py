"""One client's connection: frames in, answers out, and limits on its cost."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

from txbridge.log import get_logger
from txbridge_rocketmq.command import Command, FrameError, decode, length_of, response
from txbridge_rocketmq.groups import Question
from txbridge_rocketmq.message import Address, address_of, text_of

#: Unanswered requests of a connection, beyond which no more are read. A producer in Java has no more threads than that.
#: A producer that sends without waiting loses nothing, because Kafka takes messages in batches.
_MAX_OPEN = 1_024
#: Bytes of answers that a client has not taken, beyond which nothing is read from it and no check is sent to it.
_WRITE_HIGH = 256 * 1024
#: A frame must be complete within this time (s): 16 MiB in it is 5 Mbit/s.
_FRAME_S = 30.0
#: A client that takes no answers for this time (s) is cut off.
_STUCK_S = 30.0
#: A connection without any traffic is closed after this time (s), RocketMQ's serverChannelMaxIdleTimeSeconds. A
#: producer sends a heartbeat every 30 s.
_IDLE_S = 120.0

_log = get_logger("txbridge.rocketmq")


class Memory:
    """Limit on the bytes of requests that are being read or answered, of all connections together."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._waiting: deque[Connection] = deque()

    def take(self, size: int, connection: Connection) -> bool:
        """Take memory; whether there is room. If not, `go_on` is called later. A single frame always finds room."""
        if not self.try_take(size):
            self._waiting.append(connection)
            return False
        return True

    def try_take(self, size: int) -> bool:
        """Take memory if there is room, without waiting; whether there is."""
        if self._used and self._used + size > self._limit:
            return False
        self._used += size
        return True

    def give(self, size: int) -> None:
        self._used -= size
        for _ in range(len(self._waiting)):
            if self._used >= self._limit:
                return
            self._waiting.popleft().go_on()

    @property
    def used(self) -> int:
        return self._used


class Handler(Protocol):
    """Receiver of the events of a connection."""

    memory: Memory
    max_frame: int

    def opened(self, connection: Connection) -> None: ...

    def closed(self, connection: Connection, reason: str | None) -> None: ...

    def handle(self, connection: Connection, command: Command) -> None: ...

    def answered(self, request: int, code: int) -> None: ...

    def check(self, connection: Connection, question: Question) -> None: ...


class Connection(asyncio.Protocol):
    """Connection of one client, for the event loop only."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        #: Bytes of the frame that is being read; 0 while its length is not known.
        self._frame = 0
        self._frame_began = 0.0
        self._open = 0
        self._is_waiting = False
        self._write_paused_at: float | None = None
        self._last_traffic = time.monotonic()
        self._reason: str | None = None
        self._is_closed = False
        self._opaque = 0
        #: The producer groups that the client speaks for, and its address.
        self.groups: frozenset[str] = frozenset()
        self.peer = ""
        self.local: Address = address_of("0.0.0.0", 0)  # noqa: S104  no address to listen on, but none known yet

    # --- asyncio's side -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=_WRITE_HIGH)
        peer, local = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        self.peer = text_of(address_of(*peer[:2])) if peer else ""
        if local:
            self.local = address_of(*local[:2])
        self._handler.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  the signature is asyncio's
        self._is_closed = True
        if self._frame:
            self._handler.memory.give(self._frame)
            self._frame = 0
        self._buffer.clear()
        self._handler.closed(self, self._reason)

    def data_received(self, data: bytes) -> None:
        self._last_traffic = time.monotonic()
        self._buffer += data
        self._read()

    def pause_writing(self) -> None:
        self._write_paused_at = time.monotonic()

    def resume_writing(self) -> None:
        self._write_paused_at = None
        self._read()

    # --- the door's side ----------------------------------------------------------------------------------------------

    @property
    def takes_checks(self) -> bool:
        """Whether the connection is open and the client takes the bytes that it is sent."""
        return not self._is_closed and self._write_paused_at is None

    def respond(
        self,
        request: Command,
        code: int,
        remark: str | None = None,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> None:
        """Answer a request, unless it wants no answer."""
        self._handler.answered(request.code, code)
        if not request.is_oneway and not self._is_closed:
            self._write(response(request, code, remark, fields, body))

    def check(self, question: Question) -> None:
        self._handler.check(self, question)

    def ask(self, make: Callable[[int], bytes]) -> None:
        """Send a request of the door, whose frame `make` makes from the request's number."""
        self._opaque += 1
        self._write(make(self._opaque))

    def begin(self) -> Callable[[], None]:
        """Count a request as being handled. Call the returned function when it is finished."""
        size, self._frame = self._frame, 0
        self._open += 1

        def finish() -> None:
            self._open -= 1
            self._handler.memory.give(size)
            # In the next turn of the event loop, because this may be called while frames are being read.
            if not self._is_closed and self._buffer:
                asyncio.get_running_loop().call_soon(self._read)

        return finish

    def go_on(self) -> None:
        """Go on reading: there is memory again."""
        self._is_waiting = False
        if not self._is_closed:
            asyncio.get_running_loop().call_soon(self._read)

    def look(self, now: float) -> None:
        """Close the connection if it is stuck, slow or idle. Called every few seconds."""
        if self._write_paused_at is not None and now - self._write_paused_at > _STUCK_S:
            self.drop("stuck", f"it takes no answers for {_STUCK_S:.0f} s")
        elif self._frame and now - self._frame_began > _FRAME_S:
            self.drop("slow_frame", f"a frame was not complete after {_FRAME_S:.0f} s")
        elif not self._open and not self._is_waiting and now - self._last_traffic > _IDLE_S:
            self.drop("idle", None)

    def drop(self, reason: str, what: str | None) -> None:
        """Close it at once, with a line in the log if `what` says what is wrong."""
        if self._is_closed or self._transport is None:
            return
        self._reason = reason
        if what is not None:
            _log.warning("connection_closed", peer=self.peer, reason=what)
        self._transport.abort()
        self._is_closed = True

    def close(self) -> None:
        """Close it once all answers have left."""
        if self._transport is not None:
            self._transport.close()

    def _write(self, frame: bytes) -> None:
        assert self._transport is not None
        if not self._transport.is_closing():
            self._last_traffic = time.monotonic()
            self._transport.write(frame)

    def _read(self) -> None:
        """Handle all frames that are complete and may be handled now."""
        while not self._is_closed and not self._is_waiting:
            if self._open >= _MAX_OPEN or self._write_paused_at is not None:
                break
            if not self._frame:
                if len(self._buffer) < 4:
                    break
                try:
                    size = 4 + length_of(self._buffer, self._handler.max_frame)
                except FrameError as error:
                    self.drop("malformed", str(error))
                    return
                if not self._handler.memory.take(size, self):
                    self._is_waiting = True
                    break
                self._frame, self._frame_began = size, time.monotonic()
            if len(self._buffer) < self._frame:
                self._reads(True)
                return
            frame = bytes(self._buffer[4 : self._frame])
            del self._buffer[: self._frame]
            try:
                command = decode(frame)
            except FrameError as error:
                self.drop("malformed", str(error))
                return
            self._handler.handle(self, command)
            if self._frame:
                # The request is finished already: begin() was not called.
                self._handler.memory.give(self._frame)
                self._frame = 0
        self._reads(len(self._buffer) < 4)

    def _reads(self, wanted: bool) -> None:
        if self._transport is None or self._is_closed:
            return
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()
