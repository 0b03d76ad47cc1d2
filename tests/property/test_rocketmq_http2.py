"""The door's HTTP/2: any frames in any pieces end at most their own connection, in bounded memory."""

from __future__ import annotations

import asyncio
import struct
import sys
import time
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

import pytest
from hpack import Decoder, Encoder
from hypothesis import example, given, settings
from hypothesis import strategies as st
from txbridge_rocketmq.grpc_call import GrpcCall
from txbridge_rocketmq.http2_connection import Http2Connection
from txbridge_rocketmq.memory import RequestMemory

MOST = 1_000_000
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS, PADDED = 1, 1, 4, 8
PROTOCOL_ERROR, FLOW_CONTROL_ERROR, FRAME_SIZE_ERROR = 1, 3, 6
COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 9, 11


def frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
    return struct.pack(">I", len(content))[1:] + struct.pack(">BBI", kind, flags, stream) + content


def window(stream: int, added: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", added))


def begun(stream: int, path: bytes = b"/call", flags: int = END_HEADERS) -> bytes:
    """The start of a call, without HPACK's tables."""
    return frame(HEADERS, flags, stream, REQUEST[:-6] + bytes([len(path)]) + path)


def message(content: bytes) -> bytes:
    return b"\0" + struct.pack(">I", len(content)) + content


#: Headers of a call, without HPACK's dynamic table.
REQUEST = b"\x83\x86\0\5:path\5/call"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0)
NO_WINDOW = frame(SETTINGS, 0, 0, b"\0\4\0\0\0\0")


class Wire(asyncio.Transport):
    """The client's end of a connection. `asyncio` wants a transport; this one keeps what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 5)})
        self.sent = b""
        self.is_over = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: Any) -> None:
        self.sent += data

    def is_closing(self) -> bool:
        return self.is_over

    def close(self) -> None:
        self.is_over = True

    abort = close

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading

    def frames(self) -> Iterator[tuple[int, int, int, bytes]]:
        at = 0
        while at < len(self.sent):
            size = int.from_bytes(self.sent[at : at + 3], "big")
            kind, flags, stream = struct.unpack(">BBI", self.sent[at + 3 : at + 9])
            yield kind, flags, stream, self.sent[at + 9 : at + 9 + size]
            at += 9 + size

    def goodbye(self) -> int | None:
        """Why the door has ended the connection; None if it has not."""
        found = [content for kind, _, _, content in self.frames() if kind == GOAWAY]
        return int.from_bytes(found[0][4:], "big") if found else None


class Session:
    """A connection whose door says everything back."""

    def __init__(self) -> None:
        self.wire, self.memory = Wire(), RequestMemory(64 << 20)
        self.late: list[int] = []
        self.connection = Http2Connection(self.memory, MOST, set(), b"/stream", self._begin, self._count_late)
        self.connection.connection_made(self.wire)

    def _count_late(self, calls: list[GrpcCall]) -> None:
        self.late.append(len(calls))

    def _begin(self, call: GrpcCall) -> asyncio.Task[None]:
        return asyncio.create_task(self._serve(call))

    @staticmethod
    async def _serve(call: GrpcCall) -> None:
        if not call.is_stream:
            call.answer_request(call.request)
            return
        async for content in call:
            call.write_message(content)
        call.end_call()

    async def feed(self, pieces: Iterable[bytes]) -> None:
        for one in pieces:
            if not self.wire.is_over:
                self.connection.data_received(one)
            await self.settle()

    @staticmethod
    async def settle() -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def end(self) -> None:
        """Look after a long time, and close. Nothing is left over."""
        for later in (15.0, 31.0, 62.0, 300.0, 301.0):
            self.connection.close_if_stuck(time.monotonic() + later)
            await self.settle()
        assert self.wire.is_over, "it has no calls or an answer that nobody takes, or does not answer pings"
        self.connection.connection_lost(None)
        await self.settle()
        assert self.memory.used == self.connection._coming.size == 0
        assert not self.connection.is_busy
        assert self.connection._served == 0


def play(pieces: Iterable[bytes]) -> Session:
    """Send a client's bytes. No exception may escape, also none that only asyncio would see."""
    unseen: list[dict[str, Any]] = []

    async def run() -> Session:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: unseen.append(what))
        session = Session()
        await session.feed(pieces)
        assert session.connection._coming.size < 40 << 20
        await session.end()
        return session

    session = asyncio.run(run())
    assert unseen == []
    return session


