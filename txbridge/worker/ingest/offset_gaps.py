"""Gaps in the offsets of HALF or END: what shows that somebody writes there in Kafka transactions."""

from __future__ import annotations

from dataclasses import dataclass

from txbridge.log import get_logger
from txbridge.worker.observe.metrics import WorkerMetrics

_log = get_logger("txbridge.worker")


@dataclass(slots=True)
class Gaps:
    """Of one partition. Only a Kafka transaction leaves gaps, by its marker and by what it aborts.

    Each is counted; the log tells of the first one after a take-over.
    """

    topic: str
    partition: int
    metrics: WorkerMetrics
    #: What it means.
    text: str
    #: Of END decisions may be missing; of HALF nothing is.
    is_end: bool = False
    _has_told: bool = False

    def note(self, offset: int) -> None:
        """No record stands below this offset, down to the last one that was read."""
        self.metrics.failed("transactional_decisions" if self.is_end else "transactional_half_messages")
        if self._has_told:
            return
        self._has_told = True
        where = {"topic": self.topic, "partition": self.partition, "offset": offset - 1, "error": self.text}
        if self.is_end:
            _log.error("transactional_decisions", **where)
        else:
            _log.warning("transactional_half_messages", **where)


def gaps_of_end(topic: str, partition: int, metrics: WorkerMetrics) -> Gaps:
    """In what is read committed: decisions may be missing."""
    text = (
        "somebody writes END in Kafka transactions: what such a transaction aborts is never applied, and while it is "
        "open the decisions behind it wait. Let that application send its decisions with a producer without "
        "transactional.id"
    )
    return Gaps(topic, partition, metrics, text, is_end=True)


def gaps_of_half(topic: str, partition: int, metrics: WorkerMetrics) -> Gaps:
    """In what is read uncommitted: nothing is missing, but somebody may believe that it is."""
    text = (
        "somebody writes HALF in Kafka transactions: a half message in one that is aborted stays a half message, is "
        "checked, and can be committed. Let that application send half messages with a producer without "
        "transactional.id"
    )
    return Gaps(topic, partition, metrics, text)
