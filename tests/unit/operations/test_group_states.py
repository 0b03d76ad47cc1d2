"""Questions about producer groups: bounded, however many groups there are and whatever Kafka does."""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from txbridge.operations import group_states
from txbridge.operations.group_states import GroupStates


def test_coordinators_that_do_not_answer_cost_their_time_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def no_answer(_self: GroupStates, group: str, _deadline: object) -> str:
        asked.append(group)
        time.sleep(0.1)
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    monkeypatch.setattr(GroupStates, "_ask_kafka", no_answer)
    monkeypatch.setattr(group_states, "_LONGEST_S", 0.1)
    connection: Any = None
    states = GroupStates(connection)
    assert [states.problem_of(f"group{number}") for number in range(100)] == [None] * 100
    assert asked == ["group0"]