def cut(content: bytes, sizes: list[int]) -> list[bytes]:
    pieces = []
    for size in sizes:
        pieces.append(content[:size])
        content = content[size:]
    return [*pieces, content]


SIZES = st.lists(st.integers(1, 40), max_size=20)
BLOCKS = st.sampled_from(
    [REQUEST, b"\x83\x86\0\5:path\7/stream", b"\x40\1a\1b", b"\xbe", b"\x82", b"\x3f\xe1\x1f", b""]
)
CONTENTS = st.one_of(
    BLOCKS,
    st.builds(message, st.binary(max_size=30)),
    st.integers(0, 2**32 - 1).map(lambda value: struct.pack(">I", value)),
    st.tuples(st.integers(0, 8), st.sampled_from([0, 1, 100, 65_535, 2**31 - 1, 2**31])).map(
        lambda pair: struct.pack(">HI", *pair)
    ),
    st.binary(max_size=60),
)
FRAMES = st.one_of(
    st.builds(frame, st.integers(0, 11), st.integers(0, 255), st.integers(0, 9), CONTENTS),
    # Those that are often right.
    st.builds(frame, st.just(HEADERS), st.sampled_from([0, 4, 5]), st.sampled_from([1, 3, 5, 7]), BLOCKS),
    st.builds(
        frame, st.just(DATA), st.sampled_from([0, 1]), st.sampled_from([1, 3, 5]), st.builds(message, st.binary())
    ),
    st.builds(window, st.integers(0, 5), st.integers(1, 2**31 - 1)),
    st.just(NO_WINDOW),
)


@given(st.lists(FRAMES, max_size=30), SIZES)
def test_any_frames_in_any_pieces_end_their_connection_alone(frames: list[bytes], sizes: list[int]) -> None:
    play(cut(PREFACE + b"".join(frames), sizes))


@given(st.binary(max_size=300), st.booleans(), SIZES)
def test_any_bytes_in_any_pieces_end_their_connection_alone(content: bytes, greets: bool, sizes: list[int]) -> None:
    play(cut((PREFACE if greets else b"") + content, sizes))


#: A block of headers whose only value has 16,000 bytes, but for these.
LONG_BLOCK = b"\0\1a\x7f\x81\x7c"


