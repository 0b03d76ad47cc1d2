"""Names of topics, groups, headers and ids."""

from __future__ import annotations

import pytest

from txbridge.core import names
from txbridge.core.names import Names


def test_internal_topics_without_namespace():
    plain = Names()
    assert [plain.half, plain.end, plain.op, plain.offset, plain.discard] == [
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_END_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "RMQ_SYS_TRANS_OFFSET_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
    ]
    assert plain.check("orders") == "RMQ_SYS_TRANS_CHECK.orders"
    assert plain.worker_group == "CID_RMQ_SYS_TRANS"


def test_a_namespace_prefixes_every_topic_group_and_transactional_id():
    staging = Names("staging")
    assert [staging.half, staging.end, staging.op, staging.offset, staging.discard] == [
        "staging.RMQ_SYS_TRANS_HALF_TOPIC",
        "staging.RMQ_SYS_TRANS_END_TOPIC",
        "staging.RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "staging.RMQ_SYS_TRANS_OFFSET_TOPIC",
        "staging.TRANS_CHECK_MAX_TIME_TOPIC",
    ]
    assert staging.check("orders") == "staging.RMQ_SYS_TRANS_CHECK.orders"
    assert staging.worker_group == "staging.CID_RMQ_SYS_TRANS"
    assert staging.transactional_id(3, 1) == "staging.RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS/3/1"


def test_keys_of_the_offset_topic():
    assert Names().checkpoint_key(7) == b"RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS/7"
    assert Names("a").parked_key(7, 12) == b"a.RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS/7/12"
    assert Names().transactional_id(7) == "RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS/7/0"


@pytest.mark.parametrize(
    "name",
    [
        "REAL_TOPIC",
        "REAL_QID",
        "PGROUP",
        "UNIQ_KEY",
        "TRAN_MSG",
        "CHECK_IMMUNITY_TIME_IN_SECONDS",
        "BORN_TIMESTAMP",
        "TRANSACTION_CHECK_TIMES",
        "__transactionId__",
        "TRAN_PREPARED_QUEUE_OFFSET",
        "TXB_V",
        "TXB_",
        "TXB_anything",
    ],
)
def test_reserved_headers(name):
    assert names.is_reserved_header(name)


@pytest.mark.parametrize("name", ["", "trace", "TXB", "txb_v", "real_topic", "TAGS", "SOURCE", "KEYS", " PGROUP"])
def test_headers_that_are_the_users(name):
    assert not names.is_reserved_header(name)


@pytest.mark.parametrize("name", ["a", "orders", "A-Z_a.z-0.9", "g" * 200])
def test_groups(name):
    assert names.is_group(name)


@pytest.mark.parametrize("name", ["", "g" * 201, "two words", "a/b", "é", "orders\n", "a%", "a,b"])
def test_what_can_not_be_a_group(name):
    assert not names.is_group(name)


@pytest.mark.parametrize("name", ["a", "orders.placed", "...", "t" * 249])
def test_topics(name):
    assert names.is_topic(name)


@pytest.mark.parametrize("name", ["", ".", "..", "t" * 250, "a b", "a\n", "ü"])
def test_what_can_not_be_a_topic(name):
    assert not names.is_topic(name)


def test_transaction_ids():
    assert names.is_transaction_id("0123456789ABCDEF0123456789ABCDEF")
    for wrong in (
        "",
        "0" * 31,
        "0" * 33,
        "abcdef0123456789abcdef0123456789",
        "G" + "0" * 31,
        "0" * 32 + "\n",
        "\u0660" * 32,
    ):
        assert not names.is_transaction_id(wrong)


def test_logs_show_a_quarter_of_a_transaction_id():
    assert names.short_id("0123456789ABCDEF0123456789ABCDEF") == "01234567"


@pytest.mark.parametrize(
    ("namespace", "topic", "forbidden"),
    [
        ("", "RMQ_SYS_TRANS_HALF_TOPIC", True),
        ("", "RMQ_SYS_ANYTHING", True),
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
        if isinstance(member, property) and name not in {"worker_group", "identified"}
    }
    topics |= {*Names(other).identified.values(), Names(other).check("orders"), Names(other).check("orders.eu.de")}
    assert len(topics) == 8
    assert {topic for topic in topics if not Names(own).is_forbidden(topic)} == set()


def test_the_topics_whose_ids_the_checkpoint_keeps():
    assert Names("a").identified == {
        "half": "a.RMQ_SYS_TRANS_HALF_TOPIC",
        "end": "a.RMQ_SYS_TRANS_END_TOPIC",
        "op": "a.RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "offset": "a.RMQ_SYS_TRANS_OFFSET_TOPIC",
    }
