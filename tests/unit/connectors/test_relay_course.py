"""The decisions of a relay: what comes next in a lane, which rows go together, and up to which row the gate is open."""

from __future__ import annotations

import pytest
from txbridge_sqlalchemy.outbox_gate import OutboxGate
from txbridge_sqlalchemy.outbox_messages import OutboxRow
from txbridge_sqlalchemy.outbox_rows import LaneState
from txbridge_sqlalchemy.relay_course import LaneCourse, LaneShare, LaneStep, Pace, RowsByFate, frame_size

from txbridge import Message
from txbridge.core.message_frames import encode_frames, parse_frames

ONE, TWO = LaneState("1" * 32, 0, 5), LaneState("2" * 32, 0, 6)


def rows(*messages, fate_of=lambda _row: None):
    """Rows that all are delivered now, unless they have a fate."""
    made = RowsByFate()
    for row in (OutboxRow(number, message) for number, message in enumerate(messages, 1)):
        made.add_row(row, fate_of(row))
    return made


def batches(waiting, most_bytes=1_000_000):
    """The ids of all batches."""
    found = []
    while waiting:
        found.append(waiting.take_batch(most_bytes).ids)
    return found


def test_rows_whose_time_has_come_go_together_and_each_keeps_its_time():
    """The worker goes by the brokers' clock, which may be behind the relay's."""
    batch = rows(Message("t", b"1", deliver_at=10**12), Message("t", b"2")).take_batch(1_000_000)
    assert [one.deliver_at for one in parse_frames(batch.message.value, 2)] == [10**12, None]


def test_a_lane_without_a_batch_begins_with_rows():
    course = LaneCourse()
    assert course.next_step is LaneStep.READ_STATE
    course.note_state(None)
    assert (course.next_step, course.state) == (LaneStep.SEND_BATCH, None)


def test_the_end_of_an_unknown_batch_comes_before_the_next_batch():
    course = LaneCourse()
    course.note_state(ONE)
    assert course.next_step is LaneStep.SETTLE_END
    course.note_end_stored()
    assert (course.next_step, course.state) == (LaneStep.SEND_BATCH, ONE)
    # After a failure the table says what is committed.
    course.forget_state()
    assert course.next_step is LaneStep.READ_STATE
    # Its own batch: Kafka has the END.
    course.note_state(ONE)
    assert course.next_step is LaneStep.SEND_BATCH
    course.forget_state()
    course.note_state(TWO)
    assert course.next_step is LaneStep.SETTLE_END
    # A lane that is emptied begins anew.
    course.forget_state()
    course.note_state(None)
    assert course.next_step is LaneStep.SEND_BATCH


@pytest.mark.parametrize(("is_gate_closed", "first", "sum_s"), [(False, 0.04, 1.5), (True, 0.004, 1.5)])
def test_a_lane_without_rows_is_read_less_and_less_often(is_gate_closed, first, sum_s):
    pace = Pace()
    pauses = [pace.next_pause(found=False, is_gate_closed=is_gate_closed, took=0.0) for _ in range(30)]
    assert pauses[0] == first
    assert pauses == sorted(pauses)
    assert pauses[-1] == 0.25
    assert sum(pauses[: pauses.index(0.25)]) < sum_s
    assert pace.next_pause(found=True, is_gate_closed=is_gate_closed, took=0.005) == pytest.approx(0.035)
    assert pace.next_pause(found=True, is_gate_closed=is_gate_closed, took=5.0) == 0.0
    assert pace.next_pause(found=False, is_gate_closed=is_gate_closed, took=0.0) == first


def test_rows_without_a_time_go_together_in_order():
    waiting = rows(*(Message("orders", b"%d" % number, b"k") for number in range(3)))
    batch = waiting.take_batch(1_000_000)
    assert batch.ids == (1, 2, 3)
    assert [one.value for one in batch.message.messages] == [b"0", b"1", b"2"]
    assert not waiting


def test_a_single_row_is_a_plain_message():
    message = Message("orders", b"x" * 900, b"k")
    assert rows(message).take_batch(900).message is message


@pytest.mark.parametrize(("count", "sizes"), [(1_000, [1_000]), (1_500, [1_000, 500])])
def test_at_most_a_thousand_rows_go_together(count, sizes):
    found = batches(rows(*(Message("orders", b"") for _ in range(count))))
    assert [len(ids) for ids in found] == sizes
    assert [one for ids in found for one in ids] == list(range(1, count + 1))


def test_rows_that_are_too_large_together_follow():
    assert batches(rows(*(Message("orders", b"x" * 400) for _ in range(5))), 1_000) == [(1, 2), (3, 4), (5,)]


def test_at_most_a_hundred_topics():
    found = batches(rows(*(Message(f"topic-{number}", b"") for number in range(150))))
    assert [len(ids) for ids in found] == [100, 50]


def due(row):
    return row.message.deliver_at


def test_rows_of_one_time_go_together_after_those_without():
    waiting = rows(
        Message("orders", b"1", deliver_at=50),
        Message("orders", b"2"),
        Message("orders", b"3"),
        Message("orders", b"4", deliver_at=60),
        Message("orders", b"5", deliver_at=50),
        fate_of=due,
    )
    first = waiting.take_batch(1_000_000)
    assert (first.ids, first.message.deliver_at) == ((2, 3), None)
    second = waiting.take_batch(1_000_000)
    assert (second.ids, second.message.deliver_at) == ((1, 5), 50)
    third = waiting.take_batch(1_000_000)
    assert (third.ids, third.message.deliver_at) == ((4,), 60)


def test_rows_of_as_many_times_are_as_many_batches_in_order():
    times = [(number * 7) % 1_000 for number in range(1_000)]
    found = batches(rows(*(Message("orders", b"", deliver_at=time) for time in times), fate_of=due))
    assert found == [(number,) for number in range(1, 1_001)]


def test_rows_of_one_time_that_are_too_large_together_follow_one_another():
    sizes = [(50, 400), (60, 400), (50, 400), (50, 400), (60, 400)]
    waiting = rows(*(Message("orders", b"x" * size, deliver_at=time) for time, size in sizes), fate_of=due)
    assert batches(waiting, 1_000) == [(1, 3), (4,), (2, 5)]


def test_rows_in_trouble_stop_nobody_else():
    def fate_of(row):
        return {"gone": "gone", "large": (row.id,)}.get(row.message.topic)

    topics = ("gone", "orders", "gone", "large", "orders", "large")
    assert batches(rows(*(Message(topic, b"") for topic in topics), fate_of=fate_of)) == [(2, 5), (1, 3), (4,), (6,)]


def test_the_size_of_a_frame_is_never_too_small():
    messages = [
        Message("orders", None),
        Message("t", b"value", b"key", {"name": b"value", "größe": None}),
        Message("orders", b"", b"", [("", b""), ("", b"")], partition=3, timestamp=5),
    ]
    assert len(encode_frames(messages)) <= sum(map(frame_size, messages))


def test_half_of_the_lanes_go_to_a_relay_without_one():
    share = LaneShare()
    assert share.count_surplus(4, is_wanted=True) == 0
    assert share.count_surplus(4, is_wanted=True) == 2
    assert [share.may_take() for _ in range(5)] == [False, False, False, True, True]


def test_a_single_look_or_a_single_lane_gives_nothing_away():
    share = LaneShare()
    looks = [(4, True), (4, False), (4, True), (1, True), (1, True), (1, True)]
    assert [share.count_surplus(held, is_wanted=wanted) for held, wanted in looks] == [0] * 6
    assert share.may_take()


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
