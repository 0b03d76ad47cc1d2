"""Broker settings that are in use, each on a real broker, with the effect that docs/operations.md describes."""

from __future__ import annotations

import json
import random
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.command_line import run_txbridge
from tests.support.harness import COMMIT, Bridge, WorkerProcess
from tests.support.listeners import Commits
from tests.support.module_fixtures import module_kafka
from tests.support.secure_kafka import printed, secure_kafka
from txbridge import Message, PrepareError, TransactionProducer
from txbridge.embedded import EmbeddedKafka
from txbridge.embedded.jars import JarCache
from txbridge.embedded.java import find_java
from txbridge.kafka.admin import KafkaCluster
from txbridge.topics.plan import PlanOptions
from txbridge.topics.verify import apply

#: Each test has a Kafka of its own.
pytestmark = pytest.mark.long

#: Settings that are combined on one broker; a worker and a client must cope with all of them.
NARROW = {"message.max.bytes": "20000", "transaction.max.timeout.ms": "5000"}


def configs(kafka: EmbeddedKafka, *arguments: str) -> None:
    """Run kafka-configs.sh."""
    java = [find_java().executable, "-cp", JarCache().class_path, "kafka.admin.ConfigCommand"]
    subprocess.run(
        [*map(str, java), "--bootstrap-server", kafka.bootstrap_servers, *arguments], check=True, capture_output=True
    )


def doctor(bridge: Bridge, *arguments: str) -> list[dict[str, str]]:
    where = ["--bootstrap-servers", bridge.bootstrap_servers, "--namespace", bridge.namespace, "--format", "json"]
    done = run_txbridge("doctor", *where, *arguments)
    found: list[dict[str, str]] = json.loads(done.stdout)["findings"]
    return found


kafka = module_kafka(config=NARROW)


def test_a_commit_timeout_beyond_transaction_max_timeout_ms_is_told_with_what_to_do(bridge: Bridge) -> None:
    refused = bridge.local_owner(commit_timeout=10_000)
    refused.wait_error("commit_timeout is 10000 ms", "set it to at most transaction.max.timeout.ms of the brokers")
    refused.stop()
    [limit] = [one for one in doctor(bridge) if one["check"] == "limits"]
    assert limit["level"] == "problem"
    assert "broker 1 accepts 5000 at most (transaction.max.timeout.ms)" in limit["text"]


def test_small_limits(bridge: Bridge) -> None:
    """A small message.max.bytes limits only the real topic: HALF has a limit of its own."""
    topic = bridge.create_topic("orders")
    worker = bridge.worker(commit_timeout=4_000)
    # Random bytes, because a worker compresses what it delivers.
    values = random.randbytes(10_000), random.randbytes(100_000)
    small, large = (bridge.prepare(topic, value) for value in values)
    bridge.decide(large, COMMIT)
    bridge.decide(small, COMMIT)
    bridge.wait_visible(topic, [values[0]])
    worker.wait_logged('"held"')
    bridge.alter_topic(topic, max_message_bytes="200000")
    bridge.wait_visible(topic, [values[1]], 90)
    assert set(bridge.visible(topic).values()) == {1}


def test_quotas_slow_down_and_lose_nothing(kafka: EmbeddedKafka, bridge: Bridge) -> None:
    """8 KiB a second per client in both directions: a prepare may time out, but nothing is delivered twice or lost."""
    topic = bridge.create_topic("orders")
    bridge.worker(commit_timeout=4_000)
    rates = "producer_byte_rate=8192,consumer_byte_rate=8192"
    clients = ["--entity-type", "clients", "--entity-default"]
    configs(kafka, "--alter", "--add-config", rates, *clients)
    sent, failed = [], []
    try:
        with TransactionProducer(
            "orders", Commits(), {"bootstrap.servers": bridge.bootstrap_servers}, namespace=bridge.namespace
        ) as producer:
            for number in range(30):
                value = b"%d " % number + random.randbytes(2_000)
                try:
                    producer.send_message_in_transaction(Message(topic, value))
                except PrepareError:
                    failed.append(value)
                else:
                    sent.append(value)
            bridge.wait_visible(topic, sent, 120)
    finally:
        configs(kafka, "--alter", "--delete-config", "producer_byte_rate,consumer_byte_rate", *clients)
    print(f"{len(sent)} sent, {len(failed)} failed")
    visible = bridge.visible(topic)
    assert set(visible.values()) == {1}
    assert set(visible) >= set(sent)


def test_sasl_sessions_that_end(tmp_path: Path) -> None:
    """connections.max.reauth.ms: librdkafka authenticates again, Faust's client opens a new connection."""
    lifetime = {"listener.name.secure.connections.max.reauth.ms": "4000"}
    with secure_kafka(lifetime) as secure, Bridge(secure.plain, "reauth") as bridge:
        topic = bridge.create_topic("orders")
        user = secure.user("everything")
        plan = PlanOptions(partitions=2, groups=("orders",))
        apply(KafkaCluster.connect({"bootstrap.servers": secure.plain}), bridge.names, plan)
        for role in ("worker", "client"):
            user.grant(*printed(role, bridge.namespace, "orders", topic))
        flags = [f"--kafka={name}={value}" for name, value in user.settings.items()]
        short = ["--session-timeout=6000", "--transaction-timeout=1000", f"--namespace={bridge.namespace}"]
        worker = WorkerProcess(
            [f"--bootstrap-servers={secure.secure}", *short, *flags],
            tmp_path / "worker.log",
            {"TXBRIDGE_LOG_FORMAT": "json"},
        )
        bridge.workers.append(worker)
        worker.wait_serving(2)
        settings = {"bootstrap.servers": secure.secure, **user.settings}
        values = [b"%d" % number for number in range(40)]
        with TransactionProducer("orders", Commits(), settings, namespace=bridge.namespace) as producer:
            for value in values:
                producer.send_message_in_transaction(Message(topic, value))
                time.sleep(0.4)
        bridge.wait_visible(topic, values)
        assert set(bridge.visible(topic).values()) == {1}
        # The worker has lost neither its partitions nor its membership.
        assert len(worker.events("partition_taken_over")) == 2
        assert not worker.events("kafka_unavailable")
