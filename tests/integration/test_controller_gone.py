"""Requests about topics after a kill of the broker that librdkafka takes for the controller, with two real brokers."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.harness import eventually, quiet
from tests.support.second_broker import SESSION, SecondBroker
from txbridge.embedded import EmbeddedKafka
from txbridge.kafka.controller_requests import ControllerRequests

TOPIC = "orders"


@pytest.mark.long
def test_clients_that_knew_the_killed_broker_are_answered_by_the_other():
    with EmbeddedKafka(config=SESSION) as kafka, SecondBroker(kafka) as second:
        settings = quiet(f"{kafka.bootstrap_servers},{second.bootstrap_servers}")
        admin = AdminClient(settings)
        admin.create_topics([NewTopic(TOPIC, 1, 2)])[TOPIC].result(120)
        eventually(lambda: is_described(ControllerRequests(lambda: AdminClient(settings))), 20)
        # Each client takes one of the two brokers for the controller.
        clients = [ControllerRequests(lambda: AdminClient(settings)) for _ in range(8)]
        assert all(is_described(client) for client in clients)
        second.kill()
        # A new client may also choose the dead broker until the cluster has noticed the death.
        eventually(lambda: all(is_described(client) for client in clients), 90)


def is_described(client: ControllerRequests) -> bool:
    try:
        answers = client.describe_topics([TOPIC], 10)
        return len(answers[TOPIC].result().partitions) == 1
    except Exception as error:
        print(repr(error))
        return False
