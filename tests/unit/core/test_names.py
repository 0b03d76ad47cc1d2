"""Headers from any writer, and names of topics, groups and ids."""

from __future__ import annotations

import pytest

from txbridge.core import names
from txbridge.core.headers import MalformedRecordError, OurHeaders, whole_number
from txbridge.core.names import Names


@pytest.mark.parametrize(("namespace", "prefix"), [("", ""), ("staging", "staging.")])
def test_a_namespace_prefixes_every_topic_group_and_transactional_id(namespace, prefix):
    made = Names(namespace)
    assert made.identified == {
        "half": f"{prefix}RMQ_SYS_TRANS_HALF_TOPIC",
        "end": f"{prefix}RMQ_SYS_TRANS_END_TOPIC",
        "op": f"{prefix}RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "offset": f"{prefix}RMQ_SYS_TRANS_OFFSET_TOPIC",
    }
    assert made.discard == f"{prefix}TRANS_CHECK_MAX_TIME_TOPIC"
    assert made.check("orders") == f"{prefix}RMQ_SYS_TRANS_CHECK.orders"
    assert made.worker_group == f"{prefix}CID_RMQ_SYS_TRANS"
    assert made.transactional_id(3, 1) == f"{prefix}RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS/3/1"


def test_keys_of_the_offset_topic():
    assert Names().checkpoint_key(7) == b"RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS/7"
    assert Names("a").parked_key(7, 12) == b"a.RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS/7/12"
    assert Names().transactional_id(7) == "RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS/7/0"


#: What may be a name, and what may not.
TABLE = {
    names.is_reserved_header: (
        [
            *("REAL_TOPIC", "REAL_QID", "PGROUP", "UNIQ_KEY", "TRAN_MSG", "CHECK_IMMUNITY_TIME_IN_SECONDS"),
            *("BORN_TIMESTAMP", "TRANSACTION_CHECK_TIMES", "__transactionId__", "TRAN_PREPARED_QUEUE_OFFSET"),
            *("TXB_V", "TXB_", "TXB_anything"),
        ],
        ["", "trace", "TXB", "txb_v", "real_topic", "TAGS", "SOURCE", "KEYS", " PGROUP"],
    ),
    names.is_group: (
        ["a", "orders", "A-Z_a.z-0.9", "g" * 200],
        ["", "g" * 201, "two words", "a/b", "é", "orders\n", "a%", "a,b"],
    ),
    names.is_topic: (["a", "orders.placed", "...", "t" * 249], ["", ".", "..", "t" * 250, "a b", "a\n", "ü"]),
    names.is_transaction_id: (
        ["0123456789ABCDEF0123456789ABCDEF"],
        ["", "0" * 31, "0" * 33, "abcdef" + "0" * 26, "G" + "0" * 31, "0" * 32 + "\n", "\u0660" * 32],
    ),
}


@pytest.mark.parametrize("may_be", TABLE, ids=lambda one: one.__name__)
def test_what_may_be_a_name(may_be):
    good, bad = TABLE[may_be]
    assert [name for name in good if not may_be(name)] == []
    assert [name for name in bad if may_be(name)] == []


def test_logs_show_a_quarter_of_a_transaction_id():
    assert names.short_id("0123456789ABCDEF0123456789ABCDEF") == "01234567"


