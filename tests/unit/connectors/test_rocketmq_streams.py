"""Telemetry streams of gRPC clients, in a front door without Kafka."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, Self

import grpc
from txbridge_rocketmq.grpc_messages import definition, service

from tests.support.grpc_door import TOPIC, GrpcDoor, path_of, sending, settings
from tests.support.harness import eventually

_CLIENT = (("x-mq-client-id", "app@1#0"),)
_OK = definition.Code.OK


class _Client:
    """A client with a connection of its own and an open stream."""

    def __init__(self, door: GrpcDoor, *topics: str) -> None:
        self._channel = grpc.insecure_channel(f"127.0.0.1:{door.port}", [("grpc.use_local_subchannel_pool", 1)])
        self._ended = threading.Event()
        self._stream = self._channel.stream_stream(path_of("Telemetry"))(self._commands(topics), metadata=_CLIENT)
        assert service.TelemetryCommand.FromString(next(self._stream)).status.code == _OK

    def _commands(self, topics: tuple[str, ...]) -> Iterator[bytes]:
        yield settings(*topics).SerializeToString()
        self._ended.wait()

    def call(self, method: str, request: Any) -> bytes:
        answer: bytes = self._channel.unary_unary(path_of(method))(request.SerializeToString(), metadata=_CLIENT)
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._channel.close()


def _connections(door: GrpcDoor) -> int:
    """Connections that are asked about transactions of the topic."""
    group = door.door.groups._groups.get(TOPIC)
    return 0 if group is None else len(group.members)


def test_clients_with_one_id_are_as_many_as_their_connections() -> None:
    """The id of a client in Rust is `host@pid#index`, and two containers may have the same. One leaves, one stays."""
    with GrpcDoor() as door, contextlib.ExitStack() as stack:
        leaving, staying, third = (stack.enter_context(_Client(door, *topics)) for topics in ((TOPIC,), (TOPIC,), ()))
        assert _connections(door) == 2
        # What one client sends tells nothing about another one.
        assert service.SendMessageResponse.FromString(staying.call("SendMessage", sending())).status.code == _OK
        assert _connections(door) == 2
        left = leaving.call("NotifyClientTermination", service.NotifyClientTerminationRequest())
        assert service.NotifyClientTerminationResponse.FromString(left).status.code == _OK
        assert _connections(door) == 1
        assert service.SendMessageResponse.FromString(third.call("SendMessage", sending())).status.code == _OK
        eventually(lambda: _connections(door) == 2, 20)
