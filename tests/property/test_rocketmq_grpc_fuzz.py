"""Wrong input from gRPC clients: only that call fails, with a status, and the door goes on to serve all others."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import hmac
import socket
import struct
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from txbridge_rocketmq import grpc_call
from txbridge_rocketmq.access import AccessKeys
from txbridge_rocketmq.grpc_messages import SERVICE, definition, service
from txbridge_rocketmq.grpc_service import _MAX_EARLY, TelemetryStreams

from tests.support.grpc_door import MOST, TOPIC, GrpcDoor, path_of, sending, settings
from tests.support.harness import eventually

Code = definition.Code
CLIENT = (("x-mq-client-id", "fuzz"),)
UNARY = ("QueryRoute", "Heartbeat", "SendMessage", "EndTransaction", "NotifyClientTermination")
REFUSED = tuple(one.name for one in SERVICE.methods if one.name not in {*UNARY, "Telemetry"})
REAL: dict[str, bytes] = {
    "QueryRoute": service.QueryRouteRequest(
        topic=definition.Resource(name=TOPIC),
        endpoints=definition.Endpoints(addresses=[definition.Address(host="door", port=8081)]),
    ).SerializeToString(),
    "Heartbeat": service.HeartbeatRequest(client_type=definition.PRODUCER).SerializeToString(),
    "SendMessage": sending().SerializeToString(),
    "EndTransaction": service.EndTransactionRequest(
        topic=definition.Resource(name=TOPIC), message_id="01AB", transaction_id="0" * 52, resolution=definition.COMMIT
    ).SerializeToString(),
    "NotifyClientTermination": service.NotifyClientTerminationRequest().SerializeToString(),
    "Telemetry": settings(TOPIC, "another").SerializeToString(),
}
#: Status codes with which a call may end. UNKNOWN and INTERNAL would be a defect of the door.
STATUSES = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.CANCELLED,
}


@pytest.fixture(scope="module")
def door() -> Iterator[GrpcDoor]:
    with GrpcDoor() as made:
        yield made


@st.composite
def damaged(draw: st.DrawFn, real: bytes) -> bytes:
    """The content with some bytes changed, and cut off anywhere."""
    content = bytearray(real)
    for at, value in draw(st.lists(st.tuples(st.integers(0, 2_000), st.integers(0, 255)), max_size=4)):
        if content:
            content[at % len(content)] = value
    return bytes(content[: draw(st.integers(0, len(content)))] + draw(st.binary(max_size=20)))


def status_of(method: str, answer: bytes) -> int:
    response = getattr(service, next(one for one in SERVICE.methods if one.name == method).output_type.name)
    return int(response.FromString(answer).status.code)


@given(st.data())
def test_any_bytes_are_answered_by_name(door: GrpcDoor, data: st.DataObject) -> None:
    method = data.draw(st.sampled_from(UNARY))
    other = data.draw(st.sampled_from(sorted(REAL)))
    content = data.draw(st.one_of(st.binary(max_size=300), damaged(REAL[method]), damaged(REAL[other])))
    code = status_of(method, door.call(method, content, CLIENT))
    assert code in Code.values()
    assert code not in {Code.CODE_UNSPECIFIED, Code.INTERNAL_ERROR, Code.INTERNAL_SERVER_ERROR}
    assert door.serves()
    assert door.door.memory.used == 0


@given(
    st.sampled_from(["born_timestamp", "delivery_timestamp", "orphaned_transaction_recovery_duration"]),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**31), 2**31 - 1),
)
def test_any_time_is_answered_by_name(door: GrpcDoor, field: str, seconds: int, nanos: int) -> None:
    request = sending()
    time = getattr(request.messages[0].system_properties, field)
    time.seconds, time.nanos = seconds, nanos
    code = status_of("SendMessage", door.call("SendMessage", request.SerializeToString(), CLIENT))
    assert code not in {Code.INTERNAL_ERROR, Code.INTERNAL_SERVER_ERROR}


@given(st.sampled_from(REFUSED), st.binary(max_size=100))
def test_calls_that_are_refused_are_refused_whatever_they_say(door: GrpcDoor, method: str, content: bytes) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        list(door.channel.unary_stream(path_of(method))(content, timeout=60))
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


VALUES = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=300)
NAMES = st.sampled_from(
    ["x-mq-client-id", "authorization", "x-mq-date-time", "x-mq-namespace", "x-mq-protocol", "x-of-mine"]
)
SIGNED = st.builds(
    "MQv2-HMAC-SHA1 Credential={}/x, SignedHeaders=x-mq-date-time, Signature={}".format,
    st.sampled_from(["ak", "nobody", ""]),
    st.text("0123456789abcdefABCDEF", max_size=60),
)


@given(
    st.sampled_from(UNARY),
    st.lists(st.one_of(st.tuples(NAMES, VALUES), st.tuples(st.just("authorization"), SIGNED)), max_size=6),
    st.binary(max_size=50),
)
def test_any_headers_prove_nothing(
    door_with_keys: GrpcDoor, method: str, headers: list[tuple[str, str]], more: bytes
) -> None:
    content = door_with_keys.call(method, REAL[method], (*headers, ("x-any-bin", more)))
    assert status_of(method, content) == Code.UNAUTHORIZED


@pytest.fixture(scope="module")
def door_with_keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GrpcDoor]:
    keys: Path = tmp_path_factory.mktemp("keys") / "keys.toml"
    keys.write_text('[[key]]\naccess_key = "ak"\nsecret_key = "the secret key"\n')
    with GrpcDoor(AccessKeys(keys)) as made:
        yield made


def test_a_stream_is_asked_while_its_key_has_the_topic(tmp_path: Path) -> None:
    """Also when its rights change, though the stream goes on."""
    file, over, when = tmp_path / "keys.toml", threading.Event(), f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    made = hmac.new(b"the secret key", when.encode(), hashlib.sha1).hexdigest()
    proof = f"MQv2-HMAC-SHA1 Credential=ak, SignedHeaders=x-mq-date-time, Signature={made}"
    signed = (*CLIENT, ("x-mq-date-time", when), ("authorization", proof))

    def grant(topic: str) -> None:
        file.write_text(f'[[key]]\naccess_key = "ak"\nsecret_key = "the secret key"\ntopics = ["{topic}"]\n')

    def said() -> Iterator[bytes]:
        yield settings(TOPIC).SerializeToString()
        over.wait(60)

    grant(TOPIC)
    access = AccessKeys(file)
    with GrpcDoor(access) as door:
        stream = door.channel.stream_stream(path_of("Telemetry"))(said(), metadata=signed, timeout=60)
        next(stream)
        eventually(lambda: TOPIC in door.door.groups._groups)
        for topic, is_asked in (("another", False), (TOPIC, True)):
            grant(topic)
            assert [access.look_again() for _ in range(2)] == [False, True]
            door.run_soon(door.door.drop_strangers)
            assert status_of("Heartbeat", door.call("Heartbeat", REAL["Heartbeat"], signed)) == Code.OK
            assert (TOPIC in door.door.groups._groups) is is_asked
        over.set()


@given(st.data())
def test_a_stream_may_say_anything_and_end_anywhere(door: GrpcDoor, data: st.DataObject) -> None:
    """Settings twice, out of order, of a consumer or damaged, from a client that may leave in the middle."""
    real = st.sampled_from(
        [
            REAL["Telemetry"],
            settings().SerializeToString(),
            settings("a b", "", TOPIC).SerializeToString(),
            settings(client_type=definition.PUSH_CONSUMER).SerializeToString(),
            service.TelemetryCommand().SerializeToString(),
            service.TelemetryCommand(thread_stack_trace={"nonce": "n", "thread_stack_trace": "t"}).SerializeToString(),
        ]
    )
    said = data.draw(st.lists(st.one_of(real, real.flatmap(damaged), st.binary(max_size=50)), max_size=5))
    leaves = data.draw(st.booleans())
    call = door.channel.stream_stream(path_of("Telemetry"))(iter(said), metadata=CLIENT, timeout=60)
    try:
        if leaves:
            call.cancel()
        for answer in call:
            service.TelemetryCommand.FromString(answer)
    except grpc.RpcError as error:
        assert error.code() in STATUSES, error  # noqa: PT017
    assert door.serves()


def test_a_consumer_is_told_by_a_status_and_by_the_end_of_its_stream(door: GrpcDoor) -> None:
    """The Node client evaluates only the status, the Java and Python clients only the end of the stream."""
    asked = settings(client_type=definition.SIMPLE_CONSUMER).SerializeToString()
    call = door.channel.stream_stream(path_of("Telemetry"))(iter([asked]), metadata=CLIENT, timeout=60)
    told = service.TelemetryCommand.FromString(next(call))
    assert told.WhichOneof("command") is None
    assert told.status.code == definition.Code.UNSUPPORTED
    assert "isolation.level=read_committed" in told.status.message
    with pytest.raises(grpc.RpcError) as caught:
        next(call)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "isolation.level=read_committed" in (caught.value.details() or "")


def test_streams_that_have_ended_are_forgotten(door: GrpcDoor) -> None:
    for _ in range(20):
        door.channel.stream_stream(path_of("Telemetry"))(iter([REAL["Telemetry"]]), metadata=CLIENT).cancel()
    eventually(lambda: door.door.metrics.streams._value.get() == 0, 60)
    eventually(lambda: not door.door.groups._groups, 60)


def http2(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    return struct.pack(">I", len(content))[1:] + struct.pack(">BBI", kind, flags, stream) + content


def headers(*pairs: tuple[str, str]) -> bytes:
    """Headers in HPACK, without its tables."""
    return b"".join(b"\x00" + b"".join(bytes([len(text)]) + text.encode() for text in pair) for pair in pairs)


def begun(stream: int, method: str = "SendMessage", *more: tuple[str, str]) -> bytes:
    """The HEADERS frame that begins a call."""
    pairs = [(":method", "POST"), (":scheme", "http"), (":path", path_of(method)), (":authority", "door")]
    return http2(1, 4, stream, headers(*pairs, ("content-type", "application/grpc"), ("te", "trailers"), *more))


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + http2(4, 0, 0, b"")
MESSAGE = b"\0" + struct.pack(">I", len(REAL["SendMessage"])) + REAL["SendMessage"]
CALLED = PREFACE + begun(1) + http2(0, 1, 1, MESSAGE)
OVERSIZED = PREFACE + begun(1) + http2(0, 0, 1, b"\0\x7f\xff\xff\xff" + b"x" * 10)


@given(st.one_of(damaged(CALLED), damaged(OVERSIZED), damaged(PREFACE), st.binary(max_size=200)), st.booleans())
def test_any_bytes_of_http_end_their_connection_alone(door: GrpcDoor, content: bytes, waits: bool) -> None:
    with socket.create_connection(("127.0.0.1", door.port), 60) as wire:
        wire.sendall(content)
        if waits:
            wire.settimeout(0.02)
            with contextlib.suppress(OSError):
                wire.recv(1_000)
    assert door.serves()


def test_a_path_that_is_no_utf_8_is_refused(door: GrpcDoor) -> None:
    with socket.create_connection(("127.0.0.1", door.port), 60) as wire:
        wire.sendall(CALLED.replace(b"MessagingService", b"Messagin\xfeService"))
        assert b"grpc-status\x0212" in received(wire)
    assert door.serves()


def received(wire: socket.socket) -> bytes:
    """What comes until the door has been silent for half a second."""
    wire.settimeout(0.5)
    found = b""
    with contextlib.suppress(OSError):
        while more := wire.recv(65_536):
            found += more
    return found


def test_a_refused_stream_is_not_read_any_more(door: GrpcDoor) -> None:
    """The client takes no answers, and could go on to send messages that nobody takes from memory."""
    said = [REAL["Telemetry"], settings(client_type=definition.PUSH_CONSUMER).SerializeToString()]
    stream = b"".join(http2(0, 0, 1, b"\0" + struct.pack(">I", len(one)) + one) for one in said)
    with socket.create_connection(("127.0.0.1", door.port), 60) as wire:
        wire.sendall(PREFACE + http2(4, 0, 0, b"\0\4\0\0\0\0") + begun(1, "Telemetry", *CLIENT) + stream)
        received(wire)
        wire.sendall(http2(0, 0, 1, b"\0\0\0\0\x09" + b"x" * 9) * 3)
        # What it is sent then is the answers that it has not taken, but no wider window to send more.
        assert received(wire) == b""
    assert door.serves()


def test_a_request_that_is_too_large_is_refused(door: GrpcDoor) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        door.call("SendMessage", sending(body=b"x" * 5_000_000).SerializeToString())
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    for changed in (
        {"body": b"x" * (MOST + 1)},
        {"body": gzip.compress(b"\0" * 50_000_000), "body_encoding": definition.GZIP},
    ):
        answer = door.call("SendMessage", sending(**changed).SerializeToString())
        assert status_of("SendMessage", answer) == Code.MESSAGE_BODY_TOO_LARGE
    assert door.serves()
    assert door.door.memory.used == 0


def test_calls_whose_requests_do_not_come_are_ended_and_keep_no_other_client_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each connection takes a limited number of calls at a time."""
    monkeypatch.setattr(grpc_call, "_REQUEST_S", 1.0)
    with GrpcDoor() as door, socket.create_connection(("127.0.0.1", door.port), 60) as wire:
        wire.sendall(PREFACE + b"".join(begun(2 * number + 1) for number in range(1_100)))
        assert door.serves()
        found = door.door.metrics.requests.labels("SendMessage", "REQUEST_TIMEOUT")
        eventually(lambda: found._value.get() == 1_024, 60)
        assert door.serves()


