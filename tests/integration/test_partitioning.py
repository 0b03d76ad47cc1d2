"""Partitions of keyed half messages: the same as Kafka's Java producer chooses.

The hashes are those of Java's `org.apache.kafka.common.utils.Utils.murmur2`. Six of them are in Kafka's own UtilsTest;
the empty key and the last two were computed with kafka-clients 4.3.1. The partition is `(hash & 0x7fffffff) % 7`.
"""

from __future__ import annotations

import pytest

from tests.support.harness import Bridge
from tests.support.listeners import Commits
from txbridge import Message, TransactionProducer

# key, hash, (hash & 0x7fffffff) % 7
VECTORS = [
    (b"21", -973932308, 3),
    (b"foobar", -790332482, 0),
    (b"a-little-bit-long-string", -985981536, 1),
    (b"a-little-bit-longer-string", -1486304829, 0),
    (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971, 3),
    (b"abc", 479470107, 4),
    (b"", 275646681, 2),
    ("größe".encode(), 588164084, 4),
    (b"\xff\x80\x00\xfe\x01", -433461584, 6),
]


@pytest.fixture
def seven(kafka, request):
    with Bridge(kafka.bootstrap_servers, request.node.name, partitions=7) as bridge:
        yield bridge


def test_keys_land_where_the_java_producer_puts_them(seven):
    assert [((number & 0x7FFFFFFF) % 7) for _, number, _ in VECTORS] == [partition for *_, partition in VECTORS]
    settings = {"bootstrap.servers": seven.bootstrap_servers}
    with TransactionProducer("orders", Commits(), settings, namespace=seven.namespace) as producer:
        results = [producer.send_message_in_transaction(Message("orders", b"v", key)) for key, *_ in VECTORS]
    assert [result.half_partition for result in results] == [partition for *_, partition in VECTORS]
    assert {record.key(): record.partition() for record in seven.read(seven.names.half)} == {
        key: partition for key, _, partition in VECTORS
    }
    # An END is in the partition of its half message.
    for record in seven.read(seven.names.end):
        for line in record.value().split(b"\n"):
            transaction_id = line.split(b",")[1].decode()
            assert [r.half_partition for r in results if r.transaction_id == transaction_id] == [record.partition()]


def test_without_a_key_any_partition(seven):
    settings = {"bootstrap.servers": seven.bootstrap_servers, "sticky.partitioning.linger.ms": 0}
    with TransactionProducer("orders", Commits(), settings, namespace=seven.namespace) as producer:
        partitions = {producer.send_message_in_transaction(Message("orders", b"v")).half_partition for _ in range(200)}
    # Each of 7 is missed by 200 random choices with a probability of (6/7)^200 = 4e-14.
    assert partitions == set(range(7))
