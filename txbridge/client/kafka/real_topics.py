"""Rules of real topics: messages that they would refuse are noticed before the half message is sent."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from txbridge.client.base.log import report
from txbridge.client.kafka.clients import create_admin
from txbridge.client.message import Message, now_ms
from txbridge.errors import UsageError
from txbridge.kafka.controller_requests import ControllerRequests
from txbridge.kafka.errors import is_missing_topic
from txbridge.kafka.topic_rules import TopicRules

#: Seconds for which the answer about a topic is believed, also the answer that this user may not see it.
_GOOD_FOR_S = 60.0
#: The same for a topic that does not exist: somebody may be about to create it.
_MISSING_FOR_S = 5.0
#: Time-out (s) of a look. Without an answer the worker decides: it holds what a topic refuses.
_REQUEST_S = 1.5
#: Most topics that are remembered. An application with more makes up names for its messages.
_MOST_TOPICS = 1_000
#: Bytes of a batch with one record beyond its key, value and headers, at most.
_BATCH_BYTES = 128
#: What is known of a topic that does not exist, and of one of which nothing is known.
_MISSING = TopicRules(largest_batch=0)
_UNKNOWN = TopicRules()


class RealTopics:
    """Knows the rules of real topics. Asks once per topic and minute, and only about those that matter.

    Thread-safe: at worst some threads ask the same.
    """

    def __init__(self, settings: Mapping[str, Any], factory: Callable[[dict[str, Any]], Any] = AdminClient) -> None:
        self._requests = ControllerRequests(lambda: create_admin(settings, factory))
        self._known: dict[str, tuple[float, TopicRules]] = {}
        #: Topics whose rules this user may not see.
        self._hidden: set[str] = set()

    def look_up(self, message: Message, timeout: float) -> Callable[[], None] | None:
        """A call that asks Kafka, within `timeout` seconds, for what is not known of the message's topics. Or None."""
        unknown = self._unknown_of({one.topic for one in message.messages if one.timestamp is not None})
        return partial(self._ask_kafka, unknown, timeout) if unknown else None

    def require_taken(self, message: Message) -> None:
        """Raise UsageError for a timestamp that its topic refuses."""
        for one in message.messages:
            if one.topic in self._known:
                require_time_taken(one, self._known[one.topic][1], now_ms())

    # --- messages that the worker would hold ------------------------------------------------------------------------

    def look_up_all(self, topics: Iterable[str]) -> None:
        """Ask Kafka for what is not known of these topics. Logs, once for each, that this user may not see it."""
        hidden_before = self._hidden.copy()
        self._ask_kafka(self._unknown_of(topics), _REQUEST_S)
        for topic in sorted(self._hidden - hidden_before):
            report(
                logging.WARNING,
                "real_topic_hidden",
                topic=topic,
                hint=f"missing right DESCRIBE_CONFIGS on topic {topic}: if it takes no messages, others may wait, too",
            )

    def is_closed(self, topic: str) -> bool:
        """Whether the topic takes no message at all, for example because it does not exist. False if not known."""
        known = self._known.get(topic)
        return known is not None and known[1].problem is not None

    def would_refuse(self, message: Message) -> bool:
        """Whether its topic, which takes others, refuses this message. False if not known."""
        known = self._known.get(message.topic)
        if known is None or known[1] == _UNKNOWN:
            return False
        rules = known[1]
        if rules.largest_batch is not None and message.size + _BATCH_BYTES > rules.largest_batch:
            return True
        if message.key is None and rules.wants_keys:
            return True
        if message.timestamp is None:
            return False
        return rules.refusal_of_time(message.timestamp, max(now_ms(), message.deliver_at or 0)) is not None

    def _unknown_of(self, topics: Iterable[str]) -> list[str]:
        now = time.monotonic()
        return sorted(topic for topic in topics if self._known.get(topic, (0.0, None))[0] <= now)

    def _ask_kafka(self, topics: list[str], timeout: float) -> None:
        # On an event loop, thousands of sends may have waited for a thread while the first ones asked.
        topics = self._unknown_of(topics)
        if not topics:
            return
        if len(self._known) > _MOST_TOPICS:
            self._known, self._hidden = {}, set()
        known = dict.fromkeys(topics, _UNKNOWN)
        with suppress(KafkaException, TimeoutError):
            for topic, answer in self._requests.describe_configs(topics, min(timeout, _REQUEST_S)).items():
                try:
                    known[topic] = TopicRules.of(answer.result())
                except KafkaException as failure:
                    if is_missing_topic(failure):
                        known[topic] = _MISSING
                    elif failure.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                        self._hidden.add(topic)
        now = time.monotonic()
        for topic, rules in known.items():
            self._known[topic] = (now + (_MISSING_FOR_S if rules is _MISSING else _GOOD_FOR_S), rules)


def require_time_taken(message: Message, rules: TopicRules, now: int) -> None:
    """Raise UsageError if a topic with these rules refuses the timestamp. `now` (ms) is the time of the send."""
    if message.timestamp is None:
        return
    why = rules.refusal_of_time(message.timestamp, max(now, message.deliver_at or 0))
    if why is not None:
        raise UsageError(f"topic {message.topic} would refuse the message: {why}")