@pytest.mark.parametrize(
    ("namespace", "topic", "forbidden"),
    [
        ("", "RMQ_SYS_TRANS_HALF_TOPIC", True),
        ("", "RMQ_SYS_ANYTHING", True),
        ("", "RMQ_SYS_TRACE_TOPIC", False),
        ("staging", "RMQ_SYS_TRACE_TOPIC", False),
        ("", "staging.RMQ_SYS_TRACE_TOPIC", True),
        ("", "RMQ_SYS_TRANS_CHECK.orders", True),
        ("", "__consumer_offsets", True),
        ("", "TRANS_CHECK_MAX_TIME_TOPIC", True),
        ("", "orders.placed", False),
        ("", "_orders", False),
        ("", "TRANS_CHECK_MAX_TIME_TOPIC_2", False),
        ("", "staging.RMQ_SYS_TRANS_HALF_TOPIC", True),
        ("", "TRANS_AUDIT_VIOLATIONS_TOPIC", True),
        ("", "staging.eu.RMQ_SYS_TRANS_CHECK.orders.placed", True),
        ("", "orders.__placed", False),
        ("", "orders_RMQ_SYS_placed", False),
        ("", "TRANS_CHECK_MAX_TIME_TOPIC.orders", False),
        ("staging", "staging.RMQ_SYS_TRANS_HALF_TOPIC", True),
        ("staging", "staging.RMQ_SYS_TRANS_CHECK.orders", True),
        ("staging", "staging.TRANS_CHECK_MAX_TIME_TOPIC", True),
        ("staging", "TRANS_CHECK_MAX_TIME_TOPIC", True),
        ("staging", "RMQ_SYS_TRANS_HALF_TOPIC", True),
        ("staging", "staging.orders", False),
        ("staging", "production.RMQ_SYS_TRANS_HALF_TOPIC", True),
        ("staging", "production.TRANS_CHECK_MAX_TIME_TOPIC", True),
        ("staging", "production.TRANS_AUDIT_VIOLATIONS_TOPIC", True),
        ("staging", "production.orders", False),
    ],
)
def test_forbidden_real_topics(namespace, topic, forbidden):
    assert Names(namespace).is_forbidden(topic) is forbidden


@pytest.mark.parametrize("own", ["", "staging", "a.b"])
@pytest.mark.parametrize("other", ["", "staging", "production", "eu.production", "a-b_c", "x" * 100])
def test_no_internal_topic_of_any_namespace_can_be_a_real_topic(own, other):
    # All properties of `Names` except for a group's name, so that a new one is tested as well.
    topics = {
        getattr(Names(other), name)
        for name, one in vars(Names).items()
        if isinstance(one, property | names.cached_property) and name not in {"worker_group", "identified", "internal"}
    }
    topics |= {*Names(other).identified.values(), Names(other).check("orders"), Names(other).check("orders.eu.de")}
    assert len(topics) == 9
    assert {topic for topic in topics if not Names(own).is_forbidden(topic)} == set()


def refused(function, *arguments) -> str:
    with pytest.raises(MalformedRecordError) as caught:
        function(*arguments)
    return str(caught.value)


def test_values_are_text():
    ours = OurHeaders([("PGROUP", "größe".encode()), ("trace", b"\xff"), ("empty", b"")])
    assert ours.require_text("PGROUP") == "größe"
    assert ours.find_text("empty") == ""
    assert ours.find_text("REAL_QID") is None
    assert ours.optional_number("REAL_QID") is None


def test_values_that_are_refused():
    ours = OurHeaders(
        [("null", None), ("latin", b"\xe9"), ("twice", b"1"), ("twice", b"1"), ("users", b"1"), ("once", b"1")]
    )
    assert refused(ours.require_text, "absent") == "header absent is missing"
    assert refused(ours.require_text, "null") == "header null is null"
    assert refused(OurHeaders([("TXB_V", None)]).require_version, "END record") == "header TXB_V is null"
    assert refused(ours.find_text, "latin") == "header latin is not UTF-8"
    assert refused(ours.find_text, "twice") == "header twice is there 2 times"
    assert ours.find_text("once") == "1"


def test_an_optional_header_without_a_value_counts_as_absent():
    """A client in another language may write it without a value. No decision is lost because of it."""
    ours = OurHeaders([("null", None), ("other", b"1")])
    assert ours.find_text("null") is None
    assert ours.optional_bytes("null") is None
    assert ours.optional_number("null") is None


def test_names_beside_the_known_ones_are_listed_once():
    ours = OurHeaders([("a", b"1"), ("k", b"1"), ("b", None), ("a", b"2")])
    assert ours.names_beside({"k", "l"}) == ["a", "b"]


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("8", 8), ("007", 7), ("9223372036854775807", 2**63 - 1)])
def test_whole_numbers(text, number):
    assert whole_number(text, "it") == number
    assert OurHeaders([("n", text.encode())]).optional_number("n") == number


@pytest.mark.parametrize(
    "text",
    ["", "-1", "+1", " 1", "1 ", "1_000", "0x10", "1.0", "1e3", "٣", "²", "9223372036854775808", "0" * 20, "9" * 5_000],
)
def test_what_is_not_a_whole_number(text):
    assert refused(whole_number, text, "it") == f"it is not a whole number: {text[:40]!r}"
