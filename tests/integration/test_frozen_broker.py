"""One of three brokers is frozen: questions about what it leads wait, and all others are answered meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.broker_metadata import wait_in_sync
from tests.support.harness import quiet
from tests.support.kafka_cluster import KafkaCluster
from txbridge.embedded import EmbeddedKafka
from txbridge.kafka.each_broker import KeptConnections
from txbridge.kafka.log_ends import LogEnds
from txbridge.kafka.proven_end import proven_end

#: Partitions by their brokers. The first one leads.
REPLICAS = [[1, 2, 3], [2, 3, 1], [3, 1, 2]] * 2
LED_BY = [first for first, *_ in REPLICAS]


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedKafka]:
    # Long: the frozen broker leads until the end.
    with KafkaCluster(config={"broker.session.timeout.ms": "60000"}) as cluster:
        admin = AdminClient(quiet(cluster.bootstrap_servers))
        admin.create_topics([NewTopic("half", 6, replica_assignment=REPLICAS)])["half"].result(120)
        wait_in_sync(cluster)
        yield cluster


@pytest.mark.parametrize("is_connected", [True, False], ids=["connected", "not connected yet"])
def test_p8_where_other_logs_end_is_learnt_while_a_broker_is_frozen(kafka: EmbeddedKafka, is_connected: bool) -> None:
    victim = kafka.brokers[0]
    with closing(KeptConnections({"bootstrap.servers": kafka.bootstrap_servers})) as brokers:
        ends = LogEnds(brokers)
        questions = [lambda n: ends.bounds("half", n), lambda n: ends.end_from("half", n, 0)]
        if is_connected:
            assert [ends.bounds("half", number) for number in range(6)] == [(0, 0)] * 6
            questions.append(lambda n: proven_end(brokers, "half", n))
        victim.pause()
        try:
            with ThreadPoolExecutor(20) as threads:
                asked = [(LED_BY[n], threads.submit(ask, n)) for ask in questions for n in [0, 3, 1, 2, 4, 5]]
                others = [answer for leader, answer in asked if leader != victim.node_id]
                wait(others, 60)
                assert {answer.result(0) for answer in others} <= {0, (0, 0)}
                assert not any(answer.done() for leader, answer in asked if leader == victim.node_id)
        finally:
            victim.resume()
