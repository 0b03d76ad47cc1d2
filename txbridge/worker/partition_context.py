"""Settings and connections that all partitions of a worker share, and what a take-over hands to the owner of one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from txbridge.core.check_policy import CheckPolicy
from txbridge.core.checkpoint import Checkpoint
from txbridge.core.half_entry import HalfEntry
from txbridge.core.half_queue import HalfQueue
from txbridge.core.names import Names
from txbridge.core.plan.choice import Limits
from txbridge.core.states import TransactionState
from txbridge.errors import TxBridgeError
from txbridge.kafka.admin import KafkaCluster
from txbridge.kafka.body_cache import BodyCache
from txbridge.kafka.environment import OUTSIDE, Outside
from txbridge.kafka.group_membership import GroupMembership
from txbridge.kafka.log_ends import LogEnds
from txbridge.kafka.partition_reader import PartitionReader
from txbridge.kafka.proven_end import EachBroker
from txbridge.kafka.topic_lookup import TopicMemory
from txbridge.log import get_logger
from txbridge.worker.observe.metrics import WorkerMetrics
from txbridge.worker.transaction.writer import TransactionalWriter

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
    """The log line `no_longer_held`: held messages that were delivered at last, one line for a topic.

    Shared by all partitions of a worker. Thread-safe; `now` is of a monotonic clock.
    """

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


class NoRoomError(TxBridgeError):
    """The process serves as many partitions as it can. One that it gives up makes room again."""


class PartitionSlots:
    """Room for partitions: so many as the process's file descriptors suffice for. Thread-safe. None is no limit."""

    def __init__(self, capacity: int | None = None, refusal: str = "") -> None:
        self._free = capacity
        self._refusal = refusal
        self._lock = threading.Lock()

    @contextmanager
    def one_slot(self) -> Iterator[None]:
        """Room for one partition within the block. Raises NoRoomError when there is none.

        Without it, half of the partition's clients would find no descriptor, and librdkafka would say only that a
        broker cannot be reached.
        """
        if self._free is None:
            yield
            return
        with self._lock:
            if self._free == 0:
                raise NoRoomError(self._refusal)
            self._free -= 1
        try:
            yield
        finally:
            with self._lock:
                self._free += 1


@dataclass(frozen=True, slots=True)
class PartitionContext:
    """Settings and connections that all partitions of a worker share."""

    kafka: Mapping[str, Any] = field(repr=False)
    cluster: KafkaCluster
    membership: GroupMembership
    #: Connections to each broker, to learn and to prove where logs end.
    brokers: EachBroker
    #: Says where the logs of all partitions end.
    ends: LogEnds
    names: Names
    policy: CheckPolicy
    commit_timeout_ms: int
    payload_memory: int
    check_rate: int
    #: Least time (s) from the begin of one Kafka transaction of a partition to the next, while nothing is urgent.
    commit_interval: float = 0.0
    #: The upper limits of one Kafka transaction.
    largest: Limits = field(default_factory=Limits)
    #: The END offset of a partition that Faust reads next; None while it is not known.
    next_event: Callable[[int], int | None] = lambda _: None
    outside: Outside = OUTSIDE
    metrics: WorkerMetrics = field(default_factory=WorkerMetrics)
    no_longer_held: NoLongerHeld = field(default_factory=NoLongerHeld)
    topic_memory: TopicMemory = field(default_factory=TopicMemory)
    slots: PartitionSlots = field(default_factory=PartitionSlots)


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
class PartitionState:
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
