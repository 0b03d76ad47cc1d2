"""Look-up of topics in Kafka: existence, rights and rules."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AclOperation  # type: ignore[attr-defined]

from txbridge.kafka.controller_requests import ControllerRequests
from txbridge.kafka.errors import UNKNOWN_TOPIC
from txbridge.kafka.failures import UnansweredError
from txbridge.kafka.topic_rules import TopicRules

_REQUEST_TIMEOUT_S = 5.0
#: Begin of the reason why this user may not write. The right and the topic follow.
DENIED = "no right to"
NO_RULES = TopicRules()


class LookedUpTopic(NamedTuple):
    """Kafka's answer about one topic."""

    #: Reason why nothing can be written to it, or None.
    problem: str | None
    #: Number of partitions, if Kafka has described the topic.
    partitions: int | None
    rules: TopicRules


def look_up_topics(requests: ControllerRequests, topics: Sequence[str]) -> dict[str, LookedUpTopic]:
    """Ask Kafka about these topics. Never creates one. Raises UnansweredError."""
    try:
        answers, configs = requests.describe_topics_and_configs(topics, _REQUEST_TIMEOUT_S)
        return {topic: _found(topic, answer, _rules_in(configs[topic])) for topic, answer in answers.items()}
    except (KafkaException, TimeoutError) as error:
        reason = error.args[0].str() if isinstance(error, KafkaException) else "no answer in time"
        raise UnansweredError(f"looking up topics, {topics[0]} among them: {reason}") from None


def _found(topic: str, answer: Future[Any], rules: TopicRules) -> LookedUpTopic:
    try:
        description = answer.result()
    except KafkaException as error:
        problem = _problem(topic, error.args[0])
        if problem is None:
            raise
        return LookedUpTopic(problem, None, rules)
    allowed, problem = description.authorized_operations, None
    if allowed is not None and not {AclOperation.WRITE, AclOperation.ALL} & set(allowed):
        problem = f"{DENIED} WRITE to topic {topic}"
    elif rules.problem is not None:
        problem = f"topic {topic}: {rules.problem}"
    return LookedUpTopic(problem, len(description.partitions), rules)


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
