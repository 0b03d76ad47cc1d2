"""The END commands that share a record."""

from __future__ import annotations

import pytest

from txbridge.client.decide.decision_batcher import DecisionQueue, most_bytes
from txbridge.client.errors import EndTransactionError
from txbridge.core.decision_record import Decision, DecisionEntry, Source, encode_end


def entry(offset, remark=None):
    return DecisionEntry(offset, f"{offset:032X}", Decision.COMMIT, remark=remark)


def add(queue, *offsets, partition=0, source=Source.CLIENT, size=100, remark=None):
    return [queue.add_command(partition, source, entry(offset, remark), size) for offset in offsets]


def take(queue):
    """Start the record of the only lane that may send now. Returns the lane, or None."""
    [lane] = queue.start_records(100.0) or [None]
    return lane


def offsets(lane):
    return [ticket.entry.half_offset for ticket in lane.in_flight]


def test_first_goes_alone_and_the_next_gather_behind_it():
    queue = DecisionQueue(0)
    add(queue, 1)
    first = take(queue)
    assert offsets(first) == [1]
    add(queue, 2, 3)
    assert queue.next_due is None
    assert take(queue) is None
    add(queue, 4)
    queue.finish_record(first)
    assert queue.next_due is not None
    assert offsets(take(queue)) == [2, 3, 4]
    assert take(queue) is None


def leave(queue, now):
    """Start the records that may leave now, and finish them."""
    lanes = queue.start_records(now)
    return [(lane.partition, *(ticket.entry.half_offset for ticket in queue.finish_record(lane))) for lane in lanes]


def test_records_leave_an_interval_apart_and_the_first_after_a_quiet_time_at_once():
    queue = DecisionQueue(0.02)
    add(queue, 1)
    assert queue.next_due <= 100.0
    [first] = queue.start_records(100.0)
    assert offsets(first) == [1]
    assert queue.next_due is None  # The record is in flight.
    add(queue, 2)
    queue.finish_record(first)
    add(queue, 3)
    assert queue.start_records(100.019) == []
    assert queue.next_due == pytest.approx(100.02)
    assert leave(queue, 100.025) == [(0, 2, 3)]
    add(queue, 4)
    assert queue.next_due == pytest.approx(100.045)
    assert leave(queue, 100.05) == [(0, 4)]
    add(queue, 5)
    assert leave(queue, 100.08) == [(0, 5)]


def test_the_lanes_of_all_partitions_leave_together():
    queue = DecisionQueue(0.02)
    add(queue, 1)
    assert leave(queue, 100.0) == [(0, 1)]
    add(queue, 2, partition=1)
    add(queue, 3, partition=2)
    add(queue, 4)
    assert queue.start_records(100.019) == []
    assert leave(queue, 100.021) == [(1, 2), (2, 3), (0, 4)]


def test_a_lane_with_200_commands_leaves_at_once_and_delays_no_other_lane():
    queue = DecisionQueue(0.02)
    add(queue, 0, partition=1)
    assert leave(queue, 100.0) == [(1, 0)]
    news, left = [], []
    add(queue, 1, partition=1)
    for number in range(4):
        for offset in range(201):
            add(queue, offset)
            news.append(queue.has_news)
        assert queue.next_due == 0
        left += [(partition, len(given)) for partition, *given in leave(queue, 100.006 + number * 0.006)]
    # After 6, 12 and 18 ms only the lane with enough, after 24 ms both.
    assert left == [(0, 201), (0, 201), (0, 201), (1, 1), (0, 201)]
    # The sender has to be woken for the first one of all, and when there are enough.
    assert [number for number, told in enumerate(news) if told] == [199, 400, 601, 802]
    add(queue, 2)
    assert queue.has_news
    assert queue.next_due == pytest.approx(100.044)


def test_who_waits_for_a_command_does_not_wait_for_company():
    hurried = []
    queue = DecisionQueue(0.02, lambda: hurried.append(queue.hurry_all()))
    add(queue, 1)
    [first] = queue.start_records(100.0)
    [ticket] = add(queue, 2)
    queue.finish_record(first)
    assert queue.start_records(100.001) == []
    ticket.leave_soon()
    [second] = queue.start_records(100.001)
    assert offsets(second) == [2]
    queue.finish_record(second)
    ticket.settle_with()
    ticket.leave_soon()
    assert len(hurried) == 1
    # `hurry` applied only to the commands that had been added by then.
    add(queue, 3)
    assert queue.start_records(100.002) == []


