"""Gaps in the offsets of HALF or END, which show that an application writes there in Kafka transactions."""

from __future__ import annotations

from dataclasses import dataclass

from txbridge.log import get_logger
from txbridge.worker.observe.metrics import WorkerMetrics

_log = get_logger("txbridge.worker")


@dataclass(slots=True)
class Gaps:
    """The gaps of one partition. Only a Kafka transaction leaves gaps, by its marker and its aborted records.

    Each gap is counted. The first one after a take-over is logged.
    """

    topic: str
    partition: int
    metrics: WorkerMetrics
    #: Explanation for the log.
    text: str
    #: In END, decisions may be missing. In HALF nothing is missing.
    is_end: bool = False
    _has_told: bool = False

    def note_position(self, offset: int) -> None:
        """Note a gap: between the last record that was read and this offset there is none."""
        self.metrics.count_failure("transactional_decisions" if self.is_end else "transactional_half_messages")
        if self._has_told:
            return
        self._has_told = True
        where = {"topic": self.topic, "partition": self.partition, "offset": offset - 1, "error": self.text}
        if self.is_end:
            _log.error("transactional_decisions", **where)
        else:
            _log.warning("transactional_half_messages", **where)


def gaps_of_end(topic: str, partition: int, metrics: WorkerMetrics) -> Gaps:
    """Gaps of END, of which only committed records are read: decisions may be missing."""
    text = (
        "somebody writes END in Kafka transactions: what such a transaction aborts is never applied, and while it is "
        "open the decisions behind it wait. Let that application send its decisions with a producer without "
        "transactional.id"
    )
    return Gaps(topic, partition, metrics, text, is_end=True)


def gaps_of_half(topic: str, partition: int, metrics: WorkerMetrics) -> Gaps:
    """Gaps of HALF, of which all records are read: nothing is missing, but the writer may believe that something is."""
    text = (
        "somebody writes HALF in Kafka transactions: a half message in one that is aborted stays a half message, is "
        "checked, and can be committed. Let that application send half messages with a producer without "
        "transactional.id"
    )
    return Gaps(topic, partition, metrics, text)
