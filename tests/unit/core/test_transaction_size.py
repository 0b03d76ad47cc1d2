"""The size of Kafka transactions: smaller after a time-out, down to one message, and slowly larger again."""

from __future__ import annotations

from txbridge.core.plan.choice import Limits, TransactionSize

MIB = 1024 * 1024
LARGEST = Limits(10_000, 16 * MIB)


def test_at_first_and_while_all_is_well_it_is_the_largest():
    size = TransactionSize(LARGEST)
    size.got_through(10_000, 16 * MIB, 4.9)
    assert (size.limits, size.is_shrunk) == (LARGEST, False)


def test_a_quarter_of_what_did_not_get_through_is_tried_next():
    size = TransactionSize(LARGEST)
    size.timed_out(500, 10 * MIB, in_part=True)
    assert (size.limits, size.is_shrunk) == (Limits(125, 10 * MIB // 4), True)


def test_the_second_time_out_in_a_row_leads_down_to_one_message():
    size = TransactionSize(LARGEST)
    size.timed_out(500, 10 * MIB, in_part=True)
    assert not size.is_smallest
    size.timed_out(125, 2 * MIB, in_part=True)
    assert (size.limits, size.is_smallest) == (Limits(1, 1), True)


def test_time_outs_with_a_success_between_them_are_not_in_a_row():
    size = TransactionSize(LARGEST)
    size.timed_out(400, 8 * MIB, in_part=True)
    size.got_through(100, 2 * MIB, 3.0)
    size.timed_out(100, 2 * MIB, in_part=True)
    assert size.limits == Limits(25, MIB // 2)


def test_when_nothing_got_through_one_message_is_tried_next():
    size = TransactionSize(LARGEST)
    size.timed_out(500, 10 * MIB, in_part=False)
    assert size.is_smallest


def test_what_gets_through_quickly_may_be_half_as_large_again():
    size = TransactionSize(LARGEST)
    size.timed_out(400, 8 * MIB, in_part=True)
    size.got_through(100, 2 * MIB, 0.9)
    assert size.limits == Limits(150, 3 * MIB)


def test_what_takes_its_time_grows_carefully_and_what_nearly_timed_out_not_at_all():
    size = TransactionSize(LARGEST)
    size.timed_out(400, 8_000_000, in_part=True)
    size.got_through(100, 2_000_000, 2.4)
    assert size.limits == Limits(110, 2_200_000)
    size.got_through(110, 2_200_000, 2.5)
    assert size.limits == Limits(110, 2_200_000)


def test_a_few_small_messages_are_not_slow_for_their_size():
    # Otherwise a cluster that takes three seconds for any transaction would get one message at a time forever.
    size = TransactionSize(LARGEST)
    size.timed_out(1, 100, in_part=False)
    size.got_through(1, 1_000, 4.0)
    assert size.limits == Limits(2, 1_500)


def test_one_that_was_half_empty_proves_nothing():
    size = TransactionSize(LARGEST)
    size.timed_out(400, 8 * MIB, in_part=True)
    size.got_through(49, MIB - 1, 0.1)
    assert size.limits == Limits(100, 2 * MIB)


def test_from_one_message_it_grows_back_to_the_largest_within_thirty_transactions():
    size = TransactionSize(LARGEST)
    size.timed_out(1, 1, in_part=False)
    count = 0
    while size.is_shrunk:
        size.got_through(size.limits.entries, max(size.limits.bytes, 20_000), 0.01)
        count += 1
    assert 15 <= count <= 30
    assert size.limits == LARGEST
