"""Descriptions of topics, and the few administrative requests that txbridge makes, each with a time limit."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any, ClassVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from txbridge.backoff import Backoff
from txbridge.deadline import Deadline
from txbridge.errors import EnvironmentProblemError, KafkaUnreachableError
from txbridge.kafka import config as kafka_config
from txbridge.kafka.config import librdkafka_logger
from txbridge.kafka.errors import TIMED_OUT, TRANSPORT, UNREACHABLE, is_refused, note_cause, unreachable

#: Time limit of one request (s), connecting included. A healthy cluster answers in milliseconds. A change of the
#: controller or a slow TLS and SASL handshake takes seconds. A person or the start of a service waits for the answer.
REQUEST_TIMEOUT_S = 10.0
#: Longest wait (s) after the creation of a topic until all its partitions have leaders in the metadata. That takes tens
#: of milliseconds on KRaft, some seconds while brokers restart. A cluster that needs longer has a fault.
VISIBLE_TIMEOUT_S = 30.0
#: Smallest time limit of a request (s), for a deadline that has nothing left.
_SHORTEST_S = 0.1
#: Time (s) after which a refused connection is reported. A refusal is known after a tenth of a second; another broker,
#: which may answer, is asked meanwhile.
_HANDSHAKE_S = 2.0
#: Interval (s) at which a wait tests whether its result is still wanted.
_LOOK_S = 0.05
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0

#: The user of this connection lacks a right.
NO_RIGHT = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED})


UNCLEAN = "unclean.leader.election.enable"


class UnwantedError(EnvironmentProblemError):
    """The caller does not want the answer any more."""


#: The reason for which Kafka refuses some names. Its own text only says that they collide.
ALIKE = "Kafka takes topic names that differ only in '.' and '_' for the same"


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of the wait for several requests together: it ends at `deadline`, or once `is_unwanted` returns true."""

    deadline: Deadline = field(default_factory=Deadline)
    is_unwanted: Callable[[], bool] = lambda: False

    def seconds_left(self) -> float:
        """Seconds for one request. Never 0, which means the default to librdkafka."""
        return max(_SHORTEST_S, min(REQUEST_TIMEOUT_S, self.deadline.left))

    def wait_for(self, seconds: float) -> None:
        """Wait `seconds`. Raises UnwantedError once that is not wanted any more."""
        until = Deadline(seconds)
        self.require_wanted()
        while not until.is_over:
            time.sleep(min(until.left, _LOOK_S))
            self.require_wanted()

    def result_of(self, future: Future[Any]) -> Any:
        """Return the result of a request, which has its own time limit. Raises UnwantedError once it is not wanted."""
        while not wait([future], _LOOK_S).done:
            self.require_wanted()
        error = future.exception()
        if error is None:
            return future.result()
        # A new one. That of the future would be a cycle with its traceback and the client: see ControllerRequests.ask.
        raise type(error)(*error.args)

    def require_wanted(self) -> None:
        if self.is_unwanted():
            raise UnwantedError("nobody waits for this any more")


@dataclass(frozen=True, slots=True)
class MissingRight:
    """A right (Kafka's AclOperation) on a topic that the user of this connection does not have."""

    right: str
    topic: str

    #: What to do about it.
    remedy: ClassVar[str] = "grant it to the user of this connection"

    @property
    def text(self) -> str:
        also = " (or on the cluster)" if self.right == "CREATE" else ""
        return f"missing right {self.right} on topic {self.topic}{also}"

    def __str__(self) -> str:
        return f"{self.text}: {self.remedy}"


@dataclass(frozen=True, slots=True)
class FoundTopic:
    """A topic that exists. `config` holds the effective values, whether they were set for the topic or not."""

    name: str
    topic_id: str
    partitions: int
    replication_factor: int
    leaderless: int
    config: Mapping[str, str]

    @property
    def elects_unclean(self) -> bool:
        """Whether a replica that is not in sync may become the leader. Acknowledged records are lost then."""
        return self.config.get(UNCLEAN) == "true"


