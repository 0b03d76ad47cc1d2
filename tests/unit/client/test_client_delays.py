"""Delayed messages: the ways to name a time, the refused ones, and the headers of the half message."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone, tzinfo

import pytest

from tests.support.client_fakes import FakeRecord, working_kafka
from tests.support.listeners import Answers
from txbridge import AsyncTransactionProducer, Message, MessageExt, TransactionProducer, UsageError
from txbridge.client import message as message_module
from txbridge.client.checks.calls import parse_check
from txbridge.client.message import MessageLimits, check_limits, check_message
from txbridge.client.message_batch import joined, with_headers
from txbridge.core.half_message import check_headers, half_headers, parse_half
from txbridge.core.message_frames import parse_frames
from txbridge.core.names import Names

SETTINGS = {"bootstrap.servers": "127.0.0.1:1"}
NOW = 1_700_000_000_000
HOUR = 3_600_000


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    monkeypatch.setattr(message_module, "now_ms", lambda: NOW)


@pytest.mark.parametrize(
    ("time", "milliseconds"),
    [
        ({"deliver_at": datetime(2023, 11, 14, 23, 13, 20, tzinfo=UTC)}, NOW + HOUR),
        ({"deliver_at": datetime(2023, 11, 15, 1, 13, 20, tzinfo=timezone(timedelta(hours=2)))}, NOW + HOUR),
        # Never earlier than it says.
        ({"deliver_at": datetime(2023, 11, 14, 23, 13, 20, 1, tzinfo=UTC)}, NOW + HOUR + 1),
        ({"deliver_at": NOW + 5}, NOW + 5),
        ({"deliver_at": 0}, 0),
        ({"delay": timedelta(hours=1)}, NOW + HOUR),
        ({"delay": 90}, NOW + 90_000),
        ({"delay": 0.0005}, NOW + 1),
        ({"delay": 0}, NOW),
        ({}, None),
    ],
)
def test_a_message_names_a_time(time, milliseconds):
    message = Message("orders", b"", **time)
    assert message.deliver_at == milliseconds
    check_message(message, Names())
    check_limits(message, MessageLimits(1_000, 1_000))


class Unsaid(tzinfo):
    """A zone without an offset: Python takes such a time for one of this machine's zone."""

    def utcoffset(self, _):
        return None


@pytest.mark.parametrize(
    ("time", "complaint"),
    [
        ({"deliver_at": datetime(2023, 11, 14)}, "deliver_at has no time zone: give one, as in"),  # noqa: DTZ001
        ({"deliver_at": datetime(2023, 11, 14, tzinfo=Unsaid())}, "deliver_at has no time zone"),
        ({"deliver_at": datetime(2023, 11, 14, tzinfo=tzinfo())}, "deliver_at has no time zone"),
        ({"deliver_at": 1.5}, "deliver_at must be a whole number or None, not float"),
        ({"deliver_at": "tomorrow"}, "deliver_at must be a whole number or None, not str"),
        ({"delay": -1}, "delay must be a time from now on, 0 or more, not -1"),
        ({"delay": timedelta(seconds=-1)}, "delay must be a time from now on"),
        ({"delay": float("nan")}, "delay must be a time from now on"),
        ({"delay": float("inf")}, "delay must be a time from now on"),
        ({"delay": True}, "delay must be a timedelta or seconds, not bool"),
        ({"delay": "1h"}, "delay must be a timedelta or seconds, not str"),
        ({"delay": 1, "deliver_at": NOW}, "deliver_at and delay say the same: give one of them"),
    ],
)
def test_what_is_no_time_is_refused(time, complaint):
    with pytest.raises(UsageError, match=complaint):
        Message("orders", b"", **time)


def test_a_time_before_1970_is_refused_when_it_is_sent():
    with pytest.raises(UsageError, match="deliver_at must be between 0 and"):
        check_message(Message("orders", b"", deliver_at=-1), Names())


def test_a_delay_beyond_the_longest_is_refused():
    limits = MessageLimits(1_000, 1_000)
    check_limits(Message("orders", b"", delay=timedelta(hours=72)), limits)
    with pytest.raises(UsageError, match=r"delivered in 3d.*longest delay is 3d.*timer_max_delay"):
        check_limits(Message("orders", b"", deliver_at=NOW + 72 * HOUR + 1), limits)
    check_limits(Message("orders", b"", delay=timedelta(days=7)), MessageLimits(1_000, 1_000, 7 * 24 * HOUR))


def test_tracing_keeps_the_time():
    message = Message("orders", b"", b"k", timestamp=7, partition=1, check_immunity_time=5, delay=1)
    assert with_headers(message, [("traceparent", b"x")], "traceparent") == Message(
        "orders", b"", b"k", [("traceparent", b"x")], 7, 1, 5, NOW + 1_000
    )


class OrderMessage(Message):
    """A message of an application, with arguments of its own."""

    def __init__(self, number):
        super().__init__("orders", str(number))


@pytest.mark.parametrize(
    "message",
    [OrderMessage(7), MessageExt.for_execution(Message("orders", "7"), "0" * 32, 0, 1, NOW)],
    ids=["subclass", "forwarded"],
)
def test_tracing_takes_every_kind_of_message(message):
    assert with_headers(message, [("traceparent", b"x")], "traceparent") == Message(
        "orders", b"7", headers=[("traceparent", b"x")]
    )


