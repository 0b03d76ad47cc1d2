"""The service and the relay of a way, killed in turn under a steady load: what is lost, and what is visible twice.

The database says which orders were committed, the topic says which became visible.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter

import psycopg
from confluent_kafka import TopicPartition

from tests.bench.feed import reader
from tests.bench.measure import Found
from tests.bench.outbox.shop import Shop
from tests.bench.outbox.visit import Visit

ORDERS, LOST, COPIES, FALSE = "orders", "lost", "visible more than once", "visible without an order"
#: Between two kills (s): a relay has caught up by then, and has new work. Random, so that they fall anywhere.
_CALM_S = 1.0, 3.0
#: Numbers of one life of the service. It does not know how far its predecessor came.
_LIFE = 1_000_000
_CALLS = 8
#: Everything has settled when nothing became visible for so long: Kafka Connect repeats up to 60 s, and a worker of
#: txbridge checks again after 30 s.
_QUIET_S = 75.0


def kill_by_turns(visited: Visit, kills: int, rate: float) -> Found:
    """Kill the service and each part of the relay so many times, and count when everything has settled."""
    shop, relay = visited.shop, visited.relay
    for life in range(kills):
        service = visited.start_service("threads")
        # It places orders until it is killed.
        service.write(json.dumps({"first": life * _LIFE, "count": _LIFE, "calls": _CALLS, "rate": rate}))
        _wait_a_little()
        for part in relay.parts:
            part.kill()
            part.start()
            _wait_a_little()
        assert service.code is None, "the service has ended by itself; what it said stands above"
        service.kill()
        service.end(0)
    # Transactions that were open when the service was killed are checked by another one.
    with visited.start_service("threads"):
        seen = _visible_at_last(shop)
    with psycopg.connect(shop.conninfo) as connection:
        return compare({number for (number,) in connection.execute("SELECT id FROM orders")}, seen)


def compare(placed: set[int], seen: Counter[int]) -> Found:
    """Count what is wrong, by the orders of the database and how often each is visible."""
    return {
        ORDERS: len(placed),
        LOST: len(placed - seen.keys()),
        COPIES: sum(count > 1 for count in seen.values()),
        FALSE: len(seen.keys() - placed),
    }


def _wait_a_little() -> None:
    time.sleep(random.uniform(*_CALM_S))


def _visible_at_last(shop: Shop) -> Counter[int]:
    """How often each order is visible when no more of them become visible."""
    consumer = reader(shop.servers)
    partitions = consumer.list_topics(shop.topic, 10).topics[shop.topic].partitions
    consumer.assign([TopicPartition(shop.topic, partition, 0) for partition in partitions])
    seen: Counter[int] = Counter()
    last = time.monotonic()
    while time.monotonic() < last + _QUIET_S:
        records = [record for record in consumer.consume(10_000, 1.0) if record.error() is None]
        if records:
            last = time.monotonic()
            seen.update(int(record.key() or b"") for record in records)
    consumer.close()
    return seen
