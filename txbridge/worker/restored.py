"""Hand-over of a take-over to the owner of a partition: the restored state and its connections."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from txbridge.core.checkpoint import Checkpoint
from txbridge.core.half_queue import HalfQueue
from txbridge.core.names import Names
from txbridge.kafka.body_cache import BodyCache
from txbridge.kafka.log_ends import LogEnds
from txbridge.kafka.partition_reader import PartitionReader
from txbridge.log import get_logger
from txbridge.worker.observe.metrics import WorkerMetrics
from txbridge.worker.transaction.writer import TransactionalWriter

_log = get_logger("txbridge.worker")


#: What a gap means, in the topic of which it is one.
_OF_END = (
    "somebody writes END in Kafka transactions: what such a transaction aborts is never applied, and while it is "
    "open the decisions behind it wait. Let that application send its decisions with a producer without "
    "transactional.id"
)
_OF_HALF = (
    "somebody writes HALF in Kafka transactions: a half message in one that is aborted stays a half message, is "
    "checked, and can be committed. Let that application send half messages with a producer without "
    "transactional.id"
)


@dataclass(slots=True)
class Gaps:
    """The gaps of one partition. Only a Kafka transaction leaves gaps, by its marker and its aborted records.

    Each gap is counted. The first one after a take-over is logged. In END, of which only committed records are read,
    decisions may be missing. In HALF nothing is missing, but the writer may believe that something is.
    """

    topic: str
    partition: int
    metrics: WorkerMetrics
    is_end: bool = False
    _has_told: bool = False

    def note_position(self, offset: int) -> None:
        """Note a gap: between the last record that was read and this offset there is none."""
        self.metrics.count_failure("transactional_decisions" if self.is_end else "transactional_half_messages")
        if self._has_told:
            return
        self._has_told = True
        where = {"topic": self.topic, "partition": self.partition, "offset": offset - 1}
        if self.is_end:
            _log.error("transactional_decisions", **where, error=_OF_END)
        else:
            _log.warning("transactional_half_messages", **where, error=_OF_HALF)


@dataclass(frozen=True, slots=True)
class Restored:
    """The restored state and the connections of a partition. Each mutable part has one owner (docs/architecture.md)."""

    partition: int
    names: Names
    queue: HalfQueue
    bodies: BodyCache
    writer: TransactionalWriter
    half_reader: PartitionReader
    #: It skips aborted records.
    decision_reader: PartitionReader
    #: Reads bodies that are not in memory.
    body_reader: PartitionReader
    #: Says where the logs end.
    ends: LogEnds
    half_gaps: Gaps
    end_gaps: Gaps
    #: The last committed checkpoint, and its offset in OFFSET. From here on the committer keeps the later ones.
    checkpoint: Checkpoint
    checkpoint_offset: int
    #: OFFSET offset at which the next record must land: OFFSET was read to its end.
    offset_topic_end: int
    #: Whether the owner was told to stop. Code that waits for Kafka calls it.
    stopping: Callable[[], bool]

    def close(self) -> None:
        """Close every reader. The partition's state is in the topics."""
        self.half_reader.close()
        self.decision_reader.close()
        self.body_reader.close()
