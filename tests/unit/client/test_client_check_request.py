"""Reading of check requests, from our workers and from other programs."""

from __future__ import annotations

import pytest

from tests.support.client_fakes import FakeRecord
from txbridge.client.checks.calls import parse_check
from txbridge.core.headers import MalformedRecordError
from txbridge.core.names import Names

HEADERS = {
    "TXB_V": b"1",
    "TRAN_MSG": b"true",
    "REAL_TOPIC": b"orders",
    "PGROUP": b"group",
    "UNIQ_KEY": b"0123456789ABCDEF0123456789ABCDEF",
    "TRANSACTION_CHECK_TIMES": b"3",
    "TXB_HALF": b"2:41",
    "TXB_END": b"7",
    "TXB_BORN": b"1200",
}


def record(users=(), **changed):
    headers = {**HEADERS, **changed}
    ours = [(name, value) for name, value in headers.items() if value != b"-"]
    return FakeRecord(5, 6, 1_234, b"k", b"v", [*users, *ours])


def test_a_request():
    request = parse_check(record([("a", None), ("a", b"1")], REAL_QID=b"4", BORN_TIMESTAMP=b"99"), "group", Names(), 3)
    message = request.message
    assert (message.topic, message.key, message.value) == ("orders", b"k", b"v")
    assert message.headers == (("a", None), ("a", b"1"))
    assert (message.half_partition, message.half_offset, message.check_times) == (2, 41, 3)
    assert message.transaction_id == "0123456789ABCDEF0123456789ABCDEF"
    assert (message.partition, message.timestamp, message.born_timestamp) == (4, 99, 1_200)


def test_without_the_end_position_and_the_time_of_birth_it_can_be_answered_all_the_same():
    message = parse_check(record(TXB_END=b"-", TXB_BORN=b"-"), "group", Names(), 3).message
    assert (message.half_offset, message.born_timestamp) == (41, None)


def test_what_a_later_worker_adds_does_no_harm():
    message = parse_check(record([("a", b"1")], TXB_LATER=b"\xff"), "group", Names(), 3).message
    assert (message.half_offset, message.headers) == (41, (("a", b"1"),))


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"TXB_V": b"-"}, "not a record of txbridge"),
        ({"TXB_V": b"2"}, "is not a version"),
        ({"TXB_HALF": b"-"}, "header TXB_HALF is missing"),
        ({"TXB_HALF": b"2-41"}, "is not <partition>:<offset>"),
        ({"TXB_HALF": b"-1:41"}, "is not a whole number"),
        ({"TXB_HALF": b"3:41"}, "names partition 3, there are 3"),
        ({"TXB_HALF": None}, "is null"),
        ({"UNIQ_KEY": b"abc"}, "is not 32 digits"),
        ({"PGROUP": b"another"}, "it is for group 'another'"),
        ({"TRANSACTION_CHECK_TIMES": b"-"}, "TRANSACTION_CHECK_TIMES is missing"),
        ({"TRANSACTION_CHECK_TIMES": b"x"}, "is not a whole number"),
        ({"TRANSACTION_CHECK_TIMES": b"0"}, "TRANSACTION_CHECK_TIMES is 0, the first check has 1"),
        ({"TXB_BORN": b"yesterday"}, "header TXB_BORN is not a whole number"),
        ({"REAL_TOPIC": b"RMQ_SYS_X"}, "is forbidden"),
    ],
)
def test_anything_else_is_malformed(changed, complaint):
    with pytest.raises(MalformedRecordError, match=complaint):
        parse_check(record(**changed), "group", Names(), 3)


def test_a_bare_record_is_malformed():
    with pytest.raises(MalformedRecordError):
        parse_check(FakeRecord(), "group", Names(), 3)


def test_a_header_name_that_is_no_text_is_malformed_and_leaves_nothing_behind():
    """Kafka accepts any bytes as a name, and confluent-kafka fails on them in this way."""

    class Undecodable(FakeRecord):
        def headers(self):
            raise SystemError("returned a result with an exception set") from UnicodeDecodeError("utf-8", b"", 0, 1, "")

    with pytest.raises(MalformedRecordError, match="name of a header is not UTF-8"):
        parse_check(Undecodable(), "group", Names(), 3)
