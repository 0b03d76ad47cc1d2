"""Pauses between small Kafka transactions when Kafka is slower than it was. Large ones are not delayed."""

from __future__ import annotations

import pytest

from txbridge.core.commit_pacing import CommitPacing


def _measured(fastest: float) -> CommitPacing:
    """A pacing that has seen a transaction of this duration (s), at 0."""
    pace = CommitPacing()
    pace.rest_after(0.0, fastest, 0)
    return pace


def test_no_rest_while_kafka_is_as_fast_as_ever():
    pace = CommitPacing()
    assert pace.rest_after(0.0, 0.003, 0) == 0.0
    assert pace.rest_after(0.1, 0.003, 0) == 0.0
    assert pace.rest_after(0.2, 0.0045, 0) == 0.0


def test_messages_may_take_their_time():
    pace = _measured(0.004)
    assert pace.rest_after(0.1, 0.010, 160) == 0.0
    assert pace.rest_after(0.2, 0.010, 80) == pytest.approx(0.004)


def test_a_rest_of_twice_the_time_that_it_took_longer_than_half_as_long_again():
    pace = _measured(0.004)
    assert pace.rest_after(0.1, 0.010, 0) == pytest.approx(0.008)


def test_the_rest_is_bounded():
    pace = _measured(0.003)
    assert pace.rest_after(1.0, 5.0, 0) == 0.025


def test_a_large_one_is_followed_at_once():
    pace = _measured(0.003)
    assert pace.rest_after(0.1, 0.2, 1_000) == 0.0
    assert pace.rest_after(0.2, 0.2, 999) == 0.025


def test_a_faster_one_is_the_new_measure():
    pace = CommitPacing()
    assert pace.rest_after(0.0, 0.010, 0) == 0.0
    assert pace.rest_after(0.1, 0.004, 0) == 0.0
    assert pace.rest_after(0.2, 0.010, 0) == pytest.approx(0.008)


def test_the_measure_is_kept_from_one_window_to_the_next_and_forgotten_after_two():
    pace = _measured(0.004)
    assert pace.rest_after(10.0, 0.010, 0) == pytest.approx(0.008)
    assert pace.rest_after(20.0, 0.010, 0) == 0.0


def test_after_an_hour_of_silence_there_is_no_measure():
    pace = _measured(0.004)
    assert pace.rest_after(3_600.0, 0.010, 0) == 0.0
