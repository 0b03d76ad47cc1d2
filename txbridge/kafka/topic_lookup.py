"""Look-up of topics in Kafka: existence, rights, and the records that it refuses by its configuration."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Self

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AclOperation

from txbridge.kafka.admin import KafkaCluster
from txbridge.kafka.errors import MISSING, UnansweredError
from txbridge.text import counted, duration

LARGEST_BATCH = "max.message.bytes"
#: Reason to refuse a record for its size. No reason names a number of the record itself: messages that are held for one
#: reason are counted, listed and acted on together, by its text.
TOO_LARGE = f"the message is too large ({LARGEST_BATCH})"
#: Bytes of a batch with a transaction marker (61 of the batch, 17 of its record). Kafka writes the marker under the
#: limit of the topic. Where it does not fit, no Kafka transaction of the topic's partition ever ends.
MARKER_BATCH = 78
#: Kafka's default of message.timestamp.before.max.ms: no limit. So is anything near it.
_NO_LIMIT_MS = 2**62

_REQUEST_TIMEOUT_S = 5.0
#: An answer is believed for this long (s). A Kafka transaction that writes to a topic without room for a marker never
#: ends, so this is short. At 50 Kafka transactions a second each takes 9 ms of processor time, of Kafka and the worker,
#: and 14 ms if Kafka is asked for each one.
BELIEVED_S = 0.9
#: Most topics in one request: clients can name thousands at once, of which a busy broker must answer some in time.
_MOST_ASKED = 200
#: When one of several requests was not answered, the others are believed for this long (s): until the owner has paused
#: and asks about the rest.
_AGAIN_S = 15.0
#: Begin of the reason why this user may not write. The right and the topic follow.
DENIED = "no right to"


class TopicRules(NamedTuple):
    """The rules of one topic. A field that is None sets no limit, or is not known."""

    #: Bytes of a batch, compressed.
    largest_batch: int | None = None
    #: Milliseconds by which a record's timestamp may be ahead of the leader's clock, and behind it.
    ahead_ms: int | None = None
    behind_ms: int | None = None
    #: Whether records without a key are refused.
    wants_keys: bool = False

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """The rules in the answer to a DescribeConfigs request: entries with a `value`, by name."""
        text = {name: str(entry.value) for name, entry in config.items()}
        is_users_time = text.get("message.timestamp.type") != "LogAppendTime"
        return cls(
            _number(text.get(LARGEST_BATCH)),
            _number(text.get("message.timestamp.after.max.ms")) if is_users_time else None,
            _number(text.get("message.timestamp.before.max.ms")) if is_users_time else None,
            "compact" in text.get("cleanup.policy", ""),
        )

    @property
    def problem(self) -> str | None:
        """Reason why nothing may be written to the topic in a Kafka transaction, or None."""
        return None if self.largest_batch is None else marker_problem(self.largest_batch)

    def refusal_of_time(self, timestamp: int, now: int) -> str | None:
        """Reason to refuse a record with this timestamp (ms) when the leader's clock shows `now` (ms), or None."""
        ahead = timestamp - now
        if self.ahead_ms is not None and ahead > self.ahead_ms:
            return _too_far("ahead", self.ahead_ms, "after")
        if self.behind_ms is not None and -ahead > self.behind_ms:
            return _too_far("behind", self.behind_ms, "before")
        return None

    def refusal_of(self, key: bytes | None, timestamp: int, now: int) -> str | None:
        """Reason to refuse a record with this key and timestamp, whatever its size, or None."""
        if key is None and self.wants_keys:
            return "it has no key, and the topic is compacted (cleanup.policy)"
        return self.refusal_of_time(timestamp, now)


def marker_problem(largest_batch: int) -> str | None:
    """Reason why a topic with this max.message.bytes takes no Kafka transaction, or None."""
    if largest_batch >= MARKER_BATCH:
        return None
    return (
        f"{LARGEST_BATCH} is {largest_batch}, and Kafka's own transaction marker takes {MARKER_BATCH} bytes: raise it"
    )


def partition_problem(topic: str, partitions: int, partition: int) -> str | None:
    """Reason why nothing can be written to this partition of a topic with so many, or None."""
    if partition < partitions:
        return None
    return f"topic {topic} has {counted(partitions, 'partition')}, so no partition {partition}"


def _too_far(direction: str, most: int, which: str) -> str:
    return f"its timestamp is more than {duration(most)} {direction} (message.timestamp.{which}.max.ms)"


