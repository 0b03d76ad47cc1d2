"""Frames of HTTP/2 (RFC 9113), and gRPC's messages and statuses in them."""

from __future__ import annotations

import re
from enum import IntEnum
from typing import NamedTuple
from urllib.parse import quote

from hpack import Decoder, Encoder, HPACKError, NeverIndexedHeaderTuple

from txbridge_rocketmq.codes import HTTP2_PREFACE

#: Length, kind, flags and stream of a frame.
_HEAD = 9
END_STREAM, ACK, END_HEADERS, _PADDED, _WITH_PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
#: Largest frame, and the bytes that a side may send before the other one asks for more: HTTP/2's own defaults.
MAX_FRAME_SIZE, FIRST_WINDOW, MAX_WINDOW = 16_384, 65_535, 2**31 - 1
#: Bytes of the headers of a call, compressed and not: the hard limit of gRPC's own servers.
MAX_HEADERS = 16 * 1024
#: Length of a message, and before it whether it is compressed.
MESSAGE_HEAD = 5
#: Most units of work within a second that no served request has caused: four for each call that may be open. A unit is
#: a frame, a message of a stream, or so many bytes of them. Headers have some 200, beside those that a mesh adds. The
#: last one is what a request takes back beside its headers. It has some five frames.
_MOST_WORK, _BYTES, _WORK_OF_REQUEST = 4_096, 128, 16
#: Data of a request are no such work, unless there are fewer bytes in a frame.
_SMALL = 256
#: HPACK's updates of a table's size, more than the two that a block may begin with. Kilobytes of them take 30 ms.
_UPDATES = re.compile(rb"(?:[\x20-\x3e]|\x3f[\x80-\xff]*[\0-\x7f]){3}")
#: Names of a request's headers, each with the end of a line: those that begin with a colon stand first.
_NAMES = re.compile(rb"(?P<pseudo>(?::(?:method|scheme|path|authority)\n)*)(?:[!-9;-@\[-~]+\n)*")
_BREAK = re.compile(rb"[\0\r\n]")
#: Headers that a request must have, and those of a connection, which HTTP/2 does not have.
_NEEDED = frozenset({b":method", b":scheme", b":path"})
_OF_HTTP_1 = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"})


class FrameKind(IntEnum):
    """Kinds of frames. Others are ignored, as are priorities."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


_SIZES: dict[int, int] = {FrameKind.PRIORITY: 5, FrameKind.RST_STREAM: 4, FrameKind.PING: 8, FrameKind.WINDOW_UPDATE: 4}
_OF_CONNECTION = frozenset({FrameKind.SETTINGS, FrameKind.PING, FrameKind.GOAWAY})


class Reason(IntEnum):
    """Why a call or a connection ends."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    FLOW_CONTROL_ERROR = 3
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class Status(IntEnum):
    """Statuses of gRPC, beside the codes that RocketMQ's own answers have."""

    OK = 0
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    UNAUTHENTICATED = 16


class ConnectionBrokenError(Exception):
    """The client breaks the rules of HTTP/2, and its connection must end."""

    def __init__(self, reason: Reason, what: str) -> None:
        super().__init__(what)
        self.reason = reason


class CallError(Exception):
    """The call ends with another status than OK."""

    def __init__(self, status: Status, remark: str) -> None:
        super().__init__(remark)
        self.status = status
        self.remark = remark


class Frame(NamedTuple):
    """A frame of a client."""

    kind: int
    flags: int
    stream: int
    #: Without padding.
    content: bytes
    #: Bytes that count for windows.
    size: int


