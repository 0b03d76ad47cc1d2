"""OP records, the checkpoint and parked entries as docs/protocol.md states them, byte for byte."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from txbridge.core.checkpoint import Checkpoint, encode_ops, offset_headers, op_headers, parse_op
from txbridge.core.half_entry import HalfEntry
from txbridge.core.headers import MalformedRecordError
from txbridge.core.names import Names
from txbridge.core.offset_topic import OffsetTopic
from txbridge.core.states import Outcome, TransactionState

ID = "0123456789ABCDEF0123456789ABCDEF"
TOPICS = {"half": "aa", "end": "bb", "op": "cc", "offset": "dd"}
CHECKPOINT = Checkpoint(half=12, end=34, op=56, topics=TOPICS, owner="9f", seq=7)
CHECKPOINT_JSON = (
    b'{"half":12,"end":34,"op":56,"topics":{"half":"aa","end":"bb","op":"cc","offset":"dd"},"owner":"9f","seq":7}'
)
RECENT = replace(CHECKPOINT, recent=3)
RECENT_JSON = CHECKPOINT_JSON[:-1] + b',"recent":3}'
PENDING = HalfEntry(
    parked=True,
    offset=5,
    state=TransactionState.PENDING,
    transaction_id=ID,
    group="orders",
    real_topic="orders.placed",
    born=1_000,
    size=42,
    checks=2,
    next_due=67_000,
)
PENDING_JSON = (
    b'{"state":"pending","id":"0123456789ABCDEF0123456789ABCDEF","group":"orders","topic":"orders.placed",'
    b'"born":1000,"size":42,"checks":2,"next":67000,"end":34}'
)


def variant(**kwargs) -> HalfEntry:
    return PENDING._replace(**kwargs)


def test_op_records():
    assert encode_ops([7, 3, 12345678901]) == [b"7,3,12345678901"]
    assert encode_ops([0]) == [b"0"]
    assert encode_ops([]) == []
    for name, state in (
        ("commit", "committed"),
        ("rollback", "rolled_back"),
        ("discard", "discarded"),
        ("abandon", "abandoned"),
    ):
        headers = op_headers(Outcome(name))
        assert headers == [("TXB_V", b"1"), ("TAGS", b"d"), ("OUTCOME", name.encode())]
        assert parse_op(b"7,3,12345678901", headers) == (Outcome(name), [7, 3, 12345678901])
        assert Outcome(name).state.value == state
    assert op_headers(Outcome.COMMIT, ((3, 0), (7, 12)))[3:] == [("TXB_ENDS", b"3:0-7:12")]


def test_an_op_record_is_split_before_it_passes_100000_bytes():
    # 5 bytes each with its comma: 20,000 of them take 99,999 bytes.
    assert [len(value) for value in encode_ops([1_234] * 20_000)] == [99_999]
    values = encode_ops([1_234] * 20_001)
    assert [len(value) for value in values] == [99_999, 4]
    # With one digit more in front the value is 100,000 bytes long: the most that is allowed.
    assert [len(value) for value in encode_ops([12_345] + [1_234] * 19_999)] == [100_000]
    assert [len(value) for value in encode_ops([123_456] + [1_234] * 19_999)] == [99_996, 4]
    # The second record may be as long as the first.
    assert [len(value) for value in encode_ops([1_234] * 20_000 + [12_345] + [1_234] * 19_999)] == [99_999, 100_000]
    offsets = list(range(10**9, 10**9 + 20_000))
    values = encode_ops(offsets)
    assert len(values) == 3
    assert [int(text) for value in values for text in value.split(b",")] == offsets


@pytest.mark.parametrize(
    ("value", "headers", "error"),
    [
        (b"7", None, "not a record of txbridge: no header TXB_V, so it is no OP record"),
        (b"7", [("TXB_V", b"1"), ("OUTCOME", b"commit")], "header TAGS is missing"),
        (b"7", [("TXB_V", b"1"), ("TAGS", b"x"), ("OUTCOME", b"commit")], "header TAGS is not d"),
        (b"7", [("TXB_V", b"1"), ("TAGS", b"d")], "header OUTCOME is missing"),
        (b"7", [("TXB_V", b"1"), ("TAGS", b"d"), ("OUTCOME", b"held")], "'held' is not a valid Outcome"),
        (None, op_headers(Outcome.COMMIT), "half offset is not a whole number: ''"),
        (b"", op_headers(Outcome.COMMIT), "half offset is not a whole number: ''"),
        (b"7,", op_headers(Outcome.COMMIT), "half offset is not a whole number: ''"),
        (b"7, 8", op_headers(Outcome.COMMIT), "half offset is not a whole number: ' 8'"),
        (b"7,-8", op_headers(Outcome.COMMIT), "half offset is not a whole number: '-8'"),
    ],
)
def test_malformed_op_records(value, headers, error):
    with pytest.raises(MalformedRecordError) as caught:
        parse_op(value, headers)
    assert str(caught.value) == error


def test_an_op_record_that_is_not_ascii():
    with pytest.raises(MalformedRecordError, match="ascii"):
        parse_op("٣".encode(), op_headers(Outcome.COMMIT))


def test_an_error_text_with_half_a_character_can_be_written():
    parked = variant(state=TransactionState.HELD, decided=1, error="\ud800")
    assert HalfEntry.decode(5, parked.encode(34)).error == "?"


def having(value: bytes, **changes) -> bytes:
    """The value with these fields; `...` stands for a missing one."""
    data = {**json.loads(value), **changes}
    return json.dumps({name: what for name, what in data.items() if what is not ...}).encode()


HOSTILE = [b"", b"{", b"\xff", b"[" * 100_000, b'{"half":' + b"9" * 5_000 + b"}", b"[]", b"1", b"null", b'"x"', b"{}"]


@pytest.mark.parametrize("value", HOSTILE)
def test_hostile_records_are_malformed_and_nothing_worse(value):
    with pytest.raises(MalformedRecordError):
        Checkpoint.decode(value)
    with pytest.raises(MalformedRecordError):
        HalfEntry.decode(5, value)


def test_what_is_wrong_with_a_record_is_said():
    with pytest.raises(MalformedRecordError, match=r"^not a JSON object$"):
        Checkpoint.decode(b"[]")
    with pytest.raises(MalformedRecordError, match=r"^not JSON: "):
        Checkpoint.decode(b"{")
    with pytest.raises(MalformedRecordError, match=r"^not a checkpoint: KeyError\('half'\)$"):
        Checkpoint.decode(b"{}")
    with pytest.raises(MalformedRecordError, match=r"^not a parked entry: TypeError\('not a whole number: True'\)$"):
        HalfEntry.decode(5, having(PENDING_JSON, checks=True))
    with pytest.raises(MalformedRecordError, match=r"^not a parked entry: KeyError\('committed'\)$"):
        HalfEntry.decode(5, having(PENDING_JSON, state="committed"))
    with pytest.raises(MalformedRecordError, match=r"not a text: 1"):
        HalfEntry.decode(5, having(PENDING_JSON, error=1))
    with pytest.raises(MalformedRecordError, match=r"not a name: 'a/b'"):
        HalfEntry.decode(5, having(PENDING_JSON, group="a/b"))
    with pytest.raises(MalformedRecordError, match=r"not coordinates: \[1\]"):
        HalfEntry.decode(5, having(PENDING_JSON, at=[1]))


@pytest.mark.parametrize(
    "changes",
    [{name: ...} for name in ("half", "end", "op", "topics", "owner", "seq")]
    + [{"half": value} for value in (-1, 1.5, 1.0, "1", True, None, [], float("inf"), float("nan"), 2**63)]
    + [
        {"owner": 1},
        {"topics": []},
        {"topics": {"half": 1}},
        {"topics": {"half": "\ud800"}},
        {"topics": {"\ud800": "a"}},
    ],
)
def test_a_checkpoint_is_never_guessed(changes):
    with pytest.raises(MalformedRecordError, match=r"not a checkpoint|not JSON"):
        Checkpoint.decode(having(CHECKPOINT_JSON, **changes))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("state", [..., "committed", "rolled_back", "no_such", ["pending"]]),
        ("id", [..., 1, "x"]),
        ("group", [..., None, "a/b", "\ud800"]),
        ("topic", [..., 1, ".."]),
        ("born", [..., -1, 2**63]),
        ("size", [..., 1.5]),
        ("checks", [..., "2"]),
        ("next", [..., None, 10**30]),
        ("end", [..., float("inf")]),
        ("decided", ["3"]),
        ("error", [1, "\ud800"]),
        ("reason", [[], "\udfff"]),
        ("resumed", [-1]),
        ("at", [[], [1], [1, 2, 3], [1, -2], [0, 2**63], "12", {"0": 1}, 0]),
    ],
)
def test_a_parked_entry_is_never_guessed(name, values):
    for value in values:
        with pytest.raises(MalformedRecordError, match=r"not a parked entry|not JSON"):
            HalfEntry.decode(5, having(PENDING_JSON, **{name: value}))


def test_unknown_fields_of_a_later_version_do_no_harm():
    assert Checkpoint.decode(having(CHECKPOINT_JSON, later=1)) == CHECKPOINT
    assert HalfEntry.decode(5, having(PENDING_JSON, later=1)) == PENDING


KEY = b"RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS/3"


def offset_topic() -> OffsetTopic:
    """OFFSET of partition 3, with a checkpoint and a parked entry."""
    made = OffsetTopic(Names(), 3)
    made.take_record(KEY, CHECKPOINT_JSON, offset_headers(), 40)
    made.take_record(KEY + b"/5", PENDING_JSON, offset_headers(), 41)
    return made


def test_an_empty_offset_topic():
    made = OffsetTopic(Names(), 3)
    assert (made.partition, made.checkpoint, made.parked, made.position) == (3, None, {}, 0)
    assert made.checkpoint_offset == -1, "nothing was written yet"


def test_offset_is_folded_from_what_a_worker_writes():
    made = offset_topic()
    assert (made.checkpoint, made.checkpoint_offset, made.parked) == (CHECKPOINT, 40, {5: PENDING})
    made.take_record(KEY, RECENT_JSON, offset_headers(), 42)
    made.take_record(KEY + b"/5", None, offset_headers(), 43)
    assert (made.checkpoint, made.checkpoint_offset, made.parked) == (RECENT, 42, {})


@pytest.mark.parametrize(
    ("key", "value", "headers", "error"),
    [
        (KEY, RECENT_JSON, None, "no header TXB_V, so it is no checkpoint"),
        (KEY, RECENT_JSON, [("TXB_V", b"2")], "TXB_V='2' is not a version"),
        (KEY, RECENT_JSON, [("TXB_V", b"1"), ("TXB_V", b"1")], "header TXB_V is there 2 times"),
        (KEY, None, offset_headers(), "^a checkpoint without a value$"),
        (KEY + b"/5", None, [], "no header TXB_V, so it is no parked entry"),
        (KEY + b"/5", PENDING_JSON, [("TXB_V", None)], "header TXB_V is null"),
        (KEY + b"/" + b"9" * 5_000, PENDING_JSON, offset_headers(), "half offset of the key is not a whole number"),
        (KEY + b"/9223372036854775808", None, offset_headers(), "half offset of the key is not a whole number"),
        (KEY + b"/+5", None, offset_headers(), "not a key of this partition"),
        (KEY + b"/", None, offset_headers(), "not a key of this partition"),
        (b"5", None, offset_headers(), "not a key of this partition"),
        # Of partition 23.
        (KEY + b"3/5", None, offset_headers(), "not a key of this partition"),
        (None, None, offset_headers(), "not a key of this partition"),
    ],
)
def test_what_no_worker_writes_changes_nothing(key, value, headers, error):
    made = offset_topic()
    with pytest.raises(MalformedRecordError, match=error):
        made.take_record(key, value, headers, 99)
    assert (made.checkpoint, made.checkpoint_offset, made.parked) == (CHECKPOINT, 40, {5: PENDING})


def test_the_largest_numbers_are_taken():
    largest = 2**63 - 1
    assert HalfEntry.decode(5, having(PENDING_JSON, next=largest)).next_due == largest
    assert Checkpoint.decode(having(CHECKPOINT_JSON, end=largest)).end == largest
    made = offset_topic()
    made.take_record(KEY + b"/%d" % largest, PENDING_JSON, offset_headers())
    assert set(made.parked) == {5, largest}


def test_what_is_said_of_a_huge_record_is_short():
    huge = "x" * 500_000
    for decode, value in (
        (Checkpoint.decode, having(CHECKPOINT_JSON, owner=[huge])),
        (lambda given: HalfEntry.decode(5, given), having(PENDING_JSON, state=huge)),
        (lambda given: parse_op(b"1", [("TXB_V", b"1"), ("TAGS", b"d"), ("OUTCOME", given)]), huge.encode()),
    ):
        with pytest.raises(MalformedRecordError) as caught:
            decode(value)
        assert len(str(caught.value)) < 300
