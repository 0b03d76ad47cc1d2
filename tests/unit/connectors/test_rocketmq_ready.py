"""Readiness of a front door: it asks Kafka by itself, because no client sends to a door that is not ready."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException
from txbridge_rocketmq import door_process

from tests.support.harness import eventually
from txbridge import proof
from txbridge.client.kafka import connection
from txbridge.client.kafka.connection import KafkaConnection
from txbridge.client.kafka.topic_watch import TopicWatch
from txbridge.core.names import Names

LOST = ["Kafka cannot be reached"]


class Kafka:
    """Answers with HALF's number of partitions, unless it is silent."""

    def __init__(self) -> None:
        self.answers = True
        self.partitions = 4

    def look(self) -> int:
        if not self.answers:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
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
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    monkeypatch.setattr(door_process, "time", SimpleNamespace(monotonic=lambda: sum(looks)))
    link, watch = KafkaConnection("kafka:9092"), TopicWatch(Names(), 4)
    watching = asyncio.create_task(door_process._watch(link, watch, look))
    await asyncio.to_thread(eventually, lambda: len(looks) > 2)
    watching.cancel()