@settings(max_examples=settings.default.max_examples // 5)
@given(st.lists(FRAMES, max_size=3), st.lists(st.tuples(FRAMES, st.sampled_from([0, 250, 16_002])), min_size=1))
@example([], [(frame(SETTINGS, 0, 0), 16_002)])
@example([], [(frame(HEADERS, END_HEADERS, 1, b"\x20" * 16_000), 0)])
@example([], [(frame(HEADERS, END_HEADERS, 1, b"\x82" * 120), 0)])
@example([], [(frame(HEADERS, END_HEADERS, 1, b"\0\0\0" * 40), 0)])
def test_what_frames_cost_before_their_connection_ends_is_bounded(
    first: list[bytes], again: list[tuple[bytes, int]]
) -> None:
    """However many come, of any kinds, in any order: counted by the lines of Python that run."""
    repeated = b"".join(longer(one, more) for one, more in again)
    content = PREFACE + b"".join(first) + repeated * (8_000_000 // len(repeated) + 1)
    lines = 0

    def count(_frame: FrameType, event: str, _what: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        play(cut(content, [65_536] * 130))
    finally:
        sys.settrace(before)
    assert lines < 3_000_000


def longer(one: bytes, more: int) -> bytes:
    """The frame with more bytes, as many as it may have."""
    content = (one[9:] + bytes(more))[:16_384]
    return len(content).to_bytes(3, "big") + one[3:9] + content


@given(st.lists(st.integers(0, 50_000), min_size=1, max_size=4), st.integers(1, 16_384), st.booleans(), SIZES)
def test_whoever_keeps_to_the_rules_gets_all_answers(
    lengths: list[int], window_size: int, is_padded: bool, sizes: list[int]
) -> None:
    """Calls at the same time, with HPACK's tables, frames of any sizes, padding and small windows for the answers."""
    contents = [bytes([length % 256]) * length for length in lengths]
    encoder, sent = Encoder(), b""
    for number, _ in enumerate(contents):
        block = encoder.encode([(":method", "POST"), (":scheme", "http"), (":path", "/call"), ("x-mq-client-id", "me")])
        first, rest = block[:3], block[3:]
        stream = 2 * number + 1
        sent += frame(HEADERS, 0, stream, first) + frame(CONTINUATION, END_HEADERS, stream, rest)
    parts = {2 * number + 1: message(content) for number, content in enumerate(contents)}
    while parts:
        for stream, left in list(parts.items()):
            part = bytes([7]) + left[:9_000] + bytes(7) if is_padded else left[:9_000]
            parts[stream] = left[9_000:]
            sent += frame(DATA, PADDED * is_padded | END_STREAM * (not parts[stream]), stream, part)
            if not parts[stream]:
                del parts[stream]

    async def run() -> None:
        session = Session()
        await session.feed(cut(PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, window_size)) + sent, sizes))
        given_out = dict.fromkeys(range(1, 2 * len(contents), 2), window_size)
        together = 65_535
        found: dict[int, bytes] = {}
        for _ in range(200):
            found, ended = {}, set()
            for kind, flags, stream, content in session.wire.frames():
                if kind == DATA:
                    found[stream] = found.get(stream, b"") + content
                if kind == HEADERS and flags & END_STREAM:
                    ended.add(stream)
            assert all(len(content) <= given_out[stream] for stream, content in found.items())
            assert sum(map(len, found.values())) <= together
            if len(ended) == len(contents):
                break
            await session.feed(
                [window(0, 60_000)] + [window(stream, 20_000) for stream in given_out if stream not in ended]
            )
            together += 60_000
            for stream in given_out.keys() - ended:
                given_out[stream] += 20_000
        assert [found[2 * number + 1] for number in range(len(contents))] == list(map(message, contents))
        assert session.wire.goodbye() is None
        await session.end()

    asyncio.run(run())


def called(stream: int) -> bytes:
    return begun(stream) + frame(DATA, END_STREAM, stream, message(b"x"))


#: Headers of 130 bytes.
LONG = b"\0\1a\x7e" + b"b" * 126

HOSTILE: dict[str, tuple[int, bytes]] = {
    "resets": (
        ENHANCE_YOUR_CALM,
        b"".join(begun(n) + frame(RST_STREAM, 0, n, b"\0\0\0\x08") for n in range(1, 9_001, 2)),
    ),
    "pings": (ENHANCE_YOUR_CALM, frame(PING, 0, 0, bytes(8)) * 5_000),
    "continuations": (ENHANCE_YOUR_CALM, begun(1, flags=0) + frame(CONTINUATION, 0, 1, b"\0" * 16_000) * 2),
    "empty continuations": (ENHANCE_YOUR_CALM, begun(1, flags=0) + frame(CONTINUATION, 0, 1)),
    "empty data": (ENHANCE_YOUR_CALM, begun(1) + frame(DATA, 0, 1) * 5_000),
    # Not one of them is served.
    "continuations of one byte": (
        ENHANCE_YOUR_CALM,
        frame(HEADERS, 0, 1, LONG_BLOCK) + frame(CONTINUATION, 0, 1, b"b") * 5_000,
    ),
    "data of no open call": (ENHANCE_YOUR_CALM, begun(3) + frame(DATA, 0, 1, bytes(300)) * 5_000),
    "large headers": (
        ENHANCE_YOUR_CALM,
        b"".join(frame(HEADERS, END_HEADERS, n, REQUEST + LONG * 90) for n in range(1, 201, 2)),
    ),
    "padding alone": (FLOW_CONTROL_ERROR, begun(1) + frame(DATA, PADDED, 1, b"\x3f" + bytes(63)) * 5_000),
    "a header bomb": (
        COMPRESSION_ERROR,
        frame(HEADERS, END_HEADERS, 1, b"\x40\1a\x7f\x81\x1e" + b"b" * 4_000) + frame(HEADERS, 4, 3, b"\xbe" * 5),
    ),
    "a large table": (COMPRESSION_ERROR, frame(HEADERS, END_HEADERS, 1, b"\x3f\xff\xff\x03")),
    "half a header": (COMPRESSION_ERROR, frame(HEADERS, END_HEADERS, 1, b"\0\5:pa")),
    "a long number": (COMPRESSION_ERROR, frame(HEADERS, END_HEADERS, 1, b"\xff" * 16_000)),
    "too much padding": (PROTOCOL_ERROR, begun(1) + frame(DATA, PADDED, 1, b"\5abc")),
    "an even stream": (PROTOCOL_ERROR, begun(2)),
    "stream 0": (PROTOCOL_ERROR, begun(0)),
    "data of no call": (PROTOCOL_ERROR, frame(DATA, 0, 7, b"x")),
    "frames between headers": (PROTOCOL_ERROR, begun(1, flags=0) + frame(PING, 0, 0, bytes(8))),
    "a continuation of nothing": (PROTOCOL_ERROR, frame(CONTINUATION, END_HEADERS, 1, b"\x82")),
    "a push": (PROTOCOL_ERROR, frame(5, 0, 1)),
    "a reset of no call": (PROTOCOL_ERROR, frame(RST_STREAM, 0, 7, bytes(4))),
    "a window of no call": (PROTOCOL_ERROR, window(7, 1)),
    "a ping of a call": (PROTOCOL_ERROR, begun(1) + frame(PING, 0, 1, bytes(8))),
    "settings of a call": (PROTOCOL_ERROR, begun(1) + frame(SETTINGS, 0, 1)),
    "an answer with settings": (FRAME_SIZE_ERROR, frame(SETTINGS, ACK, 0, bytes(6))),
    "a short reset": (FRAME_SIZE_ERROR, begun(1) + frame(RST_STREAM, 0, 1, bytes(3))),
    "a window that grows by nothing": (PROTOCOL_ERROR, window(0, 0)),
    "data beyond the window": (FLOW_CONTROL_ERROR, begun(1) + frame(DATA, 0, 1, message(b"x" * 16_000)[:16_000]) * 5),
    "windows that are too large": (FLOW_CONTROL_ERROR, window(0, 2**31 - 1)),
    "a call's window that is too large": (
        FLOW_CONTROL_ERROR,
        NO_WINDOW + begun(1) + window(1, 2**31 - 1) + window(1, 9),
    ),
}


@pytest.mark.parametrize(("reason", "content"), HOSTILE.values(), ids=HOSTILE)
def test_whoever_breaks_the_rules_is_told_why_and_cut_off(reason: int, content: bytes) -> None:
    assert play([PREFACE + content]).wire.goodbye() == reason


@pytest.mark.parametrize(
    "block",
    [
        REQUEST + b"\0\1A\1a",
        REQUEST + b"\0\1a\3a\r\n",
        REQUEST + b"\0\2te\4gzip",
        REQUEST + b"\0\7upgrade\1a",
        REQUEST + b"\0\7:status\x03200",
        REQUEST + b"\x83",
        b"\0\1a\1a" + REQUEST,
        b"\x83\x86\0\5:path\0",
        REQUEST[1:],
    ],
    ids=["upper case", "line", "TE", "upgrade", "status", "two methods", "path too late", "no path", "no method"],
)
def test_headers_that_break_the_rules_end_their_call_alone(block: bytes) -> None:
    found = list(play([PREFACE + frame(HEADERS, END_HEADERS, 1, block) + called(3)]).wire.frames())
    assert (RST_STREAM, 0, 1, struct.pack(">I", PROTOCOL_ERROR)) in found
    assert (DATA, 0, 3, message(b"x")) in found


@pytest.mark.parametrize("again", [REQUEST, b"\0\1a\1a"], ids=["a request", "no end"])
def test_a_call_has_one_request(again: bytes) -> None:
    found = play([PREFACE + begun(1) + frame(HEADERS, END_HEADERS, 1, again)]).wire.frames()
    assert (RST_STREAM, 0, 1, struct.pack(">I", PROTOCOL_ERROR)) in found


def test_streams_that_begin_and_end_at_once_are_a_flood() -> None:
    """Also if there is time for each of them: a stream is served before its client has said anything."""
    given_up = [begun(n, b"/stream") + frame(RST_STREAM, 0, n, b"\0\0\0\x08") for n in range(1, 9_001, 2)]
    pieces = [b"".join(given_up[at : at + 100]) for at in range(0, len(given_up), 100)]
    assert play([PREFACE, *pieces]).wire.goodbye() == ENHANCE_YOUR_CALM
    many = frame(DATA, 0, 1, message(b"") * 900)
    assert play([PREFACE, begun(1, b"/stream"), *[many] * 5]).wire.goodbye() == ENHANCE_YOUR_CALM


def test_a_stream_whose_client_has_said_all_is_not_read() -> None:
    """Nobody would take from memory what it says. Other calls go on."""
    more = frame(DATA, 0, 1, message(b"more"))
    session = play([PREFACE + begun(1, b"/stream") + frame(DATA, END_STREAM, 1, message(b"all")) + more + called(3)])
    assert [one for one in session.wire.frames() if one[0] == WINDOW_UPDATE and one[2]] == [(8, 0, 1, b"\0\0\0\x08")]
    assert (DATA, 0, 3, message(b"x")) in session.wire.frames()


def test_more_calls_than_a_connection_may_have_open_are_refused() -> None:
    session = play([PREFACE + NO_WINDOW, *(called(n) for n in range(1, 2_401, 2))])
    refused = [content for kind, _, _, content in session.wire.frames() if kind == RST_STREAM]
    assert refused == [b"\0\0\0\7"] * (1_200 - 1_024)


def test_calls_whose_requests_do_not_come_are_told_of_once() -> None:
    """An attacker has a thousand of them on each connection, and the log would be full of them."""
    assert play([PREFACE + b"".join(begun(n) for n in range(1, 2_001, 2))]).late == [1_000]


def test_large_headers_of_calls_that_are_served_are_no_flood() -> None:
    """A mesh of services adds some."""
    block = REQUEST + LONG * 80
    calls = [frame(HEADERS, 4, n, block) + frame(DATA, END_STREAM, n, message(b"x")) for n in range(1, 401, 2)]
    assert play([PREFACE, *calls]).wire.goodbye() is None


def test_answers_that_are_not_taken_have_bounded_memory() -> None:
    large = message(b"x" * 60_000)
    parts = [(large[at : at + 16_384], END_STREAM * (at > 45_000)) for at in range(0, len(large), 16_384)]
    calls = [begun(n) + b"".join(frame(DATA, end, n, part) for part, end in parts) for n in range(1, 801, 2)]
    session = play([PREFACE + NO_WINDOW, *calls])
    given_up = [content for kind, _, _, content in session.wire.frames() if kind == RST_STREAM]
    assert given_up == [b"\0\0\0\x0b"] * (400 - (16 << 20) // len(large))


def test_a_client_that_never_opens_its_windows_is_cut_off() -> None:
    """For 30 s, as one that does not read: a client's library opens them as soon as its application takes answers."""

    async def run() -> None:
        session = Session()
        await session.feed([PREFACE + NO_WINDOW + called(1)])
        session.connection.close_if_stuck(time.monotonic() + 29)
        assert not session.wire.is_over
        session.connection.close_if_stuck(time.monotonic() + 31)
        assert session.wire.is_over

    asyncio.run(run())


def test_a_client_may_forbid_tables_of_headers() -> None:
    """HPACK wants the door to say that it has noticed. The HTTP/2 of Node ends the connection otherwise."""
    session = play([PREFACE, called(1), frame(SETTINGS, 0, 0, b"\0\1\0\0\0\0"), called(3)])
    decoder, found = Decoder(), []
    for kind, _, stream, content in session.wire.frames():
        if kind == HEADERS:
            decoder.max_allowed_table_size = 4096 if stream == 1 else 0
            found += decoder.decode(content)
    assert [value for name, value in found if name == "grpc-status"] == ["0", "0"]


def test_a_client_that_ends_the_connection_still_gets_its_answers() -> None:
    session = play([PREFACE + begun(1) + frame(GOAWAY, 0, 0, bytes(8)) + frame(DATA, END_STREAM, 1, message(b"x"))])
    assert (DATA, 0, 1, message(b"x")) in session.wire.frames()


def test_a_compressed_request_is_refused_with_what_the_door_takes() -> None:
    session = play([PREFACE + begun(1) + frame(DATA, END_STREAM, 1, b"\1\0\0\0\1x")])
    assert b"grpc-status\x0212" in session.wire.sent
    assert b"grpc-accept-encoding\x08identity" in session.wire.sent
