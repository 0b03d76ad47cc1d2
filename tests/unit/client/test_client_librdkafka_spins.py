"""Turns of librdkafka's broker threads: they wait for events and do not poll without a pause whether they may send.

A thread polls that way while a half message waits behind five of its partition that are in flight. This takes a core
from Kafka and makes the wait longer. The tests count turns of the broker threads, which are few on any machine.
"""

from __future__ import annotations

import json
import math
import threading
from collections import Counter
from queue import SimpleQueue

import pytest

from tests.support.harness import eventually
from txbridge import Message
from txbridge.client.kafka.connection import KafkaConnection, LastingProducer
from txbridge.client.kafka.topic_watch import TopicWatch
from txbridge.client.prepare.half_writer import HalfWriter, HalfWriters
from txbridge.client.prepare.prepared import Prepared
from txbridge.core.names import Names
from txbridge.kafka import config as kafka_config

#: librdkafka's own mock of a broker with this round-trip time (ms), which is longer than any linger of ours.
_MOCK = {"bootstrap.servers": "mock", "test.mock.num.brokers": 1, "test.mock.broker.rtt": 20}
_STATISTICS_MS = 50
_EACH = 15


class Turns:
    """Turns of librdkafka's broker threads by the last statistics of each producer, and the number of statistics."""

    def __init__(self):
        self._brokers = {}
        self._given = Counter()

    def note(self, text):
        given = json.loads(text)
        self._brokers[given["name"]] = [one for one in given["brokers"].values() if one["nodeid"] >= 0]
        self._given[given["name"]] += 1

    def up_to_now(self):
        """The turns so far, after two more statistics of each producer: the first ones may have been on their way."""
        before = dict(self._given)
        eventually(lambda: all(self._given[name] >= number + 2 for name, number in before.items()), 120)
        return sum(broker["wakeups"] for brokers in self._brokers.values() for broker in brokers)


def _prepare(writers, ready):
    ready.wait()
    for number in range(_EACH):
        reports = SimpleQueue()
        writers.for_caller(ready.parties, 0).write_half(
            Message("real", b"value", b"%d" % number), "0" * 32, reports.put
        )
        assert isinstance(reports.get(), Prepared)


def _prepare_in_threads(writers, number):
    ready = threading.Barrier(number)
    callers = [threading.Thread(target=_prepare, args=[writers, ready]) for _ in range(number)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()


@pytest.mark.parametrize(("threads", "producers"), [(8, 2), (15, 4)])
def test_librdkafka_sleeps_while_blocking_callers_wait(threads, producers):
    names, connection, turns, made = Names("ns"), KafkaConnection("mock"), Turns(), []

    def new(linger, name):
        config = kafka_config.half_producer_config(_MOCK, max_message_bytes=1_000_000, linger_ms=linger)
        config |= {"allow.auto.create.topics": True, "statistics.interval.ms": _STATISTICS_MS, "stats_cb": turns.note}
        made.append(
            HalfWriter(
                LastingProducer(config, connection), connection, names, "g", name, None, -math.inf, TopicWatch(names, 4)
            )
        )
        return made[-1]

    writers = HalfWriters(new)
    writers.start()
    try:
        # Until all needed producers are connected, the first one takes more than it should.
        while len(made) < producers or not all(writer.connected.is_set() for writer in made):
            _prepare_in_threads(writers, threads)
        each = []
        for _ in range(3):
            before = turns.up_to_now()
            _prepare_in_threads(writers, threads)
            each.append((turns.up_to_now() - before) / (threads * _EACH))
    finally:
        writers.close()
    # A few turns to send a record and to receive its report. The least counts, because threads that choose at the same
    # moment may occasionally be one too many. One producer alone takes 170 to 630.
    assert min(each) <= 15