def test_partitions_and_sources_have_lanes_of_their_own():
    queue = DecisionQueue(0)
    add(queue, 1, 2, partition=0)
    add(queue, 3, partition=1)
    add(queue, 4, partition=0, source=Source.CHECK)
    taken = queue.start_records(100.0)
    assert [(lane.partition, lane.source, offsets(lane)) for lane in taken] == [
        (0, Source.CLIENT, [1, 2]),
        (1, Source.CLIENT, [3]),
        (0, Source.CHECK, [4]),
    ]
    assert take(queue) is None
    assert queue.unsettled == 4


def test_a_record_holds_at_most_1000_entries():
    queue = DecisionQueue(0)
    add(queue, *range(2_500))
    sizes = []
    while (lane := take(queue)) is not None:
        sizes.append(len(lane.in_flight))
        queue.finish_record(lane)
    assert sizes == [1_000, 1_000, 500]
    assert queue.unsettled == 0


def test_a_record_names_at_most_16_mib():
    queue = DecisionQueue(0)
    mib = 1024 * 1024
    add(queue, *range(17), size=mib)
    add(queue, 100, size=20 * mib)
    add(queue, 101)
    taken = []
    while (lane := take(queue)) is not None:
        taken.append(offsets(lane))
        queue.finish_record(lane)
    # 16 of 1 MiB; the 17th is followed by one that is too large for company.
    assert taken == [list(range(16)), [16], [100], [101]]


def test_a_record_with_remarks_stays_below_500_kb():
    queue = DecisionQueue(0)
    # Each character takes three when encoded, so each remark takes all of its 2,048.
    add(queue, *range(1_000), remark="%" * 2_048)
    sizes = []
    while (lane := take(queue)) is not None:
        value, _ = encode_end([ticket.entry for ticket in lane.in_flight], "g", Source.CLIENT)
        assert len(value) <= 500_000
        sizes.append(len(lane.in_flight))
        queue.finish_record(lane)
    # 500,000 / (2,048 + 80) = 234.96
    assert sizes == [234, 234, 234, 234, 64]


def test_flush_mark_covers_only_what_was_given_before():
    queue = DecisionQueue(0)
    add(queue, 1, 2)
    mark = queue.set_mark()
    first = take(queue)
    add(queue, 3)
    add(queue, 4, partition=1)
    assert queue.left_of(mark) == 2
    queue.finish_record(first)
    assert queue.left_of(mark) == 0
    assert queue.left_of(queue.set_mark()) == 2


def test_abandon_gives_up_what_waits_but_not_what_is_in_flight():
    queue = DecisionQueue(0)
    add(queue, 1)
    lane = take(queue)
    add(queue, 2, 3)
    mark = queue.set_mark()
    assert [ticket.entry.half_offset for ticket in queue.abandon_all()] == [2, 3]
    assert queue.left_of(mark) == 1
    assert take(queue) is None
    queue.finish_record(lane)
    assert (queue.unsettled, queue.left_of(mark), queue.next_due) == (0, 0, None)


def test_a_future_tells_the_same_whether_it_was_asked_for_before_or_after():
    error = EndTransactionError("given up")
    before, after = add(DecisionQueue(0), 1, 2), add(DecisionQueue(0), 3, 4)
    early = [ticket.as_future() for ticket in before]
    assert [(future.done(), future.cancel()) for future in early] == [(False, False)] * 2
    for acknowledged, given_up in (before, after):
        acknowledged.settle_with()
        given_up.settle_with(error)
    assert [ticket.as_future() for ticket in before] == early
    assert [repr(ticket.as_future().exception(0)) for ticket in (*before, *after)] == ["None", repr(error)] * 2


def test_a_thousand_entries_without_remarks_take_no_more_than_80_kb():
    usual = [DecisionEntry(1_000_000_000 + number, "F" * 32, Decision.COMMIT) for number in range(1_000)]
    # Fields of 10, 32 and 1 characters, two commas, and a line feed between two entries.
    assert len(encode_end(usual, "g", Source.CLIENT)[0]) == 45_999
    largest = [DecisionEntry(2**63 - 1, "F" * 32, Decision.ROLLBACK, 2**63 - 1)] * 1_000
    assert len(encode_end(largest, "g", Source.CLIENT)[0]) <= sum(map(most_bytes, largest)) == 80_000
