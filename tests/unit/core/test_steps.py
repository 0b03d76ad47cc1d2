"""P12 and P13: messages with different times are delivered in steps, each as a whole and at its time."""

from __future__ import annotations

from tests.support.partition_builder import COMMIT, UNKNOWN, Partition, end, entry, id_of, offsets
from txbridge.core.decision_record import Source
from txbridge.core.half_entry import HalfEntry
from txbridge.core.half_message import half_headers, parse_half
from txbridge.core.message_frames import FramedMessage, encode_frames
from txbridge.core.names import Names
from txbridge.core.offset_topic import ParkedEntries
from txbridge.core.plan.draft import Draft
from txbridge.core.states import TransactionState

NOW, SOON, LATE = 2_000, 20_000, 90_000
SCHEDULED, HELD = TransactionState.SCHEDULED, TransactionState.HELD


def several(offset: int, *times: int | None, topics: str = "orders stock bills", partition: int | None = None):
    """A half message with messages of these times, for these topics."""
    messages = [
        FramedMessage(topic, b"k", b"%d" % number, [], partition, None, time)
        for number, (topic, time) in enumerate(zip(topics.split(), times, strict=False), 1)
    ]
    ours = half_headers(
        [], transaction_id=id_of(offset), group="orders", real_topic=messages[0].topic, messages=len(messages)
    )
    return parse_half(offset, 1_000, b"k", encode_frames(messages), ours, Names())


def commit(offset: int, *half_offsets: int):
    return end(offset, *[entry(one, COMMIT) for one in half_offsets])


def abandon(offset: int, half_offset: int):
    return end(offset, entry(half_offset, UNKNOWN), source=Source.ABANDON)


def visible(draft: Draft, partition: Partition) -> list[tuple[int, str, bytes]]:
    """Half offset, topic and number of each delivered message."""
    copies = [copy for part in draft.parts for copy in part.copies(0, partition.halves)]
    return [(copy[0], copy[1], dict(copy[-1])["TXB_MESSAGE"]) for copy in copies]


def taken_over(before: Partition) -> Partition:
    """Another owner, with the state of all open messages from OFFSET, and HALF as it is."""
    after = Partition(watermark=before.queue.watermark, next_end=before.queue.next_end)
    decoded = [HalfEntry.decode(one.offset, one.encode(0)) for one in before.open_entries if one.parked]
    after.queue.restore_parked(ParkedEntries(decoded))
    after.halves = before.halves
    return after


def test_a_step_counts_with_its_own_size_and_number_of_messages():
    # A hundred messages each, of which one is due.
    times = (None, *[LATE] * 99)
    partition = Partition().read(*[several(offset, *times, topics="orders " * 100) for offset in range(4)])
    partition.max_entries = 3
    draft = partition.step(NOW, commit(4, 0, 1, 2, 3))
    # Key, value and headers of one are 2 bytes.
    assert (offsets(draft.deliver), draft.bytes, draft.more) == ([0, 1, 2], 6, 0)
    assert offsets(partition.step(NOW, commit(4, 0, 1, 2, 3)).deliver) == [3]


def test_what_the_memory_has_no_room_for_comes_with_the_next_transaction():
    partition = Partition().read(*[several(offset, None, SOON) for offset in range(4)])
    partition.step(NOW, commit(4, 0, 1, 2, 3))
    # Room for the frames of one, and for the first that does not fit.
    partition.max_bytes = partition.halves[0].size - 1
    assert [offsets(partition.step(SOON).deliver) for _ in range(4)] == [[0], [1], [2], [3]]
    assert partition.step(LATE).is_empty


def test_frames_that_are_gone_are_for_the_delivery_to_refuse():
    partition = Partition().read(several(0, None, SOON, LATE))
    partition.step(NOW, commit(4, 0))
    after = taken_over(partition)
    after.halves = {}
    # It is drafted with all that is left, and the shell, which misses the body, holds it.
    draft = after.draft(SOON)
    assert [(one.delivered, one.messages) for one in draft.deliver] == [(1, 3)]
    draft.abandon()
    after.obstacles |= dict.fromkeys(("orders", "stock", "bills"), "gone")
    assert [(one.state, one.delivered, one.deliver_at) for one in after.step(SOON).held] == [(HELD, 1, SOON)]


def test_p13_a_clock_that_goes_back_does_not_undo_what_was_due():
    partition = Partition().read(several(0, SOON, LATE))
    partition.obstacles["orders"] = "no such topic"
    partition.step(NOW, commit(4, 0))
    partition.step(SOON)
    partition.obstacles.clear()
    draft = partition.draft(SOON + 5_000, due=SOON + 2_000)
    assert visible(draft, partition) == [(0, "orders", b"1/2")]


def test_a_time_beyond_the_longest_delay_is_refused_for_each_message():
    partition = Partition()
    longest = 1_000 + 72 * 3_600_000 + 60_000
    assert partition.queue.why_not_read(several(0, None, longest)) is None
    assert "and timer_max_delay is" in partition.queue.why_not_read(several(0, None, longest + 1, 5))


def test_a_million_of_them_are_rows():
    partition = Partition().read(*[several(offset, None, SOON, LATE) for offset in range(3)])
    partition.step(NOW, commit(4, 0, 1, 2))
    assert [one.is_plain for one in partition.open_entries] == [True] * 3
