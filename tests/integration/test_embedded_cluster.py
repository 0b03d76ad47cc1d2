"""A real cluster of three brokers that survives a loss, and in which each node can be killed, paused and cut off."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import ElectionType, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from tests.integration.test_embedded_kafka import create, processes, run_cli, values
from tests.support.broker_metadata import BrokerMetadata, ask_metadata, wait_in_sync
from tests.support.harness import eventually, quiet
from tests.support.kafka_cluster import KafkaCluster
from txbridge.embedded import KAFKA_VERSIONS, EmbeddedKafka
from txbridge.errors import UsageError

pytestmark = pytest.mark.long
TOPIC = "orders"


@pytest.fixture(scope="module")
def kafka():
    # A short session, so that a silent broker is replaced soon.
    with KafkaCluster(can_cut_off=True, config={"broker.session.timeout.ms": "3000"}) as cluster:
        topic = NewTopic(TOPIC, 1, replica_assignment=[[1, 2, 3]])
        admin = AdminClient(quiet(cluster.bootstrap_servers))
        admin.create_topics([topic])[TOPIC].result(120)
        wait_in_sync(cluster)
        yield cluster


def known_to(kafka: EmbeddedKafka, broker: int) -> BrokerMetadata:
    """Metadata as this broker alone reports them."""
    return eventually(lambda: ask_metadata(kafka.brokers[broker - 1].port))


def leader(kafka: EmbeddedKafka, of: str = f"{TOPIC}/0", asked: int = 2) -> int:
    return known_to(kafka, asked).partitions[of].leader


def back_to_the_first(kafka: EmbeddedKafka) -> None:
    wait_in_sync(kafka)
    admin = AdminClient(quiet(kafka.bootstrap_servers))
    admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition(TOPIC, 0)]).result(120)
    eventually(lambda: leader(kafka) == 1)


def transaction(kafka: EmbeddedKafka, value: bytes) -> None:
    producer = Producer({**quiet(kafka.bootstrap_servers), "transactional.id": "t"})
    producer.init_transactions(120)
    producer.begin_transaction()
    producer.produce(TOPIC, value)
    producer.commit_transaction(120)


def test_everything_is_on_three_brokers(kafka):
    transaction(kafka, b"one")
    admin = AdminClient(quiet(kafka.bootstrap_servers))
    found = known_to(kafka, 1)
    assert found.brokers == {1, 2, 3}
    for name in (TOPIC, "__transaction_state"):
        assert set(found.partitions[f"{name}/0"].replicas) == {1, 2, 3}
        resource = ConfigResource(ResourceType.TOPIC, name)
        assert admin.describe_configs([resource])[resource].result(120)["min.insync.replicas"].value == "2"
    assert len({node.pid for node in kafka.brokers}) == 3
    assert kafka.bootstrap_servers.split(",") == [node.bootstrap_servers for node in kafka.brokers]


def test_one_broker_is_cut_off_from_the_others_and_not_from_clients(kafka):
    first = kafka.brokers[0]
    kafka.cut_off(first)
    # On a busy machine its session may have ended before, and it knows the new leader.
    before = leader(kafka, asked=1)
    eventually(lambda: leader(kafka) in {2, 3})
    assert known_to(kafka, 2).brokers == {2, 3}
    assert leader(kafka, asked=1) == before, "it goes on saying what was true before"
    kafka.join_again(first)
    wait_in_sync(kafka)
    assert leader(kafka, asked=1) in {2, 3}
    back_to_the_first(kafka)


def test_one_broker_ends_cleanly_and_its_partitions_move_first(kafka):
    first = kafka.brokers[0]
    first.stop()
    assert leader(kafka) in {2, 3}
    with pytest.raises(UsageError, match="this Kafka does not run"):
        _ = first.pid
    first.start()
    back_to_the_first(kafka)


def test_brokers_before_the_start():
    with pytest.raises(UsageError, match="call start"):
        _ = EmbeddedKafka(brokers=3).brokers


def test_a_detached_cluster(tmp_path):
    folder = str(tmp_path)
    started = run_cli("start", "--brokers", "3", "--detach", "--port", "0", "--data-dir", folder)
    assert started.returncode == 0, started.stderr
    try:
        assert started.stdout.startswith("Kafka 4.3.1 is ready on 127.0.0.1:")
        status = run_cli("status", "--data-dir", folder, "--format", "json")
        nodes = json.loads(status.stdout)["nodes"]
        assert list(nodes) == ["broker-1", "broker-2", "broker-3"]
        assert all(node["answers"] for node in nodes.values())
        assert sorted(processes(tmp_path)) == sorted(node["pid"] for node in nodes.values())
        again = run_cli("start", "--detach", "--port", "0", "--data-dir", folder)
        assert again.returncode == 2
        assert "belongs to a Kafka of 3 brokers: start it with as many (--brokers" in again.stderr
    finally:
        stopped = run_cli("stop", "--data-dir", folder)
    addresses = ",".join(node["bootstrap_servers"] for node in nodes.values())
    assert stopped.stdout.startswith(f"Stopped Kafka on {addresses} (processes ")
    assert processes(tmp_path) == []
    assert run_cli("status", "--data-dir", folder).returncode == 1
    assert run_cli("stop", "--data-dir", folder).stdout == f"No Kafka is running on {folder}.\n"


@pytest.mark.parametrize("release", KAFKA_VERSIONS)
def test_each_version_starts_and_starts_again_on_its_data(tmp_path, release):
    with EmbeddedKafka(kafka_version=release, data_dir=tmp_path) as kafka:
        assert f"kafka_2.13-{KAFKA_VERSIONS[release]}.jar" in Path(f"/proc/{kafka.pid}/cmdline").read_text()
        create(kafka, TOPIC)
        transaction(kafka, b"before")
        kafka.kill()
        kafka.start()
        transaction(kafka, b"after")
        assert values(kafka, TOPIC, 2) == [b"before", b"after"]
