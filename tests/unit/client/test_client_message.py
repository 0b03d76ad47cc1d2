"""Messages: accepted values, values on arrival, refused values."""

from __future__ import annotations

import dataclasses

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField
from pydantic import BaseModel

from txbridge import Message, MessageExt, UsageError
from txbridge.client.message import KEY_AND_HEADERS_LIMIT, MessageLimits, check_limits, check_message
from txbridge.core.half_message import HalfMessage
from txbridge.core.names import Names

NAMES = Names("staging")


@pytest.mark.parametrize(
    ("message", "value", "key", "headers"),
    [
        (
            Message("orders", "größe", "schlüssel", [("a", "ü"), ("a", None), ("b", b"\xff"), ("", b"")]),
            b"gr\xc3\xb6\xc3\x9fe",
            b"schl\xc3\xbcssel",
            (("a", b"\xc3\xbc"), ("a", None), ("b", b"\xff"), ("", b"")),
        ),
        (Message("orders", None), None, None, ()),
        (Message("orders", b"", b""), b"", b"", ()),
        (Message("t", b"", headers={"a": b"1", "b": None}), b"", None, (("a", b"1"), ("b", None))),
        (Message("t", b"", headers=((name, name) for name in "ab")), b"", None, (("a", b"a"), ("b", b"b"))),
    ],
)
def test_text_becomes_utf8_and_the_rest_stays(message, value, key, headers):
    assert (message.value, message.key, message.headers) == (value, key, headers)
    assert (message.timestamp, message.partition, message.check_immunity_time) == (None, None, None)


class Order(BaseModel):
    number: str
    note: str | None = None


def test_a_pydantic_model_becomes_its_json():
    made = Message("t", Order(number="Größe"))
    assert made.value == '{"number":"Größe","note":null}'.encode()


def test_a_serializer_of_confluent_kafka_makes_the_value():
    """Its registry is confluent-kafka's own in memory."""
    schema = '{"type": "record", "name": "Order", "fields": [{"name": "number", "type": "string"}]}'
    registry = SchemaRegistryClient.new_client({"url": "mock://"})
    made = Message("orders", {"number": "A1"}, "A1", serializer=AvroSerializer(registry, schema))
    # Confluent's framing: a zero, the id of the schema in four bytes, and Avro's length and text.
    assert (made.value, made.key) == (b"\0\0\0\0\1\x04A1", b"A1")
    assert registry.get_subjects() == ["orders-value"]


def test_a_serializer_may_add_headers_and_what_it_raises_gets_out():
    def serialize(value, context):
        assert (context.topic, context.field) == ("orders", MessageField.VALUE)
        context.headers.append(("schema", b"1"))
        return str(1 // value).encode()

    made = Message("orders", 1, headers={"a": "b"}, serializer=serialize)
    assert (made.value, made.headers) == (b"1", (("a", b"b"), ("schema", b"1")))
    with pytest.raises(ZeroDivisionError):
        Message("orders", 0, serializer=serialize)
    with pytest.raises(UsageError, match=r"value must be bytes.*not dict"):
        Message("orders", {}, serializer=lambda value, _: value)


def test_is_frozen_comparable_and_replaceable():
    message = Message("t", b"1", headers=[("a", b"1")])
    with pytest.raises(dataclasses.FrozenInstanceError):
        message.topic = "u"
    assert message == Message("t", b"1", headers={"a": "1"})
    assert hash(message) == hash(Message("t", b"1", headers={"a": "1"}))
    assert dataclasses.replace(message, topic="u") == Message("u", b"1", headers=[("a", b"1")])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"topic": b"orders", "value": b""}, "topic must be text, not bytes"),
        ({"topic": "t", "value": 1}, "value must be bytes, text, None or a pydantic model, not int"),
        (
            {"topic": "t", "value": {"a": 1}},
            "value must be bytes, text, None or a pydantic model, not dict.*a serializer",
        ),
        ({"topic": "t", "value": b"", "key": 42}, "key must be bytes, text or None, not int"),
        ({"topic": "t", "value": "\ud800"}, "value cannot be encoded as UTF-8"),
        ({"topic": "t", "value": b"", "headers": [(b"a", b"1")]}, "header names are text, not bytes"),
        ({"topic": "t", "value": b"", "headers": [("a", 1)]}, "header 'a' must be bytes, text or None, not int"),
        ({"topic": "t", "value": b"", "headers": [("\ud800", b"")]}, "a header name cannot be encoded"),
        ({"topic": "t", "value": b"", "headers": ["abc"]}, "headers must be pairs"),
        ({"topic": "t", "value": b"", "headers": 5}, "headers must be pairs"),
        ({"topic": "t", "value": b"", "timestamp": 1.5}, "timestamp must be a whole number or None, not float"),
        ({"topic": "t", "value": b"", "partition": "1"}, "partition must be a whole number or None, not str"),
        ({"topic": "t", "value": b"", "check_immunity_time": True}, "must be a whole number or None, not bool"),
    ],
)
def test_wrong_types_are_refused(arguments, complaint):
    with pytest.raises(UsageError, match=complaint):
        Message(**arguments)


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (Message("", b""), "the topic is empty"),
        (Message("a b", b""), "'a b' cannot be a topic"),
        (Message("..", b""), "cannot be a topic"),
        (Message("x" * 250, b""), "cannot be a topic"),
        (Message("prod.RMQ_SYS_TRANS_OFFSET_TOPIC", b""), "system topic prod.RMQ_SYS_TRANS_OFFSET_TOPIC is forbidden"),
        (Message("t", b"", headers=[("fine", b""), ("REAL_TOPIC", b"1")]), "header 'REAL_TOPIC' is reserved"),
        (Message("t", b"", headers=[("a\0b", b"")]), "NUL"),
        (Message("t", b"", partition=-1), "partition must be between 0 and 2147483647"),
        (Message("t", b"", partition=2**31), "partition must be between"),
        (Message("t", b"", timestamp=-1), "timestamp must be between 1 and"),
        (Message("t", b"", timestamp=0), "timestamp must be between 1 and"),
        (Message("t", b"", timestamp=2**63), "timestamp must be between"),
        (
            Message("t", b"", timestamp=1),
            "timestamp takes ms since 1970-01-01 UTC, and 1 is a time in seconds: give int",
        ),
        (Message("t", b"", timestamp=10**11 - 1), "99999999999 is a time in seconds"),
        (Message("t", b"", timestamp=1_700_000_000), "timestamp takes ms .* 1700000000 is a time in seconds"),
        (Message("t", b"", timestamp=1_700_000_000_000_000), "is a time in microseconds or nanoseconds"),
        (Message("t", b"", timestamp=2**63 - 1), "is a time in microseconds or nanoseconds"),
        (Message("t", b"", deliver_at=1_700_000_000), "deliver_at takes ms .* 1700000000 is a time in seconds"),
        (Message("t", b"", deliver_at=1_700_000_000_000_000_000), "deliver_at .* microseconds or nanoseconds"),
        (Message("t", b"", key=b"k" * 32_769), "key and headers take 32769 bytes together, more than 32768"),
        # 2,000 names of one byte: 2,000 * (1 + 10) = 22,000 bytes, and 10,769 of the key.
        (Message("t", b"", key=b"k" * 10_769, headers=[("h", None)] * 2_000), "take 32769 bytes"),
    ],
)
def test_what_no_cluster_takes_is_refused(message, complaint):
    with pytest.raises(UsageError, match=complaint):
        check_message(message, NAMES)


