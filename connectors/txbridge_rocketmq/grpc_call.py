"""Calls of one gRPC client, and the flow of their bytes: limits on their size, and on the time that they take."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Self

from txbridge_rocketmq.client_connection import STUCK_S
from txbridge_rocketmq.command import MAX_FRAME
from txbridge_rocketmq.http2_frames import (
    BEGINNING,
    EMPTY_TABLE,
    END_HEADERS,
    END_STREAM,
    FIRST_WINDOW,
    MAX_FRAME_SIZE,
    MAX_WINDOW,
    MESSAGE_HEAD,
    OK,
    CallError,
    ConnectionBrokenError,
    FrameKind,
    Reason,
    Status,
    frame,
    message,
    number,
    trailers,
)

#: What is kept of a call's headers, each up to this length. RocketMQ's clients send nothing that is longer.
_HEADERS, _MAX_HEADER = (b"x-mq-client-id", b"authorization", b"x-mq-date-time"), 1_024
#: Messages of a stream that its reader has not taken, which takes all of them in its next turn. Clients send one.
_MAX_UNREAD = 1_000
#: Bytes of a stream's answers that its client has not taken, beyond which it gets no more: a burst of checks has less.
_MAX_UNSENT = 4 * 1024 * 1024
#: Bytes that a call counts whose request is not complete, for its headers and what Python keeps of it.
_CALL_SIZE = 4 * 1024
#: Bytes of all requests of a connection that are not complete. Large requests take turns, so only many of less than 64
#: KiB at the same time take more.
_MAX_COMING = 2 * MAX_FRAME
#: A request must be complete within this time (s) after the start of its call, as a frame of the remoting protocol, and
#: a message of a stream after its own start. While others wait for its memory, it must come at that rate, but for the
#: second time (s).
_REQUEST_S, _STILL_S = 30.0, 1.0


class GrpcCall:
    """A call, whose client sends one message or a stream of them. For the event loop only."""

    def __init__(
        self,
        stream: int,
        headers: dict[bytes, bytes],
        peer: str,
        send: Callable[[GrpcCall], None],
        max_message: int,
        *,
        is_stream: bool,
    ) -> None:
        """`send` is called when there is something to send; `max_message` is the most bytes of a request."""
        self.stream = stream
        self.path = headers.get(b":path", b"")[:_MAX_HEADER]
        self._headers = {name: headers.get(name, b"")[:_MAX_HEADER] for name in _HEADERS}
        self.peer = peer
        self._send = send
        self._max_message = max_message
        #: Bytes of its headers, which count as a flood until it is served.
        self.headers_size = 0
        #: The message of a call that is no stream, when it has come.
        self.request = b""
        #: Bytes of a message that is not complete, when the call began to send it, and whether the door wants no more.
        self.received = bytearray()
        self.began = time.monotonic()
        self.is_complete = False
        #: Bytes that the client may still send, and those of them that were asked for beyond the first window.
        self.credit = FIRST_WINDOW
        self.admitted = 0
        #: Bytes that the client has asked for beyond its first window, less those that have been sent.
        self.window = 0
        #: Bytes that wait for that, and the trailers after them.
        self.unsent = bytearray()
        self.trailers: bytes | None = None
        self.is_answered = False
        #: Whether the client has said all, and whether it gets nothing any more.
        self.has_ended = False
        self.is_over = False
        self._messages: asyncio.Queue[bytes | None] | None = asyncio.Queue() if is_stream else None

    def header(self, name: bytes) -> str:
        """One of the headers that RocketMQ's clients send; empty if it is missing."""
        return self._headers[name].decode(errors="replace")

    @property
    def is_stream(self) -> bool:
        return self._messages is not None

    @property
    def size(self) -> int | None:
        """Size of the message that comes, with its head; None while it is not known. Raises CallError."""
        if len(self.received) < MESSAGE_HEAD:
            return None
        size = int.from_bytes(self.received[1:MESSAGE_HEAD], "big")
        if size > self._max_message:
            raise CallError(Status.RESOURCE_EXHAUSTED, f"the request has {size} bytes, more than {self._max_message}")
        if self.received[0]:
            raise CallError(Status.UNIMPLEMENTED, "the txbridge door takes no compressed requests of gRPC")
        return MESSAGE_HEAD + size

    def next_message(self) -> bytes | None:
        """Take the next message, if all of it has come. Raises CallError."""
        size = self.size
        if size is None or len(self.received) < size:
            return None
        content = bytes(self.received[MESSAGE_HEAD:size])
        del self.received[:size]
        return content

    def add_message(self, content: bytes | None) -> None:
        """Hand a message of a stream to its reader, or its end. Raises CallError."""
        if self._messages is not None:
            if content is not None and self._messages.qsize() >= _MAX_UNREAD:
                raise CallError(Status.RESOURCE_EXHAUSTED, "too many messages of a stream at once")
            self._messages.put_nowait(content)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        assert self._messages is not None
        content = await self._messages.get()
        if content is None:
            raise StopAsyncIteration
        return content

    @property
    def takes_messages(self) -> bool:
        """Whether the call is open, and its client takes the messages that it is sent."""
        return not self.is_over and self.trailers is None and len(self.unsent) < _MAX_UNSENT

    def write_message(self, content: bytes) -> None:
        """Send a message of a stream."""
        self._queue_answer(message(content), None)

    def answer_request(self, content: bytes) -> None:
        """Send the only answer, and end the call."""
        self._queue_answer(message(content), OK)

    def end_call(self, status: Status = Status.OK, remark: str = "", last: bytes = b"") -> None:
        """End the call, after a `last` message if there is one. What its client sends is not read any more."""
        self._queue_answer(message(last) if last else b"", trailers(status, remark))

    def _queue_answer(self, content: bytes, end: bytes | None) -> None:
        if not self.is_over and self.trailers is None:
            self.unsent += content
            self.trailers = end
            self._send(self)


