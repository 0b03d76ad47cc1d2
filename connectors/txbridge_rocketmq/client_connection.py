"""One client's connection, whatever it speaks: memory for what comes, and one write for all answers of a turn."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod

from txbridge.log import get_logger
from txbridge_rocketmq.memory import Receiver, RequestMemory
from txbridge_rocketmq.message import address_of, text_of

#: Bytes of answers that a client has not taken, beyond which nothing is read from it and no check is sent to it.
_WRITE_HIGH = 256 * 1024
#: A client that takes no answers for this time (s) is cut off.
STUCK_S = 30.0
#: A connection without any traffic is closed after this time (s), RocketMQ's serverChannelMaxIdleTimeSeconds. A
#: producer sends a heartbeat every 30 s.
IDLE_S = 120.0

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
