"""Records in users' topics since version 1 of the format: still read, and still written, to the byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.client_fakes import FakeRecord
from txbridge.client.checks.calls import parse_check
from txbridge.core.checkpoint import Checkpoint, Cut, Mark, encode_ops, offset_headers, op_headers, parse_op
from txbridge.core.decision_record import Decision, DecisionEntry, Source, encode_end, parse_end
from txbridge.core.half_entry import HalfEntry
from txbridge.core.half_message import check_headers, delivered_copies, half_headers, parse_half
from txbridge.core.headers import MalformedRecordError, NewerVersionError
from txbridge.core.message_frames import FramedMessage, encode_frames
from txbridge.core.names import Names
from txbridge.core.offset_topic import OffsetTopic
from txbridge.core.states import Outcome, TransactionState

FILES = sorted((Path(__file__).parents[2] / "golden").glob("v*.json"))
NAMES = Names()
FIRST, SECOND = "0123456789ABCDEF0123456789ABCDEF", "FEDCBA9876543210FEDCBA9876543210"
ORDER = FramedMessage(
    "orders.placed", b"order-42", b'{"order": 42}', [("trace", b"00-abc-01")], timestamp=1_700_000_000_123
)


class Golden:
    """One record of a golden file, as from Kafka."""

    def __init__(self, kind: str) -> None:
        record: dict[str, Any] = json.loads((FILES[0]).read_text("utf-8"))[kind]
        self.key = None if record["key"] is None else record["key"].encode()
        self.value = bytes.fromhex(record["hex"]) if "hex" in record else record["value"].encode()
        self.headers = [(name, None if text is None else text.encode()) for name, text in record["headers"]]


def test_there_is_a_file_for_each_version() -> None:
    assert [file.name for file in FILES] == ["v1.json"]


def test_a_half_message() -> None:
    golden = Golden("half")
    half = parse_half(7, 1_700_000_000_000, golden.key, golden.value, golden.headers, NAMES)
    assert (half.transaction_id, half.group, half.real_topic) == (FIRST, "orders", "orders.placed")
    assert (half.key, half.value) == (b"order-42", b'{"order": 42}')
    assert (half.real_partition, half.immunity, half.user_timestamp) == (3, "90", 1_700_000_000_123)
    written = half_headers(
        [("trace", b"00-abc-01"), ("empty", None)],
        transaction_id=FIRST,
        group="orders",
        real_topic="orders.placed",
        real_partition=3,
        immunity_seconds=90,
        user_timestamp=1_700_000_000_123,
    )
    assert written == golden.headers
    # The headers that readers of the real topic have seen since.
    assert next(delivered_copies(half, 2))[-1] == [
        ("trace", b"00-abc-01"),
        ("empty", None),
        ("UNIQ_KEY", FIRST.encode()),
        ("TXB_HALF", b"2:7"),
    ]


def test_a_half_message_of_several() -> None:
    golden = Golden("half of several")
    half = parse_half(9, 1_700_000_000_000, golden.key, golden.value, golden.headers, NAMES)
    messages = [ORDER, FramedMessage("stock.reserved", None, b"7 bolts", [], 0)]
    assert (half.messages, half.real_topic, half.framed) == (2, "orders.placed,stock.reserved", messages)
    written = half_headers(
        [], transaction_id=SECOND, group="orders", real_topic="orders.placed", immunity_seconds=90, messages=2
    )
    assert (encode_frames(messages), written) == (golden.value, golden.headers)
    first, second = (copy[-1] for copy in delivered_copies(half, 2))
    assert first == [
        ("trace", b"00-abc-01"),
        ("UNIQ_KEY", SECOND.encode()),
        ("TXB_HALF", b"2:9"),
        ("TXB_MESSAGE", b"1/2"),
    ]
    assert second == [("UNIQ_KEY", SECOND.encode()), ("TXB_HALF", b"2:9"), ("TXB_MESSAGE", b"2/2")]


def test_a_half_message_of_several_with_different_times() -> None:
    golden = Golden("half of several times")
    half = parse_half(9, 1_700_000_000_000, golden.key, golden.value, golden.headers, NAMES)
    messages = [ORDER, FramedMessage("orders.unpaid", None, b"42", [], deliver_at=1_700_000_020_000)]
    assert (half.framed, half.deliver_at, half.last_time) == (messages, None, 1_700_000_020_000)
    # Their readers learn another id: `printf FEDCBA9876543210FEDCBA9876543210 | sha256sum`, the first 32 digits.
    assert {dict(copy[-1])["UNIQ_KEY"] for copy in delivered_copies(half, 2)} == {b"1BDBBBCD801AA342F9F565CF30972B3B"}
    written = half_headers([], transaction_id=SECOND, group="orders", real_topic="orders.placed", messages=2)
    assert (encode_frames(messages), written) == (golden.value, golden.headers)


def test_a_half_message_that_names_a_time() -> None:
    golden = Golden("delayed")
    half = parse_half(7, 1_700_000_000_000, golden.key, golden.value, golden.headers, NAMES)
    assert half.deliver_at == 1_700_003_600_000
    written = half_headers(
        (), transaction_id=FIRST, group="orders", real_topic="orders.placed", deliver_at=1_700_003_600_000
    )
    assert written == golden.headers
    # Nothing of it is delivered.
    assert next(delivered_copies(half, 2))[-1] == [("UNIQ_KEY", FIRST.encode()), ("TXB_HALF", b"2:7")]


def test_a_half_message_that_names_its_barrier_table() -> None:
    golden = Golden("of a barrier table")
    half = parse_half(7, 1_700_000_000_000, golden.key, golden.value, golden.headers, NAMES)
    written = half_headers(
        [("trace", b"00-abc-01")],
        transaction_id=FIRST,
        group="orders",
        real_topic="orders.placed",
        barrier_id="9f86d081884c7d65",
    )
    assert written == golden.headers
    # Consumers do not get it, and the process that is asked does.
    assert next(delivered_copies(half, 2))[-1] == [
        ("trace", b"00-abc-01"),
        ("UNIQ_KEY", FIRST.encode()),
        ("TXB_HALF", b"2:7"),
    ]
    check = FakeRecord(timestamp=1_700_000_006_500, value=golden.value, headers=check_headers(half, 2, 1, 40))
    message = parse_check(check, "orders", NAMES, 4).message
    assert (message.barrier_id, message.age) == ("9f86d081884c7d65", 6.5)
    assert message.headers == (("trace", b"00-abc-01"),)


def test_an_end() -> None:
    golden = Golden("end")
    entries = (
        DecisionEntry(7, FIRST, Decision.COMMIT),
        DecisionEntry(8, SECOND, Decision.UNKNOWN, 2, "no idea: größe, 100%"),
        DecisionEntry(9, "0" * 31 + "9", Decision.ROLLBACK, 1),
    )
    end = parse_end(40, golden.value, golden.headers)
    assert (end.group, end.source, end.client_id, tuple(end.entries)) == ("orders", Source.CHECK, "host-1", entries)
    assert encode_end(entries, "orders", Source.CHECK, "host-1") == (golden.value, golden.headers)


def test_a_cancel() -> None:
    golden = Golden("cancel")
    entry = DecisionEntry(7, FIRST, Decision.UNKNOWN, None, "paid")
    end = parse_end(40, golden.value, golden.headers)
    assert (end.source, end.client_id, end.reply, list(end.entries)) == (Source.CANCEL, "host-1", "reply-1", [entry])
    assert encode_end([entry], "orders", Source.CANCEL, "host-1", "reply-1") == (golden.value, golden.headers)


def test_an_op() -> None:
    golden = Golden("op")
    assert parse_op(golden.value, golden.headers) == (Outcome.COMMIT, [7, 9, 15])
    assert (encode_ops([7, 9, 15]), op_headers(Outcome.COMMIT, ((31, 2), (40, 0)))) == ([golden.value], golden.headers)


def test_the_checkpoint() -> None:
    golden = Golden("checkpoint")
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
    assert Checkpoint.decode(golden.value) == checkpoint
    assert (checkpoint.encode(), NAMES.checkpoint_key(2), offset_headers()) == (
        golden.value,
        golden.key,
        golden.headers,
    )
    # Without "recent", "half" counts. Without "entry", it is the beginning of the record. Without "read", the position
    # up to which HALF was read is unknown.
    shorter = json.loads(golden.value)
    for name in ("recent", "entry", "read", "ops", "marks", "cut"):
        del shorter[name]
    read = Checkpoint.decode(json.dumps(shorter).encode())
    assert (read.recent, read.entry, read.read, read.ops, read.marks, read.cut) == (None, 0, None, 0, {}, None)


def parked(offset: int, state: TransactionState, **fields: Any) -> HalfEntry:
    usual = {"transaction_id": FIRST, "group": "orders", "real_topic": "orders.placed", "checks": 0}
    known = {"parked": True, "born": 1_700_000_000_000, "size": 120}
    return HalfEntry(offset=offset, state=state, **{**known, **usual, **fields})


PENDING, HELD = TransactionState.PENDING, TransactionState.HELD
DISCARDED, SCHEDULED = TransactionState.DISCARDED, TransactionState.SCHEDULED
LATER, NINTH, AT = 1_700_003_600_000, "0" * 31 + "9", (0, 3)
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
    golden, (entry, end) = Golden(kind), PARKED[kind]
    assert entry.encode(end) == golden.value
    assert NAMES.parked_key(2, entry.offset) == golden.key
    assert HalfEntry.decode(entry.offset, golden.value) == entry


def test_offset_of_golden_records() -> None:
    offset_topic = OffsetTopic(NAMES, 2)
    for kind in ("checkpoint", *PARKED):
        golden = Golden(kind)
        offset_topic.take_record(golden.key, golden.value, golden.headers)
    assert offset_topic.checkpoint is not None
    assert offset_topic.checkpoint.end == 40
    assert {offset: offset_topic.parked[offset] for offset in offset_topic.parked} == {
        entry.offset: entry for entry, _ in PARKED.values()
    }


def test_a_check_request() -> None:
    golden = Golden("check")
    record = FakeRecord(value=golden.value, key=golden.key, headers=golden.headers)
    message = parse_check(record, "orders", NAMES, 4).message
    assert (message.transaction_id, message.half_partition, message.half_offset) == (FIRST, 2, 7)
    assert (message.check_times, message.born_timestamp, message.value) == (2, 1_700_000_000_000, b'{"order": 42}')
    half = [header for header in golden.headers if header[0][:4] not in {"TRAN", "TXB_"} or header[0] == "TXB_V"]
    half.insert(2, ("TRAN_MSG", b"true"))
    parsed = parse_half(7, 1_700_000_000_000, golden.key, golden.value, half, NAMES)
    assert check_headers(parsed, 2, 2, 40) == golden.headers


def read(kind: str, version: bytes) -> object:
    """Read a golden record as if it were of another version."""
    golden = Golden(kind)
    headers = [(name, version if name == "TXB_V" else value) for name, value in golden.headers]
    match kind:
        case "half":
            return parse_half(7, 0, golden.key, golden.value, headers, NAMES)
        case "end":
            return parse_end(40, golden.value, headers)
        case "op":
            return parse_op(golden.value, headers)
        case "check":
            return parse_check(FakeRecord(value=golden.value, key=golden.key, headers=headers), "orders", NAMES, 4)
    return OffsetTopic(NAMES, 2).take_record(golden.key, golden.value, headers)


@pytest.mark.parametrize("version", [b"2", b"10", b"1.1"])
@pytest.mark.parametrize("kind", ["half", "end", "op", "check", "checkpoint", *PARKED])
def test_a_record_of_a_version_that_is_not_known_is_refused_and_not_guessed(kind: str, version: bytes) -> None:
    with pytest.raises(MalformedRecordError) as caught:
        read(kind, version)
    assert str(caught.value) == f"TXB_V={version.decode()!r} is not a version that this worker knows"


def test_a_later_version_in_offset_is_remembered_until_its_key_is_written_again() -> None:
    offset_topic, checkpoint, parked = OffsetTopic(NAMES, 2), Golden("checkpoint"), Golden(next(iter(PARKED)))
    assert offset_topic.newer is None
    for offset, golden in ((5, parked), (6, checkpoint)):
        with pytest.raises(NewerVersionError):
            offset_topic.take_record(golden.key, golden.value, [("TXB_V", b"2")], offset)
    assert (offset_topic.checkpoint, list(offset_topic.parked)) == (None, [])
    assert offset_topic.newer == (5, "TXB_V='2' is not a version that this worker knows")
    offset_topic.take_record(parked.key, None, parked.headers, 7)
    assert offset_topic.newer == (6, "TXB_V='2' is not a version that this worker knows")
    offset_topic.take_record(checkpoint.key, checkpoint.value, checkpoint.headers, 8)
    assert offset_topic.newer is None


@pytest.mark.parametrize("version", [b"0", b"", b"1.1", b"-2", b"+2", b"\xd9\xa3", b"9" * 5_000])
def test_what_is_no_later_version_is_a_stranger_s(version: bytes) -> None:
    with pytest.raises(MalformedRecordError) as caught:
        read("op", version)
    assert type(caught.value) is MalformedRecordError