class ComingRequests:
    """Requests of a connection that are not complete, for the event loop only."""

    def __init__(self, write: Callable[[bytes], None], count_work: Callable[[int], None]) -> None:
        self._write = write
        self._count_work = count_work
        self._calls: dict[GrpcCall, None] = {}
        #: Bytes of all of them, those that have leave to come, and large requests that wait for such leave.
        self.size = 0
        self._admitted = 0
        self._waiting: dict[GrpcCall, int] = {}

    def add_call(self, call: GrpcCall) -> None:
        self._calls[call] = None
        self.size += _CALL_SIZE

    def add_data(self, call: GrpcCall, content: bytes, size: int) -> bool:
        """Add what has come of a call's request, `size` bytes of its window; whether the request is complete.

        Raises CallError, and ConnectionBrokenError for more than the window allows.
        """
        call.credit -= size
        if call.credit < 0:
            raise ConnectionBrokenError(Reason.FLOW_CONTROL_ERROR, "a call sends more than its window")
        if call.is_complete or call.has_ended or call.trailers is not None:
            self._count_work(0)
            return False
        if call.is_stream and not call.received:
            call.began = time.monotonic()
        call.received += content
        self.size += len(content)
        if self.size > _MAX_COMING:
            raise CallError(Status.RESOURCE_EXHAUSTED, "too many requests of one connection are incomplete")
        if call.is_stream:
            if size:
                self._give_credit(call, size)
            while (told := call.next_message()) is not None:
                self.size -= MESSAGE_HEAD + len(told)
                self._count_work(len(told))
                call.began = time.monotonic()
                call.add_message(told)
            return False
        needed = call.size
        if needed is None:
            return False
        if len(call.received) >= needed:
            call.request = call.next_message() or b""
            self.size -= needed
            self.end_request(call)
            return True
        if needed > FIRST_WINDOW and not call.admitted and call not in self._waiting:
            self._waiting[call] = needed - FIRST_WINDOW
            self._admit_requests()
        return False

    def end_request(self, call: GrpcCall) -> None:
        """Read no more of a request."""
        if call.is_complete:
            return
        call.is_complete = True
        del self._calls[call]
        self.size -= _CALL_SIZE + len(call.received)
        call.received.clear()
        self._admitted -= call.admitted
        self._waiting.pop(call, None)
        self._admit_requests()

    def shift_times(self, paused: float) -> None:
        """Do not count a time (s) in which nothing was read."""
        for call in self._calls:
            call.began += paused

    def late_calls(self, now: float, *, is_needed: bool) -> Iterator[GrpcCall]:
        """Calls whose requests do not come. `is_needed` says whether others wait for their memory."""
        for call in list(self._calls):
            share = len(call.received) / max(FIRST_WINDOW, call.size or 0) if is_needed else 1.0
            is_due = bool(call.received) if call.is_stream else call not in self._waiting
            if is_due and now - call.began > min(_REQUEST_S, _STILL_S + _REQUEST_S * share):
                yield call

    def _admit_requests(self) -> None:
        """Let large requests come in turns, so that together they take no more memory than the largest frame."""
        for call, size in list(self._waiting.items()):
            if self._admitted and self._admitted + size > MAX_FRAME:
                break
            del self._waiting[call]
            self._admitted += size
            call.admitted, call.began = size, time.monotonic()
            self._give_credit(call, size)

    def _give_credit(self, call: GrpcCall, size: int) -> None:
        call.credit += size
        self._write(frame(FrameKind.WINDOW_UPDATE, 0, call.stream, number(size)))


