"""The state of one partition in its owner, and the context that all partitions of a worker share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka.admin import AdminClient

from txbridge.core.check_policy import CheckPolicy
from txbridge.core.checkpoint import Checkpoint
from txbridge.core.end_record import EndEvent
from txbridge.core.half_queue import HalfQueue
from txbridge.core.names import Names
from txbridge.core.transaction_size import Limits
from txbridge.kafka.body_cache import BodyCache
from txbridge.kafka.controller_requests import ControllerRequests
from txbridge.kafka.environment import OUTSIDE, Outside
from txbridge.kafka.group_membership import GroupMembership
from txbridge.kafka.partition_reader import PartitionReader
from txbridge.kafka.proven_end import AskEachBroker
from txbridge.worker.commit.writer import TransactionalWriter
from txbridge.worker.ingest.offset_gaps import Gaps
from txbridge.worker.observe.metrics import WorkerMetrics
from txbridge.worker.observe.no_longer_held import NoLongerHeld
from txbridge.worker.slots import PartitionSlots


@dataclass(frozen=True, slots=True)
class PartitionContext:
    """Settings and connections that all partitions of a worker share."""

    kafka: Mapping[str, Any]
    admin: AdminClient
    #: Requests about topics while the worker runs.
    requests: ControllerRequests
    membership: GroupMembership
    #: Connections to each broker, to prove the end of a log.
    each_broker: AskEachBroker
    names: Names
    policy: CheckPolicy
    commit_timeout_ms: int
    payload_memory: int
    check_rate: int
    #: The upper limits of one Kafka transaction.
    largest: Limits = field(default_factory=Limits)
    outside: Outside = OUTSIDE
    metrics: WorkerMetrics = field(default_factory=WorkerMetrics)
    no_longer_held: NoLongerHeld = field(default_factory=NoLongerHeld)
    slots: PartitionSlots = field(default_factory=PartitionSlots)


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
    last_end: EndEvent | None = None

    def close(self) -> None:
        """Close every reader. The partition's state is in the topics."""
        self.half_reader.close()
        self.end_reader.close()
        self.decision_reader.close()
