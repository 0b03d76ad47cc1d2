"""Several messages in one transaction: frames as docs/protocol.md states them, byte for byte, and delivered records."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.support.partition_builder import COMMIT, Partition, end, entry, offsets
from txbridge.core.check_policy import CheckPolicy
from txbridge.core.decision_record import DecisionRecord
from txbridge.core.fresh_halves import read_plain
from txbridge.core.half_message import HalfMessage, half_headers, parse_half
from txbridge.core.headers import MalformedRecordError
from txbridge.core.message_frames import FramedMessage, encode_frames, parse_frames
from txbridge.core.names import Names
from txbridge.core.plan.choice import Limits

ID = "0123456789ABCDEF0123456789ABCDEF"
#: Two messages: one with everything, one with nothing but a topic.
FIRST = bytes.fromhex(
    "01"
    "00000006 6f7264657273"  # orders
    "00000003 0000018bcfe5687b"  # partition 3, timestamp 1700000000123
    "00000002 6b31"  # key k1
    "00000002 7631"  # value v1
    "00000002"
    "00000005 7472616365 00000002 3030"  # trace: 00
    "00000005 656d707479 ffffffff"  # empty: null
)
SECOND = bytes.fromhex("00000005 73746f636b ffffffff ffffffffffffffff ffffffff ffffffff 00000000")
#: The same, where the first one has a time of delivery, 1700000100000.
TIME = bytes.fromhex("0000018bcfe6eea0")
TIMED = bytes.fromhex(
    "02"
    "00000006 6f7264657273"
    "00000003 0000018bcfe5687b 0000018bcfe6eea0"
    "00000002 6b31"
    "00000002 7631"
    "00000002"
    "00000005 7472616365 00000002 3030"
    "00000005 656d707479 ffffffff"
    "00000005 73746f636b ffffffff ffffffffffffffff ffffffffffffffff ffffffff ffffffff 00000000"
)


def half_of(value: bytes | None, key: bytes | None = b"k1", topic: str = "orders", count: object = 2, **more: bytes):
    headers = half_headers([], transaction_id=ID, group="g", real_topic=topic)
    headers += [("TXB_MESSAGES", str(count).encode()), *more.items()]
    return parse_half(5, 1_000, key, value, headers, Names())


def test_a_half_message_knows_the_first_and_the_last_time():
    assert (half_of(FIRST + SECOND).deliver_at, half_of(FIRST + SECOND).last_time) == (None, None)
    half = half_of(TIMED)
    assert (half.deliver_at, half.last_time) == (None, 1_700_000_100_000)
    second = TIMED[:-20] + (9).to_bytes(8, "big") + TIMED[-12:]
    assert (half_of(second).deliver_at, half_of(second).last_time) == (9, 1_700_000_100_000)
    # Another client may write equal times. They are one.
    equal = TIMED[:-20] + TIME + TIMED[-12:]
    assert (half_of(equal).deliver_at, half_of(equal).last_time) == (1_700_000_100_000, None)
    with pytest.raises(MalformedRecordError, match="TXB_DELIVER_AT is there, and each message has its own time"):
        half_of(TIMED, TXB_DELIVER_AT=b"9")


def test_a_timestamp_of_zero_counts_as_absent():
    value = FIRST.replace(bytes.fromhex("0000018bcfe5687b"), bytes(8))
    assert parse_frames(value, 1)[0].timestamp is None


@pytest.mark.parametrize(
    ("value", "count", "why"),
    [
        (None, 1, "the value does not begin with byte 1"),
        (b"", 1, "the value does not begin with byte 1"),
        (b"\x03" + FIRST[1:], 1, "the value does not begin with byte 1 or 2"),
        # With the other layout, lengths stand where others are.
        (b"\x02" + FIRST[1:], 1, "the message frames end before 1 of them are complete"),
        (TIMED.replace(TIME, bytes(8)), 2, "the time of delivery of message 1 is 0"),
        (TIMED.replace(TIME, b"\xff" * 7 + b"\xfe"), 2, "the time of delivery of message 1 is -2"),
        (FIRST + SECOND, 3, "the message frames end before 3 of them are complete"),
        ((FIRST + SECOND)[:-1], 2, "the message frames end before 2 of them are complete"),
        (FIRST + SECOND, 1, "33 bytes follow the last of 1 message frames"),
        (FIRST, 0, "TXB_MESSAGES is not 1 to 1000: 0"),
        (FIRST, 1001, "TXB_MESSAGES is not 1 to 1000: 1001"),
        (FIRST.replace(b"orders", b"ord ers"[:6]), 1, "message 1 has no topic that it may go to"),
        (FIRST.replace(b"orders", b"__orde"), 1, "message 1 has no topic that it may go to"),
        (FIRST.replace(b"trace", b"TXB_X"), 1, "message 1 has a header that it must not have"),
        (FIRST.replace(b"trace", b"tr\0ce"), 1, "message 1 has a header that it must not have"),
        (FIRST.replace(b"trace", b"tr\xffce"), 1, "message 1 has a header that it must not have"),
        (b"\x01\xff\xff\xff\xff" + FIRST[5:], 1, "the length of the topic of message 1 is -1"),
        (FIRST.replace(b"\0\0\0\2k1", b"\xff\xff\xff\xfek1"), 1, "the length of the key of message 1 is -2"),
        (FIRST.replace(b"\0\0\0\5trace", b"\xff\xff\xff\xfftrace"), 1, "the length of the header name of message 1 is"),
        (b"\x01" + SECOND[:9] + b"\xff\xff\xff\xfe" + SECOND[13:], 1, "partition or timestamp of message 1 is below"),
    ],
)
def test_what_is_malformed_says_why(value, count, why):
    with pytest.raises(MalformedRecordError, match=why):
        parse_frames(value, count)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"key": b"other"}, "REAL_TOPIC or the key is not that of the first message"),
        ({"topic": "stock"}, "REAL_TOPIC or the key is not that of the first message"),
        ({"REAL_QID": b"1"}, "header REAL_QID is there beside TXB_MESSAGES: each message has its own"),
        ({"BORN_TIMESTAMP": b"1"}, "header BORN_TIMESTAMP is there beside TXB_MESSAGES: each message has its own"),
        ({"count": "two"}, "header TXB_MESSAGES is not a whole number"),
    ],
)
def test_a_half_message_that_contradicts_its_frames_is_malformed(changed, why):
    with pytest.raises(MalformedRecordError, match=why):
        half_of(FIRST + SECOND, **changed)


def test_a_hundred_real_topics_are_enough():
    def of(number: int) -> HalfMessage:
        messages = [FramedMessage(f"topic-{index}", None, None, []) for index in range(number)]
        return half_of(encode_frames(messages), None, "topic-0", number)

    assert of(100).real_topic.count(",") == 99
    with pytest.raises(MalformedRecordError, match="the messages go to 101 real topics, more than 100"):
        of(101)


def test_a_worker_that_does_not_know_a_header_of_ours_sets_the_message_aside():
    headers = half_headers([], transaction_id=ID, group="g", real_topic="orders")
    with pytest.raises(MalformedRecordError, match="header 'TXB_MESSAGES_2' is reserved"):
        parse_half(5, 1_000, b"k", b"v", [*headers, ("TXB_MESSAGES_2", b"2")], Names())


@pytest.mark.parametrize("at_the_end", [True, False])
def test_several_are_never_taken_for_a_plain_message(at_the_end):
    plain = half_headers([], transaction_id=ID, group="g", real_topic="orders")
    more = [("TXB_MESSAGES", b"2")]
    headers = plain + more if at_the_end else more + plain
    assert read_plain(5, [1_000], [b"k1"], [FIRST + SECOND], [headers], "") is None
    assert parse_half(5, 1_000, b"k1", FIRST + SECOND, headers, Names()).messages == 2


@pytest.mark.parametrize("frames", [FIRST + SECOND, FIRST[:1] + SECOND + FIRST[1:]])
def test_several_without_options_are_read_as_header_by_header(frames):
    """Headers in our client's order are read by position, and in another order, or with an option, by name."""
    key, topic = (b"k1", "orders") if frames.startswith(FIRST) else (None, "stock")
    quick = half_of(frames, key, topic)
    by_name = half_of(frames, key, topic, CHECK_IMMUNITY_TIME_IN_SECONDS=b"60")
    assert quick._replace(headers=by_name.headers, size=by_name.size, immunity="60") == by_name
    assert quick.size == sum(len(name) + len(text) for name, text in quick.headers) + len(key or b"") + len(frames)
    assert quick.framed == by_name.framed


