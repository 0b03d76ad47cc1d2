"""Timestamps that real topics take: a message with another one is refused before its local transaction runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from txbridge.client.kafka.admin import quiet_admin
from txbridge.client.message import Message, now_ms
from txbridge.errors import UsageError
from txbridge.kafka.controller_requests import ControllerRequests
from txbridge.kafka.topic_rules import TopicRules

#: Seconds for which the answer about a topic is believed, also the answer that this user may not see it.
_GOOD_FOR_S = 60.0
#: Time-out (s) of a look. Without an answer the worker decides: it holds what a topic refuses.
_REQUEST_S = 1.5
#: Most topics that are remembered. An application with more makes up names for its messages.
_MOST_TOPICS = 1_000


class TimestampLimits:
    """Knows how far ahead and behind timestamps may be. Asks once per topic and minute, and only if one is given.

    Thread-safe: at worst some threads ask the same.
    """

    def __init__(self, settings: Mapping[str, Any], factory: Callable[[dict[str, Any]], Any] = AdminClient) -> None:
        self._requests = ControllerRequests(lambda: quiet_admin(settings, factory))
        self._known: dict[str, tuple[float, TopicRules]] = {}

    def look_up(self, message: Message, timeout: float) -> Callable[[], None] | None:
        """A call that asks Kafka, within `timeout` seconds, for what is not known of the message's topics. Or None."""
        unknown = self._unknown_of({one.topic for one in message.messages if one.timestamp is not None})
        return partial(self._ask_kafka, unknown, timeout) if unknown else None

    def require_taken(self, message: Message) -> None:
        """Raise UsageError for a timestamp that its topic refuses."""
        arrives = max(now_ms(), message.deliver_at or 0)
        for one in message.messages:
            if one.timestamp is None or one.topic not in self._known:
                continue
            why = self._known[one.topic][1].refusal_of_time(one.timestamp, arrives)
            if why is not None:
                raise UsageError(f"topic {one.topic} would refuse the message: {why}. Timestamps are milliseconds")

    def _unknown_of(self, topics: Iterable[str]) -> list[str]:
        now = time.monotonic()
        return sorted(topic for topic in topics if self._known.get(topic, (0.0, None))[0] <= now)

    def _ask_kafka(self, topics: list[str], timeout: float) -> None:
        # On an event loop, thousands of sends may have waited for a thread while the first ones asked.
        topics = self._unknown_of(topics)
        if not topics:
            return
        if len(self._known) > _MOST_TOPICS:
            self._known = {}
        known = dict.fromkeys(topics, TopicRules())
        with suppress(KafkaException, TimeoutError):
            for topic, answer in self._requests.describe_configs(topics, min(timeout, _REQUEST_S)).items():
                with suppress(KafkaException):
                    known[topic] = TopicRules.of(answer.result())
        until = time.monotonic() + _GOOD_FOR_S
        self._known |= {topic: (until, rules) for topic, rules in known.items()}
