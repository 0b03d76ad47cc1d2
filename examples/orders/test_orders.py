"""Tests of the order service's promises, with failures."""

from __future__ import annotations

import json
import sqlite3

import pytest
from orders import TOPIC, OrderListener, OrderService

from txbridge import LocalTransactionState
from txbridge.testing import Sandbox, TransactionState


def test_a_placed_order_is_announced_once(service: OrderService, txbridge: Sandbox):
    result = service.place("A1", 250)
    assert txbridge.wait_fate(result) is TransactionState.COMMITTED
    [message] = txbridge.read_visible(TOPIC)
    assert json.loads(message.value()) == {"number": "A1", "amount": 250}


def test_an_order_beyond_the_credit_is_never_announced(service: OrderService, txbridge: Sandbox):
    result = service.place("A1", 99_999)
    assert txbridge.wait_fate(result) is TransactionState.ROLLED_BACK
    assert txbridge.read_visible(TOPIC) == []


def test_an_order_whose_decision_is_lost_is_announced_after_a_check(
    service: OrderService, listener: OrderListener, txbridge: Sandbox, monkeypatch: pytest.MonkeyPatch
):
    stored = listener.execute_local_transaction

    def store_and_forget(message, arg):
        stored(message, arg)
        return LocalTransactionState.UNKNOW

    monkeypatch.setattr(listener, "execute_local_transaction", store_and_forget)
    result = service.place("A1", 250)
    assert txbridge.read_fate(result) is TransactionState.PENDING
    assert txbridge.read_visible(TOPIC) == []

    assert txbridge.let_checks_be_due() == 1
    assert txbridge.wait_fate(result) is TransactionState.COMMITTED
    assert len(txbridge.read_visible(TOPIC)) == 1


def test_an_order_that_could_not_be_stored_is_rolled_back_by_a_check(service: OrderService, txbridge: Sandbox):
    assert service.place("A1", 250).local_exception is None
    duplicate = service.place("A1", 100)
    assert isinstance(duplicate.local_exception, sqlite3.IntegrityError)

    txbridge.let_checks_be_due()
    assert txbridge.wait_fate(duplicate) is TransactionState.ROLLED_BACK
    assert len(txbridge.wait_visible(TOPIC)) == 1


def test_an_order_that_is_placed_while_no_worker_lives_is_announced_later(service: OrderService, txbridge: Sandbox):
    txbridge.kill_worker()
    result = service.place("A1", 250)
    assert txbridge.read_visible(TOPIC) == []

    txbridge.start_worker()
    assert txbridge.wait_fate(result) is TransactionState.COMMITTED
    assert len(txbridge.read_visible(TOPIC)) == 1
