"""Any bytes on a connection of the front door: it reads whole frames or ends the connection, and keeps no memory."""

from __future__ import annotations

import asyncio
import json
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from ipaddress import IPv6Address
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from hypothesis import example, given
from hypothesis import strategies as st
from txbridge_rocketmq import mapping
from txbridge_rocketmq import memory as memory_module
from txbridge_rocketmq.codes import RequestError
from txbridge_rocketmq.command import FrameError, RemotingCommand, decode
from txbridge_rocketmq.groups import ClientCheck
from txbridge_rocketmq.grpc_messages import orphan_of
from txbridge_rocketmq.memory import RequestMemory
from txbridge_rocketmq.message import MAX_PROPERTIES, decompressed, encode_properties, parse_batch, parse_properties
from txbridge_rocketmq.remoting import Remoting
from txbridge_rocketmq.remoting_connection import DoorConnection
from txbridge_rocketmq.requests import SendRequest, parse_end, parse_send
from txbridge_rocketmq.sends import Sends

from txbridge.client.message import MessageExt, MessageLimits

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "rocketmq_frames.json").read_text())
REAL = [bytes.fromhex(text) for text in GOLDEN.values()]


class Wire(asyncio.Transport):
    """A transport that sends nothing."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        super().__init__()
        self._host = host
        self.reads = True
        self.aborted = False

    def get_extra_info(self, name: str, default: object = None) -> tuple[str, int]:
        return self._host, 1234

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
        self.memory = RequestMemory(memory)
        self.max_frame = 1024 * 1024
        self.seen: list[RemotingCommand] = []
        self.unfinished: list[Callable[[], None]] = []

    def add_connection(self, connection: DoorConnection) -> None:
        pass

    def drop_connection(self, connection: DoorConnection, reason: str | None) -> None:
        pass

    def count_answer(self, request: int, code: int) -> None:
        pass

    def handle_command(self, connection: DoorConnection, command: RemotingCommand) -> None:
        self.seen.append(command)
        if command.opaque % 2:
            self.unfinished.append(connection.begin_request())


def frame(opaque: int, body: bytes) -> bytes:
    header = json.dumps({"code": 1, "opaque": opaque}).encode()
    return struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body


def driven(chunks: list[bytes], memory: int) -> tuple[Handler, Wire]:
    """Feed these chunks to one connection, in turn, as far as it reads; return its handler and transport."""

    async def drive() -> tuple[Handler, Wire]:
        handler, wire = Handler(memory), Wire()
        connection = DoorConnection(handler)
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


#: Limits of the memory, made small: largest frame, uncounted bytes of a connection, bytes at a time, those of objects.
SMALL = {"MAX_FRAME": 1_000, "UNCOUNTED": 100, "CHUNK": 200, "REQUEST_BYTES": 40}
HOSTS = [f"10.0.0.{number}" for number in range(20)]
#: Bytes that a socket gives at a time.
GIVEN = 60


class Client:
    """A connection from a host, to which the kernel gives bytes while the door reads."""

    def __init__(self, handler: Handler, host: str) -> None:
        self.wire, self.connection, self.unread = Wire(host), DoorConnection(handler), b""
        self.connection.connection_made(self.wire)

    def send(self, data: bytes) -> None:
        self.unread += data

    def deliver(self) -> bool:
        """Give the door what it reads at a time; whether it has read anything."""
        if not self.wire.reads or not self.unread or self.wire.aborted:
            return False
        data, self.unread = self.unread[:GIVEN], self.unread[GIVEN:]
        self.connection.data_received(data)
        return True


async def deliver_all(handler: Handler, clients: list[Client]) -> None:
    """Let everything happen that can happen without time."""
    await asyncio.sleep(0)
    while sum(client.deliver() for client in clients) or handler.unfinished:
        assert handler.memory.used <= 4_000 + len(clients) * GIVEN
        if handler.unfinished:
            handler.unfinished.pop(0)()
        await asyncio.sleep(0)


def hostile(announced: int, sent: int) -> bytes:
    """The beginning of a frame that never comes to its end."""
    return struct.pack(">i", announced) + b"x" * min(sent, announced - 1)


@given(
    st.lists(st.tuples(st.sampled_from(HOSTS[:2]), st.integers(4, 990), st.integers(0, 990)), max_size=60),
    st.lists(st.tuples(st.sampled_from(HOSTS[:3]), st.integers(0, 900)), min_size=1, max_size=12),
)
def test_who_announces_much_and_sends_little_stops_nobody(
    stalled: list[tuple[str, int, int]], honest: list[tuple[str, int]]
) -> None:
    """Small requests are served at once, large ones after those that stand still have lost their memory."""

    async def drive() -> None:
        handler = Handler(4_000)
        handler.max_frame = SMALL["MAX_FRAME"]
        attackers = [Client(handler, host) for host, _, _ in stalled]
        for client, (_, announced, sent) in zip(attackers, stalled, strict=True):
            client.send(hostile(announced, sent))
        await deliver_all(handler, attackers)
        clients = [Client(handler, host) for host, _ in honest]
        for number, (client, (_, size)) in enumerate(zip(clients, honest, strict=True)):
            client.send(frame(2 * number + 1, b"y" * size))
        await deliver_all(handler, [*attackers, *clients])
        small = {2 * number + 1 for number, (_, size) in enumerate(honest) if size < 40}
        assert small <= {one.opaque for one in handler.seen}
        for _ in range(len(stalled) + 1):
            if len(handler.seen) == len(honest):
                break
            for client in attackers:
                client.connection.close_if_stuck(time.monotonic() + 1.5)
                if client.wire.aborted:
                    client.connection.connection_lost(None)
            await deliver_all(handler, [*attackers, *clients])
        assert sorted(one.opaque for one in handler.seen) == [2 * number + 1 for number in range(len(honest))]
        for client in [*attackers, *clients]:
            client.connection.connection_lost(None)
        assert handler.memory.used == 0

    with mock.patch.multiple(memory_module, **SMALL):
        asyncio.run(drive())


def test_a_large_request_waits_for_one_of_a_host_not_for_all_of_them() -> None:
    async def drive() -> None:
        handler = Handler(4_000)
        handler.max_frame = SMALL["MAX_FRAME"]
        attackers = [Client(handler, HOSTS[number % 2]) for number in range(60)]
        for client in attackers:
            client.send(hostile(990, 900))
        honest = Client(handler, HOSTS[2])
        honest.send(frame(1, b"y" * 900))
        await deliver_all(handler, [*attackers, honest])
        assert handler.seen == []
        for client in attackers:
            client.connection.close_if_stuck(time.monotonic() + 1.5)
            if client.wire.aborted:
                client.connection.connection_lost(None)
        await deliver_all(handler, [*attackers, honest])
        assert [one.opaque for one in handler.seen] == [1]

    with mock.patch.multiple(memory_module, **SMALL):
        asyncio.run(drive())


@given(st.lists(st.tuples(st.sampled_from(HOSTS), st.integers(0, 900)), min_size=1, max_size=60))
def test_large_requests_that_come_together_are_all_served(requests: list[tuple[str, int]]) -> None:
    """None of them is closed: a client that makes progress only waits."""

    async def drive() -> None:
        handler = Handler(4_000)
        handler.max_frame = SMALL["MAX_FRAME"]
        clients = [Client(handler, host) for host, _ in requests]
        for number, (client, (_, size)) in enumerate(zip(clients, requests, strict=True)):
            client.send(frame(2 * number + 1, b"y" * size))
        await deliver_all(handler, clients)
        assert sorted(one.opaque for one in handler.seen) == [2 * number + 1 for number in range(len(requests))]
        assert handler.memory.used == 0

    with mock.patch.multiple(memory_module, **SMALL):
        asyncio.run(drive())


NOW = 1_700_000_000_000
SIZES = st.one_of(st.integers(1, 300), st.integers(15_000, 16_500), st.integers(30_000, 32_000))


@given(
    st.tuples(SIZES, SIZES, SIZES),
    st.sampled_from(["a", "\u00e4", "\u20ac", '"', "\0"]),
    st.sampled_from(["__x", "KEYS", "TXB_V", "ROCKETMQ_p", "__SHARDINGKEY"]),
)
@example((17_000, 1, 1), "a", "p")
@example((15_700, 1, 1), "a", "p")
def test_whatever_the_door_accepts_can_be_written_as_a_check(
    sizes: tuple[int, int, int], letter: str, name: str
) -> None:
    uniq_key, value, long_name = (letter * size for size in sizes)
    group, topic, number = "g" * 200, "t" * 249, 10**9
    given = {"UNIQ_KEY": uniq_key, "TRAN_MSG": "true", "PGROUP": group, name: value, long_name: "v"}
    given |= {"CHECK_IMMUNITY_TIME_IN_SECONDS": str(number), "TIMER_DELIVER_MS": str(NOW * 100)}
    if len(encode_properties(given).encode()) > MAX_PROPERTIES:
        return
    where = {"born": NOW, "flag": 1, "queue_id": number}
    limits = MessageLimits(1_000, 2**31 - 1, NOW * 200)
    try:
        Sends._require_checkable(
            SendRequest(group, topic, sys_flag=0, properties=given, is_batch=False, **where), uniq_key
        )
        with mock.patch("txbridge.client.message.now_ms", return_value=NOW):
            sent = mapping.record_of(topic, b"x", given, now=NOW, born_host="[::1]:1", limits=limits, **where)
    except RequestError:
        return
    half = {"half_partition": 2**15 - 1, "half_offset": 2**46, "born_timestamp": NOW, "check_times": 2**31 - 1}
    asked = MessageExt._with_fields(sent.__dict__, transaction_id="0" * 32, **half)
    question = ClientCheck(group, mapping.uniq_key_of(asked) or "", "F" * 12, asked)
    door = SimpleNamespace(_door=SimpleNamespace(setting=SimpleNamespace(addresses=["a:1"])))
    command = decode(Remoting.check_frame(door, question, (IPv6Address(1), 65_535), 1)[4:])  # type: ignore[arg-type]
    assert command.fields["msgId"] == uniq_key
    for text in (uniq_key, value, given["TIMER_DELIVER_MS"]):
        assert f"\1{text}\2".encode() in command.body
    told = orphan_of(question).recover_orphaned_transaction_command.message
    assert told.system_properties.delivery_timestamp.ToMilliseconds() == NOW * 100
