"""Descriptions of topics, and the few administrative requests that txbridge makes, each with a time limit."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, wait
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from txbridge.backoff import Backoff
from txbridge.deadline import Deadline
from txbridge.errors import EnvironmentProblemError, KafkaUnreachableError, UsageError
from txbridge.kafka import config as kafka_config
from txbridge.kafka.config import librdkafka_logger
from txbridge.kafka.errors import TIMED_OUT, TRANSPORT, UNREACHABLE, is_denied, is_refused, note_cause, unreachable

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
#: Number of attempts among which a time-out is divided; each failure replaces the client. The second attempt usually
#: succeeds, but a client that connects while the cluster still lists the dead broker may choose it again.
_ATTEMPTS = 3
#: librdkafka itself ends an unanswered request, within this time (s) after its time-out.
_MARGIN_S = 1.0

_K = TypeVar("_K")
#: Makes a request with this client and time-out (s).
Request = Callable[[AdminClient, float], Mapping[_K, Future[Any]]]


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
        # A new one. That of the future would be a cycle with its traceback and the client: see KafkaCluster.ask.
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
    #: Partitions of the topic that was named; 0 if it does not exist, or is hidden from this user.
    partitions: int = 0


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
    """Requests to a cluster through an admin client, which is made when it is first needed. Thread-safe.

    librdkafka (2.16) sends requests about topics to the broker that its metadata names as the controller. Under KRaft
    that is any live broker. When that broker goes away, an existing client waits for it until it renews its metadata,
    after five minutes by default. Until then each request times out, although every other broker would answer. So a
    client whose request has failed in librdkafka itself is replaced for the next request; `ask` makes it again at once.

    A method that returns futures raises KafkaException or TimeoutError when no attempt was answered. Every other one
    raises KafkaUnreachableError when it gets no answer within REQUEST_TIMEOUT_S, or within the shorter time that the
    bounds leave. librdkafka itself ends each request then. Other refusals of the cluster raise EnvironmentProblemError;
    `create_topics` and `alter_topics` return them.
    """

    def __init__(self, make_client: Callable[[], AdminClient], user: Mapping[str, Any] | None = None) -> None:
        #: Makes an admin client for this cluster.
        self.make_client = make_client
        self.bounds = Bounds()
        self._user = user or {}
        self._lock = threading.Lock()
        #: The client, if there is one. `within` shares it.
        self._clients: list[AdminClient] = []
        #: Whether a client could be made. `within` shares it, too.
        self._worked = threading.Event()
        #: librdkafka's last error about the connection. The request itself only ends with "timed out".
        self._causes: deque[KafkaError | None] = deque([None], 1)

    @classmethod
    def connect(cls, user: Mapping[str, Any]) -> KafkaCluster:
        """Connect with the settings of a user. librdkafka's log is shown if `debug` is set. Raises UsageError."""
        config, causes = kafka_config.admin_config(user), deque[KafkaError | None]([None], 1)
        # Not by the cluster: a client in a cycle keeps its threads until Python looks for cycles.
        config.setdefault("error_cb", lambda error: causes.append(note_cause(causes[0], error)))
        if "debug" in config:
            config.setdefault("logger", librdkafka_logger(is_shown=True))
        cluster = cls(partial(kafka_config.create, AdminClient, config), user)
        cluster._causes = causes
        _ = cluster.admin  # settings that librdkafka refuses are an error of this call
        return cluster

    def within(self, bounds: Bounds) -> KafkaCluster:
        """The same cluster, and the same client, with these limits for all requests together."""
        bounded = copy(self)
        bounded.bounds = bounds
        return bounded

    def serve_errors(self) -> None:
        """Take what librdkafka has reported about the connection. Otherwise that piles up in an outage."""
        for client in tuple(self._clients):
            client.poll(0)

    @property
    def admin(self) -> AdminClient:
        """The client, for requests that this class does not have. Its caller keeps it until the answers are there."""
        # Outside the lock: it may call the user's error_cb.
        self.serve_errors()
        with self._lock:
            if not self._clients:
                try:
                    self._clients.append(self.make_client())
                except UsageError as error:
                    if not self._worked.is_set():
                        raise
                    # The same settings were right before: a certificate is being replaced, or threads have run out.
                    raise EnvironmentProblemError(str(error)) from None
            self._worked.set()
            return self._clients[0]

    def _give_up(self, client: AdminClient) -> None:
        """Make the next request use another client than this one. Requests that wait for it, and the caller, hold it.

        So it does not end under the lock: that takes as long as its threads take to end.
        """
        with self._lock:
            if client in self._clients:
                self._clients.remove(client)

    def ask(self, request: Request[_K], timeout: float) -> dict[_K, Future[Any]]:
        """Return the answers to `request`, all of them completed, within `timeout` seconds.

        The futures hold the broker's answers, and also its errors about single topics.
        """
        deadline = Deadline(timeout)
        for left in reversed(range(_ATTEMPTS)):
            client = self.admin
            # The margin is kept free, so that librdkafka also ends the last attempt before the deadline.
            seconds = max(deadline.left - _MARGIN_S, deadline.left / 2) / (left + 1)
            attempt = Deadline(min(seconds + _MARGIN_S, deadline.left))
            try:
                answers = dict(request(client, seconds))
                for answer in answers.values():
                    error = answer.exception(attempt.left)
                    if error is not None and _is_local(error):
                        # A new one: confluent-kafka keeps that of the future in a cycle, which would get this frame.
                        raise type(error)(*error.args) from None
            except (KafkaException, TimeoutError):
                self._give_up(client)
                if left == 0 or deadline.is_over:
                    raise
            else:
                return answers
            finally:
                # Else the error, its traceback and this frame would be a cycle with the client in it. The garbage
                # collector may run in a thread of librdkafka, which ends the process if a client is destroyed there.
                answers = answer = error = None  # type: ignore[assignment]
        raise AssertionError("unreachable: the last attempt returns or raises")

    def describe_topics(self, topics: Iterable[str], timeout: float, *, rights: bool = False) -> dict[str, Future[Any]]:
        """Describe these topics by name, with the `rights` of this user on them. Never creates one."""
        names = TopicCollection(list(topics))
        return self.ask(
            lambda admin, seconds: admin.describe_topics(
                names, include_authorized_operations=rights, request_timeout=seconds
            ),
            timeout,
        )

    def describe_topics_and_configs(
        self, topics: Iterable[str], timeout: float
    ) -> tuple[dict[str, Future[Any]], dict[str, Future[Any]]]:
        """Describe these topics with the rights of this user, and their configurations, at once."""
        names = list(topics)
        answers = self.ask(partial(_request_topics_and_configs, names), timeout)
        return {name: answers[name] for name in names}, {name: answers[_resource(name)] for name in names}

    def broker_count(self) -> int:
        return len(self.describe_cluster().nodes)

    def describe_cluster(self) -> Any:
        """Kafka's description of the cluster: id, controller, brokers, and the rights of this user."""
        client = self.admin
        future = client.describe_cluster(include_authorized_operations=True, request_timeout=self.bounds.seconds_left())
        try:
            return self.bounds.result_of(future)
        except KafkaException as failure:
            raise self._translate_error(failure.args[0], "describe the cluster", client) from None

    def read_greeting(self, topic: str) -> Greeting:
        """Ask any broker about its cluster; this needs no controller. Naming a topic keeps the answer short.

        After TLS or SASL was refused it does not wait for the whole time limit: that is nothing that passes.
        """
        deadline = Deadline(self.bounds.seconds_left())
        while True:
            client = self.admin
            try:
                metadata = client.list_topics(topic, timeout=max(_SHORTEST_S, min(deadline.left, _HANDSHAKE_S)))
                break
            except KafkaException as failure:
                error = failure.args[0]
                self.serve_errors()
                if is_refused(self._causes[0]) or deadline.is_over or error.code() not in {TIMED_OUT, TRANSPORT}:
                    raise self._translate_error(error, "connect", client) from None
        self._causes.append(None)
        return Greeting(
            str(metadata.cluster_id),
            {node: f"{one.host}:{one.port}" for node, one in metadata.brokers.items()},
            len(metadata.topics[topic].partitions),
        )

    def topics_with_prefix(self, prefix: str) -> list[str]:
        """Names of the topics that begin with `prefix`, as far as this user may see them."""
        client = self.admin
        try:
            topics = client.list_topics(timeout=self.bounds.seconds_left()).topics
        except KafkaException as failure:
            raise self._translate_error(failure.args[0], "list the topics", client) from None
        return sorted(topic for topic in topics if topic.startswith(prefix))

    def read_topics(self, topics: Collection[str]) -> dict[str, Sight]:
        """Describe each of these topics, one at least; needs DESCRIBE and DESCRIBE_CONFIGS on it."""
        client, absent = self.admin, KafkaError.UNKNOWN_TOPIC_OR_PART
        answers = _request_topics_and_configs(list(topics), client, self.bounds.seconds_left())

        def look_at(topic: str) -> Sight:
            found = self._try_result(client, answers[topic], "DESCRIBE", topic, absent=absent)
            if found is None or isinstance(found, MissingRight):
                return found
            config = self._try_result(client, answers[_resource(topic)], "DESCRIBE_CONFIGS", topic, absent=absent)
            if config is None or isinstance(config, MissingRight):
                return config
            return FoundTopic(
                name=topic,
                topic_id=str(found.topic_id),
                partitions=len(found.partitions),
                replication_factor=min(len(partition.replicas) for partition in found.partitions),
                leaderless=sum(partition.leader is None for partition in found.partitions),
                config={name: entry.value for name, entry in config.items() if entry.value is not None},
            )

        return {topic: look_at(topic) for topic in topics}

    def read_offsets(
        self,
        partitions: Iterable[tuple[str, int]],
        spec: OffsetSpec,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[tuple[str, int], int]:
        """The offset of each of these partitions for which `spec` asks; -1 if it has none. Raises KafkaException."""
        wanted = {TopicPartition(topic, partition): spec for topic, partition in partitions}
        if not wanted:
            return {}
        seconds = self.bounds.seconds_left()
        client = self.admin
        answers = client.list_offsets(wanted, isolation_level=isolation, request_timeout=seconds)
        return {(one.topic, one.partition): answer.result().offset for one, answer in answers.items()}

    def create_topics(self, topics: Iterable[TopicRequest], *, dry_run: bool) -> dict[str, str | None]:
        """Create topics; returns for each the reason of its failure, or None. A topic that exists is no failure."""
        # operation_timeout limits the controller's own wait, so that it answers before this request times out.
        client = self.admin
        futures = client.create_topics(
            [NewTopic(one.name, one.partitions, one.replication_factor, config=dict(one.config)) for one in topics],
            operation_timeout=self.bounds.seconds_left() / 2,
            request_timeout=self.bounds.seconds_left(),
            validate_only=dry_run,
        )
        return {topic: self._refusal_of(client, future, "CREATE", topic) for topic, future in futures.items()}

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
        client = self.admin
        futures = client.incremental_alter_configs(
            resources, request_timeout=self.bounds.seconds_left(), validate_only=dry_run
        )
        return {
            resource.name: self._refusal_of(client, future, "ALTER_CONFIGS", resource.name)
            for resource, future in futures.items()
        }

    def _try_result(self, client: AdminClient, future: Future[Any], right: str, topic: str, *, absent: int) -> Any:
        try:
            return self.bounds.result_of(future)
        except KafkaException as failure:
            error: KafkaError = failure.args[0]
            if error.code() == absent:
                return None
            if is_denied(error):
                return MissingRight(right, topic)
            raise self._translate_error(error, f"{right} topic {topic}", client) from None

    def _refusal_of(self, client: AdminClient, future: Future[Any], right: str, topic: str) -> str | None:
        try:
            outcome = self._try_result(client, future, right, topic, absent=KafkaError.TOPIC_ALREADY_EXISTS)
        except KafkaUnreachableError:
            raise
        except EnvironmentProblemError as refusal:
            return str(refusal)
        return str(outcome) if isinstance(outcome, MissingRight) else None

    def _translate_error(self, error: KafkaError, purpose: str, client: AdminClient) -> EnvironmentProblemError:
        """The error of a request of this client, which is given up if it reaches nothing. Not one made since."""
        if error.code() in UNREACHABLE:
            self.serve_errors()
            self._give_up(client)
            return unreachable(purpose, self._user, self._causes[0] or error)
        advice = f". {ALIKE}: choose another name" if "collides" in error.str() else ""
        return EnvironmentProblemError(f"Kafka refused ({purpose}): {error.str()}{advice}")


def _resource(topic: str) -> ConfigResource:
    return ConfigResource(ResourceType.TOPIC, topic)


def _request_topics_and_configs(topics: list[str], admin: AdminClient, seconds: float) -> dict[Any, Future[Any]]:
    """Ask about topics, with the rights of this user, and about their configurations, by name and by resource."""
    described: dict[Any, Future[Any]] = admin.describe_topics(
        TopicCollection(topics), include_authorized_operations=True, request_timeout=seconds
    )
    return described | admin.describe_configs([*map(_resource, topics)], request_timeout=seconds)


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


def _is_local(error: BaseException) -> bool:
    """Whether the error is librdkafka's, whose codes are negative, and not a broker's."""
    return not isinstance(error, KafkaException) or error.args[0].code() < 0
