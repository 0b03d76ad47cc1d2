"""The gate of an outbox: it opens up to a row when those have ended who could still add one before it."""

from __future__ import annotations

from txbridge_sqlalchemy.outbox_gate import OutboxGate


def looks(*seen):
    """The bound after each look, and whether the gate is closed."""
    gate, found = OutboxGate(), []
    for newest, *writers in seen:
        gate.note_look(newest, writers)
        found.append((gate.bound, gate.is_closed))
    return found


def test_without_writers_it_opens_at_once():
    assert looks((None,), (5,), (7,)) == [(None, False), (5, False), (7, False)]


def test_it_waits_for_all_who_were_there_at_first():
    assert looks((5, "a", "b"), (5, "b"), (5,)) == [(None, True), (None, True), (5, False)]


def test_who_comes_later_adds_later_rows():
    assert looks((5, "a", "b"), (6, "c", "b"), (7, "d", "c"), (8, "d"), (9,)) == [
        (None, True),
        (None, True),
        (5, True),
        (6, True),
        (9, False),
    ]


def test_who_goes_and_comes_again_is_another_one():
    assert looks((5,), (6, "a"), (7,), (8, "a"), (9, "a")) == [(5, False), (5, True), (7, False), (7, True), (7, True)]


def test_without_newer_rows_nobody_is_waited_for():
    assert looks((5,), (5, "a"), (None, "a"), (None, "b")) == [(5, False), (5, False), (None, False), (None, False)]


def test_rows_that_are_gone_let_no_later_one_pass():
    """The newest row was sent, and the one before it is still there."""
    assert looks((5,), (4, "a"), (6, "a", "b"), (6, "b"), (6,)) == [
        (5, False),
        (5, True),
        (5, True),
        (4, True),
        (6, False),
    ]
