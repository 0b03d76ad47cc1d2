"""The state of one partition in its owner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from txbridge.core.checkpoint import Checkpoint
from txbridge.core.decision_record import DecisionEvent
from txbridge.core.half_queue import HalfQueue
from txbridge.core.names import Names
from txbridge.kafka.body_cache import BodyCache
from txbridge.kafka.partition_reader import PartitionReader
from txbridge.worker.observe.offset_gaps import Gaps
from txbridge.worker.transaction.writer import TransactionalWriter


@dataclass(slots=True)
class PartitionState:
    """Everything that an owner holds of its partition."""

    partition: int
    names: Names
    queue: HalfQueue
    bodies: BodyCache
    writer: TransactionalWriter
    half_reader: PartitionReader
    #: The first reader sees where logs end, and `bodies` reads HALF by its connection. Decisions are read by the second
    #: one, which skips aborted records.
    end_reader: PartitionReader
    decision_reader: PartitionReader
    half_gaps: Gaps
    end_gaps: Gaps
    #: The last committed checkpoint, and its offset in OFFSET.
    checkpoint: Checkpoint
    checkpoint_offset: int
    #: OFFSET offset at which the next record must land. None unless OFFSET was read to its end, without a write since.
    offset_topic_end: int | None
    #: Whether the owner was told to stop. Code that waits for Kafka calls it.
    stopping: Callable[[], bool]
    #: The last record of END that was read.
    last_end: DecisionEvent | None = None

    def close(self) -> None:
        """Close every reader. The partition's state is in the topics."""
        self.half_reader.close()
        self.end_reader.close()
        self.decision_reader.close()
