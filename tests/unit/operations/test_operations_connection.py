"""Operations and Kafka: errors in their own words, and bounded questions about producer groups."""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from txbridge.errors import EnvironmentProblemError, KafkaUnreachableError
from txbridge.kafka.errors import named
from txbridge.operations import causes
from txbridge.operations.causes import GroupStates
from txbridge.operations.connection import kafka_errors


def error_of(failure: Exception) -> EnvironmentProblemError:
    with pytest.raises(EnvironmentProblemError) as caught, kafka_errors("writing to offset[0]"):
        raise failure
    return caught.value


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ],
)
def test_a_missing_right_is_said_with_the_right_and_the_page_that_lists_them(code: int) -> None:
    text = str(error_of(KafkaException(named(KafkaError(code), "WRITE", "transactional id half/0"))))
    assert text.startswith("a right is missing; writing to offset[0]: missing right WRITE on transactional id half/0:")
    assert "(docs/security.md)" in text


def test_a_record_that_does_not_come_in_time_leaves_other_partitions_readable() -> None:
    error = error_of(TimeoutError("offset 7 of half[0] did not come back"))
    assert str(error) == "Kafka was too slow; writing to offset[0]: offset 7 of half[0] did not come back"
    assert not isinstance(error, KafkaUnreachableError)


def test_a_cluster_that_does_not_answer_and_a_refusal_are_told_apart() -> None:
    away = error_of(KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN)))
    assert isinstance(away, KafkaUnreachableError)
    refused = error_of(KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)))
    assert str(refused).startswith("Kafka refused; writing to offset[0]: ")


def test_coordinators_that_do_not_answer_cost_their_time_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def no_answer(_self: GroupStates, group: str, _deadline: object) -> str:
        asked.append(group)
        time.sleep(0.1)
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    monkeypatch.setattr(GroupStates, "_ask_kafka", no_answer)
    monkeypatch.setattr(causes, "_LONGEST_S", 0.1)
    connection: Any = None
    states = GroupStates(connection)
    assert [states.problem_of(f"group{number}") for number in range(100)] == [None] * 100
    assert asked == ["group0"]
