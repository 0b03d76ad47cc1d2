"""The half message as docs/protocol.md states it, byte for byte."""

from __future__ import annotations

import pytest

from txbridge.core.half_message import (
    HalfMessage,
    _envelope,
    check_headers,
    coordinates,
    copy_headers,
    delivered_copies,
    half_headers,
    parse_coordinates,
    parse_half,
)
from txbridge.core.headers import MalformedRecordError
from txbridge.core.names import Names

ID = "0123456789ABCDEF0123456789ABCDEF"
#: The minimum of headers, in another order than ours.
LEAST = [
    ("UNIQ_KEY", ID.encode()),
    ("PGROUP", b"orders"),
    ("REAL_TOPIC", b"orders.placed"),
    ("TRAN_MSG", b"true"),
    ("TXB_V", b"1"),
]
#: The same headers in our order.
PLAIN = LEAST[::-1]
#: Every header, and the user's own: a name twice, a null, something that is not text.
MOST = [
    ("trace", b"1"),
    ("trace", None),
    ("blob", b"\xff\x00"),
    ("TXB_V", b"1"),
    ("TRAN_MSG", b"true"),
    ("REAL_TOPIC", b"orders.placed"),
    ("PGROUP", b"orders"),
    ("UNIQ_KEY", ID.encode()),
    ("REAL_QID", b"3"),
    ("CHECK_IMMUNITY_TIME_IN_SECONDS", b"60"),
    ("BORN_TIMESTAMP", b"1700000000000"),
]


def parse(headers, **kwargs) -> HalfMessage:
    return parse_half(
        **{"offset": 5, "born": 1_000, "key": b"k", "value": b"v", "topic_names": Names(), **kwargs}, headers=headers
    )


def changed(name: str, value: bytes | None, headers=MOST) -> list:
    return [(name, value) if other == name else (other, old) for other, old in headers]


def test_zero_is_a_value_and_not_an_absence():
    headers = half_headers(
        [], transaction_id=ID, group="g", real_topic="t", real_partition=0, immunity_seconds=0, user_timestamp=0
    )
    assert headers[5:] == [("REAL_QID", b"0"), ("CHECK_IMMUNITY_TIME_IN_SECONDS", b"0"), ("BORN_TIMESTAMP", b"0")]


def test_the_order_of_the_headers_says_nothing():
    def half(headers):
        return parse_half(4, 1_000, b"k", b"v", headers, Names())._replace(headers=())

    plain = half(PLAIN)
    assert (plain.group, plain.real_topic, plain.transaction_id) == ("orders", "orders.placed", ID)
    assert (plain.size, plain.real_partition, plain.immunity, plain.user_timestamp) == (95, None, None, None)
    assert half(LEAST) == plain
    assert half([*LEAST[1:], LEAST[0]]) == plain


def test_the_users_headers_may_stand_before_ours_or_among_them():
    users = [("trace", b"00-1"), ("trace", None), ("", b"")]
    first, last = parse([*users, *PLAIN]), parse([*PLAIN, *users])
    # trace and 00-1, trace, and nothing at all
    assert (first.size, last.size) == (parse(PLAIN).size + 9 + 5, first.size)
    assert first._replace(headers=()) == last._replace(headers=())
    assert first.headers == [*users, *PLAIN]
    assert next(delivered_copies(first, 1))[-1][:-2] == users


def test_a_barrier_table_may_be_named_anywhere_and_is_not_delivered():
    users, barrier = [("trace", b"00-1")], ("TXB_BARRIER", b"9f86d081884c7d65")
    where_we_write_it = parse([*users, barrier, *PLAIN])
    assert where_we_write_it.users == users
    # 11 and 16 bytes for the header.
    assert where_we_write_it.size == parse([*users, *PLAIN]).size + 27
    for headers in ([barrier, *users, *PLAIN], [*users, *PLAIN, barrier]):
        half = parse(headers)
        assert half._replace(headers=()) == where_we_write_it._replace(headers=())
        assert next(delivered_copies(half, 1))[-1][0] == ("trace", b"00-1")


