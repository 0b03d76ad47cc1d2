"""The rule by which a barrier table answers a check, against a table written by hand."""

from __future__ import annotations

import math

import pytest

from tests.support.checked_message import checked_message
from txbridge import LocalTransactionState, UsageError
from txbridge.client.barrier import Barrier
from txbridge.client.base import log

COMMIT = LocalTransactionState.COMMIT_MESSAGE
ROLLBACK = LocalTransactionState.ROLLBACK_MESSAGE
UNKNOWN = LocalTransactionState.UNKNOWN
#: The answer of `Barrier.answer` after which the listener writes "rolled back".
WRITE = None

OURS, OTHER = "00000000000000aa", "00000000000000bb"


@pytest.mark.parametrize(
    ("age", "its", "state", "here", "answer"),
    [
        # The sender's own table.
        (6.0, OURS, "committed", OURS, COMMIT),
        (6.0, OURS, "rolled back", OURS, ROLLBACK),
        (6.0, OURS, None, OURS, UNKNOWN),
        (59.999, OURS, None, OURS, UNKNOWN),
        (60.0, OURS, None, OURS, WRITE),
        (600.0, OURS, None, OURS, WRITE),
        # Brokers' clocks that differ make a message look younger than nothing.
        (-3.0, OURS, None, OURS, UNKNOWN),
        # Another table. Only a committed row proves something: it came with a copy of the sender's table.
        (600.0, OTHER, None, OURS, UNKNOWN),
        (600.0, OTHER, "rolled back", OURS, UNKNOWN),
        (600.0, OTHER, "committed", OURS, COMMIT),
        # A table whose rows were deleted, its identity among them.
        (600.0, OURS, None, None, UNKNOWN),
        # A sender that names no table.
        (6.0, None, None, OURS, UNKNOWN),
        (600.0, None, None, OURS, WRITE),
        (600.0, None, "rolled back", OURS, ROLLBACK),
    ],
)
def test_the_answer(age, its, state, here, answer):
    assert Barrier(60).answer(checked_message(age, its), state, here) is answer


def test_a_worker_that_does_not_tell_the_birth_is_answered_at_once():
    assert checked_message(barrier_id=OURS, has_birth=False).age is None
    assert Barrier(60).answer(checked_message(barrier_id=OURS, has_birth=False), None, OURS) is WRITE


def test_the_age_is_that_of_the_check_and_not_of_its_reading():
    assert checked_message(6.25).age == 6.25


def test_without_patience_the_first_check_rolls_back():
    assert Barrier(0).answer(checked_message(0.0, OURS), None, OURS) is WRITE


@pytest.mark.parametrize("patience", [-1, math.nan, math.inf, "60", None])
def test_a_patience_that_can_not_be_is_refused(patience):
    with pytest.raises(UsageError, match="patience must be a number of seconds, 0 or more"):
        Barrier(patience)


def test_another_table_is_an_error_that_names_both_once_a_minute(caplog, monkeypatch):
    now = [1_000.0]
    monkeypatch.setattr(log.time, "monotonic", lambda: now[0])
    barrier = Barrier(60)

    def logged():
        caplog.clear()
        barrier.answer(checked_message(barrier_id=OTHER), None, OURS)
        return [(record.levelname, record.event) for record in caplog.records]

    assert logged() == [("ERROR", "check_for_another_database")]
    [record] = caplog.records
    assert record.fields["barrier_of_message"] == OTHER
    assert record.fields["barrier_here"] == OURS
    assert "0123456789ABCDEF0123456789ABCDEF" not in record.message
    assert logged() == []
    now[0] += 60
    assert logged() == [("ERROR", "check_for_another_database")]


def test_a_process_follows_a_table_that_is_replaced():
    barrier = Barrier(60)
    barrier.answer(checked_message(barrier_id=OURS), "committed", OURS)
    assert barrier.id == OURS
    barrier.answer(checked_message(barrier_id=OURS), None, None)
    assert barrier.id is None
