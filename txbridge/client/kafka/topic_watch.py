"""Watch over a client's topics: added partitions of HALF are an error, a missing real topic is logged.

RealTopics knows the rules of real topics: messages that they would refuse are noticed before the half message is sent.
TopicDiagnosis finds why HALF takes no records: librdkafka hides the broker's answer, and only reports a time-out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from txbridge.client.base.log import report
from txbridge.client.base.process import join
from txbridge.client.kafka.connection import create_admin
from txbridge.client.message import Message, now_ms
from txbridge.core.names import Names
from txbridge.errors import UsageError
from txbridge.kafka.admin import KafkaCluster
from txbridge.kafka.errors import is_missing_topic
from txbridge.kafka.topic_lookup import TopicRules

#: Most real topics that are remembered. An application with more makes up names for its messages.
_MOST_TOPICS = 1_000
#: Time-out of the request about real topics (s), the connection included. It takes tens of milliseconds, and some
#: hundreds with TLS and SASL. A process that sends one message and ends waits for it, too.
_REQUEST_S = 2.0

#: Returns those of the topics that do not exist, as far as Kafka answers.
FindMissing = Callable[[Collection[str]], list[str]]

#: Seconds for which the answer about a topic is believed, also the answer that this user may not see it.
_GOOD_FOR_S = 60.0
#: The same for a topic that does not exist: somebody may be about to create it.
_MISSING_FOR_S = 5.0
#: Time-out (s) of each request of a look, with all attempts. A running broker answers in milliseconds. Without an
#: answer the worker decides about a real topic: it holds what that refuses. close() may wait for one about HALF.
_LOOK_S = 1.5
#: What is known of a topic that does not exist, and of one of which nothing is known.
_MISSING = TopicRules(largest_batch=0)
_UNKNOWN = TopicRules()
#: Least time (s) between two looks at HALF, and the time for which one is valid. If acknowledgements are still missing,
#: the next look has been made by then.
_EVERY_S, _FRESH_S = 2.0, 6.0
#: Most partitions that the text of an error names.
_SHOWN = 5


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
        if real_topic not in self._noted and len(self._noted) < _MOST_TOPICS:
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

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
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
            _, configs = self._cluster.describe_topics_and_configs(topics, min(timeout, _LOOK_S))
            for topic, answer in configs.items():
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


class TopicDiagnosis:
    """Looks at a topic in a thread of its own, when acknowledgements are late; thread-safe."""

    def __init__(self, cluster: KafkaCluster, topic: str) -> None:
        self._topic = topic
        self._cluster = cluster
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._next = 0.0
        self._reason, self._until = "", 0.0

    @property
    def reason(self) -> str:
        """Problems of the topic and what to do, if a recent look has found any; else empty."""
        return self._reason if time.monotonic() < self._until else ""

    def look_soon(self) -> None:
        """Start a look, unless one was made a moment ago. Returns at once."""
        now = time.monotonic()
        if now < self._next:
            return
        with self._lock:
            if now < self._next or (self._thread is not None and self._thread.is_alive()):
                return
            self._next = now + _EVERY_S
            self._thread = threading.Thread(target=self._look_at_topic, name="txbridge-half-look", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Start no more looks, and wait for one that runs."""
        self._next = float("inf")
        with self._lock:
            thread = self._thread
        if thread is not None:
            join(thread)

    def _look_at_topic(self) -> None:
        # Without an answer there is no reason to add. The text of the error already names the connection.
        with suppress(KafkaException, TimeoutError):
            topics, configs = self._cluster.describe_topics_and_configs([self._topic], _LOOK_S)
            partitions = topics[self._topic].result().partitions
            wanted = int(configs[self._topic].result()["min.insync.replicas"].value)
            self._reason = "; ".join(_wrong(partitions, wanted))
            self._until = time.monotonic() + _FRESH_S


def _wrong(partitions: list[Any], wanted: int) -> Iterator[str]:
    leaderless = [one.id for one in partitions if one.leader is None]
    if leaderless:
        yield f"{_named(leaderless)} without a leader: bring the brokers back"
    # Kafka never demands more replicas than the partition has.
    short = [one for one in partitions if one.leader is not None and len(one.isr) < min(wanted, len(one.replicas))]
    if short:
        fewest = min(len(one.isr) for one in short)
        where = _named([one.id for one in short])
        yield (
            f"too few replicas are in sync (NOT_ENOUGH_REPLICAS): {fewest} where min.insync.replicas asks for "
            f"{wanted}, in {where}: bring the brokers back"
        )


def _named(partitions: list[int]) -> str:
    shown = ", ".join(str(partition) for partition in partitions[:_SHOWN])
    more = f" and {len(partitions) - _SHOWN} more" if len(partitions) > _SHOWN else ""
    return f"partition{'s' if len(partitions) > 1 else ''} {shown}{more}"
