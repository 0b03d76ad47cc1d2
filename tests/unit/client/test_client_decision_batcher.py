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
    """Take a batch when every lane may send again."""
    return queue.take_batch(float("inf"))


def offsets(batch):
    return [ticket.entry.half_offset for ticket in batch.tickets]


def test_first_goes_alone_and_the_next_gather_behind_it():
    queue = DecisionQueue()
    add(queue, 1)
    first = take(queue)
    assert offsets(first) == [1]
    add(queue, 2, 3)
    assert queue.next_due is None
    assert take(queue) is None
    add(queue, 4)
    queue.settle_batch(first)
    assert queue.next_due is not None
    assert offsets(take(queue)) == [2, 3, 4]
    assert take(queue) is None


def test_records_of_a_lane_leave_5_ms_apart_and_the_first_after_a_quiet_time_at_once():
    queue = DecisionQueue()
    add(queue, 1)
    assert queue.next_due <= 100.0
    first = queue.take_batch(100.0)
    assert offsets(first) == [1]
    assert queue.next_due is None  # The record is in flight.
    add(queue, 2)
    queue.settle_batch(first)
    add(queue, 3)
    add(queue, 4, partition=1)
    assert queue.next_due <= 100.004
    assert offsets(queue.take_batch(100.004)) == [4]
    assert queue.take_batch(100.004) is None
    assert queue.next_due == pytest.approx(100.005)
    second = queue.take_batch(100.006)
    assert offsets(second) == [2, 3]
    queue.settle_batch(second)
    add(queue, 5)
    assert queue.take_batch(100.01) is None
    assert offsets(queue.take_batch(101.0)) == [5]


def test_while_commands_come_fast_the_records_of_a_lane_leave_15_ms_apart():
    queue = DecisionQueue()

    def send(at, count):
        """Send a record with all commands that came since the last one."""
        add(queue, *range(count))
        batch = queue.take_batch(at)
        assert batch is not None
        assert len(batch.tickets) == count
        queue.settle_batch(batch)

    def next_leaves():
        add(queue, 1_000)
        due = queue.next_due
        queue.abandon_all()
        return due

    # The first record after a quiet time says nothing about the rate, however many commands it has.
    send(100.0, 40)
    assert next_leaves() == pytest.approx(100.005)
    # 8 in 10 ms: 800 a second.
    send(100.01, 8)
    assert next_leaves() == pytest.approx(100.015)
    # 20 in 10 ms: 2,000 a second.
    send(100.02, 20)
    assert next_leaves() == pytest.approx(100.035)
    # 20 in 15 ms, 1,300 a second: as many, but not as fast.
    send(100.035, 20)
    assert next_leaves() == pytest.approx(100.04)


def test_forty_eight_commands_are_enough_and_do_not_wait_for_more():
    queue = DecisionQueue()
    news = []

    def give(*given):
        for offset in given:
            add(queue, offset)
            news.append(queue.has_news)

    give(0)
    first = queue.take_batch(100.0)
    give(*range(1, 9))
    queue.settle_batch(first)
    give(*range(9, 48))
    assert queue.take_batch(100.001) is None
    give(48, 49)
    # The sender has to be woken for the first one, and when there are enough.
    assert [number for number, told in enumerate(news) if told] == [0, 48]
    assert queue.next_due == 0
    second = queue.take_batch(100.001)
    assert offsets(second) == list(range(1, 50))
    give(*range(50, 98))
    queue.settle_batch(second)
    assert offsets(queue.take_batch(100.002)) == list(range(50, 98))


def test_who_waits_for_a_command_does_not_wait_for_company():
    hurried = []
    queue = DecisionQueue(lambda: hurried.append(queue.hurry_all()))
    add(queue, 1)
    first = queue.take_batch(100.0)
    [ticket] = add(queue, 2)
    queue.settle_batch(first)
    assert queue.take_batch(100.001) is None
    ticket.leave_soon()
    second = queue.take_batch(100.001)
    assert offsets(second) == [2]
    queue.settle_batch(second)
    ticket.settle_with()
    ticket.leave_soon()
    assert len(hurried) == 1
    # `hurry` applied only to the commands that had been added by then.
    add(queue, 3)
    assert queue.take_batch(100.002) is None