@pytest.mark.parametrize("value", [b"", b"x" * 65, b"two words", b"\xff", b"x" * 100_000])
@pytest.mark.parametrize("place", [0, 5])
def test_what_can_not_be_the_identity_of_a_table_is_malformed(value, place):
    headers = [*PLAIN[:place], ("TXB_BARRIER", value), *PLAIN[place:]]
    with pytest.raises(MalformedRecordError, match="header TXB_BARRIER is n"):
        parse(headers)


def test_two_barrier_tables_are_malformed():
    barrier = ("TXB_BARRIER", b"9f86d081884c7d65")
    with pytest.raises(MalformedRecordError, match="header TXB_BARRIER is there 2 times"):
        parse([barrier, barrier, *PLAIN])


@pytest.mark.parametrize("name", ["REAL_TOPIC", "PGROUP"])
def test_what_is_too_long_for_a_name_is_malformed_and_not_remembered(name):
    known = _envelope.cache_info().currsize
    with pytest.raises(MalformedRecordError, match=f"header {name} cannot be a"):
        parse(changed(name, b"x" * 100_000, PLAIN))
    assert _envelope.cache_info().currsize == known


def test_optional_headers_without_a_value_are_absent():
    """They do not become user headers either: the delivered record does not have them."""
    nulls = [(name, None) for name in ("REAL_QID", "CHECK_IMMUNITY_TIME_IN_SECONDS", "BORN_TIMESTAMP")]
    half = parse([("trace", b"1"), *LEAST, *nulls])
    assert (half.real_partition, half.immunity, half.user_timestamp) == (None, None, None)
    assert half.users == [("trace", b"1")]
    assert next(delivered_copies(half, 2))[-1] == [("trace", b"1"), ("UNIQ_KEY", ID.encode()), ("TXB_HALF", b"2:5")]


def test_size_counts_key_value_and_headers():
    assert parse(LEAST, key=None, value=None).size == 8 + 32 + 6 + 6 + 10 + 13 + 8 + 4 + 5 + 1
    assert parse([*LEAST, ("trace", None)], key=b"12", value=b"345").size == 93 + 5 + 2 + 3


@pytest.mark.parametrize("headers", [LEAST, PLAIN, MOST], ids=["least", "plain", "most"])
@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        # `...`: the header is missing.
        ("TXB_V", ..., "not a record of txbridge: no header TXB_V, so it is no half message"),
        ("TXB_V", None, "header TXB_V is null"),
        ("TXB_V", b"2", "TXB_V='2' is not a version that this worker knows"),
        ("TRAN_MSG", ..., "header TRAN_MSG is missing"),
        ("TRAN_MSG", None, "header TRAN_MSG is null"),
        ("TRAN_MSG", b"True", "header TRAN_MSG is not true"),
        ("UNIQ_KEY", ..., "header UNIQ_KEY is missing"),
        ("UNIQ_KEY", None, "header UNIQ_KEY is null"),
        ("UNIQ_KEY", ID.lower().encode(), "header UNIQ_KEY is not 32 digits of 0-9A-F"),
        ("UNIQ_KEY", ID.encode() + b"\n", "header UNIQ_KEY is not 32 digits of 0-9A-F"),
        ("PGROUP", ..., "header PGROUP is missing"),
        ("PGROUP", b"two words", "header PGROUP cannot be a producer group: 'two words'"),
        ("PGROUP", b"x/" * 500, f"header PGROUP cannot be a producer group: '{'x/' * 20}'"),
        ("PGROUP", b"\xff", "header PGROUP is not UTF-8"),
        ("REAL_TOPIC", ..., "header REAL_TOPIC is missing"),
        ("REAL_TOPIC", None, "header REAL_TOPIC is null"),
        ("REAL_TOPIC", b"", "header REAL_TOPIC cannot be a topic: ''"),
        ("REAL_TOPIC", b"..", "header REAL_TOPIC cannot be a topic: '..'"),
        ("REAL_TOPIC", b"__consumer_offsets", "sending to system topic __consumer_offsets is forbidden"),
        ("REAL_TOPIC", b"b.RMQ_SYS_X", "sending to system topic b.RMQ_SYS_X is forbidden"),
        ("REAL_QID", b"-1", "header REAL_QID is not a whole number: '-1'"),
        ("REAL_QID", b"2147483648", "header REAL_QID cannot be a partition: 2147483648"),
        ("BORN_TIMESTAMP", b"now", "header BORN_TIMESTAMP is not a whole number: 'now'"),
        # A user's header of these names would be taken for ours in a check, a discarded or a delivered record.
        ("TXB_HALF", b"0:0", "header 'TXB_HALF' is reserved"),
        ("TRANSACTION_CHECK_TIMES", b"1", "header 'TRANSACTION_CHECK_TIMES' is reserved"),
        ("__transactionId__", None, "header '__transactionId__' is reserved"),
        ("TXB_" + "x" * 1_000, b"", f"header 'TXB_{'x' * 36}' is reserved"),
    ],
)
def test_malformed(headers, name, value, error):
    place = next((number for number, (other, _) in enumerate(headers) if other == name), 0)
    others = [header for header in headers if header[0] != name]
    wrong = others if value is ... else [*others[:place], (name, value), *others[place:]]
    # What was read once is in a cache.
    for _ in range(2):
        with pytest.raises(MalformedRecordError) as caught:
            parse(wrong)
        assert str(caught.value) == error