@dataclass(frozen=True, slots=True)
class Greeting:
    """Facts about a cluster that any of its brokers can tell."""

    cluster_id: str
    #: host:port by broker id.
    brokers: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class TopicRequest:
    """A topic to be created."""

    name: str
    partitions: int
    replication_factor: int
    config: Mapping[str, str]


#: A topic that exists, a right that is missing to look at it, or None for a topic that does not exist.
Sight = FoundTopic | MissingRight | None


class KafkaCluster:
    """Requests to a cluster through an admin client.

    Every method raises KafkaUnreachableError when it gets no answer within REQUEST_TIMEOUT_S, or within the shorter
    time that `bounds` leave. librdkafka itself ends each request then. Other refusals of the cluster raise
    EnvironmentProblemError; `create_topics` and `alter_topics` return them.
    """

    def __init__(self, admin: AdminClient, bounds: Bounds | None = None, user: Mapping[str, Any] | None = None) -> None:
        self._admin = admin
        self._bounds = bounds or Bounds()
        self._user = user or {}
        #: librdkafka's last error about the connection. The request itself only ends with "timed out".
        self._causes: deque[KafkaError | None] = deque([None], 1)

    @classmethod
    def connect(cls, user: Mapping[str, Any]) -> KafkaCluster:
        """Connect for a command of a person: librdkafka's log is shown if `debug` is set."""
        config, causes = kafka_config.admin_config(user), deque[KafkaError | None]([None], 1)
        # Not by the cluster: a client in a cycle keeps its threads until Python looks for cycles.
        config.setdefault("error_cb", lambda error: causes.append(note_cause(causes[0], error)))
        if "debug" in config:
            config.setdefault("logger", librdkafka_logger(is_shown=True))
        cluster = cls(kafka_config.create(AdminClient, config), user=user)
        cluster._causes = causes
        return cluster

    @property
    def admin(self) -> AdminClient:
        """The admin client, for requests that this class does not have."""
        return self._admin

    def broker_count(self) -> int:
        return len(self.describe_cluster().nodes)

    def describe_cluster(self) -> Any:
        """Kafka's description of the cluster: id, controller, brokers, and the rights of this user."""
        future = self._admin.describe_cluster(
            include_authorized_operations=True, request_timeout=self._bounds.seconds_left()
        )
        try:
            return self._bounds.result_of(future)
        except KafkaException as failure:
            raise self._translate_error(failure.args[0], "describe the cluster") from None

    def read_greeting(self, topic: str) -> Greeting:
        """Ask any broker about its cluster; this needs no controller. Naming a topic keeps the answer short.

        After TLS or SASL was refused it does not wait for the whole time limit: that is nothing that passes.
        """
        deadline = Deadline(self._bounds.seconds_left())
        while True:
            try:
                metadata = self._admin.list_topics(topic, timeout=max(_SHORTEST_S, min(deadline.left, _HANDSHAKE_S)))
                break
            except KafkaException as failure:
                error = failure.args[0]
                self._admin.poll(0)  # an admin client calls error_cb only in poll()
                if is_refused(self._causes[0]) or deadline.is_over or error.code() not in {TIMED_OUT, TRANSPORT}:
                    raise self._translate_error(error, "connect") from None
        return Greeting(
            str(metadata.cluster_id), {node: f"{one.host}:{one.port}" for node, one in metadata.brokers.items()}
        )

    def topics_with_prefix(self, prefix: str) -> list[str]:
        """Names of the topics that begin with `prefix`, as far as this user may see them."""
        try:
            topics = self._admin.list_topics(timeout=self._bounds.seconds_left()).topics
        except KafkaException as failure:
            raise self._translate_error(failure.args[0], "list the topics") from None
        return sorted(topic for topic in topics if topic.startswith(prefix))

    def read_topics(self, topics: Collection[str]) -> dict[str, Sight]:
        """Describe each topic; needs DESCRIBE and DESCRIBE_CONFIGS on it."""
        seen: dict[str, Sight] = {}
        described = {}
        futures = self._admin.describe_topics(
            TopicCollection(list(topics)), request_timeout=self._bounds.seconds_left()
        )
        for topic, future in futures.items():
            found = self._try_result(future, "DESCRIBE", topic, absent=KafkaError.UNKNOWN_TOPIC_OR_PART)
            if found is None or isinstance(found, MissingRight):
                seen[topic] = found
            else:
                described[topic] = found
        if not described:
            return seen
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in described]
        for resource, future in self._admin.describe_configs(
            resources, request_timeout=self._bounds.seconds_left()
        ).items():
            topic = resource.name
            config = self._try_result(future, "DESCRIBE_CONFIGS", topic, absent=KafkaError.UNKNOWN_TOPIC_OR_PART)
            if config is None or isinstance(config, MissingRight):
                seen[topic] = config
                continue
            partitions = described[topic].partitions
            seen[topic] = FoundTopic(
                name=topic,
                topic_id=str(described[topic].topic_id),
                partitions=len(partitions),
                replication_factor=min(len(partition.replicas) for partition in partitions),
                leaderless=sum(partition.leader is None for partition in partitions),
                config={name: entry.value for name, entry in config.items() if entry.value is not None},
            )
        return seen

    def create_topics(self, topics: Iterable[TopicRequest], *, dry_run: bool) -> dict[str, str | None]:
        """Create topics; returns for each the reason of its failure, or None. A topic that exists is no failure."""
        # operation_timeout limits the controller's own wait, so that it answers before this request times out.
        futures = self._admin.create_topics(
            [NewTopic(one.name, one.partitions, one.replication_factor, config=dict(one.config)) for one in topics],
            operation_timeout=self._bounds.seconds_left() / 2,
            request_timeout=self._bounds.seconds_left(),
            validate_only=dry_run,
        )
        return {topic: self._refusal_of(future, "CREATE", topic) for topic, future in futures.items()}

    def alter_topics(self, changes: Mapping[str, Mapping[str, str]], *, dry_run: bool) -> dict[str, str | None]:
        """Set these properties of these topics and no others; returns for each the reason of its refusal, or None."""
        resources = [
            ConfigResource(
                ResourceType.TOPIC,
                topic,
                incremental_configs=[
                    ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
                    for name, value in config.items()
                ],
            )
            for topic, config in changes.items()
        ]
        futures = self._admin.incremental_alter_configs(
            resources, request_timeout=self._bounds.seconds_left(), validate_only=dry_run
        )
        return {
            resource.name: self._refusal_of(future, "ALTER_CONFIGS", resource.name)
            for resource, future in futures.items()
        }

    def _try_result(self, future: Future[Any], right: str, topic: str, *, absent: int) -> Any:
        try:
            return self._bounds.result_of(future)
        except KafkaException as failure:
            error: KafkaError = failure.args[0]
            if error.code() == absent:
                return None
            if error.code() in NO_RIGHT:
                return MissingRight(right, topic)
            raise self._translate_error(error, f"{right} topic {topic}") from None

    def _refusal_of(self, future: Future[Any], right: str, topic: str) -> str | None:
        try:
            outcome = self._try_result(future, right, topic, absent=KafkaError.TOPIC_ALREADY_EXISTS)
        except KafkaUnreachableError:
            raise
        except EnvironmentProblemError as refusal:
            return str(refusal)
        return str(outcome) if isinstance(outcome, MissingRight) else None

    def _translate_error(self, error: KafkaError, purpose: str) -> EnvironmentProblemError:
        if error.code() in UNREACHABLE:
            self._admin.poll(0)
            return unreachable(purpose, self._user, self._causes[0] or error)
        advice = f". {ALIKE}: choose another name" if "collides" in error.str() else ""
        return EnvironmentProblemError(f"Kafka refused ({purpose}): {error.str()}{advice}")


def wait_for(condition: Callable[[], bool], complaint: str, bounds: Bounds | None = None) -> None:
    """Wait until `condition` holds.

    Raises EnvironmentProblemError with `complaint` after VISIBLE_TIMEOUT_S, or after the shorter time that `bounds`
    leave.
    """
    bounds = bounds or Bounds()
    patience = min(VISIBLE_TIMEOUT_S, bounds.deadline.left)
    deadline, backoff = Deadline(patience), Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
    while not condition():
        if deadline.is_over:
            raise EnvironmentProblemError(f"{complaint} within {patience:.0f} s")
        bounds.wait_for(backoff.next())
