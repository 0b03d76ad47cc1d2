"""A front door without Kafka: its readiness, and the telemetry streams of gRPC clients."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Self

import grpc
import pytest
from txbridge_rocketmq import door_process
from txbridge_rocketmq.grpc_messages import definition, service

from tests.support.grpc_door import TOPIC, GrpcDoor, path_of, sending, settings
from tests.support.harness import eventually
from txbridge import proof
from txbridge.client.kafka import connection
from txbridge.client.kafka.connection import KafkaConnection
from txbridge.client.kafka.topic_watch import TopicWatch
from txbridge.core.names import Names
from txbridge.errors import EnvironmentProblemError

LOST = ["Kafka cannot be reached"]


class Kafka:
    """Answers with HALF's number of partitions, unless it is silent."""

    def __init__(self) -> None:
        self.answers = True
        self.partitions = 4

    def look(self) -> int:
        if not self.answers:
            raise EnvironmentProblemError("no answer")
        return self.partitions


async def test_a_door_that_nobody_uses_notices_that_kafka_is_silent_and_that_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proof, "PROOF_EVERY_S", 0.01)
    monkeypatch.setattr(proof, "FRESH_S", 0.05)
    monkeypatch.setattr(connection, "_STABLE_S", 0.02)
    kafka, link, watch, stopped = Kafka(), KafkaConnection("kafka:9092"), TopicWatch(Names(), 4), asyncio.Event()

    async def until(wanted: list[str]) -> None:
        await asyncio.to_thread(eventually, lambda: door_process._not_ready(link, watch, stopped) == wanted)

    watching = asyncio.create_task(door_process._watch(link, watch, kafka.look))
    assert door_process._not_ready(link, watch, stopped) == []
    kafka.answers = False
    await until(LOST)
    kafka.answers = True
    await until([])
    stopped.set()
    await until(["the door is stopping"])
    stopped.clear()
    kafka.partitions = 5
    await asyncio.to_thread(eventually, lambda: watch.refusal)
    assert door_process._not_ready(link, watch, stopped) == [watch.refusal]
    assert "has changed: 5 instead of the 4" in watch.refusal
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching


async def test_one_look_that_is_late_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka has answered another request a moment ago."""
    monkeypatch.setattr(proof, "PROOF_EVERY_S", 0.01)
    kafka, link, watch = Kafka(), KafkaConnection("kafka:9092"), TopicWatch(Names(), 4)
    kafka.answers = False
    link.note_answer()
    watching = asyncio.create_task(door_process._watch(link, watch, kafka.look))
    await asyncio.sleep(0.2)
    assert not link.is_lost
    watching.cancel()


async def test_after_a_look_without_an_answer_the_next_one_follows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a rest, one lost answer would take all the time for which the one before it counts."""
    monkeypatch.setattr(proof, "PROOF_EVERY_S", 3_600.0)
    looks: list[float] = []

    def look() -> int:
        looks.append(3_600.0)
        raise EnvironmentProblemError("no answer")

    monkeypatch.setattr(door_process, "time", SimpleNamespace(monotonic=lambda: sum(looks)))
    link, watch = KafkaConnection("kafka:9092"), TopicWatch(Names(), 4)
    watching = asyncio.create_task(door_process._watch(link, watch, look))
    await asyncio.to_thread(eventually, lambda: len(looks) > 2)
    watching.cancel()


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
