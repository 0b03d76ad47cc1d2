"""One call of a gRPC client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Self

from txbridge_rocketmq.http2_frames import FIRST_WINDOW, MESSAGE_HEAD, OK, CallError, Status, message, trailers

#: What is kept of a call's headers, each up to this length. RocketMQ's clients send nothing that is longer.
_HEADERS, _MAX_HEADER = (b"x-mq-client-id", b"authorization", b"x-mq-date-time"), 1_024
#: Messages of a stream that its reader has not taken, which takes all of them in its next turn. Clients send one.
_MAX_UNREAD = 1_000


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
        self._sent: asyncio.Event | None = None
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

    async def write_message(self, content: bytes) -> None:
        """Send a message, and wait until the client takes it."""
        self._sent = asyncio.Event()
        self._queue_answer(message(content), None)
        if self.unsent:
            await self._sent.wait()

    def answer_request(self, content: bytes) -> None:
        """Send the only answer, and end the call."""
        self._queue_answer(message(content), OK)

    def end_call(self, status: Status = Status.OK, remark: str = "", last: bytes = b"") -> None:
        """End the call, after a `last` message if there is one. What its client sends is not read any more."""
        self._queue_answer(message(last) if last else b"", trailers(status, remark))

    def note_sent(self) -> None:
        if self._sent is not None:
            self._sent.set()

    def _queue_answer(self, content: bytes, end: bytes | None) -> None:
        if not self.is_over and self.trailers is None:
            self.unsent += content
            self.trailers = end
            self._send(self)