def test_partitions_and_sources_have_lanes_of_their_own():
    queue = DecisionQueue()
    add(queue, 1, 2, partition=0)
    add(queue, 3, partition=1)
    add(queue, 4, partition=0, source=Source.CHECK)
    taken = [take(queue), take(queue), take(queue)]
    assert [(batch.lane.partition, batch.lane.source, offsets(batch)) for batch in taken] == [
        (0, Source.CLIENT, [1, 2]),
        (1, Source.CLIENT, [3]),
        (0, Source.CHECK, [4]),
    ]
    assert take(queue) is None
    assert queue.unsettled == 4


def test_a_record_holds_at_most_1000_entries():
    queue = DecisionQueue()
    add(queue, *range(2_500))
    sizes = []
    while (batch := take(queue)) is not None:
        sizes.append(len(batch.tickets))
        queue.settle_batch(batch)
    assert sizes == [1_000, 1_000, 500]
    assert queue.unsettled == 0


def test_a_record_names_at_most_16_mib():
    queue = DecisionQueue()
    mib = 1024 * 1024
    add(queue, *range(17), size=mib)
    add(queue, 100, size=20 * mib)
    add(queue, 101)
    taken = []
    while (batch := take(queue)) is not None:
        taken.append(offsets(batch))
        queue.settle_batch(batch)
    # 16 of 1 MiB; the 17th is followed by one that is too large for company.
    assert taken == [list(range(16)), [16], [100], [101]]


def test_a_record_with_remarks_stays_below_500_kb():
    queue = DecisionQueue()
    # Each character takes three when encoded, so each remark takes all of its 2,048.
    add(queue, *range(1_000), remark="%" * 2_048)
    sizes = []
    while (batch := take(queue)) is not None:
        value, _ = encode_end([ticket.entry for ticket in batch.tickets], "g", Source.CLIENT)
        assert len(value) <= 500_000
        sizes.append(len(batch.tickets))
        queue.settle_batch(batch)
    # 500,000 / (2,048 + 80) = 234.96
    assert sizes == [234, 234, 234, 234, 64]


def test_flush_mark_covers_only_what_was_given_before():
    queue = DecisionQueue()
    add(queue, 1, 2)
    mark = queue.set_mark()
    first = take(queue)
    add(queue, 3)
    add(queue, 4, partition=1)
    assert queue.left_of(mark) == 2
    queue.settle_batch(first)
    assert queue.left_of(mark) == 0
    assert queue.left_of(queue.set_mark()) == 2


def test_abandon_gives_up_what_waits_but_not_what_is_in_flight():
    queue = DecisionQueue()
    add(queue, 1)
    batch = take(queue)
    add(queue, 2, 3)
    mark = queue.set_mark()
    assert [ticket.entry.half_offset for ticket in queue.abandon_all()] == [2, 3]
    assert queue.left_of(mark) == 1
    assert take(queue) is None
    queue.settle_batch(batch)
    assert (queue.unsettled, queue.left_of(mark), queue.next_due) == (0, 0, None)


def test_a_future_tells_the_same_whether_it_was_asked_for_before_or_after():
    error = EndTransactionError("given up")
    before, after = add(DecisionQueue(), 1, 2), add(DecisionQueue(), 3, 4)
    early = [ticket.as_future() for ticket in before]
    assert [(future.done(), future.cancel()) for future in early] == [(False, False)] * 2
    for acknowledged, given_up in (before, after):
        acknowledged.settle_with()
        given_up.settle_with(error)
    assert [ticket.as_future() for ticket in before] == early
    assert [ticket.as_future().exception(0) for ticket in (*before, *after)] == [None, error] * 2


def test_a_thousand_entries_without_remarks_take_no_more_than_80_kb():
    usual = [DecisionEntry(1_000_000_000 + number, "F" * 32, Decision.COMMIT) for number in range(1_000)]
    # Fields of 10, 32 and 1 characters, two commas, and a line feed between two entries.
    assert len(encode_end(usual, "g", Source.CLIENT)[0]) == 45_999
    largest = [DecisionEntry(2**63 - 1, "F" * 32, Decision.ROLLBACK, 2**63 - 1)] * 1_000
    assert len(encode_end(largest, "g", Source.CLIENT)[0]) <= sum(map(most_bytes, largest)) == 80_000
