"""A partition of END without a leader: a worker asks for the leader at intervals, and goes on when there is one."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from aiokafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.harness import eventually, quiet
from txbridge.config.worker import WorkerSettings
from txbridge.embedded import EmbeddedKafka
from txbridge.worker.app import create_app
from txbridge.worker.faust.settings import METADATA_PAUSE_S

pytestmark = pytest.mark.long

TOPIC = "led-by-one-broker"
WATCHED_S = 3.0


async def _leader_becomes(cluster: Any, partition: TopicPartition, broker: int) -> None:
    await asyncio.to_thread(eventually, lambda: cluster.leader_for_partition(partition) == broker)


async def _rounds_without_a_leader(kafka: EmbeddedKafka) -> int:
    """Number of requests for the leader by a worker's consumer within WATCHED_S. Then it must find the leader again."""
    app = create_app(WorkerSettings(bootstrap_servers=kafka.bootstrap_servers))
    consumer = app.consumer._thread._create_worker_consumer(app.transport)
    cluster, asked = consumer._client.cluster, 0
    refresh = cluster.update_metadata

    def count(metadata: Any) -> None:
        nonlocal asked
        asked += 1
        refresh(metadata)

    cluster.update_metadata = count
    await consumer.start()
    try:
        partition = TopicPartition(TOPIC, 0)
        consumer.assign([partition])
        await consumer.seek_to_end(partition)
        kafka.brokers[2].kill()
        await _leader_becomes(cluster, partition, -1)
        before = asked
        await asyncio.sleep(WATCHED_S)
        rounds = asked - before
        await asyncio.to_thread(kafka.brokers[2].start)
        await _leader_becomes(cluster, partition, 3)
    finally:
        # aiokafka's `stop` raises the cancellation of a fetch that was to be repeated.
        with suppress(asyncio.CancelledError):
            await consumer.stop()
    return rounds


def test_the_leader_is_asked_for_ten_times_a_second_at_most() -> None:
    """Faust's unchanged consumer asks thousands of times a second as long as there is no leader."""
    with EmbeddedKafka(brokers=3, config={"broker.session.timeout.ms": "3000"}) as kafka:
        topic = NewTopic(TOPIC, 1, replica_assignment=[[3]])
        admin = AdminClient(quiet(kafka.bootstrap_servers))
        admin.create_topics([topic])[TOPIC].result(120)
        rounds = asyncio.run(_rounds_without_a_leader(kafka))
    assert 1 <= rounds <= WATCHED_S / METADATA_PAUSE_S + 1
