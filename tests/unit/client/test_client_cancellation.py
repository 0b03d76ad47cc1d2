"""Cancellation before anything is sent: Kafka's answers to the question where a log ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from txbridge import EnvironmentProblemError
from txbridge.client.flow import cancellation
from txbridge.client.options import ClientOptions
from txbridge.deadline import Deadline


def test_it_waits_for_a_leader_and_names_a_missing_right(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = [KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE]

    def ask(*_: object, **__: object) -> tuple[int, int]:
        if errors:
            raise KafkaException(KafkaError(errors.pop(0)))
        return 0, 7

    connection: Any = None
    monkeypatch.setattr(cancellation, "create_client", lambda *_: SimpleNamespace(get_watermark_offsets=ask))
    reader = cancellation.ReplyReader(
        ClientOptions("group", {"bootstrap.servers": "nowhere:1"}, "", 1.0, 1), connection
    )
    assert reader.ends_of_half(1, Deadline(60)) == [7]
    errors.append(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(EnvironmentProblemError, match=r"nothing was cancelled.*missing right WRITE on topic"):
        reader.ends_of_half(1, Deadline(60))
