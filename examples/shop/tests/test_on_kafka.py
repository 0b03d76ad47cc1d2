"""The shop on a real Kafka, with a real worker, and on the PostgreSQL of TEST_DATABASE_URL."""

import json
import os
import uuid
from datetime import timedelta

import pytest
from billing import WORK
from fastapi.testclient import TestClient
from settings import Settings

from txbridge.testing import RunningWorker, Sandbox

URL = os.environ.get("TEST_DATABASE_URL", "")
pytestmark = pytest.mark.skipif(not URL, reason="TEST_DATABASE_URL names no PostgreSQL: postgresql+psycopg://...")


@pytest.fixture
def settings(txbridge: Sandbox, txbridge_worker: RunningWorker) -> Settings:
    for topic in WORK:
        txbridge.create_topic(topic)
    kafka = json.dumps(txbridge.settings)
    return Settings(database_url=URL, kafka=kafka, namespace=txbridge.namespace, remind_after=timedelta(seconds=5))


def test_an_order_and_the_reminder_of_one_that_is_not_paid(client: TestClient, txbridge: Sandbox):
    paid, unpaid = ({"id": str(uuid.uuid4()), "item": "mug", "quantity": 1} for _ in range(2))
    for order in (paid, unpaid):
        assert client.post("/orders", json=order).status_code == 201
    assert client.post("/payments", json={"id": paid["id"]}).status_code == 201
    assert len(txbridge.wait_visible("orders.placed", 2)) == 2
    assert txbridge.read_visible("orders.unpaid") == []

    [reminder] = txbridge.wait_visible("orders.unpaid")
    assert json.loads(reminder.value())["id"] == unpaid["id"]
    assert client.get("/readyz").status_code == 200
