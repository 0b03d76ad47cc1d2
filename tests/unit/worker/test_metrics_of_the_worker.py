"""The worker's metrics without Kafka: increments of a committed draft, gauges of states, few labels."""

from __future__ import annotations

import random

import pytest
from prometheus_client import CollectorRegistry, Histogram

from tests.support.partition_builder import COMMIT, ROLLBACK, Partition, end, entry, resume
from txbridge.core.decision_record import Source
from txbridge.core.open_messages import OTHER, SLOT_MS, OpenCounts
from txbridge.core.plan.effects import MalformedRecord
from txbridge.core.states import TransactionState
from txbridge.kafka.fenced_producer import Registrations
from txbridge.worker.observe.metrics import BulkHistogram, KnownNames, PartitionFacts, WorkerMetrics

NOW = 1_700_000_000_000


def test_a_bulk_histogram_says_what_prometheus_own_would():
    bounds = (0.1, 1.0, 60.0)
    chance = random.Random(1)
    values = [chance.choice([0, 99, 100, 101, 1_000, 1_001, 59_999, 60_000, 70_000, -5]) for _ in range(500)]
    registry = CollectorRegistry()
    theirs = Histogram("theirs", "text", buckets=bounds, registry=registry)
    bulk, weighted = BulkHistogram("bulk", "text", bounds), BulkHistogram("weighted", "text", bounds)
    registry.register(bulk)
    registry.register(weighted)
    for value in values:
        theirs.observe(max(value, 0) / 1000)
    bulk.observe_milliseconds(values[:250])
    bulk.observe_milliseconds([])
    bulk.observe_milliseconds(values[250:])
    weighted.observe_weighted([(value / 1000, 1) for value in values[:100]] + [(v / 1000, 1) for v in values[100:]])
    for name in ("bulk", "weighted"):
        for suffix, labels in [("count", {}), *(("bucket", {"le": le}) for le in ("0.1", "1.0", "60.0", "+Inf"))]:
            found = registry.get_sample_value(f"{name}_{suffix}", labels)
            assert found == registry.get_sample_value(f"theirs_{suffix}", labels), (name, suffix, labels)
        assert registry.get_sample_value(f"{name}_sum") == pytest.approx(registry.get_sample_value("theirs_sum"))


def test_only_so_many_names_have_a_label_value_of_their_own():
    names = KnownNames(2)
    assert [names.label(name) for name in ("a", "b", "c", "a", "d")] == ["a", "b", OTHER, "a", OTHER]
    assert names.seen == ["a", "b", OTHER]


def committed(metrics, *drafts, malformed=()):
    for draft in drafts:
        metrics.note_commit(draft, malformed, 0.02, NOW)


def test_what_a_kafka_transaction_did_is_counted_when_it_is_committed():
    metrics, partition = WorkerMetrics(), Partition()
    value = metrics.registry.get_sample_value
    partition.prepare(*range(4), born=NOW - 2_000).prepare(4, born=NOW - 2_000, topic="nowhere")
    partition.obstacles["nowhere"] = "no such topic"
    committed(
        metrics,
        partition.step(
            NOW,
            end(0, entry(0, COMMIT), entry(1, ROLLBACK), entry(4, COMMIT)),
            end(1, entry(0, ROLLBACK), source=Source.CHECK),
            resume(2, 3),
        ),
        malformed=[
            MalformedRecord("half", 0, 9, None, None, (), "no header"),
            MalformedRecord("half", 0, 10, None, None, (), "a copy", copy_of=0),
        ],
    )
    assert value("txbridge_decisions_total", {"outcome": "commit", "source": "client"}) == 2
    assert value("txbridge_decisions_total", {"outcome": "rollback", "source": "client"}) == 1
    assert value("txbridge_messages_delivered_total") == 1
    assert value("txbridge_messages_held_total") == 1
    assert value("txbridge_end_refused_total", {"reason": "contradiction", "source": "check"}) == 1
    assert value("txbridge_end_refused_total", {"reason": "not_discarded", "source": "resume"}) == 1
    assert value("txbridge_malformed_records_total") == 1
    assert value("txbridge_copies_total") == 1
    assert value("txbridge_finish_seconds_sum") == 2
    assert value("txbridge_commit_seconds_count") == 1
    assert value("txbridge_commit_messages_sum") == 3


def test_requests_to_register_partitions_are_counted():
    metrics = WorkerMetrics()
    for sent, concurrent in ((1, 0), (3, 2)):
        metrics.note_registrations(Registrations(sent, concurrent))
    assert metrics.registry.get_sample_value("txbridge_registrations_total") == 4
    assert metrics.registry.get_sample_value("txbridge_concurrent_transactions_total") == 2


def test_checks_discards_and_resumes_are_counted():
    metrics, partition = WorkerMetrics(), Partition().prepare(0, born=NOW)
    value = metrics.registry.get_sample_value
    times = [NOW + 6_000, NOW + 36_000, NOW + 66_000, NOW + 96_000]
    committed(metrics, *(partition.step(time) for time in times), partition.step(times[-1], resume(0, 0)))
    assert value("txbridge_checks_sent_total", {"group": "orders"}) == 3
    assert value("txbridge_discards_total", {"reason": "MAX_CHECKS"}) == 1
    assert value("txbridge_decisions_total", {"outcome": "resume", "source": "resume"}) == 1


