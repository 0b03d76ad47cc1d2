"""Silent addresses among `bootstrap_servers`, as of a frozen broker: everything works through the other ones."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.harness import COMMIT, Bridge
from tests.support.listeners import Commits
from txbridge import Message, TransactionProducer
from txbridge.config.worker import WorkerSettings
from txbridge.operations import Connection, list_pending

#: One in four answers, so that nearly every connection meets a silent one first.
_SILENT = 3


@pytest.fixture
def servers(bridge: Bridge) -> Iterator[str]:
    """The silent addresses, and Kafka's."""
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(_SILENT)]
        names = [f"127.0.0.1:{one.getsockname()[1]}" for one in silent]
        yield ",".join([*names, bridge.bootstrap_servers])


# The test waits for up to a minute and a half, nearly idle.
@pytest.mark.long
def test_p2_a_worker_starts_all_the_same(bridge: Bridge, servers: str) -> None:
    """Faust's unchanged producer would wait for 20 minutes."""
    topic = bridge.create_topic("real")
    bridge.worker(bootstrap_servers=servers)
    bridge.decide(bridge.prepare(topic, b"value"), COMMIT)
    bridge.wait_visible(topic, [b"value"])


def test_p2_a_client_and_an_operator_too(bridge: Bridge, servers: str) -> None:
    topic = bridge.create_topic("real")
    settings = {"bootstrap.servers": servers}
    with (
        bridge.local_owner(0),
        bridge.local_owner(1),
        TransactionProducer("orders", Commits(), settings, namespace=bridge.namespace) as producer,
    ):
        producer.send_message_in_transaction(Message(topic, b"value"))
        bridge.wait_visible(topic, [b"value"])
    pending = list_pending(Connection.open(WorkerSettings(bootstrap_servers=servers, namespace=bridge.namespace)))
    assert list(pending.messages) == []
