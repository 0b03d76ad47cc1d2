"""Any bytes on a connection of the front door: it reads whole frames or ends the connection, and keeps no memory."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from txbridge_rocketmq.codes import RequestError
from txbridge_rocketmq.command import Command, FrameError, decode
from txbridge_rocketmq.compression import decompressed
from txbridge_rocketmq.connection import Connection, Memory
from txbridge_rocketmq.message import parse_batch, parse_properties
from txbridge_rocketmq.requests import parse_end, parse_send

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "rocketmq_frames.json").read_text())
REAL = [bytes.fromhex(text) for text in GOLDEN.values()]


class Wire(asyncio.Transport):
    """A transport that sends nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = True
        self.aborted = False

    def get_extra_info(self, name: str, default: object = None) -> tuple[str, int]:
        return "127.0.0.1", 1234

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def abort(self) -> None:
        self.aborted = True


class Handler:
    def __init__(self, memory: int) -> None:
        self.memory = Memory(memory)
        self.max_frame = 1024 * 1024
        self.seen: list[Command] = []
        self.unfinished: list[Callable[[], None]] = []

    def opened(self, connection: Connection) -> None:
        pass

    def closed(self, connection: Connection, reason: str | None) -> None:
        pass

    def answered(self, request: int, code: int) -> None:
        pass

    def handle(self, connection: Connection, command: Command) -> None:
        self.seen.append(command)
        if command.opaque % 2:
            self.unfinished.append(connection.begin())


def frame(opaque: int, body: bytes) -> bytes:
    header = json.dumps({"code": 1, "opaque": opaque}).encode()
    return struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body


def driven(chunks: list[bytes], memory: int) -> tuple[Handler, Wire]:
    """Feed these chunks to one connection, in turn, as far as it reads; return its handler and transport."""

    async def drive() -> tuple[Handler, Wire]:
        handler, wire = Handler(memory), Wire()
        connection = Connection(handler)
        connection.connection_made(wire)
        for chunk in chunks:
            connection.data_received(chunk)
            while not wire.reads and handler.unfinished and not wire.aborted:
                handler.unfinished.pop(0)()
                await asyncio.sleep(0)
            if wire.aborted:
                break
        while handler.unfinished:
            handler.unfinished.pop(0)()
            await asyncio.sleep(0)
        connection.connection_lost(None)
        return handler, wire

    return asyncio.run(drive())


@given(
    st.lists(st.tuples(st.integers(0, 2**31 - 1), st.binary(max_size=300)), max_size=20),
    st.lists(st.integers(1, 400), min_size=1),
    st.integers(100, 5_000),
)
def test_frames_come_out_whole_wherever_they_are_cut(
    frames: list[tuple[int, bytes]], sizes: list[int], memory: int
) -> None:
    stream = b"".join(frame(opaque, body) for opaque, body in frames)
    chunks, position = [], 0
    while position < len(stream):
        size = sizes[len(chunks) % len(sizes)]
        chunks.append(stream[position : position + size])
        position += size
    handler, wire = driven(chunks, memory)
    assert [(one.opaque, one.body) for one in handler.seen] == frames
    assert not wire.aborted
    assert handler.memory.used == 0


@given(st.lists(st.one_of(st.binary(max_size=200), st.sampled_from(REAL)), max_size=10))
def test_any_bytes_end_the_connection_or_wait_for_more_and_keep_no_memory(chunks: list[bytes]) -> None:
    handler, _ = driven(chunks, 100_000)
    assert handler.memory.used == 0


@given(st.sampled_from(REAL), st.integers(0, 2_000), st.integers(0, 255), st.integers(0, 2_000))
def test_a_damaged_frame_is_read_or_refused_by_name(real: bytes, at: int, value: int, cut: int) -> None:
    """What a client sends raises FrameError or RequestError at worst."""
    damaged = bytearray(real[4:])
    damaged[at % len(damaged)] = value
    for content in (bytes(damaged), bytes(damaged[: cut % len(damaged)])):
        try:
            command = decode(content)
        except FrameError:
            continue
        for parse in (parse_send, parse_end):
            with suppress(RequestError):
                parse(command)


@given(st.binary(max_size=500), st.integers(0, 2**11), st.text(max_size=200))
def test_any_body_and_any_properties_are_read_or_refused_by_name(body: bytes, flag: int, text: str) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: decompressed(body, flag, 1_000),
        lambda: list(parse_batch(body)),
        lambda: parse_properties(text),
    ]
    for call in calls:
        with suppress(RequestError):
            call()
