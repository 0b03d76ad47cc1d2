"""P12: the messages of one transaction become visible together or not at all, with a real client, worker and Kafka."""

from __future__ import annotations

import random

import pytest

from tests.support.harness import COMMIT, Bridge, eventually
from tests.support.listeners import Answers
from tests.support.message_frames import Framed, write
from txbridge import Message, TransactionProducer


def settings(bridge: Bridge) -> dict[str, str]:
    return {"bootstrap.servers": bridge.bootstrap_servers}


def producer(bridge: Bridge, listener: Answers) -> TransactionProducer:
    return TransactionProducer("group", listener, settings(bridge), namespace=bridge.namespace)


def all_of(bridge: Bridge, *topics: str) -> list[tuple[str, bytes | None]]:
    """Pairs (number that the record states, value), as a read_committed reader sees them."""
    return [
        (dict(record.headers())["TXB_MESSAGE"].decode(), record.value())
        for topic in topics
        for record in bridge.read(topic)
    ]


@pytest.fixture
def topics(bridge: Bridge) -> list[str]:
    # One message has an old timestamp: retention would delete its record.
    return [bridge.create_topic(name, 1, retention_ms="-1") for name in ("orders", "stock", "mail")]


def test_p12_a_commit_delivers_all_messages_to_their_topics_in_the_order_given(bridge: Bridge, topics: list[str]):
    orders, stock, mail = topics
    listener = Answers()
    sent = [
        Message(orders, b"placed", b"42", [("trace", b"1"), ("none", None)], timestamp=1_700_000_000_123),
        *(Message(stock, b"less %d" % number, partition=0) for number in range(3)),
        Message(mail, None, b"42"),
    ]
    bridge.worker()
    with producer(bridge, listener) as client:
        result = client.send_message_in_transaction(sent, "an argument")
        eventually(lambda: len(all_of(bridge, *topics)) == 5)
        [(given, argument)] = listener.executed
        assert (list(given.messages), argument) == (sent, "an argument")
        # Send in the background as well.
        futures = [client.submit_message_in_transaction(sent[1:3]) for _ in range(2)]
        assert {future.result(30).local_transaction_state for future in futures} == {listener.execute}
        eventually(lambda: len(all_of(bridge, *topics)) == 9)
    assert all_of(bridge, orders) == [("1/5", b"placed")]
    assert all_of(bridge, stock)[:3] == [("2/5", b"less 0"), ("3/5", b"less 1"), ("4/5", b"less 2")]
    assert all_of(bridge, mail) == [("5/5", None)]
    [record] = bridge.read(orders)
    assert (record.key(), record.timestamp()[1]) == (b"42", 1_700_000_000_123)
    assert record.headers() == [
        ("trace", b"1"),
        ("none", None),
        ("UNIQ_KEY", result.transaction_id.encode()),
        ("TXB_HALF", f"{given.half_partition}:{given.half_offset}".encode()),
        ("TXB_MESSAGE", b"1/5"),
    ]


def framed(bridge: Bridge, messages: list[Framed], partition: int = 0):
    """Prepare several messages without a client."""
    extra = [("TXB_MESSAGES", b"%d" % len(messages))]
    return bridge.prepare(messages[0].topic, write(messages), key=messages[0].key, partition=partition, extra=extra)


def test_p12_one_topic_that_is_missing_holds_all_messages_until_it_is_there(bridge: Bridge, topics: list[str]):
    missing = f"{bridge.namespace}.later"
    messages = [Framed(topic, b"k", b"held") for topic in (*topics, missing)]
    with bridge.local_owner():
        held = framed(bridge, messages)
        other = bridge.prepare(topics[0], b"other", partition=0)
        bridge.decide_many([held, other], COMMIT)
        bridge.wait_visible(topics[0], [b"other"])
        eventually(lambda: bridge.parked_states(0) == ["held"])
        assert [bridge.visible(topic) for topic in topics[1:]] == [{}, {}]
        bridge.create_topic("later", 1)
        eventually(lambda: len(bridge.read(missing)) == 1, 90)
        eventually(lambda: not bridge.parked_states(0))
    assert [bridge.visible(topic)[b"held"] for topic in (*topics, missing)] == [1, 1, 1, 1]


def test_p12_one_record_that_its_topic_refuses_holds_all_messages(bridge: Bridge, topics: list[str]):
    """Kafka may refuse only the whole batch, and small messages may be too large together."""
    small = bridge.create_topic("small", 1, max_message_bytes="2000")
    # Random bytes, because the worker compresses what it sends.
    many = [Framed(small, b"k", random.randbytes(300)) for _ in range(20)]
    with bridge.local_owner():
        refused = framed(bridge, [Framed(topics[0], b"k", b"refused"), Framed(small, None, random.randbytes(9_000))])
        taken = framed(bridge, many)
        bridge.decide_many([refused, taken], COMMIT)
        eventually(lambda: len(bridge.read(small)) == 20, 90)
        eventually(lambda: bridge.parked_states(0) == ["held"], 90)
        assert bridge.visible(topics[0]) == {}
        assert [record.value() for record in bridge.read(small)] == [one.value for one in many]
        bridge.alter_topic(small, max_message_bytes="20000")
        bridge.wait_visible(topics[0], [b"refused"], 120)
    assert len(bridge.read(small)) == 21
