"""What is known about the topics that a worker writes to: there or not, allowed or not. Never creates one."""

from __future__ import annotations

import time
from collections.abc import Iterable

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient  # type: ignore[attr-defined]

from txbridge.core.half_queue import HalfEntry

#: A topic that was fine is believed for a minute: if it is deleted meanwhile, the write fails and it is asked again.
_GOOD_FOR_S = 60.0
#: One that was not is asked again at every attempt of its held messages, which back off by themselves.
_BAD_FOR_S = 0.9
_REQUEST_TIMEOUT_S = 5.0
#: Back-off of a topic that does not acknowledge in time.
_FIRST_BLOCK_S = 2.0
_LONGEST_BLOCK_S = 60.0
#: How long a single record that Kafka refused is not offered again.
_RECORD_BLOCK_S = 0.9


class RealTopics:
    """Answers from memory whether a message can be delivered; `look_up` asks Kafka beforehand. Not thread-safe."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin
        self._topics: dict[str, tuple[float, str | None]] = {}
        self._records: dict[int, tuple[float, str]] = {}
        self._blocks: dict[str, int] = {}
        #: Topics of which a batch was refused: their records are sent one by one, to find the one that is at fault.
        self.careful: set[str] = set()

    def look_up(self, topics: Iterable[str]) -> None:
        """Ask Kafka about the topics whose answer is old. Raises KafkaException when there is no answer."""
        now = time.monotonic()
        unknown = {topic for topic in topics if topic not in self._topics or self._topics[topic][0] <= now}
        if not unknown:
            return
        answers = self._admin.describe_topics(
            TopicCollection(sorted(unknown)),
            include_authorized_operations=True,
            request_timeout=_REQUEST_TIMEOUT_S,
        )
        for topic, answer in answers.items():
            problem = None
            try:
                allowed = answer.result(_REQUEST_TIMEOUT_S).authorized_operations
                if allowed is not None and not {AclOperation.WRITE, AclOperation.ALL} & set(allowed):
                    problem = f"no right to WRITE to topic {topic}"
            except KafkaException as error:
                problem = _problem(topic, error.args[0])
                if problem is None:
                    raise
            self._topics[topic] = (now + (_GOOD_FOR_S if problem is None else _BAD_FOR_S), problem)

    def problem_of(self, topic: str) -> str | None:
        """Why nothing can be written to this topic, as of the last look-up."""
        known = self._topics.get(topic)
        return None if known is None else known[1]

    def obstacle(self, entry: HalfEntry) -> str | None:
        """Why this message can not be delivered now."""
        refused = self._records.get(entry.offset)
        if refused is not None:
            if refused[0] > time.monotonic():
                return refused[1]
            del self._records[entry.offset]
        return self.problem_of(entry.real_topic)

    def block_record(self, half_offset: int, reason: str) -> None:
        """Kafka refused this record: let the others pass."""
        self._records[half_offset] = (time.monotonic() + _RECORD_BLOCK_S, reason)

    def block_topic(self, topic: str, reason: str) -> None:
        """Kafka did not acknowledge records of this topic in time: nothing is offered to it for a while.

        So an unwritable topic delays the others once per back-off, by the produce time-out, and not once per message.
        """
        blocks = self._blocks.get(topic, 0)
        self._blocks[topic] = blocks + 1
        pause = min(_FIRST_BLOCK_S * 2**blocks, _LONGEST_BLOCK_S)
        self._topics[topic] = (time.monotonic() + pause, reason)

    def worked(self, topics: Iterable[str]) -> None:
        """Records of these topics were committed."""
        for topic in topics:
            self._blocks.pop(topic, None)
            self.careful.discard(topic)

    def forget(self) -> None:
        """A write was refused for a reason that names no record: believe nothing."""
        self._topics.clear()


def _problem(topic: str, error: KafkaError) -> str | None:
    """The error as a reason to wait, or None when it says nothing about the topic."""
    if error.code() in {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC}:  # noqa: SLF001
        return f"topic {topic} does not exist"
    if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return f"no right to DESCRIBE topic {topic}"
    if error.code() == KafkaError.TOPIC_EXCEPTION:
        return f"topic {topic} is not a legal name"
    return None
