"""Cost of a transaction for Kafka, and of an idle worker: counters that are the same on every machine."""

from __future__ import annotations

import json
import time

import pytest

from tests.support.harness import COMMIT, Bridge, eventually
from tests.support.log_bytes import batches, log_bytes
from txbridge.embedded import EmbeddedKafka
from txbridge.kafka.partition_reader import PartitionReader

#: So long that nothing becomes due during a test (ms).
_NEVER = 3_600_000
_TRANSACTIONS = 10_000
_SIZE = 100


@pytest.fixture
def kafka():
    """A Kafka whose segments no other test writes to."""
    with EmbeddedKafka() as broker:
        yield broker


@pytest.mark.long
def test_ten_thousand_waiting_transactions_cost_what_they_should(kafka):
    with Bridge(kafka.bootstrap_servers, "cost", partitions=1) as bridge:
        names, real = bridge.names, bridge.create_topic("real", partitions=1)
        topics = [names.half, names.end, names.op, names.offset, names.discard, real]
        empty = log_bytes(kafka, topics)
        prepared = bridge.prepare_many(real, [b"v" * _SIZE] * _TRANSACTIONS)
        bridge.decide_many(prepared, COMMIT, batch=200)
        bridge.worker(transaction_timeout=_NEVER, transaction_check_interval=_NEVER)
        eventually(lambda: len(bridge.read(real)) == _TRANSACTIONS, 60)
        bridge.workers[0].stop()
        written = log_bytes(kafka, topics) - empty

        # One Kafka transaction for all messages, besides the first one of the take-over.
        assert len(bridge.read(names.offset)) == 2
        assert len(bridge.read(names.op)) == 1
        # librdkafka puts up to 10,000 records or a megabyte into a produce request. Each transaction adds a marker.
        assert batches(kafka, real) <= 6
        each = {topic: written[topic] / _TRANSACTIONS for topic in topics}
        # An offset of up to five digits, and a comma.
        assert each[names.op] <= 7
        assert each[names.offset] <= 1
        assert each[names.discard] == 0
        # An offset, a transaction id, a decision and their separators: at most 43 bytes, and the record of about 200.
        assert each[names.end] <= 45
        # The value, its key, seven headers of ours in HALF and two in the real topic.
        assert each[names.half] <= _SIZE + 200
        assert each[real] <= _SIZE + 90


@pytest.mark.long
def test_a_round_of_checks_leaves_little_behind(kafka):
    with Bridge(kafka.bootstrap_servers, "checks", partitions=1) as bridge:
        names, real = bridge.names, bridge.create_topic("real", partitions=1)
        durable = [names.half, names.end, names.op, names.offset, names.discard]
        bridge.worker(transaction_timeout=1_000, transaction_check_interval=_NEVER, transaction_check_max=15)
        before = log_bytes(kafka, durable)
        bridge.prepare_many(real, [b"v" * 1_000] * 500)
        halves = log_bytes(kafka, durable)[names.half] - before[names.half]
        with bridge.member() as member:
            eventually(lambda: member.count == 500, 60)
        written = log_bytes(kafka, durable) - before
        assert written[names.half] == halves
        assert (sum(written.values()) - halves) / 500 <= 300


def test_messages_that_come_one_by_one_are_fetched_together(bridge):
    requests = []

    def note(statistics: str) -> None:
        brokers = json.loads(statistics)["brokers"].values()
        requests.append(sum(broker["req"]["Fetch"] for broker in brokers))

    kafka = {"bootstrap.servers": bridge.bootstrap_servers, "statistics.interval.ms": 100, "stats_cb": note}
    reader = PartitionReader(kafka, bridge.names.half, 0, committed=False, on_demand=1)
    reader.start(0)
    real = bridge.create_topic("real", partitions=1)
    bridge.prepare(real, b"the first", partition=0)
    eventually(lambda: reader.poll(10, 0.1), 20)
    for number in range(200):
        bridge.prepare(real, b"%d" % number, partition=0)
    eventually(lambda: reader.poll(1_000, 0.1) and reader.position == 201, 20)
    requests.clear()
    eventually(lambda: not reader.poll(1, 0.1) and requests, 20)
    reader.close()
    # Requests: the first one, the first of the many, the others, and one for each half second of waiting.
    assert requests[-1] <= 20


@pytest.mark.long
def test_an_idle_worker_is_idle(bridge):
    worker = bridge.worker()

    def is_idle() -> bool:
        written = bridge.bounds(bridge.names.offset, 0)[1]
        before, since = worker.cpu_seconds, time.monotonic()
        time.sleep(6)
        load = (worker.cpu_seconds - before) / (time.monotonic() - since)
        # Two owners that look at HALF ten times a second, Faust's loop and librdkafka's threads.
        return load <= 0.15 and bridge.bounds(bridge.names.offset, 0)[1] == written

    # Faust's start and the first Kafka transaction last a little longer than the take-over.
    eventually(is_idle, 20, "it is not idle in any six seconds")
