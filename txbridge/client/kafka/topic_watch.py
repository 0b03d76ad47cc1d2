"""Watch over a client's topics: added partitions of HALF are an error, a missing real topic is logged."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Any

from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient

from txbridge.client.base.log import report
from txbridge.client.kafka.clients import create_admin
from txbridge.core.names import Names
from txbridge.kafka.errors import is_missing_topic

#: Most real topics that are looked up, once each. An application with more makes up names for its messages.
_MAX_TOPICS = 1_000
#: Time-out of the request about real topics (s), the connection included. It takes tens of milliseconds, and some
#: hundreds with TLS and SASL. A process that sends one message and ends waits for it, too.
_REQUEST_S = 2.0

#: Returns those of the topics that do not exist, as far as Kafka answers.
FindMissing = Callable[[Collection[str]], list[str]]


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
