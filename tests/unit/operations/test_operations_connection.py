"""Errors of Kafka in the words of an operation."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from txbridge.errors import EnvironmentProblemError, KafkaUnreachableError
from txbridge.kafka.denied import named
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
