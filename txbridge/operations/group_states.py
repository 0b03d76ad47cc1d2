"""State of the producer groups: whether somebody could answer their checks, as Kafka says now."""

from __future__ import annotations

from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException, TopicCollection

from txbridge.deadline import Deadline
from txbridge.errors import TxBridgeError
from txbridge.kafka.admin import ALIKE, KafkaCluster
from txbridge.kafka.errors import is_missing_topic
from txbridge.operations.causes import NOBODY
from txbridge.operations.connection import Connection

#: Time (s) for all groups. Each takes two requests of milliseconds, one after the other. But a client can invent any
#: number of groups, and a coordinator may not answer. Without an answer a cause is only less exact.
_LONGEST_S = 5.0
#: Time-out (s) of a request that begins at the end of it: librdkafka refuses 0.
_LEAST_S = 0.1


class GroupStates:
    """Kafka's answers about producer groups. Each group is asked about once, when a cause needs it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._cluster: KafkaCluster | None = None
        self._problems: dict[str, str | None] = {}
        self._deadline: Deadline | None = None

    def problem_of(self, group: str) -> str | None:
        """The reason why nobody answers checks of the group; empty if somebody can, None if Kafka does not say."""
        if self._deadline is None:
            self._deadline = Deadline(_LONGEST_S)
        if group not in self._problems and not self._deadline.is_over:
            try:
                self._problems[group] = self._ask_kafka(group, self._deadline)
            except (KafkaException, TxBridgeError):
                # No answer, or a right is missing.
                self._problems[group] = None
        return self._problems.get(group)

    def _ask_kafka(self, group: str, deadline: Deadline) -> str:
        name = self._connection.names.check(group)
        if self._cluster is None:
            self._cluster = KafkaCluster.connect(self._connection.kafka)
        admin = self._cluster.admin
        # Not list_topics: librdkafka would keep the name of every group that has no check topic.
        described = admin.describe_topics(TopicCollection([name]), request_timeout=max(deadline.left, _LEAST_S))[
            name
        ].exception()
        if described is not None:
            if is_missing_topic(described):
                for topic in self._cluster.topics_with_prefix(""):
                    if topic.replace(".", "_") == name.replace(".", "_"):
                        return f"no check topic: {ALIKE}, and there is {topic}. Use its group, or another name"
                return "no check topic: no client of the group has joined yet, or the topic was deleted"
            raise described
        try:
            found = admin.describe_consumer_groups([name], request_timeout=max(deadline.left, _LEAST_S))[name].result()
        except KafkaException as failure:
            if failure.args[0].code() != KafkaError.GROUP_ID_NOT_FOUND:
                raise
            return NOBODY
        is_empty = not found.members and found.state in {ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD}
        return NOBODY if is_empty else ""
