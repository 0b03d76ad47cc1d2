"""P13: a message that names a time of delivery waits for it when it is committed; delivered once, and never early."""

from __future__ import annotations

import pytest

from tests.support.partition_builder import COMMIT, POLICY, Partition, end, entry, half, id_of, offsets, resume
from txbridge.core.half_entry import HalfEntry
from txbridge.core.half_message import HalfMessage, half_headers, parse_half
from txbridge.core.headers import MalformedRecordError
from txbridge.core.names import Names
from txbridge.core.offset_topic import ParkedEntries
from txbridge.core.states import TransactionState

NOW = 2_000
DUE = 90_000


def taken_over(before: Partition) -> Partition:
    """Another owner, with the state of all open messages from OFFSET."""
    after = Partition(watermark=before.queue.watermark, next_end=before.queue.next_end)
    after.queue.restore_parked(ParkedEntries(one for one in before.open_entries if one.parked))
    return after


@pytest.mark.parametrize("deliver_at", [0, NOW - 1, NOW])
def test_p13_a_time_that_has_passed_is_none(deliver_at):
    partition = Partition().prepare(0, deliver_at=deliver_at)
    assert offsets(partition.step(NOW, end(0, entry(0, COMMIT))).deliver) == [0]


def test_those_without_room_stay_scheduled_and_go_before_later_ones():
    partition = Partition()
    partition.prepare(0, deliver_at=DUE, size=300).prepare(1, 2, deliver_at=DUE + 1, size=150)
    partition.step(NOW, end(0, *[entry(offset, COMMIT) for offset in range(3)]))
    partition.max_bytes = 350
    draft = partition.step(DUE + 1)
    assert (offsets(draft.deliver), draft.left_out, draft.changed) == ([0], True, [])
    # As many as are looked at: there may be more.
    partition.max_entries = 1
    first, second = partition.step(DUE + 1), partition.step(DUE + 1)
    assert (offsets(first.deliver), first.more_due) == ([1], True)
    assert (offsets(second.deliver), partition.step(DUE + 1).more_due) == ([2], False)


def test_a_discarded_one_that_is_resumed_keeps_its_time():
    partition = Partition().prepare(0, deliver_at=400_000)
    for now in (7_000, 37_000, 67_000, 97_000):
        draft = partition.draft(now)
        for one in draft.discards:
            draft.note_discarded(one.offset, 0, 12)
        partition.commit(draft)
    assert partition.queue.entry(0).state is TransactionState.DISCARDED
    partition.step(100_000, resume(0, 0))
    partition.step(101_000, end(1, entry(0, COMMIT)))
    after = taken_over(partition)
    assert after.step(399_999).deliver == []
    assert offsets(after.step(400_000).deliver) == [0]


def test_p13_it_is_due_by_the_earlier_of_two_clocks():
    # The brokers' clock and the worker's agree about `due`. `now` may be later.
    partition = Partition().prepare(0, deliver_at=DUE)
    draft = partition.draft(DUE + 70_000, end(0, entry(0, COMMIT)), due=DUE - 1)
    assert (draft.deliver, offsets(draft.scheduled)) == ([], [0])


def test_a_time_beyond_the_longest_delay_is_refused_with_a_minute_of_leeway():
    partition = Partition()
    longest = 1_000 + POLICY.longest_delay + 60_000
    assert partition.queue.why_not_read(half(0, deliver_at=longest)) is None
    why = partition.queue.why_not_read(half(0, deliver_at=longest + 1))
    assert why == ("it is to be delivered 259260.001 s after its birth, and timer_max_delay is 259200 s")
    assert partition.queue.why_not_read(half(0)) is None
    # One that was taken in when more was allowed stays.
    partition.prepare(0, deliver_at=10**12)
    assert partition.queue.why_not_read(half(0, deliver_at=10**12)) is None


def record_of(*more: tuple[str, bytes | None], deliver_at: int | None = DUE) -> HalfMessage:
    headers = half_headers((("colour", b"red"),), transaction_id=id_of(5), group="orders", real_topic="orders.placed")
    if deliver_at is not None:
        headers.append(("TXB_DELIVER_AT", b"%d" % deliver_at))
    return parse_half(5, 1_000, b"key", b"value", [*headers, *more], Names())


def test_a_header_without_a_value_is_absent():
    assert record_of(("TXB_DELIVER_AT", None), deliver_at=None).deliver_at is None


@pytest.mark.parametrize("text", [b"", b"soon", b"-1", b"1.5", b"9" * 20])
def test_a_time_that_is_no_number_is_malformed(text):
    with pytest.raises(MalformedRecordError, match="TXB_DELIVER_AT"):
        record_of(("TXB_DELIVER_AT", text), deliver_at=None)


SCHEDULED_ENTRY = (
    b'{"state":"scheduled","id":"%s","group":"orders","topic":"orders.placed","born":1000,"size":100,"checks":0,'
    b'"next":90000,"end":5,"deliver":90000,"decision":8,"decided":4}' % id_of(0).encode()
)


def test_a_parked_entry_tells_the_time():
    partition = Partition().prepare(0, deliver_at=DUE)
    draft = partition.step(NOW, end(4, entry(0, COMMIT)))
    assert draft.changed[0].encode(5).replace(b": ", b":").replace(b", ", b",") == SCHEDULED_ENTRY
    assert HalfEntry.decode(0, SCHEDULED_ENTRY) == draft.changed[0]
    assert HalfEntry.decode(0, SCHEDULED_ENTRY).is_plain


@pytest.mark.parametrize("name", [b'"deliver":90000,', b',"decided":4'])
def test_a_scheduled_entry_without_its_time_or_decision_is_malformed(name):
    with pytest.raises(MalformedRecordError):
        HalfEntry.decode(0, SCHEDULED_ENTRY.replace(name, b""))