@pytest.mark.parametrize("name", ["TXB_V", "UNIQ_KEY", "PGROUP", "REAL_QID", "CHECK_IMMUNITY_TIME_IN_SECONDS"])
def test_a_header_of_ours_that_is_there_twice_is_malformed(name):
    for headers in ([*MOST, (name, None)], [(name, b"1"), *MOST]):
        with pytest.raises(MalformedRecordError, match=f"^header {name} is there 2 times$"):
            parse(headers)


@pytest.mark.parametrize("headers", [None, [], [("trace", b"1")]])
def test_a_record_that_is_not_ours_is_malformed(headers):
    with pytest.raises(MalformedRecordError, match=r"^not a record of txbridge: no header TXB_V"):
        parse(headers)


def test_the_largest_partition():
    assert parse(changed("REAL_QID", b"2147483647")).real_partition == 2**31 - 1


def test_garbage_in_the_immunity_time_is_for_the_check_policy_to_judge():
    assert parse(changed("CHECK_IMMUNITY_TIME_IN_SECONDS", b"5.5")).immunity == "5.5"


def test_the_delivered_timestamp_is_the_users_or_that_of_birth():
    assert parse(MOST).delivered_timestamp == 1_700_000_000_000
    assert parse(LEAST).delivered_timestamp == 1_000


def test_a_timestamp_of_0_is_none_because_librdkafka_takes_it_for_now():
    half = parse(changed("BORN_TIMESTAMP", b"0"))
    assert (half.user_timestamp, half.delivered_timestamp) == (None, 1_000)
    assert parse(changed("BORN_TIMESTAMP", b"1")).delivered_timestamp == 1


def test_a_check_is_a_copy_with_its_history_and_the_time_of_birth():
    assert check_headers(parse(MOST), 7, checks=2, end_position=99) == [
        *MOST,
        ("TRANSACTION_CHECK_TIMES", b"2"),
        ("TXB_HALF", b"7:5"),
        ("TXB_END", b"99"),
        ("TXB_BORN", b"1000"),
    ]


def test_a_discarded_message_is_a_copy_with_its_history():
    assert copy_headers(parse(MOST), 7, checks=2, end_position=99) == [
        *MOST,
        ("TRANSACTION_CHECK_TIMES", b"2"),
        ("TXB_HALF", b"7:5"),
        ("TXB_END", b"99"),
    ]


def test_coordinates():
    assert coordinates(0, 2**40) == b"0:1099511627776"
    assert parse_coordinates("0:1099511627776") == (0, 2**40)
    for text, error in [
        ("", "TXB_HALF is not <partition>:<offset>: ''"),
        ("12", "TXB_HALF is not <partition>:<offset>: '12'"),
        (":1", "TXB_HALF is not a whole number: ''"),
        ("1:", "TXB_HALF is not a whole number: ''"),
        ("1:-1", "TXB_HALF is not a whole number: '-1'"),
        ("1:2:3", "TXB_HALF is not a whole number: '2:3'"),
    ]:
        with pytest.raises(MalformedRecordError) as caught:
            parse_coordinates(text)
        assert str(caught.value) == error
