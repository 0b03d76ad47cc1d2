"""Tests of the order service's promises, with failures."""

from __future__ import annotations

import json
import sqlite3

from orders import TOPIC, OrderService

from txbridge.testing import Sandbox, TransactionState
from txbridge.testing.memory import MemoryBridge


def test_a_placed_order_is_announced_once(service: OrderService, txbridge_memory: MemoryBridge):
    service.place("A1", 250)
    [message] = txbridge_memory.delivered(TOPIC)
    assert json.loads(message.value()) == {"number": "A1", "amount": 250}


def test_an_order_beyond_the_credit_is_never_announced(service: OrderService, txbridge_memory: MemoryBridge):
    result = service.place("A1", 99_999)
    assert txbridge_memory.read_fate(result) is TransactionState.ROLLED_BACK
    assert txbridge_memory.delivered(TOPIC) == []


def test_an_order_whose_decision_is_lost_is_announced_after_a_check(
    service: OrderService, txbridge_memory: MemoryBridge
):
    txbridge_memory.lose_decision()
    result = service.place("A1", 250)
    assert txbridge_memory.read_fate(result) is TransactionState.PENDING
    assert txbridge_memory.delivered(TOPIC) == []

    assert txbridge_memory.let_checks_be_due() == 1
    assert txbridge_memory.read_fate(result) is TransactionState.COMMITTED
    assert len(txbridge_memory.delivered(TOPIC)) == 1


def test_an_order_that_could_not_be_stored_is_rolled_back_by_a_check(
    service: OrderService, txbridge_memory: MemoryBridge
):
    assert service.place("A1", 250).local_exception is None
    duplicate = service.place("A1", 100)
    assert isinstance(duplicate.local_exception, sqlite3.IntegrityError)

    txbridge_memory.let_checks_be_due()
    assert txbridge_memory.read_fate(duplicate) is TransactionState.ROLLED_BACK
    assert len(txbridge_memory.delivered(TOPIC)) == 1


def test_an_order_that_is_placed_while_no_worker_lives_is_announced_later(
    service_on_kafka: OrderService, txbridge: Sandbox
):
    txbridge.kill_worker()
    result = service_on_kafka.place("A1", 250)
    assert txbridge.read_visible(TOPIC) == []

    txbridge.start_worker()
    assert txbridge.wait_fate(result) is TransactionState.COMMITTED
    assert len(txbridge.read_visible(TOPIC)) == 1