def states(metrics, *facts):
    metrics.watch_partitions(lambda: list(facts), lambda: False)
    return metrics.registry.get_sample_value


def test_open_messages_are_told_by_group_state_and_age(monkeypatch):
    monkeypatch.setattr("time.time_ns", lambda: NOW * 1_000_000)
    slot = NOW // SLOT_MS
    older = [slot - seconds * 1000 // SLOT_MS - 1 for seconds in (0, 60, 7_200, 100_000)]
    first = OpenCounts({"orders": dict.fromkeys(older, 2)}, {("orders", TransactionState.HELD): 3})
    second = OpenCounts({"orders": {older[0]: 5}, "billing": {older[1]: 1}}, {})
    value = states(
        WorkerMetrics(),
        PartitionFacts(0, serving=True, open=first, end_lag=4),
        PartitionFacts(1, serving=True, open=second, end_lag=0),
        PartitionFacts(2, serving=False, open=OpenCounts({}, {})),
    )
    assert value("txbridge_half_messages", {"group": "orders", "state": "pending"}) == 13
    assert value("txbridge_half_messages", {"group": "orders", "state": "held"}) == 3
    assert value("txbridge_half_messages", {"group": "billing", "state": "discarded"}) == 0
    ages = {"under_1m": 7, "1m_to_10m": 2, "10m_to_1h": 0, "1h_to_6h": 2, "6h_to_24h": 0, "over_24h": 2}
    for age, number in ages.items():
        assert value("txbridge_half_messages_pending", {"group": "orders", "age": age}) == number, age
    oldest = value("txbridge_half_oldest_pending_seconds", {"group": "orders"})
    assert 100_000 <= oldest <= 100_000 + SLOT_MS / 1000
    assert [value("txbridge_partition_serving", {"partition": str(number)}) for number in range(3)] == [1, 1, 0]
    assert value("txbridge_end_lag_records", {"partition": "0"}) == 4
    assert value("txbridge_end_lag_records", {"partition": "2"}) is None


def test_a_message_of_a_machine_whose_clock_is_ahead_is_of_no_age(monkeypatch):
    monkeypatch.setattr("time.time_ns", lambda: NOW * 1_000_000)
    ahead = OpenCounts({"orders": {NOW // SLOT_MS + 100: 1}}, {})
    value = states(WorkerMetrics(), PartitionFacts(0, serving=True, open=ahead))
    assert value("txbridge_half_messages_pending", {"group": "orders", "age": "under_1m"}) == 1


def test_groups_beyond_the_limit_share_one_label():
    open_ = OpenCounts({f"g{number}": {NOW // SLOT_MS: 1} for number in range(5)}, {})
    value = states(WorkerMetrics(max_groups=2), PartitionFacts(0, serving=True, open=open_))
    assert value("txbridge_half_messages", {"group": OTHER, "state": "pending"}) == 3


def test_a_group_that_has_nothing_any_more_is_zero_and_does_not_vanish():
    facts = [PartitionFacts(0, serving=True, open=OpenCounts({"orders": {NOW // SLOT_MS: 1}}, {}))]
    metrics = WorkerMetrics()
    metrics.watch_partitions(lambda: facts, lambda: True)
    value = metrics.registry.get_sample_value
    assert value("txbridge_half_messages", {"group": "orders", "state": "pending"}) == 1
    facts[0] = PartitionFacts(0, serving=True, open=OpenCounts({}, {}))
    assert value("txbridge_half_messages", {"group": "orders", "state": "pending"}) == 0
    assert value("txbridge_ready") == 1


def test_what_is_not_known_is_no_zero():
    # While Kafka was away, or a partition was being taken over, the worker reported 0 pending and 0 held messages.
    known = OpenCounts({"orders": {NOW // SLOT_MS: 172}}, {("orders", TransactionState.HELD): 4})
    facts = [PartitionFacts(0, serving=True, open=known), PartitionFacts(1, serving=True, open=OpenCounts({}, {}))]
    metrics, answers = WorkerMetrics(), [facts]
    metrics.watch_partitions(lambda: answers[-1], lambda: True)
    metrics.partitions_found = 2
    value = metrics.registry.get_sample_value
    pending = {"group": "orders", "state": "pending"}
    assert value("txbridge_half_messages", pending) == 172
    assert value("txbridge_partition_half_messages", {"partition": "0", "state": "held"}) == 4
    assert value("txbridge_partitions") == 2
    # One of the two is being taken over: the sum is unknown, the other one's numbers are known.
    facts[0] = PartitionFacts(0, serving=False)
    assert value("txbridge_half_messages", pending) is None
    assert value("txbridge_half_messages_pending", {"group": "orders", "age": "under_1m"}) is None
    assert value("txbridge_half_oldest_pending_seconds", {"group": "orders"}) is None
    assert value("txbridge_partition_half_messages", {"partition": "0", "state": "pending"}) is None
    assert value("txbridge_partition_half_messages", {"partition": "1", "state": "pending"}) == 0
    # No partition is assigned yet, or the worker is stopping.
    answers.append(None)
    assert value("txbridge_half_messages", pending) is None
    # The group has given its partitions to others: they count them.
    answers.append([])
    assert value("txbridge_half_messages", pending) == 0


def test_the_number_of_partitions_is_not_told_before_it_is_known():
    assert states(WorkerMetrics())("txbridge_partitions") is None