@pytest.mark.parametrize(
    "message",
    [
        Message("x" * 249, None),
        Message("orders.placed_2-b", b"", b"", [("real_topic", b""), ("TX", None)], 10**11, 0, 0),
        Message("RMQ", b"", partition=2**31 - 1, timestamp=253_402_300_799_999),
        Message("prod.orders", b""),
        Message("t", b"", key=b"k" * KEY_AND_HEADERS_LIMIT),
        Message("t", b"v" * 2_000_000),
    ],
)
def test_what_is_allowed(message):
    check_message(message, NAMES)


def test_limits_of_the_topics():
    limits = MessageLimits(value=1_000, immunity=604_800)
    check_limits(Message("t", b"v" * 1_000, check_immunity_time=604_800), limits)
    check_limits(Message("t", None, check_immunity_time=0), limits)
    with pytest.raises(UsageError, match="the value has 1001 bytes, more than the 1000"):
        check_limits(Message("t", b"v" * 1_001), limits)
    with pytest.raises(UsageError, match="check_immunity_time must be between 0 and 604800"):
        check_limits(Message("t", b"", check_immunity_time=604_801), limits)
    with pytest.raises(UsageError, match="check_immunity_time must be between"):
        check_limits(Message("t", b"", check_immunity_time=-1), limits)


def test_extended_message_shows_everything_but_the_transaction_id():
    message = Message("t", b"v", b"k", [("a", None)], 5, 2, 30)
    extended = MessageExt.for_execution(message, "0123456789ABCDEF0123456789ABCDEF", 3, 17, 1_700_000_000_000)
    assert isinstance(extended, Message)
    assert extended.transaction_id == "0123456789ABCDEF0123456789ABCDEF"
    assert "0123456789ABCDEF" not in repr(extended)
    assert repr(extended) == (
        "MessageExt(topic='t', value=b'v', key=b'k', headers=(('a', None),), timestamp=5, partition=2, "
        "check_immunity_time=30, deliver_at=None, half_partition=3, half_offset=17, born_timestamp=1700000000000, "
        "check_times=0, barrier_id=None, check_timestamp=None)"
    )
    with pytest.raises(UsageError, match="txbridge makes these"):
        MessageExt()


@pytest.mark.parametrize(
    ("immunity", "seconds"), [("30", 30), ("0", 0), ("-1", None), ("soon", None), ("9" * 5_000, None), (None, None)]
)
def test_message_of_a_check_has_only_the_users_headers(immunity, seconds):
    half = HalfMessage.of(
        offset=9,
        transaction_id="A" * 32,
        group="g",
        real_topic="orders",
        born=1,
        key=None,
        value=b"v",
        headers=[("a", None), ("TXB_V", b"1"), ("a", b"2"), ("UNIQ_KEY", b"A" * 32), ("TRANSACTION_CHECK_TIMES", b"4")],
        real_partition=1,
        immunity=immunity,
        user_timestamp=77,
    )
    message = MessageExt.for_check(half, 3, 4, 1_700_000_000_000)
    assert message.headers == (("a", None), ("a", b"2"))
    assert (message.topic, message.value, message.key) == ("orders", b"v", None)
    assert (message.timestamp, message.partition, message.check_immunity_time) == (77, 1, seconds)
    assert (message.half_partition, message.half_offset, message.check_times) == (3, 9, 4)
    assert message.born_timestamp == 1_700_000_000_000
