"""The subject of an examination: the settings, and the cluster as the user of this connection sees it."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ConfigResource, ResourceType

from txbridge.config.worker import WorkerSettings
from txbridge.core.names import Names
from txbridge.deadline import Deadline
from txbridge.kafka.acl import Role
from txbridge.kafka.admin import REQUEST_TIMEOUT_S, FoundTopic, KafkaCluster, MissingRight, Sight
from txbridge.kafka.errors import COORDINATOR_COMES
from txbridge.kafka.group_membership import GroupMembership
from txbridge.topics.plan import PlanOptions

#: A name that no group, topic or outbox has. A user who may see the check topic of that group may see those of all.
NOBODY = "txbridge-doctor-asks"
#: Seconds between attempts to find a coordinator. That takes a second on a fresh cluster, milliseconds on others.
RETRY_S = 0.2


@dataclass(frozen=True, slots=True)
class Questions:
    """The options of an examination."""

    #: The role whose rights are examined.
    role: Role = Role.WORKER
    #: Producer groups. Groups with a check topic are always examined.
    groups: tuple[str, ...] = ()
    #: Real topics whose rights are examined, too.
    real_topics: tuple[str, ...] = ()
    #: Whether this user is that of a front door, which also writes messages without a transaction to real topics.
    door: bool = False
    #: Whether the door creates topics when a client names them (--auto-create-topics).
    creates_topics: bool = False
    #: Whether relays are examined. What workers have is then examined only if any of it is there.
    relay: bool = False


@dataclass(slots=True)
class ClusterView:
    """One namespace on one cluster."""

    settings: WorkerSettings
    questions: Questions
    cluster: KafkaCluster
    cluster_id: str
    controller: str
    #: host:port by broker.
    brokers: Mapping[int, str]
    #: Names of the operations that this user may perform on the cluster.
    operations: frozenset[str]
    #: Producer groups: those asked for and those whose check topics can be seen.
    groups: tuple[str, ...]
    seen: Mapping[str, Sight]
    #: Whether check topics can exist that this user does not see: Kafka leaves out topics without the right DESCRIBE.
    groups_hidden: bool
    #: The real topics that were asked for, and at last those of open messages.
    real: Mapping[str, Sight]
    #: Kafka's descriptions of the topics that exist and that this user may see.
    described: Mapping[str, Any]
    names: Names = field(init=False)

    def __post_init__(self) -> None:
        self.names = Names(self.settings.namespace)

    @property
    def options(self) -> list[PlanOptions]:
        """The options of the plans that `txbridge topics` would compare with."""
        of_workers = PlanOptions(longest_wait=self.settings.longest_wait, groups=self.groups)
        return [of_workers] * self.has_workers + [PlanOptions(relay=True)] * self.questions.relay

    @property
    def has_workers(self) -> bool:
        """Whether the namespace has, or should have, the topics of clients and workers."""
        return self.names.half in self.seen

    @property
    def half(self) -> FoundTopic | None:
        """HALF; None when it cannot be seen."""
        half = self.seen.get(self.names.half)
        return half if isinstance(half, FoundTopic) else None

    @property
    def partitions(self) -> int:
        """The number of partitions of HALF; 0 when it cannot be seen."""
        return 0 if self.half is None else self.half.partitions

    def read_broker_configs(self) -> dict[int, dict[str, str] | KafkaError]:
        """The configuration of each broker, or the error. Only the broker itself reports it."""
        client = self.cluster.admin
        # librdkafka takes one broker a request.
        resources = {node: ConfigResource(ResourceType.BROKER, str(node)) for node in sorted(self.brokers)}
        answers = {
            node: client.describe_configs([resource], request_timeout=REQUEST_TIMEOUT_S)[resource]
            for node, resource in resources.items()
        }
        found: dict[int, dict[str, str] | KafkaError] = {}
        for node, answer in answers.items():
            try:
                found[node] = {name: entry.value for name, entry in answer.result().items() if entry.value}
            except KafkaException as failure:
                found[node] = failure.args[0]
        return found

    def describe_groups(self, groups: Collection[str]) -> dict[str, Any]:
        """Kafka's description of consumer groups, or the KafkaError of one that cannot be seen."""
        if not groups:
            return {}
        found: dict[str, Any] = {}
        deadline, membership = Deadline(REQUEST_TIMEOUT_S), GroupMembership(self.cluster.make_client)
        while True:
            missing = [name for name in groups if not _is_settled(found.get(name))]
            found |= membership.describe_groups(missing, deadline.left)
            if all(map(_is_settled, found.values())) or deadline.is_over:
                return found
            time.sleep(RETRY_S)


def _is_settled(answer: Any) -> bool:
    """Whether the answer is final. At the first question a fresh cluster creates the coordinators."""
    return answer is not None and not (isinstance(answer, KafkaError) and answer.code() in COORDINATOR_COMES)


def read_cluster(settings: WorkerSettings, questions: Questions, cluster: KafkaCluster) -> ClusterView:
    """Read the state of the cluster. Raises KafkaUnreachableError, EnvironmentProblemError, UsageError."""
    names = Names(settings.namespace)
    answer = cluster.describe_cluster()
    prefix = names.check("")
    there = {topic.removeprefix(prefix) for topic in cluster.topics_with_prefix(prefix)}
    groups = tuple(sorted({*questions.groups, *there}))
    ours = [*names.internal, *map(names.check, groups), *[names.outbox] * questions.relay]
    # For a topic that is named in the request, Kafka reports a missing right even if the topic does not exist.
    nobodys = names.check(NOBODY)
    described = _describe(cluster, [*ours, *KAFKAS_OWN, *questions.real_topics])
    seen = cluster.read_topics(ours)
    if questions.relay and not any(isinstance(seen[one], FoundTopic) for one in names.internal):
        seen, groups = {names.outbox: seen[names.outbox]}, ()
    return ClusterView(
        settings=settings,
        questions=questions,
        cluster=cluster,
        cluster_id=answer.cluster_id,
        controller=str(answer.controller.id) if answer.controller else "none",
        brokers={node.id: f"{node.host}:{node.port}" for node in answer.nodes},
        operations=names_of(answer.authorized_operations),
        groups=groups,
        seen=seen,
        groups_hidden=isinstance(cluster.read_topics([nobodys])[nobodys], MissingRight),
        real=cluster.read_topics(questions.real_topics) if questions.real_topics else {},
        described=described,
    )


#: Kafka's topics for the state of transactions and the offsets of groups, which are only as safe as these topics.
KAFKAS_OWN = ("__transaction_state", "__consumer_offsets")


def _describe(cluster: KafkaCluster, topics: Sequence[str]) -> dict[str, Any]:
    # Missing or hidden: `seen` tells which for our own topics; for others the checks do where it matters.
    try:
        answers = cluster.describe_topics(topics, REQUEST_TIMEOUT_S, rights=True)
    except (KafkaException, TimeoutError):
        # `seen` tells why no broker answers.
        return {}
    return {name: answer.result() for name, answer in answers.items() if answer.exception() is None}


def names_of(operations: Collection[Any] | None) -> frozenset[str]:
    """The names of operations that are granted."""
    return frozenset(one.name for one in operations or ())
