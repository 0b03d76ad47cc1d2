"""The decisions of a relay: which rows go together, when it looks again, and up to which row the gate is open."""

from __future__ import annotations

import pytest
from txbridge_sqlalchemy.outbox_messages import OutboxRow
from txbridge_sqlalchemy.relay_course import MOST_BYTES, MOST_ROWS, BatchCut, OutboxGate, Pace

from txbridge import Message


def rows(*messages):
    return [
        OutboxRow(number, number, one, None, f"{number:032}", number, 0, one.topic, one.key)
        for number, one in enumerate(messages, 1)
    ]


def small(count, topic="orders", size=0):
    return [Message(topic, b"x" * size) for _ in range(count)]


def cut(of, taken):
    return [row.id for row in of.cut_batch(taken)]


@pytest.mark.parametrize(("is_gate_closed", "first", "sum_s"), [(False, 0.065, 1.5), (True, 0.004, 1.5)])
def test_an_outbox_without_rows_is_read_less_and_less_often(is_gate_closed, first, sum_s):
    pace = Pace()
    pauses = [pace.next_pause(found=False, is_gate_closed=is_gate_closed, took=0.0) for _ in range(30)]
    assert pauses[0] == first
    assert pauses == sorted(pauses)
    assert pauses[-1] == 0.25
    assert sum(pauses[: pauses.index(0.25)]) < sum_s
    assert pace.next_pause(found=True, is_gate_closed=is_gate_closed, took=0.005) == pytest.approx(0.06)
    assert pace.next_pause(found=True, is_gate_closed=is_gate_closed, took=5.0) == 0.0
    assert pace.next_pause(found=False, is_gate_closed=is_gate_closed, took=0.0) == first


@pytest.mark.parametrize(
    ("count", "size", "expected"),
    [
        (0, 0, 0),
        (MOST_ROWS, 0, 5_000),
        (MOST_ROWS + 1, 0, 5_000),
        # Their bytes are cut by the database.
        (2, MOST_BYTES + 1, 2),
    ],
)
def test_the_first_rows_go_together_up_to_a_number(count, size, expected):
    assert cut(BatchCut(), rows(*small(count, size=size))) == list(range(1, expected + 1))


def test_after_a_time_out_a_quarter_of_them_goes_and_slowly_more_again():
    of, waiting = BatchCut(), rows(*small(5_000, size=100))
    of.note_timed_out(waiting)
    assert cut(of, waiting) == list(range(1, 1_251))
    of.note_taken(waiting[:1_250], 0.1)
    assert len(cut(of, waiting)) == 1_875
    # Twice in a row: the first row alone.
    of.note_timed_out(waiting[:1_875])
    of.note_timed_out(waiting[:468])
    assert cut(of, waiting) == [1]
    while len(taken := of.cut_batch(waiting)) < 5_000:
        of.note_taken(taken, 0.1)


def test_one_row_of_a_suspect_topic_goes_and_four_times_as_many_each_time_that_kafka_takes_them():
    of = BatchCut()
    waiting = rows(*small(2, "fine"), *small(400, "odd"), *small(2, "fine"))
    of.suspect_topic("odd")
    sizes = []
    for _ in range(5):
        taken = of.cut_batch(waiting)
        # The first ones of the topic, and all of the others in their order.
        assert [row.id for row in taken] == [1, 2, *range(3, len(taken) - 1), 403, 404]
        sizes.append(len(taken) - 4)
        of.note_taken(taken, 0.1)
    assert sizes == [1, 4, 16, 64, 256]
    assert len(of.cut_batch(waiting)) == 404
    # What another topic takes says nothing.
    of.suspect_topic("odd")
    of.note_taken(rows(*small(1, "fine")), 0.1)
    assert len(of.cut_batch(waiting)) == 5
    of.note_taken(of.cut_batch(waiting), 0.1)
    of.suspect_topic("odd")
    assert len(of.cut_batch(waiting)) == 5


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
