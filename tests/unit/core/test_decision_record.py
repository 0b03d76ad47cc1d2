"""END records as docs/protocol.md states them, byte for byte."""

from __future__ import annotations

import pytest

from txbridge.core.decision_record import Decision, DecisionEntry, Source, encode_end, parse_end
from txbridge.core.headers import MalformedRecordError

ID = "0123456789ABCDEF0123456789ABCDEF"
HEADERS = [("TXB_V", b"1"), ("PGROUP", b"orders"), ("SOURCE", b"client")]
RESUME = [("TXB_V", b"1"), ("PGROUP", b"orders"), ("SOURCE", b"resume")]


def test_rocketmq_numbers():
    assert {decision.name: decision.value for decision in Decision} == {"UNKNOWN": 0, "COMMIT": 8, "ROLLBACK": 12}
    assert {source.name: source.value for source in Source} == {
        "CLIENT": "client",
        "CHECK": "check",
        "OPERATOR": "operator",
        "RESUME": "resume",
        "ABANDON": "abandon",
        "CANCEL": "cancel",
        "FIND": "find",
    }


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (DecisionEntry(0, ID, Decision.COMMIT), f"0,{ID},8"),
        (DecisionEntry(12, ID, Decision.ROLLBACK), f"12,{ID},12"),
        (DecisionEntry(12, ID, Decision.UNKNOWN, 3), f"12,{ID},0,3"),
        (DecisionEntry(12, ID, Decision.UNKNOWN, 0), f"12,{ID},0,0"),
        (DecisionEntry(12, ID, Decision.UNKNOWN, None, "no"), f"12,{ID},0,,no"),
        (DecisionEntry(12, ID, Decision.UNKNOWN, None, ""), f"12,{ID},0,,"),
        (DecisionEntry(12, ID, Decision.UNKNOWN, 15, "a,b\nc%d é"), f"12,{ID},0,15,a%2Cb%0Ac%25d %C3%A9"),
    ],
)
def test_an_entry_is_a_line(entry, text):
    assert entry.encode() == text
    assert parse_end(0, text.encode(), HEADERS).entries == [entry]


def test_a_record_holds_1_to_1000_entries():
    entry = DecisionEntry(5, ID, Decision.COMMIT)
    value, headers = encode_end([entry] * 1_000, "orders", Source.CLIENT)
    assert len(parse_end(0, value, headers).entries) == 1_000
    with pytest.raises(ValueError, match=r"^an END record holds 1 to 1000 entries, not 1001$"):
        encode_end([entry] * 1_001, "orders", Source.CLIENT)
    with pytest.raises(ValueError, match=r"^an END record holds 1 to 1000 entries, not 0$"):
        encode_end([], "orders", Source.CLIENT)


@pytest.mark.parametrize(
    ("remark", "encoded"),
    [
        ("x" * 3_000, "x" * 2_048),
        # The cut would fall behind %, behind %2, and behind %2C.
        ("x" * 2_047 + ",,", "x" * 2_047),
        ("x" * 2_046 + ",,", "x" * 2_046),
        ("x" * 2_045 + ",,", "x" * 2_045 + "%2C"),
        # 9 encoded characters each: 227 fit, and a third of the next would.
        ("€" * 1_000, "%E2%82%AC" * 227),
        ("€" * 1_000 + "x", "%E2%82%AC" * 227),
        ("\ud800", "?"),
    ],
)
def test_a_long_remark_is_cut_between_characters(remark, encoded):
    text = DecisionEntry(5, ID, Decision.UNKNOWN, None, remark).encode()
    assert text == f"5,{ID},0,,{encoded}"
    parse_end(0, text.encode(), HEADERS)


def test_a_client_id_without_a_value_loses_no_decision():
    end = parse_end(0, f"5,{ID},8".encode(), [*HEADERS, ("CLIENT_ID", None)])
    assert (end.client_id, end.entries) == (None, [DecisionEntry(5, ID, Decision.COMMIT)])


def test_leading_zeros_say_nothing():
    assert parse_end(0, f"0005,{ID},8,02".encode(), HEADERS).entries == [DecisionEntry(5, ID, Decision.COMMIT, 2)]


@pytest.mark.parametrize(
    ("field", "remark"), [("a+b", "a+b"), ("%", "%"), ("%zz", "%zz"), ("%FF", "\ufffd"), ("é", "é")]
)
def test_a_remark_of_another_client_is_taken_as_well_as_it_goes(field, remark):
    assert parse_end(0, f"5,{ID},0,,{field}".encode(), HEADERS).entries[0].remark == remark


