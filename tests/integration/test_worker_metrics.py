"""The worker's metrics and health on a real Kafka, as Prometheus, Kubernetes and consumer-group tools see them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from tests.support import http
from tests.support.command_line import PROGRAM
from tests.support.harness import COMMIT, ROLLBACK, Bridge, eventually
from tests.support.listeners import Answers
from txbridge import ClientMetrics, LocalTransactionState, Message, TransactionProducer
from txbridge.embedded import EmbeddedKafka
from txbridge.embedded.ports import free_port
from txbridge.worker.observe.metrics import WorkerMetrics


def get(port: int, path: str, host: str = "127.0.0.1") -> tuple[int, str]:
    """Status and body; status 0 while nothing answers."""
    answer = http.ask_if_there(f"http://{host}:{port}{path}", 5)
    return answer.status, answer.text


def reasons(port: int, path: str = "/readyz") -> list[str] | None:
    """Reasons why the worker is not ready; None while nothing answers."""
    status, body = get(port, path)
    if not status:
        return None
    answer = json.loads(body)
    assert (status == 200) == answer["ok"] == (not answer["reasons"])
    found: list[str] = answer["reasons"]
    return found


class Scraped:
    """All metrics at one moment."""

    def __init__(self, port: int) -> None:
        self._samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        self.names: set[str] = set()
        for family in text_string_to_metric_families(get(port, "/metrics")[1]):
            self.names.add(family.name)
            for sample in family.samples:
                self._samples[sample.name, frozenset(sample.labels.items())] = sample.value

    def __call__(self, name: str, **labels: str) -> float:
        return self._samples.get((f"txbridge_{name}", frozenset(labels.items())), 0.0)


def test_what_a_worker_did_can_be_scraped(bridge: Bridge) -> None:
    port, topic = free_port(), bridge.create_topic("real")
    bridge.worker(metrics_port=port)
    ready = eventually(lambda: reasons(port) == [])
    assert ready
    with bridge.member() as member:
        committed = bridge.prepare_many(topic, [b"%d" % number for number in range(10)])
        bridge.decide_many(committed, COMMIT, batch=5)
        rolled_back = bridge.prepare(topic, b"never")
        bridge.decide(rolled_back, ROLLBACK)
        bridge.wait_outcome(rolled_back, "rollback")
        bridge.decide(rolled_back, COMMIT, source="operator")
        held = bridge.prepare(f"{bridge.namespace}.missing")
        bridge.decide(held, COMMIT)
        bridge.produce(bridge.names.half, value=b"not ours", partition=0)
        bridge.send_again(bridge.prepare(topic, b"twice", partition=0), topic, b"twice")
        checked = bridge.prepare(topic, b"asked")
        eventually(lambda: member.checks(checked))
        bridge.decide(checked, COMMIT, source="check")
        bridge.wait_visible(topic, [b"asked"])
        bridge.prepare(topic, b"nobody knows")
        eventually(lambda: Scraped(port)("discards_total", reason="MAX_CHECKS") == 2)
    now = Scraped(port)
    assert now("decisions_total", outcome="commit", source="client") == 11
    assert now("decisions_total", outcome="commit", source="check") == 1
    assert now("decisions_total", outcome="rollback", source="client") == 1
    assert now("messages_delivered_total") == 11
    assert now("messages_held_total") == 1
    assert now("end_refused_total", reason="contradiction", source="operator") == 1
    # One message was answered after its first check; the two discarded ones had three checks each.
    assert now("checks_sent_total", group="group") == 7
    assert now("malformed_records_total") == 1
    assert now("copies_total") == 1
    states = {state: now("half_messages", group="group", state=state) for state in ("pending", "held", "discarded")}
    assert states == {"pending": 0, "held": 1, "discarded": 2}
    assert now("decision_to_visible_seconds_count") == now("finish_seconds_count") == 11
    assert 0 < now("decision_to_visible_seconds_sum") < now("finish_seconds_sum")
    assert now("commit_seconds_count") == now("commit_messages_count") > 5
    # 11 delivered, 1 rolled back, 1 held, 7 checks, 2 discards.
    assert now("commit_messages_sum") == 22
    assert now("takeover_seconds_count") == 2
    for partition in ("0", "1"):
        assert now("partition_owned", partition=partition) == now("partition_serving", partition=partition) == 1
        assert now("end_lag_records", partition=partition) == 0
    assert now("ready") == 1
    assert now("partitions") == 2
    # All metrics of the code are there from the start, before their first event.
    assert {family.name for family in WorkerMetrics().registry.collect()} <= now.names
    # No label grows without limit, as a transaction id would.
    assert committed[0].transaction_id not in get(port, "/metrics")[1]


def lags(bridge: Bridge) -> dict[int, int]:
    """Lag by partition, as `kafka-consumer-groups --describe` computes it: log end less committed offset."""
    group = bridge.names.worker_group
    answer = bridge.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(120)
    found = {
        one.partition: bridge.bounds(one.topic, one.partition)[1] - one.offset
        for one in answer.topic_partitions
        if one.topic == bridge.names.end and one.offset >= 0
    }
    assert len(found) == len(answer.topic_partitions)
    return found


@contextmanager
def take_overs_wait(bridge: Bridge, partition: int) -> Iterator[None]:
    """Hold a Kafka transaction open in OFFSET, so that no take-over can read it to its end."""
    foreign = bridge.stranger()
    foreign.begin_transaction()
    foreign.produce(bridge.names.offset, b"stranger", key=b"stranger", partition=partition)
    foreign.flush(120)
    yield
    foreign.abort_transaction(10)


def test_ready_and_lag_never_lie_during_a_take_over(bridge: Bridge) -> None:
    port, topic = free_port(), bridge.create_topic("real")
    first = bridge.worker()
    for partition in (0, 1):
        bridge.decide(bridge.prepare(topic, b"before%d" % partition, partition=partition), COMMIT)
    bridge.wait_visible(topic, [b"before0", b"before1"])
    first.stop()
    assert lags(bridge) == {0: 0, 1: 0}, "it did not say at last how far it came"
    with take_overs_wait(bridge, 0):
        bridge.worker(metrics_port=port, wait=1)
        eventually(lambda: reasons(port) == ["partition 0: being taken over"])
        prepared = bridge.prepare_many(topic, [b"a", b"b", b"c"], partition=0)
        bridge.decide_many(prepared, COMMIT, batch=1)
        bridge.decide(bridge.prepare(topic, b"other", partition=1), COMMIT)
        # Faust has passed on its records, but none is applied.
        eventually(lambda: lags(bridge) == {0: 3, 1: 0})
        assert reasons(port) == ["partition 0: being taken over"]
        assert get(port, "/livez")[0] == 200
        now = Scraped(port)
        assert now("partition_owned", partition="0") == 1
        assert now("partition_serving", partition="0") == now("ready") == 0
        assert now("partition_serving", partition="1") == 1
    eventually(lambda: reasons(port) == [])
    bridge.wait_visible(topic, [b"a", b"b", b"c"])
    eventually(lambda: lags(bridge) == {0: 0, 1: 0})
    assert Scraped(port)("takeover_seconds_count") == 2


def test_a_worker_without_a_partition_is_ready_and_one_that_was_paused_is_not(kafka: EmbeddedKafka) -> None:
    with Bridge(kafka.bootstrap_servers, "spare worker", partitions=1) as bridge:
        ports = [free_port(), free_port()]
        bridge.worker(metrics_port=ports[0])
        spare = bridge.worker(metrics_port=ports[1], wait=0)
        for port in ports:
            eventually(lambda port=port: reasons(port) == [])  # type: ignore[misc]
        # A new member may move the partition, so the owner is looked up only now.
        workers = dict(zip(ports, bridge.workers, strict=True))
        owner = next(port for port in ports if Scraped(port)("partition_serving", partition="0"))
        other = next(port for port in ports if port != owner)
        assert Scraped(other)("partition_owned", partition="0") == 0
        assert spare.returncode is None
        workers[owner].pause()
        since = time.monotonic()
        eventually(lambda: Scraped(other)("partition_serving", partition="0") == 1)
        # Its session is over, and its assignment with it. It must report that at once, before it has found out.
        eventually(lambda: time.monotonic() - since > 6.5)
        workers[owner].resume()
        found = reasons(owner)
        assert found, "it believes what it knew before it was paused"
        eventually(lambda: reasons(owner) == [] and reasons(other) == [])
        assert sum(Scraped(port)("partition_serving", partition="0") for port in ports) == 1


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*PROGRAM, "worker", "--bootstrap-servers=127.0.0.1:1", *arguments],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "TXBRIDGE_LOG_FORMAT": "json"},
    )


@pytest.fixture(scope="module")
def lonely() -> Iterator[int]:
    """Start a worker that finds no Kafka; yield its port."""
    port = free_port()
    process = start(f"--metrics-port={port}")
    try:
        eventually(lambda: get(port, "/livez")[0] == 200)
        yield port
    finally:
        process.kill()
        process.communicate()


def test_the_port_is_open_on_localhost_only_and_before_kafka_is_there(lonely: int) -> None:
    assert reasons(lonely) == ["starting: Kafka was not reached yet, or its topics are not as they must be"]
    assert Scraped(lonely)("ready") == 0
    assert "txbridge_build_info" in get(lonely, "/metrics")[1]
    with pytest.raises(ConnectionRefusedError):
        # Also this machine, but not the address that the worker listens on.
        socket.create_connection(("127.0.0.2", lonely), 5)
    sockets = [line.split() for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]]
    # The second field is the local address, with the port in hexadecimal digits; the state 0A is LISTEN.
    assert [fields[1] for fields in sockets if fields[3] == "0A" and fields[1].endswith(f":{lonely:04X}")] == []


def test_a_producer_counts_from_the_half_message_to_the_answered_check(bridge: Bridge) -> None:
    topic, registry = bridge.create_topic("real"), CollectorRegistry()
    bridge.worker()

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"txbridge_client_{name}", {"group": "orders", **labels})

    with TransactionProducer(
        "orders",
        Answers(None, LocalTransactionState.ROLLBACK_MESSAGE),
        {"bootstrap.servers": bridge.bootstrap_servers},
        namespace=bridge.namespace,
        metrics=ClientMetrics(registry),
    ) as producer:
        for arg in (LocalTransactionState.COMMIT_MESSAGE, LocalTransactionState.UNKNOWN):
            producer.send_message_in_transaction(Message(topic, b"value"), arg)
        eventually(lambda: value("decisions_total", outcome="rollback", source="check") == 1)
        producer.flush()
    assert value("prepares_total", result="stored") == value("prepare_seconds_count") == 2
    assert value("local_transaction_seconds_count") == 2
    assert value("decisions_total", outcome="commit", source="client") == 1
    assert value("decisions_total", outcome="unknown", source="client") == 1
    assert value("ends_total", result="acknowledged") == 3
