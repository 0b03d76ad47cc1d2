"""Watch over a client's topics: added partitions of HALF are an error, a missing real topic is logged."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException

from txbridge.client.log import report
from txbridge.core.names import Names

#: Seconds between two looks at HALF. librdkafka itself learns of new partitions within 5 minutes, and keys move then.
_EVERY_S = 30.0
#: Most real topics that are looked up, once each. An application with more makes up names for its messages.
_MAX_TOPICS = 1_000
#: Most looks at the end. A process that sends one message and ends should get the warning, too, but not wait long.
_LAST_LOOKS = 3

#: Returns the partitions of a topic, or Kafka's error for it. Raises KafkaException without an answer.
Look = Callable[[str], int | KafkaError]


class TopicWatch:
    """Knowledge of the topics. `step` and `end` are for the thread of the checks, the rest is for any thread."""

    def __init__(self, names: Names, partitions: int) -> None:
        self._half = names.half
        #: Partitions of HALF at the start. END, OP and OFFSET have as many, and the worker reads no others.
        self.partitions = partitions
        #: Reason why no half message may be sent; empty while HALF is as it was.
        self.refusal = ""
        self._noted: set[str] = set()
        self._wanted: deque[str] = deque()
        self._next = time.monotonic() + _EVERY_S

    def note(self, real_topic: str) -> None:
        """Note a message for this topic."""
        if real_topic not in self._noted and len(self._noted) < _MAX_TOPICS:
            self._noted.add(real_topic)
            self._wanted.append(real_topic)

    def found(self, partitions: int) -> str:
        """Note that HALF has this many partitions, at least. Returns why it cannot be used, or an empty text."""
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
                next="nothing is sent: use another namespace, or make the topics anew, and restart",
            )
        return self.refusal

    def step(self, look: Look) -> None:
        """Look at one topic, if a look is due."""
        now = time.monotonic()
        try:
            if now >= self._next:
                self._next = now + _EVERY_S
                found = look(self._half)
                if isinstance(found, int):
                    self.found(found)
            elif self._wanted:
                self._tell(self._wanted.popleft(), look)
        except KafkaException:
            # No answer in time. HALF gets another look. A hint about a real topic is not worth a second request.
            pass

    def end(self, look: Look) -> None:
        """Look at real topics that were noted and not looked up yet."""
        for _ in range(min(_LAST_LOOKS, len(self._wanted))):
            try:
                self._tell(self._wanted.popleft(), look)
            except KafkaException:
                return

    @staticmethod
    def _tell(topic: str, look: Look) -> None:
        found = look(topic)
        if isinstance(found, KafkaError) and found.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            report(
                logging.WARNING,
                "real_topic_missing",
                topic=topic,
                next="the worker holds its messages until somebody creates the topic",
            )
