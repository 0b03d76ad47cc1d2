"""Attempts of a process, and their ids."""

from __future__ import annotations

import re
import threading

import pytest

from txbridge import UsageError
from txbridge.client.flow.attempts import Attempts
from txbridge.client.message import new_transaction_id
from txbridge.core.decision_record import Decision


def begun(attempts, count):
    ids = [new_transaction_id() for _ in range(count)]
    for transaction_id in ids:
        attempts.begin_attempt(transaction_id)
    return ids


def test_transaction_ids_are_32_digits_and_never_the_same():
    ids = {new_transaction_id() for _ in range(1_000)}
    assert len(ids) == 1_000
    assert all(re.fullmatch(r"[0-9A-F]{32}", transaction_id) for transaction_id in ids)


def test_verdicts():
    attempts = Attempts()
    running, failed, done = begun(attempts, 3)
    attempts.give_up(failed)
    assert attempts.verdict_of(failed) is Decision.ROLLBACK
    attempts.finish_attempt(failed)
    attempts.finish_attempt(done)
    assert attempts.verdict_of(running) is Decision.UNKNOWN
    assert attempts.verdict_of(failed) is Decision.ROLLBACK
    assert attempts.verdict_of(done) is None
    assert attempts.verdict_of("F" * 32) is None


def test_the_oldest_failures_are_forgotten():
    attempts = Attempts(max_given_up=3)
    ids = begun(attempts, 5)
    for transaction_id in ids:
        attempts.give_up(transaction_id)
        attempts.finish_attempt(transaction_id)
    assert [attempts.verdict_of(transaction_id) for transaction_id in ids] == [None, None, *[Decision.ROLLBACK] * 3]


def test_local_are_those_with_a_half_message_until_they_are_over():
    attempts = Attempts()
    first, second, _ = begun(attempts, 3)
    attempts.note_stored(first)
    attempts.note_stored(second)
    assert (attempts.running, attempts.local) == (3, 2)
    for _ in range(2):
        attempts.finish_attempt(first)
        assert (attempts.running, attempts.local) == (2, 1)


def test_close_waits_for_those_that_run_and_allows_no_more():
    attempts = Attempts()
    first, second = begun(attempts, 2)
    assert attempts.close(0.01) == 2
    with pytest.raises(UsageError, match="closed"):
        attempts.begin_attempt("A" * 32)
    attempts.finish_attempt("A" * 32)
    attempts.finish_attempt(first)
    timer = threading.Timer(0.05, attempts.finish_attempt, [second])
    timer.start()
    assert attempts.close() == 0
    timer.join()