def test_messages_of_streams_that_stand_still_keep_no_memory_from_others() -> None:
    """A stream itself may be silent for as long as it likes."""
    with GrpcDoor() as door, socket.create_connection(("127.0.0.1", door.port), 60) as wire:
        streams = [begun(number, "Telemetry", *CLIENT) for number in (1, 3, 5, 7)]
        unfinished = b"\0" + struct.pack(">I", 4_000_000) + bytes(16_000)
        wire.sendall(
            PREFACE + b"".join(streams) + b"".join(http2(0, 0, number, unfinished) for number in (1, 3, 5) * 2)
        )
        wire.sendall(b"".join(http2(0, 0, number, bytes(16_000)) for number in (1, 3, 5) * 2))
        large = door.call("SendMessage", sending(body=b"x" * MOST).SerializeToString())
        assert status_of("SendMessage", large) == Code.OK
        found = door.door.metrics.requests.labels("Telemetry", "REQUEST_TIMEOUT")
        eventually(lambda: found._value.get() == 3, 60)
        eventually(lambda: door.door.metrics.streams._value.get() == 1, 60)


#: See test_rocketmq_http2.py for what ends such connections.
FLOODS = {
    "pings": http2(6, 0, 0, bytes(8)) * 50_000,
    "no windows": http2(4, 0, 0, b"\0\4\0\0\0\0")
    + b"".join(begun(number) + http2(0, 1, number, MESSAGE) for number in range(1, 4_001, 2)),
}


