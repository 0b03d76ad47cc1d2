"""The consumer of checks asks Kafka by itself when nothing else is answered."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.support.client_fakes import FakeConsumer
from txbridge.client.checks import consumer
from txbridge.client.checks.consumer import CheckConsumer, CheckGroup
from txbridge.client.kafka.connection import KafkaConnection
from txbridge.core.names import Names


def test_one_request_without_an_answer_is_no_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one follows before the last answer is too old."""
    clock, asked, lost = SimpleNamespace(now=1_000.0), list[float](), list[bool]()
    connection = KafkaConnection("kafka:9092", clock=lambda: clock.now)

    class Consumer(FakeConsumer):
        def poll(self, timeout: float) -> None:
            clock.now += timeout
            lost.append(connection.is_lost)

        def list_topics(self, topic: str, timeout: float) -> Any:
            asked.append(clock.now)
            lost.append(connection.is_lost)
            if len(asked) % 2:
                clock.now += timeout
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            return SimpleNamespace(cluster_id="", topics={topic: SimpleNamespace(error=None, partitions={})})

    monkeypatch.setattr(consumer, "Consumer", Consumer)
    monkeypatch.setattr(consumer, "time", SimpleNamespace(monotonic=lambda: clock.now))
    watch: Any = SimpleNamespace(look_at_new_topics=lambda: None, note_partitions=lambda _: None)
    group = CheckGroup("group", Names(), 2)
    checks = CheckConsumer({}, connection, group, lambda *_: None, 10, watch, lambda: None)
    checks._subscribe_to_checks()
    while clock.now < 1_025:
        checks._poll_once()
    assert len(asked) > 4
    assert not any(lost)
