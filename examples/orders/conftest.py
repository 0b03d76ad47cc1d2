"""Fixtures of the order service's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from orders import TOPIC, OrderListener, OrderService

from txbridge.testing import RunningWorker, Sandbox
from txbridge.testing.memory import MemoryBridge

pytest_plugins = ["txbridge.testing.pytest_plugin"]


@pytest.fixture
def listener(tmp_path: Path) -> OrderListener:
    return OrderListener(tmp_path / "orders.sqlite")


@pytest.fixture
def service(txbridge_memory: MemoryBridge, listener: OrderListener) -> Iterator[OrderService]:
    """The service as it runs in production, with a bridge in memory in place of Kafka and the worker."""
    with OrderService(listener, txbridge_memory.settings) as service:
        yield service


@pytest.fixture
def service_on_kafka(
    txbridge: Sandbox, txbridge_worker: RunningWorker, listener: OrderListener
) -> Iterator[OrderService]:
    """The same on the sandbox's Kafka, with a worker."""
    txbridge.create_topic(TOPIC)
    with OrderService(listener, txbridge.settings, txbridge.namespace) as service:
        yield service