def test_whether_any_of_several_names_a_partition_is_known_without_its_frames():
    assert half_of(FIRST + SECOND).names_partitions
    assert not half_of(b"\x01" + SECOND, None, "stock", 1).names_partitions
    assert not half_of(b"\x01" + SECOND, None, "stock", 1, TXB_DELIVER_AT=b"7").names_partitions
    assert half_of(b"\x01" + SECOND + FIRST[1:], None, "stock", 2, TXB_DELIVER_AT=b"7").names_partitions


def partition_of(*messages: int) -> Partition:
    """Half messages at 0, 1, ... with these numbers of messages, which is all that an entry knows of them."""
    partition = Partition(CheckPolicy())
    for offset, count in enumerate(messages):
        frames = [FramedMessage("orders", None, b"x" * 100, []) for _ in range(count)]
        headers = half_headers([], transaction_id=ID, group="orders", real_topic="orders", messages=count)
        partition.queue.read_half(parse_half(offset, 1_000, None, encode_frames(frames), headers, Names()))
    return partition


def end_of(offset: int, half_offsets: Iterable[int]) -> DecisionRecord:
    return end(offset, *[entry(one, COMMIT, ID) for one in half_offsets])


@pytest.mark.parametrize(
    ("messages", "limits", "parts"),
    [
        # As many half messages as fit, counted in messages.
        ((3, 3, 3, 3), Limits(entries=7), [2, 4]),
        # A half message that is larger than the limit goes alone.
        ((1, 9, 1), Limits(entries=4), [1, 2, 3]),
        ((9, 1), Limits(entries=1), [1, 2]),
        ((5, 5, 5), Limits(bytes=2_000), [2, 3]),
        ((1_000, 1_000), Limits(entries=1_500), [1, 2]),
    ],
)
@pytest.mark.parametrize("is_one_record", [True, False])
def test_a_cut_never_divides_the_messages_of_one_transaction(messages, limits, parts, is_one_record):
    partition, count = partition_of(*messages), len(messages)
    partition.max_entries, partition.max_bytes = limits.entries, limits.bytes
    records = [end_of(0, range(count))] if is_one_record else [end_of(number, [number]) for number in range(count)]
    applied = 0
    for part in parts:
        draft = partition.step(2_000, *records)
        assert offsets(draft.deliver) == list(range(applied, part))
        assert len(draft.deliver) + draft.more == sum(messages[applied:part])
        applied = part


def test_held_transactions_are_retried_as_many_messages_at_a_time_as_may_be():
    partition = partition_of(4, 4, 4)
    partition.obstacles["orders"] = "no such topic"
    partition.step(2_000, end_of(0, range(3)))
    partition.obstacles.clear()
    partition.max_entries = 9
    again = partition.step(60_000)
    assert (offsets(again.deliver), again.left_out) == ([0, 1], True)
