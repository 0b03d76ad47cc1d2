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
from txbridge.worker.observe.offset_gaps import Gaps
from txbridge.worker.transaction.writer import TransactionalWriter


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
