"""The log line `no_longer_held`: held messages that were delivered at last, one line for a topic."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from txbridge.core.half_entry import HalfEntry
from txbridge.core.states import TransactionState
from txbridge.log import get_logger

#: A topic is logged once this long has passed without a delivery. A round of retries takes milliseconds.
_QUIET_S = 5.0
#: A topic is logged after this at the latest. Every held message is retried within a minute, which this spans.
_LONGEST_S = 70.0
#: Topics with a line of their own; all others share one. Clients can invent thousands of real topics.
_MOST_TOPICS = 50
_OTHERS = "(other)"

_log = get_logger("txbridge.worker")


@dataclass(slots=True)
class _Delivered:
    first: float
    last: float
    count: int = 0
    partitions: set[int] = field(default_factory=set)


class NoLongerHeld:
    """Shared by all partitions of a worker. Thread-safe; `now` is of a monotonic clock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._topics: dict[str, _Delivered] = {}
        #: Number of partitions that are served now.
        self._served = 0

    @contextmanager
    def service(self) -> Iterator[None]:
        """Context in which an owner serves its partition. When the last one ends, all topics are logged.

        Until then, another partition may deliver more messages of the same topic.
        """
        with self._lock:
            self._served += 1
        try:
            yield
        finally:
            with self._lock:
                self._served -= 1
                is_last = not self._served
            if is_last:
                self.log_due(None)

    def note_delivered(self, partition: int, delivered: Iterable[HalfEntry], now: float) -> None:
        """Count those of the delivered messages that were held."""
        held = [entry.real_topic for entry in delivered if entry.state is TransactionState.HELD]
        if not held:
            return
        with self._lock:
            for topic in held:
                name = topic if topic in self._topics or len(self._topics) < _MOST_TOPICS else _OTHERS
                found = self._topics.setdefault(name, _Delivered(now, now))
                found.last, found.count = now, found.count + 1
                found.partitions.add(partition)

    def log_due(self, now: float | None) -> None:
        """Log the topics that are due, or all topics if `now` is None."""
        # Called in every turn of every owner, and nearly always there is nothing to log.
        if not self._topics:
            return
        with self._lock:
            due = {
                topic: found
                for topic, found in self._topics.items()
                if now is None or now - found.last >= _QUIET_S or now - found.first >= _LONGEST_S
            }
            for topic in due:
                del self._topics[topic]
        for topic, found in due.items():
            _log.info("no_longer_held", topic=topic, count=found.count, partitions=sorted(found.partitions))
