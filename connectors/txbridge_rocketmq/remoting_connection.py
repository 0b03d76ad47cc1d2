"""One client's connection: frames in, answers out, and limits on its cost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from txbridge_rocketmq.access import AccessKey
from txbridge_rocketmq.client_connection import IDLE_S, STUCK_S, ClientConnection
from txbridge_rocketmq.command import FrameError, RemotingCommand, decode, length_of, response
from txbridge_rocketmq.groups import ClientCheck
from txbridge_rocketmq.memory import RequestMemory
from txbridge_rocketmq.message import Address, address_of

#: Unanswered requests of a connection, beyond which no more are read. A producer in Java has no more threads than that.
#: A producer that sends without waiting loses nothing, because Kafka takes messages in batches.
_MAX_OPEN = 1_024
#: A frame must be complete within this time (s): 16 MiB in it is 5 Mbit/s. Time in which the door does not read is not
#: counted.
_FRAME_S = 30.0
#: While others wait for its memory, a large frame must not stand still for this time (s). A network that has lost a
#: packet goes on within some tenths.
_STILL_S = 1.0


class Handler(Protocol):
    """Receiver of the events of a connection."""

    memory: RequestMemory
    max_frame: int

    def add_connection(self, connection: DoorConnection) -> None: ...

    def drop_connection(self, connection: DoorConnection, reason: str | None) -> None: ...

    def handle_command(self, connection: DoorConnection, command: RemotingCommand) -> None: ...

    def count_answer(self, request: int, code: int) -> None: ...

    def check_frame(self, question: ClientCheck, local: Address, opaque: int) -> bytes: ...


class DoorConnection(ClientConnection):
    """Connection of one client, for the event loop only."""

    def __init__(self, handler: Handler) -> None:
        super().__init__(handler.memory)
        self._handler = handler
        #: Bytes of the frame that is being read; 0 while its length is not known.
        self._frame = 0
        self._frame_began = self._received_at = 0.0
        #: Whether the frame, which is complete, waits for memory; and the memory that it has taken (bytes).
        self._is_waiting = False
        self._taken = 0
        self._open = 0
        self._reason: str | None = None
        self._drops_requests = False
        self._opaque = 0
        #: The producer groups that the client speaks for.
        self.groups: frozenset[str] = frozenset()
        self.key: AccessKey | None = None
        self.local: Address = address_of("0.0.0.0", 0)  # noqa: S104  not to listen on: the address is not known yet

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if local := transport.get_extra_info("sockname"):
            self.local = address_of(*local[:2])
        self._handler.add_connection(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  the signature is asyncio's
        self._is_closed = True
        self._buffer.clear()
        taken, self._frame, self._taken = self._taken, 0, 0
        self._memory.forget_connection(self)
        self._memory.give_back(taken)
        self._handler.drop_connection(self, self._reason)

    def data_received(self, data: bytes | memoryview) -> None:
        if self._drops_requests:
            return
        self._last_traffic = self._received_at = time.monotonic()
        self._buffer += data
        self._read_frames()

    def resume_writing(self) -> None:
        self._write_paused_at = None
        self._read_frames()

    @property
    def frame_size(self) -> int:
        return self._frame

    def handle_frame(self) -> None:
        self._is_waiting = False
        self._taken = self._frame
        self._read_soon()

    def receive_more(self) -> None:
        self._waits_to_receive = False
        self._read_soon()

    @property
    def takes_checks(self) -> bool:
        """Whether the connection is open and the client takes the bytes that it is sent."""
        return not self._is_closed and self._write_paused_at is None

    def send_response(
        self,
        request: RemotingCommand,
        code: int,
        remark: str | None = None,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> None:
        """Answer a request, unless it wants no answer."""
        self._handler.count_answer(request.code, code)
        if not request.is_oneway and not self._is_closed:
            self._queue_answer(response(request, code, remark, fields, body))

    def send_check(self, question: ClientCheck) -> None:
        self._opaque += 1
        self._answers.append(self._handler.check_frame(question, self.local, self._opaque))
        # At once, because `takes_checks` depends on what the client takes.
        self._write_answers()

    def begin_request(self) -> Callable[[], None]:
        """Count a request as being handled. Call the returned function when it is finished."""
        size, self._taken = self._taken, 0
        self._open += 1

        def finish() -> None:
            self._open -= 1
            self._memory.give_back(size)
            if self._buffer:
                self._read_soon()

        return finish

    def close_if_stuck(self, now: float) -> None:
        if self._is_stuck(now):
            self.cut_off("stuck", f"the client has read no answers for {STUCK_S:.0f} s")
        elif self._is_receiving and now - self._frame_began > _FRAME_S:
            self.cut_off("slow_frame", f"a frame was not complete after {_FRAME_S:.0f} s")
        elif self._is_receiving and self._is_slow(now) and self._memory.is_needed(self):
            self.cut_off("slow_frame", "a frame arrived too slowly, and other connections need its memory")
        elif not self._open and not self._is_waiting and now - self._last_traffic > IDLE_S:
            self.cut_off("idle", None)

    @property
    def _is_blocked(self) -> bool:
        """Whether the client has to wait: it takes no answers, or too many of its requests are not answered yet."""
        return self._open >= _MAX_OPEN or self._write_paused_at is not None

    @property
    def _is_receiving(self) -> bool:
        """Whether the door reads, and the client has not sent all of a frame."""
        return self._frame > len(self._buffer) and self._paused_at is None

    def _is_slow(self, now: float) -> bool:
        """Whether the frame stands still, or comes so slowly that it will not be complete in time."""
        due = _STILL_S + _FRAME_S * len(self._buffer) / self._frame
        return now - self._received_at > _STILL_S or now - self._frame_began > due

    def cut_off(self, reason: str, what: str | None) -> None:
        """Close it at once, with a line in the log if `what` says what is wrong."""
        if not self._is_closed:
            self._reason = reason
            self._abort_connection(what)

    def drop_requests(self) -> None:
        """Begin no more requests, because the connection will be closed.

        They are still received: a socket that is closed with unread bytes loses answers on their way.
        """
        self._drops_requests = True
        self._buffer.clear()
        self._frame = 0
        self._waits_to_receive = False
        self._memory.forget_connection(self)
        self._receive_more()

    def _read_soon(self) -> None:
        # In the next turn of the event loop, because frames may be being read.
        if not self._is_closed:
            asyncio.get_running_loop().call_soon(self._read_frames)

    def _read_frames(self) -> None:
        """Handle all frames that are complete and may be handled now."""
        memory = self._memory
        while not self._is_closed and not self._is_waiting:
            if self._is_blocked:
                break
            if not self._frame:
                if len(self._buffer) < 4:
                    break
                try:
                    self._frame = 4 + length_of(self._buffer, self._handler.max_frame)
                except FrameError as error:
                    self.cut_off("malformed", str(error))
                    break
                self._frame_began = time.monotonic()
            if len(self._buffer) < self._frame:
                break
            if not self._taken:
                if not memory.take_memory(self):
                    self._is_waiting = True
                    break
                self._taken = self._frame
            frame = bytes(self._buffer[4 : self._frame])
            del self._buffer[: self._frame]
            self._frame = 0
            try:
                command = decode(frame)
            except FrameError as error:
                self.cut_off("malformed", str(error))
                break
            self._handler.handle_command(self, command)
            # Without begin() the request is finished already.
            memory.give_back(self._taken)
            self._taken = 0
        self._receive_more()

    def _receive_more(self) -> None:
        """Receive more, if that is wanted and there is memory for it."""
        is_wanted = len(self._buffer) < 4 or (self._frame > len(self._buffer) and not self._is_blocked)
        if paused := self._read_on(len(self._buffer), is_wanted=is_wanted):
            self._frame_began += paused
            self._received_at = time.monotonic()
