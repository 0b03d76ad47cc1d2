"""txbridge.testing.Sandbox: what it promises beyond test_bridge_contract.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.support.harness import eventually, quiet
from tests.support.listeners import Commits
from txbridge import Message
from txbridge.embedded import EmbeddedKafka
from txbridge.errors import UsageError
from txbridge.testing import ProcessBackend, Sandbox, TransactionState


@pytest.fixture(scope="module")
def backend(kafka: EmbeddedKafka) -> Iterator[ProcessBackend]:
    with ProcessBackend(kafka.bootstrap_servers) as backend:
        yield backend


@pytest.fixture(scope="module")
def sandbox(backend: ProcessBackend) -> Iterator[Sandbox]:
    """A sandbox with a worker; tests that kill or count workers make their own."""
    with Sandbox(backend) as sandbox:
        sandbox.start_worker()
        yield sandbox


def send(producer, topic):
    return producer.send_message_in_transaction(Message(topic, b"value"))


async def test_a_helper_that_waits_refuses_to_block_an_event_loop(sandbox: Sandbox):
    for name, arguments in (("wait_fate", [None]), ("wait_visible", ["t"]), ("let_checks_be_due", [])):
        with pytest.raises(UsageError, match=rf"await sandbox\.aio\.{name}\(\)"):
            getattr(sandbox, name)(*arguments)


def test_a_held_message_has_that_fate_when_it_is_asked_for(sandbox: Sandbox):
    producer = sandbox.start_producer(Commits(), "held")
    result = send(producer, "sandbox.missing")
    assert sandbox.wait_fate(result, {TransactionState.HELD}) is TransactionState.HELD
    with pytest.raises(AssertionError, match=r"is still held after 0\.1 s"):
        sandbox.wait_fate(result, timeout=0.1)
    sandbox.create_topic("sandbox.missing")
    assert sandbox.wait_fate(result) is TransactionState.COMMITTED


@pytest.mark.long
def test_a_topic_of_the_same_name_is_empty_again_and_gone_at_the_end(backend: ProcessBackend):
    for _ in range(2):
        with Sandbox(backend) as sandbox:
            sandbox.start_worker()
            topic = sandbox.create_topic("sandbox.again", partitions=2)
            assert sandbox.read_visible(topic) == []
            send(sandbox.start_producer(Commits()), topic)
            assert len(sandbox.wait_visible(topic)) == 1
        with pytest.raises((KafkaException, AssertionError)):
            sandbox.wait_visible(topic, timeout=1)


def test_a_killed_worker_is_gone_and_its_successor_goes_on(backend: ProcessBackend):
    with Sandbox(backend) as sandbox:
        with pytest.raises(UsageError, match="no worker runs"):
            sandbox.kill_worker()
        topic = sandbox.create_topic("sandbox.killed")
        killed = sandbox.start_worker()
        producer = sandbox.start_producer(Commits())
        sandbox.kill_worker()
        assert killed.returncode == -9
        result = send(producer, topic)
        assert sandbox.read_fate(result) is TransactionState.PENDING
        successor = sandbox.start_worker()
        assert sandbox.wait_fate(result) is TransactionState.COMMITTED
    assert successor.returncode == 0
    eventually(lambda: topics_of(sandbox) == [])


def topics_of(sandbox: Sandbox) -> list[str]:
    """The topics of its namespace, and its real ones if their names contain the namespace."""
    topics = AdminClient(quiet(sandbox.bootstrap_servers)).list_topics(timeout=120).topics
    return sorted(topic.removeprefix(f"{sandbox.namespace}.") for topic in topics if sandbox.namespace in topic)


def fail_in(sandbox: Sandbox) -> None:
    with sandbox:
        sandbox.create_topic(f"real-{sandbox.namespace}")
        sandbox.start_producer(Commits(), "orders")
        assert topics_of(sandbox) == [
            "RMQ_SYS_TRANS_CHECK.orders",
            "RMQ_SYS_TRANS_END_TOPIC",
            "RMQ_SYS_TRANS_HALF_TOPIC",
            "RMQ_SYS_TRANS_OFFSET_TOPIC",
            "RMQ_SYS_TRANS_OP_HALF_TOPIC",
            "TRANS_CHECK_MAX_TIME_TOPIC",
            f"real-{sandbox.namespace}",
        ]
        raise ArithmeticError


def test_no_topic_of_a_failed_test_stays_in_a_kafka_that_goes_on(backend: ProcessBackend):
    with Sandbox(backend) as another:
        sandbox = Sandbox(backend)
        with pytest.raises(ArithmeticError):
            fail_in(sandbox)
        eventually(lambda: topics_of(sandbox) == [])
        assert len(topics_of(another)) == 5
