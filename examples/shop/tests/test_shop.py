"""The promises of the shop, with failures. No test needs Kafka, and none waits: the bridge is in memory."""

import json
from unittest.mock import patch

import pytest
from billing import WORK, invoices, payments, reminders, tables
from fastapi.testclient import TestClient
from settings import Settings
from sqlalchemy import create_engine, select
from txbridge_sqlalchemy import Inbox, create_inbox_table

from txbridge.testing.memory import MemoryBridge

ID = "5f0e3c52-6a3b-4e0a-9f0c-0d8b8d1f5a01"
ANOTHER = "5f0e3c52-6a3b-4e0a-9f0c-0d8b8d1f5a02"
ORDER = {"id": ID, "item": "mug", "quantity": 2}


def test_an_order_is_announced_at_once_and_its_reminder_later(client: TestClient, txbridge_memory: MemoryBridge):
    answer = client.post("/orders", json=ORDER)
    assert (answer.status_code, answer.json()) == (201, {"number": 1})
    [message] = txbridge_memory.delivered("orders.placed")
    assert json.loads(message.value()) == ORDER

    txbridge_memory.advance(19)
    assert txbridge_memory.delivered("orders.unpaid") == []
    txbridge_memory.advance(1)
    assert len(txbridge_memory.delivered("orders.unpaid")) == 1


def test_a_paid_order_has_no_reminder(client: TestClient, txbridge_memory: MemoryBridge):
    client.post("/orders", json=ORDER)
    assert [client.post("/payments", json={"id": ID}).status_code for _ in range(2)] == [201, 200]
    txbridge_memory.advance(20)
    assert len(txbridge_memory.delivered("orders.paid")) == 1
    assert txbridge_memory.delivered("orders.unpaid") == []


def test_a_request_that_is_sent_again_is_the_same_order(client: TestClient, txbridge_memory: MemoryBridge):
    answers = [client.post("/orders", json=ORDER) for _ in range(2)]
    assert [(answer.status_code, answer.json().get("number")) for answer in answers] == [(201, 1), (200, None)]
    assert len(txbridge_memory.delivered("orders.placed")) == 1


def test_what_is_out_of_stock_is_never_announced(client: TestClient, txbridge_memory: MemoryBridge):
    answer = client.post("/orders", json={**ORDER, "quantity": 4})
    assert (answer.status_code, answer.json()) == (409, {"error": "out of stock"})
    assert txbridge_memory.delivered("orders.placed") == []


def test_a_bug_is_a_server_error_and_leaves_nothing(client: TestClient, txbridge_memory: MemoryBridge):
    with patch("orders.update", side_effect=KeyError("a bug")), pytest.raises(KeyError, match="a bug"):
        client.post("/orders", json=ORDER)
    assert txbridge_memory.list_pending() == []
    assert client.post("/orders", json=ORDER).status_code == 201


def test_a_lost_decision_is_repaired_by_a_check(client: TestClient, txbridge_memory: MemoryBridge):
    txbridge_memory.lose_decision()
    assert client.post("/orders", json=ORDER).status_code == 201
    assert txbridge_memory.delivered("orders.placed") == []

    assert txbridge_memory.let_checks_be_due() == 1
    assert len(txbridge_memory.delivered("orders.placed")) == 1


def test_while_kafka_is_away_nothing_is_sold(client: TestClient, txbridge_memory: MemoryBridge):
    txbridge_memory.stop()
    assert client.get("/readyz").status_code == 503
    assert client.get("/livez").status_code == 200
    assert client.post("/orders", json=ORDER).status_code == 503

    txbridge_memory.start()
    assert client.get("/readyz").status_code == 200
    assert client.post("/orders", json=ORDER).json() == {"number": 1}


def test_effects_of_a_message_happen_once(client: TestClient, txbridge_memory: MemoryBridge, settings: Settings):
    client.post("/orders", json=ORDER)
    client.post("/orders", json={**ORDER, "id": ANOTHER, "quantity": 1})
    client.post("/payments", json={"id": ID})
    txbridge_memory.advance(20)

    engine = create_engine(settings.database_url.replace("+aiosqlite", ""))
    tables.create_all(engine)
    create_inbox_table(engine)
    inbox = Inbox(engine, consumer="billing")
    for _ in range(2):
        for topic, work in WORK.items():
            for record in txbridge_memory.delivered(topic):
                inbox.process(record, work)
    with engine.connect() as connection:
        assert len(connection.execute(select(invoices)).all()) == 2
        assert len(connection.execute(select(payments)).all()) == 1
        assert len(connection.execute(select(reminders)).all()) == 1
    engine.dispose()