class Http2Reader:
    """Reader of a client's frames, and count of the work that they cause beside its requests."""

    def __init__(self, received: bytearray) -> None:
        """Frames are taken from what is `received`, in any pieces."""
        self._buffer = received
        self._work = 0
        self._decoder = Decoder(MAX_HEADERS)
        self._has_greeted = False
        self._begun: Frame | None = None

    def next_frame(self) -> Frame | None:
        """Take the next frame, if it is complete; headers are one, however many they come in.

        Raises ConnectionBrokenError.
        """
        buffer = self._buffer
        if not self._has_greeted:
            if not HTTP2_PREFACE.startswith(buffer[: len(HTTP2_PREFACE)]):
                raise ConnectionBrokenError(Reason.PROTOCOL_ERROR, "the client does not speak gRPC")
            if len(buffer) < len(HTTP2_PREFACE):
                return None
            del buffer[: len(HTTP2_PREFACE)]
            self._has_greeted = True
        while len(buffer) >= _HEAD:
            size = int.from_bytes(buffer[:3], "big")
            if size > MAX_FRAME_SIZE:
                raise ConnectionBrokenError(Reason.FRAME_SIZE_ERROR, f"a frame has {size} bytes")
            if len(buffer) < _HEAD + size:
                return None
            kind, flags, stream = buffer[3], buffer[4], int.from_bytes(buffer[5:_HEAD], "big") & MAX_WINDOW
            if size != _SIZES.get(kind, size):
                raise ConnectionBrokenError(Reason.FRAME_SIZE_ERROR, f"a frame of the kind {kind} has {size} bytes")
            is_known = kind <= FrameKind.CONTINUATION and kind != FrameKind.WINDOW_UPDATE
            if is_known and (kind in _OF_CONNECTION) == bool(stream):
                raise ConnectionBrokenError(Reason.PROTOCOL_ERROR, "a frame belongs to a call, or must belong to one")
            content = bytes(buffer[_HEAD : _HEAD + size])
            del buffer[: _HEAD + size]
            if kind in {FrameKind.DATA, FrameKind.HEADERS} and flags & _PADDED:
                content = _unpadded(content)
            if kind == FrameKind.HEADERS and flags & _WITH_PRIORITY:
                content = content[5:]
            if kind != FrameKind.DATA or len(content) < _SMALL:
                self.count_work(size)
            one = Frame(kind, flags, stream, content, size)
            if kind == FrameKind.CONTINUATION or self._begun is not None:
                one = self._join_headers(one)
            if one.kind != FrameKind.HEADERS or one.flags & END_HEADERS:
                return one
            self._begun = one
        return None

    def count_work(self, size: int = 0) -> None:
        """Count a frame, or a message of a stream, before its `size` bytes are read. Raises ConnectionBrokenError."""
        self._work += 1 + size // _BYTES
        if self._work > _MOST_WORK:
            raise ConnectionBrokenError(Reason.ENHANCE_YOUR_CALM, "the client floods the door beside its requests")

    def forgive_request(self, headers: int) -> None:
        """Take back what a request with headers of so many bytes has cost, because it is served."""
        self._work -= min(self._work, _WORK_OF_REQUEST + headers // _BYTES)

    def begin_second(self) -> None:
        self._work = 0

    def headers_of(self, block: bytes, *, is_request: bool) -> dict[bytes, bytes] | None:
        """Headers of a request, or those that follow one; None if they break the rules of RFC 9113, 8.2 and 8.3.

        Those of refused calls must be read too, because later ones refer to them. Raises ConnectionBrokenError.
        """
        if _UPDATES.match(block):
            raise ConnectionBrokenError(Reason.COMPRESSION_ERROR, "headers begin with too many sizes of a table")
        try:
            fields = list(self._decoder.decode(block, raw=True))
        except HPACKError as error:
            raise ConnectionBrokenError(Reason.COMPRESSION_ERROR, f"headers cannot be read: {error}") from None
        # A header may be one byte, and takes microseconds. A call has some ten.
        self._work += len(fields) // 8
        found = dict(fields)
        names = _NAMES.fullmatch(b"".join([name + b"\n" for name, _ in fields]))
        if (
            names is not None
            and not _BREAK.search(b"".join([one for field in fields for one in field]))
            and names["pseudo"].count(b"\n") == sum(name.startswith(b":") for name in found)
            and (found.keys() >= _NEEDED and found[b":path"] if is_request else not names["pseudo"])
            and _OF_HTTP_1.isdisjoint(found)
            and found.get(b"te", b"trailers") == b"trailers"
        ):
            return found
        return None

    def _join_headers(self, more: Frame) -> Frame:
        begun, self._begun = self._begun, None
        if begun is None or more.kind != FrameKind.CONTINUATION or more.stream != begun.stream:
            raise ConnectionBrokenError(Reason.PROTOCOL_ERROR, "headers are not complete, or have not begun")
        content = begun.content + more.content
        if len(content) > MAX_HEADERS or not (more.content or more.flags & END_HEADERS):
            raise ConnectionBrokenError(Reason.ENHANCE_YOUR_CALM, "headers are too large, or come to no end")
        return Frame(begun.kind, begun.flags | more.flags & END_HEADERS, begun.stream, content, more.size)


def frame(kind: FrameKind, flags: int, stream: int, content: bytes = b"") -> bytes:
    return len(content).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + content


def number(value: int) -> bytes:
    """A window, a reason or a stream, as a frame has it."""
    return value.to_bytes(4, "big")


def message(content: bytes) -> bytes:
    """A message of gRPC, not compressed."""
    return b"\0" + number(len(content)) + content


def headers(*pairs: tuple[str, str]) -> bytes:
    """Headers that nobody has to remember: what an encoder writes does not depend on what it wrote before."""
    return Encoder().encode([NeverIndexedHeaderTuple(*pair) for pair in pairs], huffman=False)


def trailers(status: Status, remark: str) -> bytes:
    """The headers that end a call."""
    pairs = [("grpc-status", str(status.value))]
    if remark:
        pairs.append(("grpc-message", quote(remark, " !\"#$&'()*+,/:;<=>?@[\\]^`{|}")))
    if status is Status.UNIMPLEMENTED:
        # It may be that the request is compressed.
        pairs.append(("grpc-accept-encoding", "identity"))
    return headers(*pairs)


def _unpadded(content: bytes) -> bytes:
    if not content or content[0] >= len(content):
        raise ConnectionBrokenError(Reason.PROTOCOL_ERROR, "a frame has more padding than content")
    return content[1 : len(content) - content[0]]


#: HPACK's update of the table's size, to 0.
EMPTY_TABLE = b"\x20"
BEGINNING = headers((":status", "200"), ("content-type", "application/grpc"))
OK = trailers(Status.OK, "")
