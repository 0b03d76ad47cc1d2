"""Look-up of topics in Kafka: existence, rights and rules."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AclOperation

from txbridge.kafka.controller_requests import ControllerRequests
from txbridge.kafka.errors import UNKNOWN_TOPIC
from txbridge.kafka.failures import UnansweredError
from txbridge.kafka.topic_rules import TopicRules

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


class TopicMemory:
    """Kafka's last answers about topics, for all partitions of a worker. Thread-safe."""

    def __init__(self) -> None:
        self._known: dict[str, LookedUpTopic] = {}
        #: Monotonic time (s) at which all of it is dropped. Clients can name any number of topics.
        self._until = 0.0
        #: Topics that have refused a record for its size.
        self.too_large: set[str] = set()

    def look_up(self, requests: ControllerRequests, topics: Collection[str], now: float) -> dict[str, LookedUpTopic]:
        """Answer about these topics; `now` is monotonic (s). Never creates one. Raises UnansweredError.

        What Kafka has answered by then is remembered, so that the next call asks about the rest.
        """
        found = {topic: one for topic in topics if (one := self._known.get(topic)) and one.until > now}
        unknown = sorted(set(topics) - found.keys())
        if unknown and now >= self._until:
            self._known, self._until = dict(found), now + BELIEVED_S
        try:
            for first in range(0, len(unknown), _MOST_ASKED):
                asked = _ask_kafka(requests, unknown[first : first + _MOST_ASKED], now + BELIEVED_S)
                found |= asked
                self._known.update(asked)
        except UnansweredError:
            self._until = now + _AGAIN_S
            self._known |= {topic: found[topic]._replace(until=self._until) for topic in unknown if topic in found}
            raise
        return found

    def forget(self) -> None:
        self._known = {}


def _ask_kafka(requests: ControllerRequests, topics: Sequence[str], until: float) -> dict[str, LookedUpTopic]:
    try:
        answers, configs = requests.describe_topics_and_configs(topics, _REQUEST_TIMEOUT_S)
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
    return LookedUpTopic(until, problem, len(description.partitions), rules)


def _rules_in(answer: Future[Any]) -> TopicRules:
    """The rules of a topic. Those that this user may not see (DESCRIBE_CONFIGS) are learnt from refusals."""
    try:
        return TopicRules.of(answer.result())
    except KafkaException:
        return NO_RULES


def _problem(topic: str, error: KafkaError) -> str | None:
    """The error as a reason to wait, or None when Kafka did not answer, which says nothing about the topic."""
    if error.code() in {KafkaError.UNKNOWN_TOPIC_OR_PART, UNKNOWN_TOPIC}:
        return f"topic {topic} does not exist"
    if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return f"{DENIED} DESCRIBE topic {topic}"
    if error.code() == KafkaError.TOPIC_EXCEPTION:
        return f"topic {topic} is not a legal name"
    # librdkafka's own errors are negative. A broker's error is about this topic only, and must not stop the others.
    return f"topic {topic}: {error.str()}" if error.code() > 0 else None