def _number(text: str | None) -> int | None:
    if text is None or not text.lstrip("-").isdecimal():
        return None
    return int(text) if int(text) < _NO_LIMIT_MS else None


NO_RULES = TopicRules()


class LookedUpTopic(NamedTuple):
    """Kafka's answer about one topic."""

    #: Monotonic time (s) until which it is believed.
    until: float
    #: Reason why nothing can be written to it, or None.
    problem: str | None
    #: Number of partitions, if Kafka has described the topic.
    partitions: int | None = None
    rules: TopicRules = NO_RULES
    #: Whether a partition has no leader, so that it takes nothing now.
    lacks_leader: bool = False


class TopicMemory:
    """Kafka's last answers about topics, for all partitions of a worker or for a relay. Thread-safe.

    An answer is believed for `believed_s`, by default BELIEVED_S.
    """

    def __init__(self, believed_s: float | None = None) -> None:
        self._believed_s = believed_s
        #: The last answers, without a question.
        self.known: dict[str, LookedUpTopic] = {}
        #: Monotonic time (s) at which all of it is dropped. Clients can name any number of topics.
        self._until = 0.0
        #: Topics that have refused a record for its size.
        self.too_large: set[str] = set()

    def look_up(self, cluster: KafkaCluster, topics: Collection[str], now: float) -> dict[str, LookedUpTopic]:
        """Answer about these topics; `now` is monotonic (s). Never creates one. Raises UnansweredError.

        What Kafka has answered by then is remembered, so that the next call asks about the rest.
        """
        believed_s = self._believed_s or BELIEVED_S
        found = {topic: one for topic in topics if (one := self.known.get(topic)) and one.until > now}
        unknown = sorted(set(topics) - found.keys())
        if unknown and now >= self._until:
            self.known, self._until = dict(found), now + believed_s
        try:
            for first in range(0, len(unknown), _MOST_ASKED):
                asked = _ask_kafka(cluster, unknown[first : first + _MOST_ASKED], now + believed_s)
                found |= asked
                self.known.update(asked)
        except UnansweredError:
            self._until = now + _AGAIN_S
            self.known |= {topic: found[topic]._replace(until=self._until) for topic in unknown if topic in found}
            raise
        return found

    def forget(self) -> None:
        self.known = {}


def _ask_kafka(cluster: KafkaCluster, topics: Sequence[str], until: float) -> dict[str, LookedUpTopic]:
    try:
        answers, configs = cluster.describe_topics_and_configs(topics, _REQUEST_TIMEOUT_S)
        return {topic: _found(topic, answer, _rules_in(configs[topic]), until) for topic, answer in answers.items()}
    except (KafkaException, TimeoutError) as error:
        reason = error.args[0].str() if isinstance(error, KafkaException) else "no answer in time"
        raise UnansweredError(f"looking up topics, {topics[0]} among them: {reason}") from None


def _found(topic: str, answer: Future[Any], rules: TopicRules, until: float) -> LookedUpTopic:
    try:
        description = answer.result()
    except KafkaException as error:
        problem = _problem(topic, error.args[0])
        if problem is None:
            raise
        return LookedUpTopic(until, problem)
    allowed, problem = description.authorized_operations, None
    if allowed is not None and not {AclOperation.WRITE, AclOperation.ALL} & set(allowed):
        problem = f"{DENIED} WRITE to topic {topic}"
    elif rules.problem is not None:
        problem = f"topic {topic}: {rules.problem}"
    lacks_leader = any(one.leader is None for one in description.partitions)
    return LookedUpTopic(until, problem, len(description.partitions), rules, lacks_leader)


def _rules_in(answer: Future[Any]) -> TopicRules:
    """The rules of a topic. Those that this user may not see (DESCRIBE_CONFIGS) are learnt from refusals."""
    try:
        return TopicRules.of(answer.result())
    except KafkaException:
        return NO_RULES


def _problem(topic: str, error: KafkaError) -> str | None:
    """The error as a reason to wait, or None when Kafka did not answer, which says nothing about the topic."""
    if error.code() in MISSING:
        return f"topic {topic} does not exist"
    if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return f"{DENIED} DESCRIBE topic {topic}"
    if error.code() == KafkaError.TOPIC_EXCEPTION:
        return f"topic {topic} is not a legal name"
    # librdkafka's own errors are negative. A broker's error is about this topic only, and must not stop the others.
    return f"topic {topic}: {error.str()}" if error.code() > 0 else None
