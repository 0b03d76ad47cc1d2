"""Two real brokers, and the one that coordinates a producer group or is taken for the controller goes away."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.harness import CheckMember, eventually, quiet
from tests.support.second_broker import FIRST, SECOND, SESSION, SecondBroker
from txbridge.core.names import Names
from txbridge.embedded import EmbeddedKafka
from txbridge.kafka.admin import KafkaCluster
from txbridge.kafka.group_membership import GroupMembership
from txbridge.worker.gates.group_liveness import GroupLiveness

#: Both brokers have a copy of every group, so that either one can be its coordinator.
COPIES = {"offsets.topic.replication.factor": "2", "offsets.topic.num.partitions": "4"}
#: Above broker.session.timeout.ms, after which the controller names another leader. Below the time after which an
#: unanswered question is given up.
PAUSE_S = 6.0


@pytest.fixture
def brokers() -> Iterator[tuple[EmbeddedKafka, SecondBroker]]:
    with EmbeddedKafka(config={**SESSION, **COPIES}) as kafka, SecondBroker(kafka, COPIES) as second:
        yield kafka, second


def coordinator(servers: str, check_group: str) -> int:
    """Node id of the group's coordinator, as a new client finds it; -1 when there is none."""
    admin = AdminClient(quiet(servers))
    try:
        # A time-out of this request in librdkafka may abort the process (kafka/group_membership.py).
        description = admin.describe_consumer_groups([check_group], request_timeout=3_600)[check_group].result(120)
    except (KafkaException, TimeoutError):
        return -1
    return -1 if description.coordinator is None else int(description.coordinator.id)


@pytest.mark.long
def test_p8_checks_go_on_when_the_coordinator_moves_and_the_former_one_still_answers(brokers):
    # A broker paused for a long time (its virtual machine stopped), and another one became coordinator of the group.
    # Then the first one came back with its connections unbroken. librdkafka remembers a group's coordinator while it is
    # asked about the group. It went on asking the former one, which answers "not me". So the group counted as dead
    # until the worker was restarted.
    kafka, second = brokers
    servers, names = kafka.bootstrap_servers, Names()
    admin = AdminClient(quiet(servers))
    for number in range(40):
        group = f"group{number}"
        check = names.check(group)
        admin.create_topics([NewTopic(check, 1, replica_assignment=[[FIRST]])])[check].result(120)
        member = CheckMember(servers, names, group)
        if coordinator(servers, check) == SECOND:
            break
        member.leave()
    groups = GroupLiveness(GroupMembership(lambda: AdminClient(quiet(servers))), names)

    def is_alive() -> bool:
        groups.attend_groups(lambda limit: [group][:limit], lambda _: True)
        return groups.is_alive(group)

    eventually(is_alive, 20, "the member is not seen")
    second.pause()
    until = time.monotonic() + PAUSE_S
    while time.monotonic() < until:
        groups.attend_groups(lambda limit: [group][:limit], lambda _: True)
        time.sleep(0.2)
    second.resume()
    eventually(lambda: coordinator(servers, check) not in {SECOND, -1}, 60, "the coordinator did not move")
    eventually(is_alive, 30, "the group counts as dead although it has a member")
    member.leave()


TOPIC = "orders"


@pytest.mark.long
def test_clients_that_knew_the_killed_broker_are_answered_by_the_other():
    with EmbeddedKafka(config=SESSION) as kafka, SecondBroker(kafka) as second:
        settings = quiet(f"{kafka.bootstrap_servers},{second.bootstrap_servers}")
        admin = AdminClient(settings)
        admin.create_topics([NewTopic(TOPIC, 1, 2)])[TOPIC].result(120)
        eventually(lambda: is_described(KafkaCluster(lambda: AdminClient(settings))), 20)
        # Each client takes one of the two brokers for the controller.
        clients = [KafkaCluster(lambda: AdminClient(settings)) for _ in range(8)]
        assert all(is_described(client) for client in clients)
        second.kill()
        # A new client may also choose the dead broker until the cluster has noticed the death.
        eventually(lambda: all(is_described(client) for client in clients), 90)


def is_described(client: KafkaCluster) -> bool:
    try:
        answers = client.describe_topics([TOPIC], 10)
        return len(answers[TOPIC].result().partitions) == 1
    except Exception as error:
        print(repr(error))
        return False
