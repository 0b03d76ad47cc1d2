"""Several messages in one transaction: refused ones, the record in Kafka, and the listener's message."""

from __future__ import annotations

import pytest

from tests.support.client_fakes import FakeRecord
from txbridge import Message, UsageError
from txbridge.client.checks.calls import parse_check
from txbridge.client.message import MessageExt, MessageLimits, check_limits
from txbridge.client.message_batch import joined, with_headers
from txbridge.core.half_message import check_headers, half_headers, parse_half
from txbridge.core.message_frames import parse_frames
from txbridge.core.names import Names

ID = "0123456789ABCDEF0123456789ABCDEF"
NAMES = Names()
MESSAGES = [
    Message("orders", b"1", b"k", [("trace", b"00")], timestamp=10**11, partition=3, check_immunity_time=90),
    Message("stock", None),
]


def test_they_become_one_half_message():
    several = joined(MESSAGES, NAMES)
    assert (several.topic, several.key, several.headers, several.partition) == ("orders", b"k", (), None)
    assert (several.timestamp, several.check_immunity_time, several.deliver_at) == (None, 90, None)
    first, second = parse_frames(several.value, 2)
    assert tuple(first) == ("orders", b"k", b"1", [("trace", b"00")], 3, 10**11, None)
    assert tuple(second) == ("stock", None, None, [], None, None, None)


def test_the_listener_sees_all_of_them_and_what_the_first_one_has():
    given = MessageExt.for_execution(joined(iter(MESSAGES), NAMES), ID, 2, 7, 1_000)
    assert given.messages == tuple(MESSAGES)
    assert (given.topic, given.key, given.value, given.partition) == ("orders", b"k", b"1", 3)
    assert (given.transaction_id, given.half_partition, given.half_offset, given.check_times) == (ID, 2, 7, 0)


def test_one_message_is_all_of_its_messages():
    given = MessageExt.for_execution(MESSAGES[0], ID, 2, 7, 1_000)
    assert MESSAGES[0].messages == (MESSAGES[0],)
    assert [(one.topic, one.value) for one in given.messages] == [("orders", b"1")]


def test_a_check_shows_all_of_them():
    several = joined(MESSAGES, NAMES)
    ours = half_headers(
        [], transaction_id=ID, group="g", real_topic="orders", immunity_seconds=90, messages=len(several.messages)
    )
    half = parse_half(7, 1_000, several.key, several.value, ours, NAMES)
    record = FakeRecord(0, 3, 9_000, several.key, several.value, check_headers(half, 0, 2, 40))
    message = parse_check(record, "g", NAMES, 4).message
    # The immunity time belongs to the transaction, not to a single message.
    assert message.messages == (Message("orders", b"1", b"k", [("trace", b"00")], 10**11, 3), Message("stock", None))
    assert (message.topic, message.value, message.headers) == ("orders", b"1", (("trace", b"00"),))
    assert (message.check_immunity_time, message.check_times, message.transaction_id) == (90, 2, ID)


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ([], "a transaction has 1 to 1000 messages, not 0"),
        ([Message("t", b"")] * 1_001, "a transaction has 1 to 1000 messages, not 1001"),
        (7, "a Message, or a list of them, is needed, not int"),
        ("text", "a Message, or a list of them, is needed, not str"),
        (["text"], "a Message is needed, not str"),
        ([Message("t", b""), Message("__t", b"")], "sending to system topic __t is forbidden"),
        ([Message("t", b"", headers={"TXB_V": "1"})], "header 'TXB_V' is reserved"),
        ([Message("t", b"", timestamp=0)], "timestamp must be between 1 and"),
        ([Message(f"t{number}", b"") for number in range(101)], "go to at most 100 real topics, not 101"),
        (
            [Message("t", b"", check_immunity_time=1), Message("t", b"", check_immunity_time=2)],
            "give check_immunity_time to one of them, or the same to all",
        ),
    ],
)
def test_what_can_not_be_sent_says_why(messages, complaint):
    with pytest.raises(UsageError, match=complaint):
        joined(messages, NAMES)


def test_together_they_may_be_as_large_as_one():
    several = joined([Message("t", b"x" * 400)] * 3, NAMES)
    check_limits(several, MessageLimits(value=1_300, immunity=100))
    with pytest.raises(
        UsageError, match="the messages of the transaction have together 1288 bytes, more than the 1287"
    ):
        check_limits(several, MessageLimits(value=1_287, immunity=100))


def test_each_gets_the_trace_of_the_transaction_unless_it_has_one():
    several = joined([Message("t", b"", headers={"traceparent": "00-own"}), Message("t", b"")], NAMES)
    traced = with_headers(several, [("traceparent", b"00-new"), ("tracestate", b"a")], unless="traceparent")
    assert traced.headers == (("traceparent", b"00-new"), ("tracestate", b"a"))
    assert [one.headers for one in traced.messages] == [
        (("traceparent", b"00-own"),),
        (("traceparent", b"00-new"), ("tracestate", b"a")),
    ]
