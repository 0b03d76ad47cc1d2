"""Administration of real topics in Kafka: the creation of missing ones, within limits, and their list."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence

from confluent_kafka.admin import AdminClient

from txbridge.core.names import TRACE_TOPIC, Names
from txbridge.deadline import Deadline
from txbridge.errors import EnvironmentProblemError
from txbridge.kafka.admin import Bounds, KafkaCluster, TopicRequest
from txbridge.log import get_logger
from txbridge.topics.plan import RealTopic
from txbridge.topics.verify import Layout
from txbridge_rocketmq.codes import RequestError, ResponseCode
from txbridge_rocketmq.routes import DEFAULT_TOPIC
from txbridge_rocketmq.topics import Look, NoAnswerError

#: Topics of RocketMQ's brokers. Clients and mqadmin name them by themselves.
_OF_BROKERS = frozenset({DEFAULT_TOPIC, TRACE_TOPIC, "SCHEDULE_TOPIC_XXXX", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT"})
#: Limits of creation by a mere name, because a client may send any name: attempts in this time (s), and in all.
_WINDOW_S = 60.0
_MAX_IN_WINDOW, _MAX_CREATIONS = 60, 1_000
#: Time-out of a request about topics (s). It takes milliseconds if Kafka answers, and clients wait for three seconds.
_REQUEST_S = 2.5
#: Time (s) until brokers know a new topic, and the pause between two looks. It takes some tens of milliseconds.
_VISIBLE_S, _PAUSE_S = 1.0, 0.02

_log = get_logger("txbridge.rocketmq")


class TopicAdmin:
    """Makes requests about real topics with an admin client. Its methods block, and are thread-safe."""

    def __init__(self, look: Look, admin: AdminClient, layout: Layout, automatic: int) -> None:
        """`automatic` is the number of partitions of topics that `look_or_create` creates; 0: it creates none."""
        self._look = look
        self._admin = admin
        self._layout = layout
        self._automatic = automatic
        self._lock = threading.Lock()
        self._attempts: deque[float] = deque(maxlen=_MAX_IN_WINDOW)
        self._created = 0

    def look_or_create(self, names: Sequence[str]) -> Mapping[str, int | NoAnswerError]:
        """Count the partitions of topics that clients may send to, as `Look`, and create the missing ones."""
        found = self._look(names)
        missing = [name for name, count in found.items() if count == 0 and name not in _OF_BROKERS]
        chosen = missing[: self._take_attempts(len(missing))] if self._automatic and missing else []
        if not chosen:
            return found
        try:
            refusals = self._create_topics(chosen, self._automatic)
        except EnvironmentProblemError as error:
            return {**found, **dict.fromkeys(chosen, NoAnswerError(str(error)))}
        for name, reason in refusals.items():
            if reason is None:
                _log.info("topic_created", topic=name, partitions=self._automatic, by="--auto-create-topics")
            else:
                _log.error("topic_not_created", topic=name, error=reason)
        return {**found, **self._look_until_visible([name for name in chosen if refusals[name] is None])}

    def create_topic(self, topic: str, partitions: int, by: str) -> None:
        """Create a topic for somebody who may. One that exists must have as many partitions.

        Raises RequestError and NoAnswerError.
        """
        count = self._look([topic])[topic]
        if count == 0:
            try:
                reason = self._create_topics([topic], partitions)[topic]
            except EnvironmentProblemError as error:
                raise NoAnswerError(str(error)) from None
            if reason is not None:
                raise RequestError(ResponseCode.SYSTEM_ERROR, f"Kafka has not created the topic: {reason}")
            _log.info("topic_created", topic=topic, partitions=partitions, by=by)
            count = self._look_until_visible([topic]).get(topic, 0)
        if isinstance(count, NoAnswerError):
            raise count
        if count not in {0, partitions}:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"the topic {topic} exists, and has {count} partitions: the txbridge door changes no topic, "
                "because another number changes where keys go; kafka-topics.sh --alter adds partitions",
            )

    def list_topics(self) -> list[str]:
        """Names of the topics that clients may send to. Raises NoAnswerError."""
        try:
            found = self._cluster().topics_with_prefix("")
        except EnvironmentProblemError as error:
            raise NoAnswerError(str(error)) from None
        return [name for name in found if not Names.is_forbidden(name)]

    def _cluster(self) -> KafkaCluster:
        return KafkaCluster(self._admin, Bounds(Deadline(_REQUEST_S)))

    def _create_topics(self, names: Sequence[str], partitions: int) -> dict[str, str | None]:
        """Create topics, replicated like HALF. Returns the reason for each that was refused, else None."""
        layout = self._layout
        in_sync = {"min.insync.replicas": str(layout.min_insync_replicas)}
        return self._cluster().create_topics(
            [
                TopicRequest(
                    name,
                    partitions,
                    layout.replication_factor,
                    {**RealTopic(name).config_for(layout.max_message_size), **in_sync},
                )
                for name in names
            ],
            dry_run=False,
        )

    def _look_until_visible(self, names: Sequence[str]) -> Mapping[str, int | NoAnswerError]:
        deadline = Deadline(_VISIBLE_S)
        while 0 in (found := self._look(names) if names else {}).values() and not deadline.is_over:
            time.sleep(_PAUSE_S)
        return found

    def _take_attempts(self, wanted: int) -> int:
        """The number of topics that may be created now."""
        with self._lock:
            now = time.monotonic()
            while self._attempts and now - self._attempts[0] > _WINDOW_S:
                self._attempts.popleft()
            room = min(_MAX_IN_WINDOW - len(self._attempts), _MAX_CREATIONS - self._created)
            taken = min(wanted, room)
            self._attempts.extend([now] * taken)
            self._created += taken
        if taken < wanted:
            _log.error(
                "too_many_new_topics",
                topics=wanted - taken,
                most=_MAX_IN_WINDOW if self._created < _MAX_CREATIONS else _MAX_CREATIONS,
                next="clients get TOPIC_NOT_EXIST; create the topics in Kafka",
            )
        return taken
