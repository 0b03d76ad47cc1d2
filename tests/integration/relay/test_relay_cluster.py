"""A relay on three brokers: a leader that is cut off from the others alone, and partitions that take nothing."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import NewTopic

from tests.support.broker_metadata import ask_metadata, wait_in_sync
from tests.support.harness import Bridge, eventually
from tests.support.kafka_cluster import KafkaCluster
from tests.support.relays import add_rows, end_gently, make_progress, relaying, require_exact, rows_left, wait_relayed
from txbridge.embedded import Node

pytestmark = pytest.mark.long


@pytest.fixture
def cluster() -> Iterator[KafkaCluster]:
    with KafkaCluster(can_cut_off=True, config={"broker.session.timeout.ms": "3000"}) as made:
        yield made


@pytest.fixture
def bridge(cluster, request) -> Iterator[Bridge]:
    with Bridge(cluster.bootstrap_servers, request.node.name) as made:
        make_progress(made.bootstrap_servers, made.namespace)
        yield made


def leader_of(cluster: KafkaCluster, partition: str, asked: int = 0) -> int:
    """Its leader, as one broker knows it."""
    answer = eventually(lambda: ask_metadata(cluster.brokers[asked].port))
    return answer.partitions[partition].leader


def test_p2_p3_the_leader_of_the_progress_is_cut_off_from_the_controller_alone(
    cluster, bridge, topic, url, engine, capfd
):
    """Clients reach it, and it takes itself for the leader. It lacks a batch that a relay has sent before it died."""
    # Each broker knows the topics.
    wait_in_sync(cluster)
    with relaying(bridge, url) as first:
        add_rows(engine, topic, range(100))
        wait_relayed(bridge, topic, 100, first)
        eventually(lambda: rows_left(engine) == 0, 30)
        with engine.connect() as connection:
            number = connection.exec_driver_sql("SELECT partition FROM txbridge_outbox_relay").scalar_one()
        partition = f"{bridge.names.outbox}/{number}"
        victim: Node = cluster.brokers[leader_of(cluster, partition) - 1]
        healthy = next(n for n, node in enumerate(cluster.brokers) if node is not victim)
        cluster.cut_off(victim)
        eventually(lambda: leader_of(cluster, partition, healthy) not in {victim.node_id, -1}, 60)
    add_rows(engine, topic, range(100, 200), a_transaction=100)
    servers = cluster.brokers[healthy].bootstrap_servers
    with relaying(bridge, url, "--bootstrap-servers", servers, fault="commit.committed@2") as dying:
        assert dying.wait(180) == -signal.SIGKILL
    # It asks the former leader first.
    with relaying(bridge, url, "--bootstrap-servers", f"{victim.bootstrap_servers},{servers}") as last:
        add_rows(engine, topic, range(200, 300))
        time.sleep(20)
        cluster.join_again(victim)
        wait_in_sync(cluster)
        wait_relayed(bridge, topic, 300, last, 120)
        eventually(lambda: rows_left(engine) == 0, 60)
    require_exact(bridge, topic, 300)
    assert "relay_recovered batch=" in "".join(capfd.readouterr())


def test_a_topic_whose_leader_is_away_holds_up_no_other(cluster, bridge, topic, url, engine):
    lost, alone = cluster.brokers[2], f"{bridge.namespace}.alone"
    bridge.admin.create_topics([NewTopic(alone, 1, replica_assignment=[[lost.node_id]])])[alone].result(120)
    bridge.await_topic(alone)
    with relaying(bridge, url) as relay:
        for name in (topic, alone):
            add_rows(engine, name, range(100))
            wait_relayed(bridge, name, 100, relay)
        lost.kill()
        eventually(lambda: leader_of(cluster, f"{alone}/0") == -1, 60)
        # It may have coordinated transactions, and led the progress.
        add_rows(engine, topic, range(100, 101))
        wait_relayed(bridge, topic, 101, relay, 60)
        slowest = 0.0
        for number in range(101, 130):
            add_rows(engine, alone, range(number - 1, number))
            began = time.monotonic()
            add_rows(engine, topic, range(number, number + 1))
            wait_relayed(bridge, topic, number + 1, relay, 60)
            slowest = max(slowest, time.monotonic() - began)
        add_rows(engine, alone, range(129, 130))
        print(f"rows of other topics were visible after {slowest:.1f} s at most")
        assert slowest < 15
        lost.start()
        wait_in_sync(cluster)
        wait_relayed(bridge, alone, 130, relay, 120)
        end_gently(relay)
    for name in (topic, alone):
        require_exact(bridge, name, 130)
