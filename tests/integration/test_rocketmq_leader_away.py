"""The door's sender of records: partitions whose leader does not answer hold up no other."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from txbridge_rocketmq.outlet import Outlet

from tests.support.harness import quiet
from tests.support.second_broker import FIRST, SECOND, SecondBroker
from txbridge.client.kafka.connection import KafkaConnection
from txbridge.embedded import EmbeddedKafka

TOPIC, MANY = "led-by-two", 40


@pytest.fixture(scope="module")
def second() -> Iterator[SecondBroker]:
    """The leader of partition 1, beside one that leads partition 0."""
    with EmbeddedKafka() as first, SecondBroker(first) as second:
        topic = NewTopic(TOPIC, 2, replica_assignment=[[FIRST], [SECOND]])
        admin = AdminClient(quiet(first.bootstrap_servers))
        admin.create_topics([topic])[TOPIC].result(120)
        yield second


@pytest.mark.long
async def test_a_leader_that_is_away_holds_up_no_other_partition_and_its_records_keep_their_order(
    second: SecondBroker,
) -> None:
    settings = {"bootstrap.servers": second.bootstrap_servers, "enable.idempotence": True}
    outlet = Outlet(settings, KafkaConnection(second.bootstrap_servers), "messages")
    await asyncio.to_thread(outlet.start, asyncio.get_running_loop(), TOPIC)
    try:
        async with asyncio.timeout(120):
            await asyncio.gather(*send_many(outlet, 1))
            os.kill(second.pid, signal.SIGSTOP)
            waiting = send_many(outlet, 1)
            for already in (0, MANY):
                stored = await asyncio.gather(*send_many(outlet, 0))
                assert stored == [(None, 0, already + number) for number in range(MANY)]
            assert not any(answer.done() for answer in waiting)
            os.kill(second.pid, signal.SIGCONT)
            assert await asyncio.gather(*waiting) == [(None, 1, MANY + number) for number in range(MANY)]
    finally:
        await asyncio.to_thread(outlet.close)


def send_many(outlet: Outlet, partition: int) -> list[asyncio.Future[Any]]:
    return [outlet.send_record(TOPIC, b"%d" % number, None, [], partition=partition) for number in range(MANY)]