class AnswerWindows:
    """Answers to the calls of one client, as far as its windows allow, for the event loop only."""

    def __init__(self, write: Callable[[bytes], None], drop_call: Callable[[GrpcCall], None]) -> None:
        self._write = write
        self._drop_call = drop_call
        self._window = self._first_window = FIRST_WINDOW
        #: Calls that wait for their windows, each with the time (s) since which it has got nothing.
        self._blocked: dict[GrpcCall, float] = {}
        self._is_wider = False
        #: Beginning of the next headers.
        self._table_size = b""
        #: Whether the client does not even take what it may be sent.
        self.is_held = False

    def empty_table(self) -> None:
        """Say once that headers use no table. A client that limits its size, such as Node, wants to be told."""
        self._table_size = EMPTY_TABLE

    def set_first_window(self, value: int) -> None:
        """Set the window of each call. Raises ConnectionBrokenError."""
        self._first_window = _checked(value)
        self._is_wider = True

    def widen_window(self, call: GrpcCall | None, added: int) -> None:
        """Widen the window of a call, or the one of all calls together. Raises ConnectionBrokenError."""
        if call is None:
            self._window = _checked(self._window + added)
        else:
            call.window += added
            _checked(call.window + self._first_window)
        self._is_wider = True

    def send_answer(self, call: GrpcCall) -> None:
        """Send what the windows allow of a call's answer."""
        if not call.is_answered:
            call.is_answered = True
            self._write_headers(call, 0, BEGINNING)
        has_waited = call in self._blocked
        while call.unsent:
            size = min(len(call.unsent), call.window + self._first_window, self._window, MAX_FRAME_SIZE)
            if size <= 0 or self.is_held:
                if call not in self._blocked:
                    self._blocked[call] = time.monotonic()
                    # One that has waited before has become shorter: no need to add all of them up again.
                    if not has_waited:
                        self._limit_blocked(call)
                return
            self._blocked.pop(call, None)
            self._write(frame(FrameKind.DATA, 0, call.stream, bytes(call.unsent[:size])))
            del call.unsent[:size]
            call.window -= size
            self._window -= size
        if call.trailers is not None:
            self._write_headers(call, END_STREAM, call.trailers)
            if not call.has_ended:
                # The door does not want the rest of the request.
                self._write(frame(FrameKind.RST_STREAM, 0, call.stream, number(Reason.NO_ERROR)))
            self._drop_call(call)

    def send_blocked(self) -> None:
        """Send what waits, if windows have become wider or the client takes bytes again."""
        if self._is_wider and not self.is_held:
            self._is_wider = False
            for call in list(self._blocked):
                self.send_answer(call)

    def hold_answers(self, *, is_held: bool) -> None:
        self.is_held = is_held
        self._is_wider |= not is_held
        self.send_blocked()

    def _write_headers(self, call: GrpcCall, flags: int, block: bytes) -> None:
        self._write(frame(FrameKind.HEADERS, END_HEADERS | flags, call.stream, self._table_size + block))
        self._table_size = b""

    def _limit_blocked(self, latest: GrpcCall) -> None:
        """Give up the latest answer if all that wait take more memory than the largest frame. Routes can be large."""
        if len(self._blocked) > 1 and sum(len(one.unsent) for one in self._blocked) > MAX_FRAME:
            self._write(frame(FrameKind.RST_STREAM, 0, latest.stream, number(Reason.ENHANCE_YOUR_CALM)))
            self._drop_call(latest)

    def forget_call(self, call: GrpcCall) -> None:
        self._blocked.pop(call, None)

    def is_stuck(self, now: float) -> bool:
        """Whether a call has got nothing for too long, because its windows stay shut."""
        return any(now - since > STUCK_S for since in self._blocked.values())


def _checked(window: int) -> int:
    if window > MAX_WINDOW:
        raise ConnectionBrokenError(Reason.FLOW_CONTROL_ERROR, "a window is too large")
    return window
