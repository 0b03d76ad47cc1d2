"""What is known about the topics that a worker writes to: there or not, allowed or not, and what they refused."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient  # type: ignore[attr-defined]

from txbridge.broker.errors import RecordFailure
from txbridge.core.draft import FULL
from txbridge.core.half_queue import HalfEntry
from txbridge.core.states import TransactionState

#: A topic that was fine is believed for a minute: if it is deleted meanwhile, the write fails and it is asked again.
_GOOD_FOR_S = 60.0
#: One that was not is asked again at every attempt of its held messages, which back off by themselves.
_BAD_FOR_S = 0.9
_REQUEST_TIMEOUT_S = 5.0
#: Back-off of a topic that takes nothing.
_FIRST_BLOCK_S = 2.0
_LONGEST_BLOCK_S = 60.0
#: Bytes that go together to a topic that has refused a batch: below librdkafka's batch.size at first, and then less
#: until it is known which records are at fault, or that the topic's max.message.bytes is that small.
_FIRST_LIMIT = 256 * 1024
_LEAST_LIMIT = 16 * 1024
#: Refused batches of one topic in a row, after which all its messages at hand are held: the others must not wait.
_MOST_REFUSALS = 4
#: Held messages that go alone, in one Kafka transaction: 200 flushes take half a second.
_MOST_ALONE = 200
#: After a held message was refused again, those of its topic that wait for their turn leave the others this time.
_REST_S = 0.5


class RealTopics:
    """Answers from memory whether a message can be delivered; `look_up` asks Kafka beforehand. Not thread-safe."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin
        #: Until when it is believed, and the problem.
        self._topics: dict[str, tuple[float, str | None]] = {}
        self._blocks: Counter[str] = Counter()
        #: Messages that their topic refused, until they are held.
        self._refused: dict[int, str] = {}
        self._refusals: Counter[str] = Counter()
        self._resting: dict[str, tuple[float, str]] = {}
        self._limits: dict[str, int] = {}
        self._alone_left = _MOST_ALONE

    # --- asking Kafka -----------------------------------------------------------------------------------------------

    def look_up(self, topics: Iterable[str]) -> None:
        """Ask Kafka about the topics whose answer is old. Never creates one. Raises KafkaException, TimeoutError."""
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

    # --- for a draft ------------------------------------------------------------------------------------------------

    @property
    def limits(self) -> Mapping[str, int]:
        """Bytes that may go together, of topics that have refused a batch."""
        return self._limits

    def begin_draft(self) -> None:
        self._alone_left = _MOST_ALONE

    def obstacle(self, entry: HalfEntry) -> str | None:
        """Why a message whose commit has just come can not be delivered now."""
        return self._refused.get(entry.offset) or self.problem_of(entry.real_topic)

    def obstacle_of_held(self, entry: HalfEntry) -> str | None:
        """Why a held message can not be delivered now."""
        topic = entry.real_topic
        why = self._refused.pop(entry.offset, None) or self.problem_of(topic)
        if why is None and topic in self._resting:
            until, why = self._resting[topic]
            if until <= time.monotonic():
                del self._resting[topic]
                why = None
        if why is None and entry.attempts and topic in self._limits:
            if self._alone_left == 0:
                return FULL
            self._alone_left -= 1
        return why

    # --- what became of it ------------------------------------------------------------------------------------------

    def guilty(self, topic: str, failures: Sequence[RecordFailure]) -> Sequence[RecordFailure] | None:
        """Which of the refused records of a topic are to be held. None: all that are at hand for this topic.

        A batch is refused as a whole for one bad record: smaller ones are tried until it is found.
        """
        self._refusals[topic] += 1
        limit = self._limits.get(topic)
        if alone := [failure for failure in failures if failure.alone]:
            self._limits.setdefault(topic, _FIRST_LIMIT)
            return alone
        if self._refusals[topic] > _MOST_REFUSALS:
            return None
        if limit is not None and limit <= _LEAST_LIMIT:
            return failures
        self._limits[topic] = _FIRST_LIMIT if limit is None else limit // 4
        return ()

    def refuse(self, entry: HalfEntry, reason: str) -> None:
        """Let the others pass: this one will be held."""
        self._refused[entry.offset] = reason
        if entry.state is TransactionState.HELD:
            self._resting[entry.real_topic] = (time.monotonic() + _REST_S, reason)

    def held(self, entry: HalfEntry) -> None:
        """It is held now, in Kafka too."""
        self._refused.pop(entry.offset, None)

    def block_topic(self, topic: str, reason: str) -> None:
        """Nothing is offered to this topic for a while.

        So an unwritable topic delays the others once per back-off, by the produce time-out, and not once per message.
        """
        pause = min(_FIRST_BLOCK_S * 2 ** min(self._blocks[topic], 10), _LONGEST_BLOCK_S)
        self._blocks[topic] += 1
        self._topics[topic] = (time.monotonic() + pause, reason)

    def worked(self, topics: Iterable[str]) -> None:
        """Records of these topics were committed."""
        for topic in topics:
            self._blocks.pop(topic, None)
            self._refusals.pop(topic, None)

    def forget(self) -> None:
        """A write was refused for a reason that names no record: believe nothing."""
        self._topics.clear()


def _problem(topic: str, error: KafkaError) -> str | None:
    """The error as a reason to wait, or None when Kafka did not answer, which says nothing about the topic."""
    if error.code() in {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC}:  # noqa: SLF001
        return f"topic {topic} does not exist"
    if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return f"no right to DESCRIBE topic {topic}"
    if error.code() == KafkaError.TOPIC_EXCEPTION:
        return f"topic {topic} is not a legal name"
    # librdkafka's own errors are negative; a broker's tell about this topic only and must not stop the others.
    return f"topic {topic}: {error.str()}" if error.code() > 0 else None
