"""PartitionCounts: whether HALF, END, OP and OFFSET still have the same number of partitions.

Kafka lets anybody with ALTER add partitions to a topic at run time. What goes to one that the others do not have is
never delivered, and no owner would ever look there: so somebody has to compare.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from txbridge.core.names import Names
from txbridge.kafka.controller_requests import ControllerRequests
from txbridge.log import get_logger
from txbridge.worker.observe.metrics import WorkerMetrics

#: One small request of each worker. A person who adds partitions is told while he still remembers it.
_LOOK_EVERY_S = 10.0
_REQUEST_TIMEOUT_S = 5.0

_log = get_logger("txbridge.worker")


class PartitionCounts:
    """Looks now and then, in the thread of whoever calls; `problem` is for any thread."""

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
        #: What is wrong, in a sentence, or None.
        self.problem: str | None = None

    def look(self) -> None:
        """Ask Kafka, if the last answer is old. Raises KafkaException, TimeoutError; then `problem` stays."""
        if self._clock() < self._look_at:
            return
        self._look_at = self._clock() + _LOOK_EVERY_S
        counts = self._counts()
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
            self._metrics.failed("partitions_changed")
            _log.error("partitions_changed", error=problem)
        elif not others and half != self._metrics.partitions_found:
            # All alike: each of them gets an owner. But keys go to other partitions now.
            self._metrics.failed("partitions_changed")
            before = self._metrics.partitions_found
            _log.error(
                "partitions_changed",
                error=f"HALF, END, OP and OFFSET have {half} partitions, {before} before: messages of one key that "
                f"were prepared before and after may overtake each other",
            )
            self._metrics.found_partitions(half)
        self.problem = problem

    def _counts(self) -> dict[str, int]:
        """By topic. Raises KafkaException, TimeoutError."""
        topics = self._names.identified.values()
        answers = self._requests.describe_topics(topics, _REQUEST_TIMEOUT_S)
        return {topic: len(answers[topic].result().partitions) for topic in topics}
