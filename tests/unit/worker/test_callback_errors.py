"""Errors that confluent-kafka raises from callbacks, without Kafka."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from txbridge.kafka.fence import guarded, is_fenced


def test_what_a_call_returns_and_raises_is_passed_on():
    assert guarded(lambda number: number + 1, 1) == 2
    with pytest.raises(ValueError, match="mine"):
        guarded(int, "mine")


def test_a_hidden_error_is_raised():
    def flush():
        hidden = KafkaException(KafkaError(KafkaError._FENCED, "fenced by another"))
        raise SystemError("a callback returned a result with an exception set") from hidden

    with pytest.raises(KafkaException) as caught:
        guarded(flush)
    assert is_fenced(caught.value)


def test_an_error_that_is_lost_wants_an_abort_which_will_tell():
    def flush():
        raise SystemError("flush returned NULL without setting an exception")

    with pytest.raises(KafkaException, match="was lost") as caught:
        guarded(flush)
    assert caught.value.args[0].txn_requires_abort()
    assert not is_fenced(caught.value)
