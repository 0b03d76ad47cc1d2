"""A producer's metrics."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from txbridge import ClientMetrics, EndTransactionError, Message, PrepareError
from txbridge.client.decide.decision_batcher import Ticket
from txbridge.client.prepare.prepared import Prepared
from txbridge.core.decision_record import Decision, DecisionEntry, Source

ID, MESSAGE = "A" * 32, Message("t", b"")
STORED = Prepared(ID, 0, 7, 1_000, 10)


@pytest.fixture
def registry():
    return CollectorRegistry()


@pytest.fixture
def group(registry):
    return ClientMetrics(registry).of_group("orders")


def settled(decision, error=None):
    end = Ticket(DecisionEntry(1, ID, decision), 1)
    end.settle_with(error)
    return end


def value(registry, name, **labels):
    return registry.get_sample_value(f"txbridge_client_{name}", {"group": "orders", **labels})


def test_a_transaction_is_counted_from_its_half_message_to_its_end(registry, group):
    told = []
    carried, report = group.watch_prepare(ID, MESSAGE, told.append)
    report(STORED)
    group.watch_end(0, Source.CLIENT, settled(Decision.COMMIT), None)
    group.forget_attempt(ID)
    assert (carried, told) == (MESSAGE, [STORED])
    assert value(registry, "prepares_total", result="stored") == 1
    assert value(registry, "prepare_seconds_count") == 1
    assert value(registry, "local_transaction_seconds_count") == 1
    assert value(registry, "decisions_total", outcome="commit", source="client") == 1
    assert value(registry, "ends_total", result="acknowledged") == 1
    assert group._prepared == {}


def test_a_half_message_that_fails_has_no_local_transaction(registry, group):
    group.watch_prepare(ID, MESSAGE, lambda _: None)[1](PrepareError("no"))
    group.forget_attempt(ID)
    assert value(registry, "prepares_total", result="failed") == 1
    assert value(registry, "prepare_seconds_count") == 0
    assert value(registry, "local_transaction_seconds_count") == 0


def test_an_acknowledgement_after_an_interrupt_leaves_nothing_behind(group):
    _, report = group.watch_prepare(ID, MESSAGE, lambda _: None)
    group.forget_attempt(ID)
    report(STORED)
    assert group._prepared == {}


def test_answers_to_checks_and_ends_that_were_given_up(registry, group):
    group.watch_end(0, Source.CHECK, settled(Decision.UNKNOWN, EndTransactionError("given up")), None)
    assert value(registry, "decisions_total", outcome="unknown", source="check") == 1
    assert value(registry, "ends_total", result="given_up") == 1
    assert value(registry, "local_transaction_seconds_count") == 0


def test_several_groups_share_one_object(registry):
    metrics = ClientMetrics(registry)
    for name in ("orders", "billing"):
        metrics.of_group(name).watch_end(0, Source.CHECK, settled(Decision.COMMIT), None)
    assert generate_latest(registry).count(b'outcome="commit",source="check"} 1.0') == 2
