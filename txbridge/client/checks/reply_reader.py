"""Reader of replies: the records of the group's check topic that answer END records of this client."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from txbridge.client.base import process
from txbridge.client.kafka.clients import create_client
from txbridge.client.kafka.connection import KafkaConnection
from txbridge.core.headers import MalformedRecordError
from txbridge.core.names import Names
from txbridge.core.reply_record import Reply, is_reply, parse_reply
from txbridge.deadline import Deadline
from txbridge.errors import EnvironmentProblemError
from txbridge.kafka import config as kafka_config
from txbridge.kafka.denied import is_denied, named
from txbridge.kafka.headers import headers_of

#: Longest wait (s) for a reply before the next look at the time, and for an answer of Kafka.
_POLL_S = 0.2
_REQUEST_S = 5.0
#: Shortest time (s) for an answer of Kafka, although the caller's time is over.
_LEAST_S = 0.5


class ReplyReader:
    """Reads all partitions of the check topic, from their ends at its start. It is in no consumer group.

    librdkafka wants the name of a group, and looks it up. That of the checks is one that every client may see.
    """

    def __init__(self, settings: Mapping[str, Any], connection: KafkaConnection, names: Names, group: str) -> None:
        self._connection = connection
        self._topic, self._half = names.check(group), names.half
        config = kafka_config.reader_config(settings, group=self._topic, read_committed=True)
        self._consumer = create_client(Consumer, config, connection)
        process.owns_handle(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def ends_of_half(self, partitions: int, deadline: Deadline) -> list[int]:
        """Return the offsets at which the partitions of HALF end. Raises EnvironmentProblemError.

        To be called before `start`: a broker answers only after a fetch that waits for records.
        """
        return [self._end_of(self._half, number, deadline) for number in range(partitions)]

    def start(self, deadline: Deadline) -> None:
        """Read from now on. Raises EnvironmentProblemError when Kafka does not say where the topic ends."""
        found = self._ask(self._topic, self._consumer.list_topics, self._topic, deadline).topics[self._topic]
        if found.error is not None:
            raise self._problem(self._topic, found.error)
        ends = {number: self._end_of(self._topic, number, deadline) for number in found.partitions}
        self._consumer.assign([TopicPartition(self._topic, *place) for place in ends.items()])

    def read_replies(self, wanted: Collection[str], deadline: Deadline) -> Iterator[Reply]:
        """Yield the first reply of each of these names as it comes. Ends early when the time is over.

        Raises EnvironmentProblemError if this user may not read replies.
        """
        missing = set(wanted)
        while missing and not deadline.is_over:
            record = self._consumer.poll(min(_POLL_S, deadline.left))
            if record is None:
                continue
            if (error := record.error()) is not None:
                if is_denied(error):
                    right = named(error, "READ", f"topic {self._topic}").str()
                    raise EnvironmentProblemError(f"what has become of it cannot be read: {right}")
                continue
            self._connection.note_answer()
            try:
                headers = headers_of(record)
                reply = parse_reply(headers) if is_reply(headers) else None
            except MalformedRecordError:
                # Somebody else's. The consumer of checks says so.
                continue
            if reply is not None and reply.name in missing:
                missing.remove(reply.name)
                yield reply

    def _end_of(self, topic: str, partition: int, deadline: Deadline) -> int:
        ask = self._consumer.get_watermark_offsets
        return int(self._ask(topic, ask, TopicPartition(topic, partition), deadline)[1])

    def _ask(self, topic: str, question: Any, what: object, deadline: Deadline) -> Any:
        try:
            return question(what, timeout=max(_LEAST_S, min(_REQUEST_S, deadline.left)))
        except KafkaException as failure:
            raise self._problem(topic, failure.args[0]) from failure

    def _problem(self, topic: str, error: KafkaError) -> EnvironmentProblemError:
        right = "READ" if topic == self._topic else "WRITE"
        reason = named(error, right, f"topic {topic}").str()
        return EnvironmentProblemError(f"nothing was cancelled, as Kafka does not say where {topic} ends: {reason}")