def half_headers_of(kafka):
    [(_, _, _, headers, _)] = [record for wire in kafka.half_wires() for record in wire.records]
    return dict(headers)


def test_a_message_in_a_transaction_carries_its_time_and_its_listener_sees_it(monkeypatch):
    kafka, listener = working_kafka(monkeypatch), Answers()
    with TransactionProducer("orders", listener, SETTINGS) as producer:
        producer.send_message_in_transaction(Message("orders", b"v", deliver_at=NOW + 7))
    assert half_headers_of(kafka)["TXB_DELIVER_AT"] == b"1700000000007"
    assert [message.deliver_at for message, _ in listener.executed] == [NOW + 7]


#: Messages of a transaction, the header that states one time for all of them, and the times in the frames.
SEVERAL = [
    ((None, NOW + 7), None, [None, NOW + 7]),
    ((NOW + 7, NOW + 7), b"1700000000007", [None, None]),
    ((NOW + 7, NOW + 8), None, [NOW + 7, NOW + 8]),
    # 0 is no time.
    ((0, None), None, [None, None]),
    ((0, NOW + 7), None, [None, NOW + 7]),
]


def _messages(times):
    first, second = times
    return [Message("orders", b"1", b"k", deliver_at=first), Message("stock", b"2", deliver_at=second)]


async def _send_on_a_loop(listener, messages):
    async with AsyncTransactionProducer("orders", listener, SETTINGS) as producer:
        await producer.send_message_in_transaction(messages)


def _send(listener, messages):
    with TransactionProducer("orders", listener, SETTINGS) as producer:
        producer.send_message_in_transaction(messages)


def _submit(listener, messages):
    with TransactionProducer("orders", listener, SETTINGS) as producer:
        producer.submit_message_in_transaction(messages).result(60)


@pytest.mark.parametrize("send", [_send, _submit, lambda *given: asyncio.run(_send_on_a_loop(*given))])
@pytest.mark.parametrize(("times", "header", "in_frames"), SEVERAL)
def test_each_of_several_messages_has_its_own_time(monkeypatch, times, header, in_frames, send):
    kafka, listener = working_kafka(monkeypatch), Answers()
    send(listener, _messages(times))
    [record] = [record for wire in kafka.half_wires() for record in wire.records]
    headers = dict(record[3])
    assert (headers["TXB_MESSAGES"], headers.get("TXB_DELIVER_AT")) == (b"2", header)
    assert [one.deliver_at for one in parse_frames(record[1], 2)] == in_frames
    [(shown, _)] = listener.executed
    assert (shown.deliver_at, [one.deliver_at for one in shown.messages]) == (times[0], list(times))


@pytest.mark.parametrize(("times", "header", "in_frames"), SEVERAL)
def test_a_check_of_several_messages_shows_their_times(times, header, in_frames):
    several, given = joined(_messages(times), Names()), "0123456789ABCDEF0123456789ABCDEF"
    ours = half_headers(
        [], transaction_id=given, group="g", real_topic="orders", messages=2, deliver_at=several.deliver_at
    )
    half = parse_half(7, 1_000, several.key, several.value, ours, Names())
    record = FakeRecord(0, 3, 9_000, several.key, several.value, check_headers(half, 0, 2, 40))
    message = parse_check(record, "g", Names(), 4).message
    assert [one.value for one in message.messages] == [b"1", b"2"]
    assert [one.deliver_at for one in message.messages] == [time or None for time in times]
    assert message.deliver_at == (times[0] or None)


def test_several_messages_may_not_wait_longer_than_one():
    several = joined([Message("orders", b"1"), Message("stock", b"2", deliver_at=NOW + 72 * HOUR + 1)], Names())
    with pytest.raises(UsageError, match="timer_max_delay"):
        check_limits(several, MessageLimits(1_000, 1_000))


def test_one_without_a_time_has_no_header(monkeypatch):
    kafka = working_kafka(monkeypatch)
    with TransactionProducer("orders", Answers(), SETTINGS) as producer:
        producer.send_message_in_transaction(Message("orders", b"v"))
    assert "TXB_DELIVER_AT" not in half_headers_of(kafka)


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan"), 259_200_000])
@pytest.mark.parametrize("api", [TransactionProducer, AsyncTransactionProducer])
def test_the_option_is_checked(api, seconds):
    with pytest.raises(UsageError, match="timer_max_delay must be seconds, more than 0"):
        api("orders", Answers(), SETTINGS, timer_max_delay=seconds)


def test_the_option_and_the_retention_of_half_bound_the_delay(monkeypatch):
    working_kafka(monkeypatch)
    with TransactionProducer("orders", Answers(), SETTINGS, timer_max_delay=3e7) as producer:
        producer.send_message_in_transaction(Message("orders", b"v", delay=timedelta(days=7)))
        with pytest.raises(UsageError, match="longest delay is 7d"):
            producer.send_message_in_transaction(Message("orders", b"v", delay=timedelta(days=7, seconds=1)))
