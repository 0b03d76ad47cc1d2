"""One gRPC client's connection: HTTP/2 as far as gRPC needs it, and limits on its cost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from txbridge.log import get_logger
from txbridge_rocketmq.client_connection import IDLE_S, STUCK_S, ClientConnection
from txbridge_rocketmq.grpc_call import AnswerWindows, ComingRequests, GrpcCall
from txbridge_rocketmq.http2_frames import (
    ACK,
    END_STREAM,
    FIRST_WINDOW,
    MAX_HEADERS,
    MAX_WINDOW,
    CallError,
    ConnectionBrokenError,
    Frame,
    FrameKind,
    Http2Reader,
    Reason,
    Status,
    frame,
    number,
)
from txbridge_rocketmq.memory import RequestMemory

#: Unanswered calls of a connection, as in the remoting protocol. Beyond it calls are refused; clients send them again.
_MAX_OPEN = 1_024
#: The door sends a ping after 30 s of silence, and waits 10 s for the answer. Without it the connection is dead, and
#: its client is not asked any more.
_PING_S, _PONG_S = 30.0, 10.0
#: Numbers of the settings that count here, each with two bytes.
_TABLE_SIZE, _MAX_STREAMS, _WINDOW_SIZE, _HEADERS_SIZE = b"\0\1", b"\0\3", b"\0\4", b"\0\6"

_log = get_logger("txbridge.rocketmq")


class Http2Connection(ClientConnection):
    """Connection of one client, for the event loop only.

    It never waits with a complete request for memory: the service refuses what has no room.
    """

    def __init__(
        self,
        memory: RequestMemory,
        max_message: int,
        connections: set[Http2Connection],
        stream_path: bytes,
        begin: Callable[[GrpcCall], asyncio.Task[None]],
        count_late: Callable[[list[GrpcCall]], None],
    ) -> None:
        """`begin` serves a call: those of `stream_path` when they begin, others when their request has come.

        `max_message` is the most bytes of a request.
        """
        super().__init__(memory)
        self._max_message = max_message
        self._connections = connections
        self._stream_path = stream_path
        self._begin = begin
        self._count_late = count_late
        self._reader = Http2Reader(self._buffer)
        self._coming = ComingRequests(self._queue_answer, self._reader.count_work)
        self._windows = AnswerWindows(self._queue_answer, self._drop_call)
        self._calls: dict[int, GrpcCall] = {}
        self._last_stream = 0
        self._takes_calls = True
        #: Requests that are being served, also for clients that have given up their call.
        self._served = 0
        self._uncredited = 0
        self._heard_at = self._last_call = time.monotonic()
        self._pinged_at: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._connections.add(self)
        settings = _MAX_STREAMS + number(_MAX_OPEN) + _HEADERS_SIZE + number(MAX_HEADERS)
        self._queue_answer(frame(FrameKind.SETTINGS, 0, 0, settings))
        # Only single calls have limits. If all together bring too much, nothing is read.
        self._queue_answer(frame(FrameKind.WINDOW_UPDATE, 0, 0, number(MAX_WINDOW - FIRST_WINDOW)))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  the signature is asyncio's
        self._is_closed = True
        self._connections.discard(self)
        for call in list(self._calls.values()):
            self._drop_call(call)
        self._buffer.clear()
        self._memory.forget_connection(self)

    def data_received(self, data: bytes | memoryview) -> None:
        if self._is_closed:
            return
        self._heard_at = time.monotonic()
        self._buffer += data
        try:
            while (one := self._reader.next_frame()) is not None:
                self._take_frame(one)
        except ConnectionBrokenError as error:
            _log.warning("connection_closed", peer=self.peer, reason=str(error))
            self._say_goodbye(error.reason)
            self.close()
        self._windows.send_blocked()
        self._receive_more()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._windows.hold_answers(is_held=True)
        self._receive_more()

    def resume_writing(self) -> None:
        self._write_paused_at = None
        self._windows.hold_answers(is_held=False)
        self._receive_more()

    def handle_frame(self) -> None:
        """Nothing waits."""

    def receive_more(self) -> None:
        self._waits_to_receive = False
        self._receive_more()

    def _receive_more(self) -> None:
        received = self._coming.size + len(self._buffer)
        if paused := self._read_on(received, is_wanted=self._write_paused_at is None):
            self._heard_at += paused
            self._coming.shift_times(paused)
            if self._pinged_at is not None:
                self._pinged_at += paused

    def _take_frame(self, one: Frame) -> None:
        """Handle a frame. Raises ConnectionBrokenError."""
        kind, call = one.kind, self._calls.get(one.stream)
        if one.stream > self._last_stream and kind in {FrameKind.DATA, FrameKind.RST_STREAM, FrameKind.WINDOW_UPDATE}:
            raise ConnectionBrokenError(Reason.PROTOCOL_ERROR, "a frame belongs to no call")
        if kind == FrameKind.HEADERS:
            self._on_headers(one, call)
        elif kind == FrameKind.DATA:
            self._on_data(one, call)
        elif kind == FrameKind.WINDOW_UPDATE:
            added = int.from_bytes(one.content, "big") & MAX_WINDOW
            if not added:
                raise ConnectionBrokenError(Reason.PROTOCOL_ERROR, "a window grows by nothing")
            if call is not None or not one.stream:
                self._windows.widen_window(call, added)
        elif kind == FrameKind.SETTINGS:
            self._on_settings(one)
        elif kind == FrameKind.PING and one.flags & ACK:
            self._pinged_at = None
        elif kind == FrameKind.PING:
            self._queue_answer(frame(FrameKind.PING, ACK, 0, one.content))
        elif kind == FrameKind.RST_STREAM and call is not None:
            self._drop_call(call)
        elif kind == FrameKind.PUSH_PROMISE:
            raise ConnectionBrokenError(Reason.PROTOCOL_ERROR, "a client must not push")

    def _on_headers(self, one: Frame, call: GrpcCall | None) -> None:
        if not one.stream % 2:
            raise ConnectionBrokenError(Reason.PROTOCOL_ERROR, "a call has an even number")
        is_new, is_last = one.stream > self._last_stream, one.flags & END_STREAM
        headers = self._reader.headers_of(one.content, is_request=is_new)
        self._last_stream = max(self._last_stream, one.stream)
        if headers is None or not (is_new or is_last):
            self._reset_call(one.stream, Reason.PROTOCOL_ERROR)
            return
        if is_new:
            if not self._takes_calls or max(len(self._calls), self._served) >= _MAX_OPEN:
                self._reset_call(one.stream, Reason.REFUSED_STREAM)
                return
            is_stream = headers[b":path"] == self._stream_path
            call = GrpcCall(
                one.stream, headers, self.peer, self._windows.send_answer, self._max_message, is_stream=is_stream
            )
            call.headers_size = len(one.content)
            self._calls[one.stream] = call
            self._coming.add_call(call)
            if is_stream:
                self._serve_call(call)
        if call is not None and is_last:
            self._end_request(call)

    def _on_data(self, one: Frame, call: GrpcCall | None) -> None:
        self._uncredited += one.size
        if self._uncredited > MAX_WINDOW // 2:
            self._queue_answer(frame(FrameKind.WINDOW_UPDATE, 0, 0, number(self._uncredited)))
            self._uncredited = 0
        if call is None:
            self._reader.count_work()
            return
        try:
            is_complete = self._coming.add_data(call, one.content, one.size)
        except CallError as error:
            self._coming.end_request(call)
            call.end_call(error.status, error.remark)
        else:
            if is_complete:
                self._reader.forgive_request(call.headers_size)
                self._serve_call(call)
        if one.flags & END_STREAM:
            self._end_request(call)

    def _on_settings(self, one: Frame) -> None:
        content = one.content
        if len(content) % 6 or (one.flags & ACK and content):
            raise ConnectionBrokenError(Reason.FRAME_SIZE_ERROR, "settings have a wrong length")
        for at in range(0, len(content), 6):
            if content[at : at + 2] == _TABLE_SIZE:
                self._windows.empty_table()
            elif content[at : at + 2] == _WINDOW_SIZE:
                self._windows.set_first_window(int.from_bytes(content[at + 2 : at + 6], "big"))
        if not one.flags & ACK:
            self._queue_answer(frame(FrameKind.SETTINGS, ACK, 0))

    def _reset_call(self, stream: int, reason: Reason) -> None:
        """Refuse what the client does with a call. What the call has begun goes on."""
        self._queue_answer(frame(FrameKind.RST_STREAM, 0, stream, number(reason)))
        if stream in self._calls:
            self._drop_call(self._calls[stream])

    def _serve_call(self, call: GrpcCall) -> None:
        self._served += 1
        self._begin(call).add_done_callback(self._note_served)

    def _note_served(self, _task: object) -> None:
        self._served -= 1
        self._last_call = time.monotonic()
        # What it had received of a stream is for others now, though its client may send nothing any more.
        self._receive_more()

    def _end_request(self, call: GrpcCall) -> None:
        """Note that the client has said all."""
        call.has_ended = True
        call.add_message(None)
        if not call.is_complete and not call.is_stream:
            self._coming.end_request(call)
            call.end_call(Status.INVALID_ARGUMENT, "the request is missing or cut off")

    def _drop_call(self, call: GrpcCall) -> None:
        """Forget a call that is answered, or that the client has given up. What it has begun goes on."""
        call.is_over = True
        del self._calls[call.stream]
        self._windows.forget_call(call)
        self._coming.end_request(call)
        call.unsent.clear()
        call.add_message(None)
        self._last_call = time.monotonic()

    @property
    def is_busy(self) -> bool:
        """Whether it has calls that are not answered."""
        return bool(self._calls)

    def close_if_stuck(self, now: float) -> None:
        self._reader.begin_second()
        if self._is_closed and self._transport is not None:
            # It has had a second for its last bytes.
            self._transport.abort()
        elif self._is_stuck(now) or self._windows.is_stuck(now):
            self._abort_connection(f"the client has taken no answers for {STUCK_S:.0f} s")
        elif not self._calls and now - self._last_call > IDLE_S:
            self.stop_calls()
            self.close()
        elif self._paused_at is not None:
            # What the client sends is not read.
            return
        elif self._pinged_at is not None and now - self._pinged_at > _PONG_S:
            self._abort_connection(f"the client has not answered a ping for {_PONG_S:.0f} s")
        else:
            if self._pinged_at is None and now - self._heard_at > _PING_S:
                self._pinged_at = now
                self._queue_answer(frame(FrameKind.PING, 0, 0, bytes(8)))
            late = list(self._coming.late_calls(now, is_needed=self._memory.is_needed(self)))
            if late:
                self._count_late(late)
                for call in late:
                    self._coming.end_request(call)
                    call.end_call(Status.DEADLINE_EXCEEDED, "no request came in time")
                self._receive_more()

    def stop_calls(self) -> None:
        """Take no more calls. Clients send those that are on their way to another door."""
        self._takes_calls = False
        self._say_goodbye(Reason.NO_ERROR)

    def close(self) -> None:
        super().close()
        self._is_closed = True

    def _say_goodbye(self, reason: Reason) -> None:
        if not self._is_closed:
            self._queue_answer(frame(FrameKind.GOAWAY, 0, 0, number(self._last_stream) + number(reason)))
