"""Comparison of the numbers of partitions of HALF, END, OP and OFFSET while the worker runs.

Kafka lets any user with ALTER add partitions to a topic at any time. A record in a partition that the other topics do
not have is never delivered, and no owner reads it. So each worker compares the numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from txbridge.core.names import Names
from txbridge.kafka.controller_requests import ControllerRequests
from txbridge.log import get_logger
from txbridge.worker.observe.metrics import WorkerMetrics

#: One small request of each worker. A person who adds partitions learns of the problem soon afterwards.
_LOOK_EVERY_S = 10.0
_REQUEST_TIMEOUT_S = 5.0

_log = get_logger("txbridge.worker")


class PartitionCounts:
    """Compares the numbers from time to time, in the caller's thread. `problem` is for any thread."""

    def __init__(
        self,
        requests: ControllerRequests,
        names: Names,
        metrics: WorkerMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._requests = requests
        self._names = names
        self._metrics = metrics
        self._clock = clock
        self._look_at = 0.0
        #: The problem in a sentence, or None.
        self.problem: str | None = None

    def look_again(self) -> None:
        """Ask Kafka, if the last answer is old. Raises KafkaException, TimeoutError; then `problem` stays."""
        if self._clock() < self._look_at:
            return
        self._look_at = self._clock() + _LOOK_EVERY_S
        counts = self._read_counts()
        half = counts[self._names.half]
        others = [f"{topic} {count}" for topic, count in counts.items() if count != half]
        problem = None
        if others:
            problem = (
                f"{self._names.half} has {half} partitions, {' and '.join(others)}: their number was changed. What is "
                f"sent to a partition that not all of them have is never delivered, and nobody is asked about it. "
                f"Partitions cannot be removed: stop the clients, let what is pending come to its end, and use a new "
                f"namespace"
            )
        if problem is not None and problem != self.problem:
            self._metrics.count_failure("partitions_changed")
            _log.error("partitions_changed", error=problem)
        elif not others and half != self._metrics.partitions_found:
            # All numbers are equal, so each partition gets an owner. But keys go to other partitions now.
            self._metrics.count_failure("partitions_changed")
            before = self._metrics.partitions_found
            _log.error(
                "partitions_changed",
                error=f"HALF, END, OP and OFFSET have {half} partitions, {before} before: messages of one key that "
                f"were prepared before and after may overtake each other",
            )
            self._metrics.found_partitions(half)
        self.problem = problem

    def _read_counts(self) -> dict[str, int]:
        """Number of partitions by topic. Raises KafkaException, TimeoutError."""
        topics = self._names.identified.values()
        answers = self._requests.describe_topics(topics, _REQUEST_TIMEOUT_S)
        return {topic: len(answers[topic].result().partitions) for topic in topics}
