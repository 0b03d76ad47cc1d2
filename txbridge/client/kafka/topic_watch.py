"""Watch over a client's topics: added partitions of HALF are an error, a missing real topic is logged.

RealTopics knows the rules of real topics: messages that they would refuse are noticed before the half message is sent.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from txbridge.client.base.log import report
from txbridge.client.kafka.connection import create_admin
from txbridge.client.message import Message, now_ms
from txbridge.core.names import Names
from txbridge.errors import UsageError
from txbridge.kafka.controller_requests import ControllerRequests
from txbridge.kafka.errors import is_missing_topic
from txbridge.kafka.topic_lookup import TopicRules

#: Most real topics that are looked up, once each. An application with more makes up names for its messages.
_MAX_TOPICS = 1_000
#: Time-out of the request about real topics (s), the connection included. It takes tens of milliseconds, and some
#: hundreds with TLS and SASL. A process that sends one message and ends waits for it, too.
_REQUEST_S = 2.0

#: Returns those of the topics that do not exist, as far as Kafka answers.
FindMissing = Callable[[Collection[str]], list[str]]

#: Seconds for which the answer about a topic is believed, also the answer that this user may not see it.
_GOOD_FOR_S = 60.0
#: The same for a topic that does not exist: somebody may be about to create it.
_MISSING_FOR_S = 5.0
#: Time-out (s) of a look. Without an answer the worker decides: it holds what a topic refuses.
_RULES_S = 1.5
#: Most topics that are remembered. An application with more makes up names for its messages.
_MOST_TOPICS = 1_000
#: What is known of a topic that does not exist, and of one of which nothing is known.
_MISSING = TopicRules(largest_batch=0)
_UNKNOWN = TopicRules()


def find_missing(settings: Mapping[str, Any], topics: Collection[str]) -> list[str]:
    """Those of the topics that do not exist, as far as Kafka answers and this user may see them.

    In a client of its own that ends with this call. `list_topics` of a consumer would keep the name of a missing topic
    forever, and each name makes later requests slower.
    """
    # The name keeps the client until the answers are there.
    admin = create_admin(settings, AdminClient)
    answers = admin.describe_topics(TopicCollection(list(topics)), request_timeout=_REQUEST_S)
    return [topic for topic, answer in answers.items() if is_missing_topic(answer.exception())]


class TopicWatch:
    """Knowledge of the topics. The thread of the checks calls `look_at_new_topics`, any the rest."""

    def __init__(self, names: Names, partitions: int, find_missing: FindMissing = lambda _: []) -> None:
        """`find_missing` is needed if real topics are noted."""
        self._half = names.half
        self._find_missing = find_missing
        #: Partitions of HALF at the start. END, OP and OFFSET have as many, and the worker reads no others.
        self.partitions = partitions
        #: Reason why no half message may be sent; empty while HALF is as it was.
        self.refusal = ""
        self._noted: set[str] = set()
        self._wanted: deque[str] = deque()

    def note_topic(self, real_topic: str) -> None:
        """Note a message for this topic."""
        if real_topic not in self._noted and len(self._noted) < _MAX_TOPICS:
            self._noted.add(real_topic)
            self._wanted.append(real_topic)

    def note_partitions(self, partitions: int) -> None:
        """Note that HALF has this many partitions, at least."""
        if partitions != self.partitions and not self.refusal:
            self.refusal = (
                f"the number of partitions of {self._half} has changed: {partitions} instead of the {self.partitions} "
                "that END, OP and OFFSET have, too. Nothing is sent, because nobody reads what is in the others. "
                "Kafka cannot take partitions away: use another namespace (`txbridge topics apply --namespace`), "
                "or, if nothing in the topics is needed, delete them and apply again; then restart this process"
            )
            report(
                logging.ERROR,
                "half_partitions_changed",
                topic=self._half,
                partitions=partitions,
                expected=self.partitions,
                next="nothing is sent: use another namespace, or create the topics again, and restart",
            )

    def look_at_new_topics(self) -> None:
        """Look at the real topics that were noted since the last look. A hint is not worth a second request."""
        wanted = [self._wanted.popleft() for _ in range(len(self._wanted))]
        for topic in self._find_missing(wanted) if wanted else ():
            report(
                logging.WARNING,
                "real_topic_missing",
                topic=topic,
                next="the worker holds its messages until somebody creates the topic",
            )


class RealTopics:
    """Knows the rules of real topics. Asks once per topic and minute, and only about those that matter.

    Thread-safe: at worst some threads ask the same.
    """

    def __init__(self, settings: Mapping[str, Any], factory: Callable[[dict[str, Any]], Any] = AdminClient) -> None:
        self._requests = ControllerRequests(lambda: create_admin(settings, factory))
        self._known: dict[str, tuple[float, TopicRules]] = {}

    def look_up(self, message: Message, timeout: float) -> Callable[[], None] | None:
        """A call that asks Kafka, within `timeout` seconds, for what is not known of the message's topics. Or None."""
        unknown = self._unknown_of({one.topic for one in message.messages if one.timestamp is not None})
        return partial(self._ask_kafka, unknown, timeout) if unknown else None

    def require_taken(self, message: Message) -> None:
        """Raise UsageError for a timestamp that its topic refuses."""
        for one in message.messages:
            if one.topic in self._known:
                require_time_taken(one, self._known[one.topic][1], now_ms())

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
        known = dict.fromkeys(topics, _UNKNOWN)
        with suppress(KafkaException, TimeoutError):
            for topic, answer in self._requests.describe_configs(topics, min(timeout, _RULES_S)).items():
                try:
                    known[topic] = TopicRules.of(answer.result())
                except KafkaException as failure:
                    if is_missing_topic(failure):
                        known[topic] = _MISSING
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
