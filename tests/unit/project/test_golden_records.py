"""Records byte for byte: those in users' topics since version 1 of the format, and the examples of the protocol.

txbridge still reads them, and still writes them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.client_fakes import FakeRecord
from tests.support.partition_builder import Partition, end
from txbridge.client.checks.calls import parse_check
from txbridge.core.checkpoint import Checkpoint, Cut, Mark, encode_ops, offset_headers, op_headers, parse_op
from txbridge.core.decision_record import Decision, DecisionEntry, Source, encode_end, parse_end
from txbridge.core.half_entry import HalfEntry
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
from txbridge.core.headers import MalformedRecordError, NewerVersionError
from txbridge.core.message_frames import FramedMessage, encode_frames
from txbridge.core.names import Headers, Names
from txbridge.core.offset_topic import OffsetTopic
from txbridge.core.states import Outcome, TransactionState
from txbridge.topics.plan import PlanOptions, wanted_topics

GOLDEN = Path(__file__).parents[2] / "golden"
FILES = sorted(GOLDEN.glob("v*.json"))
PAGE = GOLDEN / "protocol_examples.md"
NAMES = Names()
FIRST, SECOND = "0123456789ABCDEF0123456789ABCDEF", "FEDCBA9876543210FEDCBA9876543210"
BORN, SENT = 1_700_000_000_000, 1_700_000_000_123


@dataclass(frozen=True)
class Golden:
    """One record, as from Kafka. One of the page has the place that it names."""

    key: bytes | None
    value: bytes
    headers: Headers
    topic: str = ""
    partition: int | None = None


def golden(kind: str) -> Golden:
    """The record of this kind; "page" and its name stand for an example of the protocol."""
    if kind.startswith("page "):
        return _example(kind.removeprefix("page "))
    record: dict[str, Any] = json.loads(FILES[0].read_text("utf-8"))[kind]
    value = bytes.fromhex(record["hex"]) if "hex" in record else record["value"].encode()
    headers = [(name, None if text is None else text.encode()) for name, text in record["headers"]]
    return Golden(None if record["key"] is None else record["key"].encode(), value, headers)


def _example(name: str) -> Golden:
    """One block of the page, read by the rules above the blocks."""
    (block,) = re.findall(rf"^```text {name}\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert block.isascii()
    told: dict[str, list[bytes]] = {}
    for line in block.encode().splitlines():
        word, _, rest = line.partition(b" ")
        told.setdefault(word.decode(), []).append(rest)
    assert set(told) <= {"topic", "partition", "key", "value", "hex", "header"}
    # A null value has no line. `value` is not looked at then.
    value = bytes.fromhex(b"".join(told.get("hex", [])).decode())
    assert "value" not in told or value == b"\n".join(told["value"])
    return Golden(
        key=told["key"][0] if "key" in told else None,
        value=value,
        headers=[(line.partition(b" ")[0].decode(), line.partition(b" ")[2]) for line in told["header"]],
        topic=told["topic"][0].decode(),
        partition=int(told["partition"][0]) if "partition" in told else None,
    )


def test_there_is_a_file_for_each_version() -> None:
    assert [file.name for file in FILES] == ["v1.json"]


TRACE, ID, HALF = ("trace", b"00-abc-01"), ("UNIQ_KEY", FIRST.encode()), ("TXB_HALF", b"2:7")
ONE = {"transaction_id": FIRST, "group": "orders", "real_topic": "orders.placed"}
SEVERAL = {**ONE, "transaction_id": SECOND, "messages": 2}
LATER = 1_700_003_600_000
ORDER = FramedMessage("orders.placed", b"order-42", b'{"order": 42}', [TRACE], timestamp=SENT)
TWO = [ORDER, FramedMessage("stock.reserved", None, b"7 bolts", [], 0)]
TWO_TIMES = [ORDER, FramedMessage("orders.unpaid", None, b"42", [], deliver_at=1_700_000_020_000)]
#: What is written: the user's headers, ours, and several messages.
HALVES: dict[str, tuple[list[Any], dict[str, Any], list[FramedMessage]]] = {
    "half": (
        [TRACE, ("empty", None)],
        {**ONE, "real_partition": 3, "immunity_seconds": 90, "user_timestamp": SENT},
        [],
    ),
    "page half": ([TRACE], {**ONE, "immunity_seconds": 90, "user_timestamp": SENT}, []),
    "delayed": ([], {**ONE, "deliver_at": LATER}, []),
    "of a barrier table": ([TRACE], {**ONE, "barrier_id": "9f86d081884c7d65"}, []),
    "half of several": ([], {**SEVERAL, "immunity_seconds": 90}, TWO),
    "page several": ([], SEVERAL, TWO),
    "half of several times": ([], SEVERAL, TWO_TIMES),
    "page timed": ([], SEVERAL, TWO_TIMES),
}


def half_of(kind: str) -> HalfMessage:
    record = golden(kind)
    return parse_half(9 if HALVES[kind][2] else 7, BORN, record.key, record.value, record.headers, NAMES)


@pytest.mark.parametrize("kind", HALVES)
def test_a_half_message(kind: str) -> None:
    record, half, (users, ours, messages) = golden(kind), half_of(kind), HALVES[kind]
    assert half_headers(users, **ours) == record.headers
    assert record.topic in {"", NAMES.half}
    assert record.partition in {None, 2}
    assert (half.transaction_id, half.group) == (ours["transaction_id"], "orders")
    assert (half.key, half.real_partition) == (record.key, ours.get("real_partition"))
    assert (half.deliver_at, half.user_timestamp) == (ours.get("deliver_at"), ours.get("user_timestamp"))
    assert half.immunity == ("90" if "immunity_seconds" in ours else None)
    if messages:
        assert encode_frames(messages) == record.value
        assert (half.messages, half.framed, half.last_time) == (2, messages, messages[1].deliver_at)
        assert half.real_topic == ",".join(one.topic for one in messages)
    else:
        assert (half.value, half.real_topic) == (record.value, "orders.placed")
        # Readers of the real topic have seen these since: neither a time nor a barrier table.
        assert next(delivered_copies(half, 2))[-1] == [*users, ID, HALF]


def test_a_message_is_delivered_like_that() -> None:
    page, half = golden("page delivered"), half_of("page half")
    assert (half.real_topic, half.key, half.value, half.delivered_timestamp) == (page.topic, page.key, page.value, SENT)
    assert next(delivered_copies(half, 2))[-1] == page.headers


def test_several_messages_are_delivered_like_that() -> None:
    seen = golden("page delivered-second")
    second, where = SECOND.encode(), ("TXB_HALF", b"2:9")
    for kind in ("half of several", "page several"):
        assert list(delivered_copies(half_of(kind), 2)) == [
            (
                *(9, "orders.placed", b'{"order": 42}', b"order-42", -1, SENT),
                [TRACE, ("UNIQ_KEY", second), where, ("TXB_MESSAGE", b"1/2")],
            ),
            (9, seen.topic, seen.value, None, 0, BORN, seen.headers),
        ]
    # Those with different times have another id for readers: `printf FEDCBA9876543210FEDCBA9876543210 | sha256sum`,
    # the first 32 digits.
    copies = delivered_copies(half_of("half of several times"), 2)
    assert {dict(copy[-1])["UNIQ_KEY"] for copy in copies} == {b"1BDBBBCD801AA342F9F565CF30972B3B"}


def test_messages_with_different_times_are_parked_like_that() -> None:
    half, stored = half_of("page timed"), golden("page parked")
    partition = Partition(watermark=9, next_end=40).read(half)
    draft = partition.step(BORN + 500, end(40, DecisionEntry(9, SECOND, Decision.COMMIT)))
    assert [copy[1] for part in draft.parts for copy in part.copies(2, partition.halves)] == ["orders.placed"]
    assert (stored.topic, stored.key, stored.headers) == (NAMES.offset, NAMES.parked_key(2, 9), offset_headers())
    assert [one.encode(draft.next_end) for one in draft.changed] == [stored.value]


PAID = DecisionEntry(7, FIRST, Decision.UNKNOWN, None, "paid")
ENDS: dict[str, tuple[Sequence[DecisionEntry], Source, str | None, str | None]] = {
    "end": (
        [
            DecisionEntry(7, FIRST, Decision.COMMIT),
            DecisionEntry(8, SECOND, Decision.UNKNOWN, 2, "no idea: größe, 100%"),
            DecisionEntry(9, "0" * 31 + "9", Decision.ROLLBACK, 1),
        ],
        *(Source.CHECK, "host-1", None),
    ),
    "page end": (
        [DecisionEntry(7, FIRST, Decision.COMMIT), DecisionEntry(9, SECOND, Decision.ROLLBACK)],
        *(Source.CLIENT, "host-1", None),
    ),
    "page answer": ([DecisionEntry(7, FIRST, Decision.UNKNOWN, 2, "größe, 100%")], Source.CHECK, None, None),
    "cancel": ([PAID], Source.CANCEL, "host-1", "reply-1"),
    "page cancel": ([PAID], Source.CANCEL, "host-1", "reply-1"),
    "page find": ([DecisionEntry(11, FIRST, Decision.UNKNOWN)], Source.FIND, "host-1", "reply-2"),
}


@pytest.mark.parametrize("kind", ENDS)
def test_an_end(kind: str) -> None:
    record, (entries, source, client_id, reply) = golden(kind), ENDS[kind]
    assert (record.topic, record.partition, record.key) in {("", None, None), (NAMES.end, 2, None)}
    assert encode_end(entries, "orders", source, client_id, reply) == (record.value, record.headers)
    read = parse_end(40, record.value, record.headers)
    assert (read.group, read.source, read.client_id, read.reply) == ("orders", source, client_id, reply)
    assert list(read.entries) == entries


def test_a_reply() -> None:
    page = golden("page reply")
    assert (page.topic, page.key, page.value) == (NAMES.check("orders"), b"reply-1", b"")
    reply = Reply("reply-1", TransactionState.ABANDONED, 7)
    assert reply_headers(reply, 2) == page.headers
    assert parse_reply(page.headers) == reply


def test_an_op() -> None:
    record = golden("op")
    assert parse_op(record.value, record.headers) == (Outcome.COMMIT, [7, 9, 15])
    assert (encode_ops([7, 9, 15]), op_headers(Outcome.COMMIT, ((31, 2), (40, 0)))) == ([record.value], record.headers)


def test_the_checkpoint() -> None:
    record = golden("checkpoint")
    checkpoint = Checkpoint(
        half=100,
        end=40,
        op=12,
        topics={"half": "h-id", "end": "e-id", "op": "o-id", "offset": "f-id"},
        owner="worker-1",
        seq=5,
        read=104,
        ops=3,
        recent=90,
        entry=3,
        marks={"half": Mark(103, "0123456789abcdef", 7, 1_700_000_000_000), "end": Mark(41, "fedcba9876543210")},
        cut=Cut(50, 9, 1_700_000_000_001, "ann", "power loss"),
    )
    assert Checkpoint.decode(record.value) == checkpoint
    assert (checkpoint.encode(), NAMES.checkpoint_key(2), offset_headers()) == (
        record.value,
        record.key,
        record.headers,
    )
    # Without "recent", "half" counts. Without "entry", it is the beginning of the record. Without "read", the position
    # up to which HALF was read is unknown.
    shorter = json.loads(record.value)
    for name in ("recent", "entry", "read", "ops", "marks", "cut"):
        del shorter[name]
    read = Checkpoint.decode(json.dumps(shorter).encode())
    assert (read.recent, read.entry, read.read, read.ops, read.marks, read.cut) == (None, 0, None, 0, {}, None)


def parked(offset: int, state: TransactionState, **fields: Any) -> HalfEntry:
    usual = {"transaction_id": FIRST, "group": "orders", "real_topic": "orders.placed", "checks": 0}
    known = {"parked": True, "born": BORN, "size": 120}
    return HalfEntry(offset=offset, state=state, **{**known, **usual, **fields})


PENDING, HELD = TransactionState.PENDING, TransactionState.HELD
DISCARDED, SCHEDULED = TransactionState.DISCARDED, TransactionState.SCHEDULED
NINTH, AT = "0" * 31 + "9", (0, 3)
NO_TOPIC = "topic orders.placed does not exist"
#: By kind, the entry, and the END position that is written beside it for people and is not kept.
PARKED = {
    "pending": (parked(7, PENDING, checks=2, next_due=1_700_000_066_000, resumed=1_700_000_030_000), 40),
    "held": (parked(8, HELD, transaction_id=SECOND, next_due=1_700_000_060_000, decided=40, error=NO_TOPIC), 41),
    "discarded": (
        parked(
            9,
            DISCARDED,
            transaction_id=NINTH,
            checks=15,
            next_due=1_702_592_000_000,
            reason="MAX_CHECKS",
            discarded_at=AT,
        ),
        42,
    ),
    "scheduled after a step": (
        parked(
            *(11, SCHEDULED),
            transaction_id=SECOND,
            real_topic="orders.placed,orders.unpaid",
            next_due=LATER,
            deliver_at=LATER,
            decided=42,
            messages=2,
            delivered=1,
        ),
        43,
    ),
    "scheduled": (parked(10, SCHEDULED, checks=1, next_due=LATER, deliver_at=LATER, decided=42), 43),
}


@pytest.mark.parametrize("kind", PARKED)
def test_parked_entries(kind: str) -> None:
    record, (entry, position) = golden(kind), PARKED[kind]
    assert entry.encode(position) == record.value
    assert NAMES.parked_key(2, entry.offset) == record.key
    assert HalfEntry.decode(entry.offset, record.value) == entry


def test_offset_of_golden_records() -> None:
    offset_topic = OffsetTopic(NAMES, 2)
    for kind in ("checkpoint", *PARKED):
        record = golden(kind)
        offset_topic.take_record(record.key, record.value, record.headers)
    assert offset_topic.checkpoint is not None
    assert offset_topic.checkpoint.end == 40
    assert {offset: offset_topic.parked[offset] for offset in offset_topic.parked} == {
        entry.offset: entry for entry, _ in PARKED.values()
    }


def test_a_check_request() -> None:
    page, half = golden("page check"), half_of("page half")
    assert page.topic == NAMES.check("orders")
    assert (half.key, half.value, check_headers(half, 2, 2, 40)) == (page.key, page.value, page.headers)
    for record in (page, golden("check")):
        asked = parse_check(FakeRecord(headers=record.headers, key=record.key, value=record.value), "orders", NAMES, 4)
        message = asked.message
        assert (message.transaction_id, message.half_partition, message.half_offset) == (FIRST, 2, 7)
        assert (message.check_times, message.born_timestamp, message.topic) == (2, BORN, "orders.placed")
        assert message.value == b'{"order": 42}'
    ours = [header for header in record.headers if header[0][:4] not in {"TRAN", "TXB_"} or header[0] == "TXB_V"]
    ours.insert(2, ("TRAN_MSG", b"true"))
    parsed = parse_half(7, BORN, record.key, record.value, ours, NAMES)
    assert check_headers(parsed, 2, 2, 40) == record.headers


def test_a_process_that_is_asked_learns_the_barrier_table() -> None:
    half = half_of("of a barrier table")
    check = FakeRecord(timestamp=BORN + 6_500, value=half.value, headers=check_headers(half, 2, 1, 40))
    message = parse_check(check, "orders", NAMES, 4).message
    assert (message.barrier_id, message.age, message.headers) == ("9f86d081884c7d65", 6.5, (TRACE,))


def read(kind: str, version: bytes) -> object:
    """Read a golden record as if it were of another version."""
    record = golden(kind)
    headers = [(name, version if name == "TXB_V" else value) for name, value in record.headers]
    match kind:
        case "half":
            return parse_half(7, 0, record.key, record.value, headers, NAMES)
        case "end":
            return parse_end(40, record.value, headers)
        case "op":
            return parse_op(record.value, headers)
        case "check":
            return parse_check(FakeRecord(value=record.value, key=record.key, headers=headers), "orders", NAMES, 4)
    return OffsetTopic(NAMES, 2).take_record(record.key, record.value, headers)


@pytest.mark.parametrize("version", [b"2", b"10", b"1.1"])
@pytest.mark.parametrize("kind", ["half", "end", "op", "check", "checkpoint", *PARKED])
def test_a_record_of_a_version_that_is_not_known_is_refused_and_not_guessed(kind: str, version: bytes) -> None:
    with pytest.raises(MalformedRecordError) as caught:
        read(kind, version)
    assert str(caught.value) == f"TXB_V={version.decode()!r} is not a version that this worker knows"


def test_a_later_version_in_offset_is_remembered_until_its_key_is_written_again() -> None:
    offset_topic, checkpoint, pending = OffsetTopic(NAMES, 2), golden("checkpoint"), golden("pending")
    assert offset_topic.newer is None
    for offset, record in ((5, pending), (6, checkpoint)):
        with pytest.raises(NewerVersionError):
            offset_topic.take_record(record.key, record.value, [("TXB_V", b"2")], offset)
    assert (offset_topic.checkpoint, list(offset_topic.parked)) == (None, [])
    assert offset_topic.newer == (5, "TXB_V='2' is not a version that this worker knows")
    offset_topic.take_record(pending.key, None, pending.headers, 7)
    assert offset_topic.newer == (6, "TXB_V='2' is not a version that this worker knows")
    offset_topic.take_record(checkpoint.key, checkpoint.value, checkpoint.headers, 8)
    assert offset_topic.newer is None


@pytest.mark.parametrize("version", [b"0", b"", b"1.1", b"-2", b"+2", b"\xd9\xa3", b"9" * 5_000])
def test_what_is_no_later_version_is_a_stranger_s(version: bytes) -> None:
    with pytest.raises(MalformedRecordError) as caught:
        read("op", version)
    assert type(caught.value) is MalformedRecordError


def test_the_topics_are_as_the_table_says() -> None:
    """The topics of `txbridge topics plan`, for user values of a million bytes."""
    page = (GOLDEN.parents[1] / "docs" / "protocol.md").read_text("utf-8")
    wanted = wanted_topics(NAMES, PlanOptions(groups=("<group>",)), {NAMES.half: None})
    for topic in (*wanted, *wanted_topics(NAMES, PlanOptions(relay=True), {})):
        (size,) = [one.value for one in topic.properties if one.name == "max.message.bytes"]
        (row,) = re.findall(rf"^\| \w+ \| `{re.escape(topic.name)}` \|.*$", page, re.MULTILINE)
        assert row.endswith(f" {int(size):,} |"), row