@pytest.mark.parametrize("content", FLOODS.values(), ids=FLOODS)
def test_a_hostile_connection_costs_nobody_else_anything(door: GrpcDoor, content: bytes) -> None:
    with socket.create_connection(("127.0.0.1", door.port), 60) as wire:
        wire.settimeout(0.5)
        # A client that reads no answers, whose bytes the door stops to take, or that is cut off.
        with contextlib.suppress(OSError):
            wire.sendall(PREFACE + content)
        assert all(door.serves() for _ in range(20))
    eventually(lambda: door.door.memory.used == 0, 60)
    assert door.serves()


def test_names_that_clients_invent_take_bounded_memory() -> None:
    """The topics of transactions are kept until the stream of their client comes."""
    with GrpcDoor() as door:
        streams = TelemetryStreams(door.door, 10)
        for number in range(3 * _MAX_EARLY):
            streams.note_half_message(("one" if number % 2 else f"client-{number}", "peer"), f"topic-{number}")
        assert sum(map(len, streams._early.values())) <= _MAX_EARLY
        assert streams._early_topics == sum(map(len, streams._early.values()))
        # A client id that is longer than the limit is refused.
        telemetry = door.channel.stream_stream(path_of("Telemetry"))
        with pytest.raises(grpc.RpcError) as caught:
            list(telemetry(iter([]), metadata=(("x-mq-client-id", "x" * 256),), timeout=60))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.long
def test_a_thousand_connections_that_do_nothing_cost_nobody_else_anything() -> None:
    """Silent connections, halves of a preface, calls that are begun, and streams without settings."""
    with GrpcDoor() as door:
        wires = [socket.create_connection(("127.0.0.1", door.port), 60) for _ in range(1_000)]
        try:
            for number, wire in enumerate(wires):
                wire.sendall(
                    [b"", PREFACE[:10], PREFACE, PREFACE + begun(1), PREFACE + begun(1, "Telemetry")][number % 5]
                )
            assert all(door.serves() for _ in range(100))
        finally:
            for wire in wires:
                wire.close()
        assert door.serves()
