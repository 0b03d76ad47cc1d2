"""The examples of the protocol: txbridge writes and reads them, to the byte."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.client_fakes import FakeRecord
from tests.support.partition_builder import Partition, end
from txbridge.client.checks.calls import parse_check
from txbridge.core.checkpoint import offset_headers
from txbridge.core.decision_record import Decision, DecisionEntry, Source, encode_end, parse_end
from txbridge.core.half_message import (
    HalfMessage,
    Reply,
    check_headers,
    delivered_copies,
    half_headers,
    parse_half,
    parse_reply,
    reply_headers,
)
from txbridge.core.message_frames import FramedMessage, encode_frames
from txbridge.core.names import Names
from txbridge.core.states import TransactionState
from txbridge.topics.plan import PlanOptions, wanted_topics

PAGE = Path(__file__).parents[2] / "golden" / "protocol_examples.md"
NAMES = Names()
FIRST, SECOND = "0123456789ABCDEF0123456789ABCDEF", "FEDCBA9876543210FEDCBA9876543210"
BORN = 1_700_000_000_000
ORDER = FramedMessage(
    "orders.placed", b"order-42", b'{"order": 42}', [("trace", b"00-abc-01")], timestamp=1_700_000_000_123
)


class Example:
    """One block of the page, read by the rules above the blocks."""

    def __init__(self, name: str) -> None:
        (block,) = re.findall(rf"^```text {name}\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
        assert block.isascii()
        told: dict[str, list[bytes]] = {}
        for line in block.encode().splitlines():
            word, _, rest = line.partition(b" ")
            told.setdefault(word.decode(), []).append(rest)
        assert set(told) <= {"topic", "partition", "key", "value", "hex", "header"}
        self.topic = told["topic"][0].decode()
        self.partition = int(told["partition"][0]) if "partition" in told else None
        self.key = told["key"][0] if "key" in told else None
        # A null value has no line. `value` is not looked at then.
        self.value = bytes.fromhex(b"".join(told.get("hex", [])).decode())
        assert "value" not in told or self.value == b"\n".join(told["value"])
        self.headers = [(line.partition(b" ")[0].decode(), line.partition(b" ")[2]) for line in told["header"]]


def read_half() -> HalfMessage:
    page = Example("half")
    return parse_half(7, BORN, page.key, page.value, page.headers, NAMES)


def test_the_half_message_is_written_and_read_like_that() -> None:
    page, half = Example("half"), read_half()
    assert (page.topic, page.partition) == (NAMES.half, 2)
    written = {"transaction_id": FIRST, "group": "orders", "real_topic": "orders.placed"}
    options = {"immunity_seconds": 90, "user_timestamp": 1_700_000_000_123}
    assert half_headers([("trace", b"00-abc-01")], **written, **options) == page.headers
    assert (half.key, half.value) == (b"order-42", b'{"order": 42}')
    assert {name: getattr(half, name) for name in written} == written
    assert (half.immunity, half.user_timestamp, half.real_partition) == ("90", 1_700_000_000_123, None)


@pytest.mark.parametrize(
    ("name", "source", "client_id", "entries"),
    [
        (
            "end",
            Source.CLIENT,
            "host-1",
            [DecisionEntry(7, FIRST, Decision.COMMIT), DecisionEntry(9, SECOND, Decision.ROLLBACK)],
        ),
        ("answer", Source.CHECK, None, [DecisionEntry(7, FIRST, Decision.UNKNOWN, 2, "größe, 100%")]),
    ],
)
def test_an_end_is_written_and_read_like_that(
    name: str, source: Source, client_id: str | None, entries: list[DecisionEntry]
) -> None:
    page = Example(name)
    assert (page.topic, page.partition, page.key) == (NAMES.end, 2, None)
    assert encode_end(entries, "orders", source, client_id) == (page.value, page.headers)
    parsed = parse_end(40, page.value, page.headers)
    assert (parsed.group, parsed.source, parsed.client_id, list(parsed.entries)) == (
        "orders",
        source,
        client_id,
        entries,
    )


@pytest.mark.parametrize(
    ("name", "source", "reply", "entry"),
    [
        ("cancel", Source.CANCEL, "reply-1", DecisionEntry(7, FIRST, Decision.UNKNOWN, None, "paid")),
        ("find", Source.FIND, "reply-2", DecisionEntry(11, FIRST, Decision.UNKNOWN)),
    ],
)
def test_an_end_that_asks_for_a_reply_is_written_and_read_like_that(
    name: str, source: Source, reply: str, entry: DecisionEntry
) -> None:
    page = Example(name)
    assert (page.topic, page.partition, page.key) == (NAMES.end, 2, None)
    assert encode_end([entry], "orders", source, "host-1", reply) == (page.value, page.headers)
    end = parse_end(40, page.value, page.headers)
    assert (end.source, end.reply, list(end.entries)) == (source, reply, [entry])


def test_a_reply_is_written_and_read_like_that() -> None:
    page = Example("reply")
    assert (page.topic, page.key, page.value) == (NAMES.check("orders"), b"reply-1", b"")
    reply = Reply("reply-1", TransactionState.ABANDONED, 7)
    assert reply_headers(reply, 2) == page.headers
    assert parse_reply(page.headers) == reply


def test_a_check_is_written_and_read_like_that() -> None:
    page, half = Example("check"), read_half()
    assert page.topic == NAMES.check("orders")
    assert (half.key, half.value, check_headers(half, 2, 2, 40)) == (page.key, page.value, page.headers)
    record = FakeRecord(headers=page.headers, key=page.key, value=page.value)
    asked = parse_check(record, "orders", NAMES, 3).message
    assert (asked.transaction_id, asked.half_partition, asked.half_offset, asked.check_times) == (FIRST, 2, 7, 2)
    assert (asked.topic, asked.value, asked.born_timestamp) == ("orders.placed", b'{"order": 42}', BORN)


def test_a_message_is_delivered_like_that() -> None:
    page, half = Example("delivered"), read_half()
    assert (half.real_topic, half.key, half.value) == (page.topic, page.key, page.value)
    assert next(delivered_copies(half, 2))[-1] == page.headers
    assert half.delivered_timestamp == 1_700_000_000_123


def test_several_messages_are_written_read_and_delivered_like_that() -> None:
    page = Example("several")
    messages = [ORDER, FramedMessage("stock.reserved", None, b"7 bolts", [], 0)]
    written = half_headers([], transaction_id=SECOND, group="orders", real_topic="orders.placed", messages=2)
    assert (encode_frames(messages), written) == (page.value, page.headers)
    half = parse_half(9, BORN, page.key, page.value, page.headers, NAMES)
    assert half.framed == messages
    first, second = delivered_copies(half, 2)
    assert first[:6] == (9, "orders.placed", b'{"order": 42}', b"order-42", -1, 1_700_000_000_123)
    seen = Example("delivered-second")
    assert second == (9, seen.topic, seen.value, None, 0, BORN, seen.headers)


def test_messages_with_different_times_are_written_read_and_parked_like_that() -> None:
    page, parked = Example("timed"), Example("parked")
    messages = [ORDER, FramedMessage("orders.unpaid", None, b"42", [], deliver_at=1_700_000_020_000)]
    written = half_headers([], transaction_id=SECOND, group="orders", real_topic="orders.placed", messages=2)
    assert (encode_frames(messages), written) == (page.value, page.headers)
    half = parse_half(9, BORN, page.key, page.value, page.headers, NAMES)
    assert half.framed == messages
    partition = Partition(watermark=9, next_end=40).read(half)
    draft = partition.step(BORN + 500, end(40, DecisionEntry(9, SECOND, Decision.COMMIT)))
    assert [copy[1] for part in draft.parts for copy in part.copies(2, partition.halves)] == ["orders.placed"]
    assert (parked.topic, parked.key, parked.headers) == (NAMES.offset, NAMES.parked_key(2, 9), offset_headers())
    assert [one.encode(draft.next_end) for one in draft.changed] == [parked.value]


def test_the_topics_are_as_the_table_says() -> None:
    """The topics of `txbridge topics plan`, for user values of a million bytes."""
    page = (PAGE.parents[2] / "docs" / "protocol.md").read_text("utf-8")
    wanted = wanted_topics(NAMES, PlanOptions(groups=("<group>",)), {NAMES.half: None})
    for topic in (*wanted, *wanted_topics(NAMES, PlanOptions(relay=True), {})):
        (size,) = [one.value for one in topic.properties if one.name == "max.message.bytes"]
        (row,) = re.findall(rf"^\| \w+ \| `{re.escape(topic.name)}` \|.*$", page, re.MULTILINE)
        assert row.endswith(f" {int(size):,} |"), row
