"""Brokers that create topics on request: the requests of txbridge must not create any."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from tests.support.apis import APIS
from tests.support.command_line import run_txbridge
from tests.support.harness import Bridge, eventually, quiet
from tests.support.listeners import Answers
from tests.support.module_fixtures import module_kafka
from txbridge import Message, TransactionProducer, TxBridgeError
from txbridge.embedded import EmbeddedKafka

#: A Kafka of its own.
pytestmark = pytest.mark.long
kafka = module_kafka(config={"auto.create.topics.enable": "true"})


def topics(kafka: EmbeddedKafka) -> set[str]:
    """Names of the topics. The request names no topic, so it creates none."""
    found = AdminClient(quiet(kafka.bootstrap_servers)).list_topics(timeout=120).topics
    return {name for name in found if not name.startswith("__")}


def cli(kafka: EmbeddedKafka, *arguments: str) -> None:
    run_txbridge(*arguments, "--bootstrap-servers", kafka.bootstrap_servers)


@pytest.mark.parametrize(
    "command",
    [
        ["doctor", "--real-topic", "orders.missing", "--group", "nobody"],
        ["topics", "plan", "--real-topic", "orders.missing", "--group", "nobody"],
        ["pending"],
        ["show", "0:0"],
        ["resolve", "0:0", "commit", "--reason", "test"],
        ["resume", "0:0", "--reason", "test"],
    ],
    ids=lambda command: command[0],
)
def test_no_command_creates_a_topic_by_asking(kafka: EmbeddedKafka, command: list[str]) -> None:
    """Neither a real topic, nor an internal one, which would have a wrong number of partitions and wrong settings."""
    before = topics(kafka)
    cli(kafka, *command, "--namespace", f"auto-{command[0]}")
    assert topics(kafka) - before == set()


def starts_and_sends(producer: Any) -> None:
    producer.start()
    producer.send(Message("orders.missing", b"v"))


@pytest.mark.parametrize("api", APIS)
def test_a_producer_without_topics_creates_none(kafka: EmbeddedKafka, api: type) -> None:
    before = topics(kafka)
    producer = api(
        "orders", Answers(), {"bootstrap.servers": kafka.bootstrap_servers}, namespace=f"auto-{api.__name__}"
    )
    try:
        with pytest.raises(TxBridgeError):
            starts_and_sends(producer)
    finally:
        producer.close(0)
        producer.end_loop()
    assert topics(kafka) - before == set()


def test_a_commit_for_a_missing_topic_is_held_and_creates_none(
    kafka: EmbeddedKafka, bridge: Bridge, caplog: pytest.LogCaptureFixture
) -> None:
    missing = f"{bridge.namespace}.missing"
    worker = bridge.worker()
    before, settings = topics(kafka), {"bootstrap.servers": kafka.bootstrap_servers}
    with TransactionProducer("orders", Answers(), settings, namespace=bridge.namespace) as producer:
        sent = producer.send_message_in_transaction(Message(missing, b"late"))
        before.add(bridge.names.check("orders"))
        worker.wait_logged('"held"')
        # The client has looked it up as well.
        eventually(lambda: "real_topic_missing" in caplog.text)
    cli(kafka, "show", f"{sent.half_partition}:{sent.half_offset}", "--namespace", bridge.namespace)
    cli(kafka, "pending", "--namespace", bridge.namespace)
    cli(kafka, "doctor", "--real-topic", missing, "--namespace", bridge.namespace)
    assert topics(kafka) - before == set()
    bridge.create_topic("missing", partitions=3)
    bridge.wait_visible(missing, [b"late"], 90)
