"""Rows that wait behind one that cannot be sent, those that pass it, and when it is tried again."""

from __future__ import annotations

import pytest
from txbridge_sqlalchemy.outbox_messages import OutboxRow
from txbridge_sqlalchemy.relay_blocks import MOST_HEADS, Blocks, Excluded

from txbridge import Message, UsageError


def row(number, key: object = b"k", topic: str | None = "t", after=None):
    message = None if topic is None else Message(topic, b"v", key)
    return OutboxRow(number, number, message, None, f"{number:032}", number, 0, topic, key, after)


def free(blocks, *rows):
    return [one.id for one in blocks.without_blocked(rows)]


def test_later_rows_of_its_key_and_topic_wait_and_all_others_pass():
    blocks = Blocks()
    assert not blocks
    head = blocks.block_row(row(1), "too large", 10.0)
    assert (head.reason, head.due, bool(blocks), list(blocks)) == ("too large", 11.0, True, [head])
    others = [row(2, b"l"), row(3, None), row(4, topic="u"), row(5, topic=None), row(6, "k")]
    assert free(blocks, row(1), *others, row(7)) == [2, 3, 4, 5, 6]
    assert blocks.excluded == Excluded([], [("t", b"k")], [], 0)
    # Another refused row of the key is no head: the first one is still before it.
    assert blocks.block_row(row(7), "no such partition", 12.0) is None
    assert (head.row.id, head.reason, head.due) == (1, "no such partition", 11.0)
    blocks.lift_block(head)
    blocks.lift_block(head)
    assert not blocks
    assert free(blocks, row(7)) == [7]


@pytest.mark.parametrize("one", [row(1, None), row(1, topic=None)], ids=["no key", "no topic"])
def test_without_a_key_or_a_topic_it_waits_alone(one):
    blocks = Blocks()
    head = blocks.block_row(one, "x", 0.0)
    assert blocks.excluded == Excluded([], [], [1], 0)
    assert free(blocks, one, row(2), row(3, None), row(4, topic=None)) == [2, 3, 4]
    blocks.lift_block(head)
    assert not blocks


def test_a_whole_topic_waits_beside_a_key_of_it_and_each_is_lifted_by_itself():
    blocks = Blocks()
    of_key = blocks.block_row(row(1), "too large", 0.0)
    of_topic = blocks.block_row(row(2, b"l"), "no leader", 0.0, whole_topic=True)
    assert blocks.excluded == Excluded(["t"], [("t", b"k")], [], 0)
    assert free(blocks, row(3, b"m"), row(4, None), row(5, topic="u")) == [5]
    # Each attempt would take as long as the topic needs to say nothing.
    assert blocks.list_due(1.0) == [of_topic]
    blocks.lift_block(of_topic)
    assert blocks.list_due(1.0) == [of_key]
    assert free(blocks, row(3, b"m"), row(4, None), row(5)) == [3, 4]
    blocks.lift_block(of_key)
    assert not blocks


def test_a_head_is_tried_less_and_less_often_but_within_a_minute():
    blocks, now, pauses = Blocks(), 100.0, []
    head = blocks.block_row(row(1), "x", now)
    for _ in range(9):
        assert blocks.list_due(head.due - 0.001) == []
        assert blocks.list_due(head.due) == [head]
        pauses.append(head.due - now)
        now = head.due
        blocks.postpone_head(head, now)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_rows_that_wait_for_a_worker_are_left_out_for_a_second():
    blocks, ends = Blocks(), ()
    blocks.hold_stored(5.0)
    assert blocks.excluded == Excluded([], [], [], 1)
    # A later row of its key waits, too.
    assert free(blocks, row(1, after=ends), row(2), row(3, b"l"), row(4, None)) == [3, 4]
    blocks.release_stored(5.9)
    assert free(blocks, row(1, after=ends)) == []
    blocks.release_stored(6.0)
    assert not blocks
    assert free(blocks, row(1, after=ends)) == [1]


def test_ten_thousand_heads_and_then_the_outbox_stands_still():
    blocks = Blocks()
    for number in range(MOST_HEADS):
        assert blocks.block_row(row(number, b"%d" % number), "x", 0.0) is not None
    assert free(blocks, row(0, b"9999"), row(1, b"10000")) == [1]
    assert len(blocks.excluded.keys) == MOST_HEADS
    # No new head.
    assert blocks.block_row(row(0, b"0"), "y", 0.0) is None
    with pytest.raises(UsageError, match="more than 10000 rows cannot be sent: correct the description of the table"):
        blocks.block_row(row(1, b"10000"), "x", 0.0)