@pytest.mark.parametrize(
    ("value", "headers", "error"),
    [
        (b"", None, "not a record of txbridge: no header TXB_V, so it is no END record"),
        (b"", [("TXB_V", b"9"), *HEADERS[1:]], "TXB_V='9' is not a version that this worker knows"),
        (b"", [HEADERS[0], HEADERS[2]], "header PGROUP is missing"),
        (b"", [*HEADERS, ("PGROUP", b"orders")], "header PGROUP is there 2 times"),
        (
            b"",
            [("TXB_V", b"1"), ("PGROUP", b"a/b"), ("SOURCE", b"client")],
            "header PGROUP cannot be a producer group: 'a/b'",
        ),
        (b"", HEADERS[:2], "header SOURCE is missing"),
        (
            b"",
            [*HEADERS[:2], ("SOURCE", b"Client")],
            "header SOURCE is not one of client, check, operator, resume, abandon, cancel, find",
        ),
        (b"", [*HEADERS[:2], ("SOURCE", None)], "header SOURCE is null"),
        (b"", [*HEADERS, ("CLIENT_ID", b"\xff")], "entry 1 has 1 fields, not 3 to 5: ''"),
        (f"5,{ID},8".encode(), [*HEADERS, ("CLIENT_ID", b"\xff")], "header CLIENT_ID is not UTF-8"),
        (None, HEADERS, "the value is null"),
        (b"5,\xff,8", HEADERS, "the value is not UTF-8"),
        (b"\n" * 1_000, HEADERS, "1001 entries, more than 1000"),
        (b"", HEADERS, "entry 1 has 1 fields, not 3 to 5: ''"),
        (f"5,{ID}".encode(), HEADERS, f"entry 1 has 2 fields, not 3 to 5: '5,{ID}'"),
        (f"5,{ID},8,,a,b".encode(), HEADERS, f"entry 1 has 6 fields, not 3 to 5: '5,{ID},8,,a,b'"),
        (f"5,{ID},8\n".encode(), HEADERS, "entry 2 has 1 fields, not 3 to 5: ''"),
        (b"x" * 10_000, HEADERS, f"entry 1 has 1 fields, not 3 to 5: '{'x' * 80}'"),
        (f"-5,{ID},8".encode(), HEADERS, "half offset of entry 1 is not a whole number: '-5'"),
        (
            f"9223372036854775808,{ID},8".encode(),
            HEADERS,
            "half offset of entry 1 is not a whole number: '9223372036854775808'",
        ),
        (f"5,{ID},8\n5,{ID[1:]},8".encode(), HEADERS, "transaction id of entry 2 is not 32 digits of 0-9A-F"),
        (f"5,{ID},1".encode(), HEADERS, "decision of entry 1 is not 8, 12 or 0: '1'"),
        (f"5,{ID},08".encode(), HEADERS, "decision of entry 1 is not 8, 12 or 0: '08'"),
        (f"5,{ID},8\r\n5,{ID},8".encode(), HEADERS, "decision of entry 1 is not 8, 12 or 0: '8\\r'"),
        (f"5,{ID},8,x".encode(), HEADERS, "check times of entry 1 is not a whole number: 'x'"),
        (f"5,{ID},0,,{'x' * 2_049}".encode(), HEADERS, "remark of entry 1 is longer than 2048 characters"),
        (f"5,{ID},8".encode(), RESUME, "entry 1 resumes with decision 8; it must be 0"),
        (
            f"5,{ID},0\n6,{ID},0".encode(),
            [*RESUME, ("TXB_REPLY", b"a-1")],
            "header TXB_REPLY is no name of a reply to one entry: 'a-1'",
        ),
        (
            f"5,{ID},0".encode(),
            [*RESUME, ("TXB_REPLY", b"a b")],
            "header TXB_REPLY is no name of a reply to one entry: 'a b'",
        ),
        (f"5,{ID},0\n6,{ID},12".encode(), RESUME, "entry 2 resumes with decision 12; it must be 0"),
    ],
)
def test_malformed(value, headers, error):
    with pytest.raises(MalformedRecordError) as caught:
        parse_end(0, value, headers)
    assert str(caught.value) == error


def test_the_largest_offset():
    assert parse_end(0, f"9223372036854775807,{ID},8".encode(), HEADERS).entries[0].half_offset == 2**63 - 1
