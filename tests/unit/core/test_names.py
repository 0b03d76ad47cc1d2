"""Names of topics, groups, headers and ids."""

from __future__ import annotations

import pytest

from txbridge.core import names
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
        for name, member in vars(Names).items()
        if isinstance(member, property) and name not in {"worker_group", "identified", "internal"}
    }
    topics |= {*Names(other).identified.values(), Names(other).check("orders"), Names(other).check("orders.eu.de")}
    assert len(topics) == 8
    assert {topic for topic in topics if not Names(own).is_forbidden(topic)} == set()
