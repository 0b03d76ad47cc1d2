"""StateReader: what the topics say about one partition, for a take-over and after an unknown outcome.

A broker that no longer leads a partition may answer for a moment as if it did, with an old end. So no reported end is
trusted: the first transaction of an owner proves the end of OFFSET, and a majority of its brokers proves that of OP.

Only workers write OP and OFFSET. A record that cannot be a worker's is skipped and reported.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

from confluent_kafka import KafkaException

from txbridge.core.checkpoint import Checkpoint
from txbridge.core.headers import MalformedRecordError
from txbridge.core.names import topics_of
from txbridge.core.offset_topic import OffsetTopic
from txbridge.deadline import Deadline
from txbridge.errors import TxBridgeError
from txbridge.kafka.body_cache import to_half
from txbridge.kafka.errors import ReadStoppedError, TakeOverRefusedError
from txbridge.kafka.partition_reader import PartitionReader
from txbridge.kafka.proven_end import can_be_proven, proven_end
from txbridge.kafka.state_topics import NewerOpError, fold_offset_topic, read_ops
from txbridge.kafka.topic_lookup import LARGEST_BATCH, MARKER_BATCH, TopicMemory
from txbridge.log import get_logger
from txbridge.worker.partition_context import PartitionContext

#: Kafka takes a broker that stands still for alive during broker.session.timeout.ms (9 s by default). Until then it
#: delays each attempt by its time to answer. A take-over that gives up is tried again.
_PROVE_S = 30.0
#: Pause between two questions about an end that cannot be the true one.
_ASK_AGAIN_S = 0.25

_log = get_logger("txbridge.worker")

#: Half messages that are read, and the time limit (s) for them and for a request. Nothing is served meanwhile.
_MOST_HALF, _LOOK_S = 10_000, 5.0
#: Most topics that are named.
_MOST_NAMED = 10


class StateReader:
    """Reads OFFSET and OP of one partition. `stopping` tells whether the owner was asked to stop."""

    def __init__(self, context: PartitionContext, partition: int, stopping: Callable[[], bool]) -> None:
        self._context = context
        self._partition = partition
        self._stopping = stopping

    def open_reader(self, topic: str, **how: Any) -> PartitionReader:
        """A reader of one of the topics, to be closed by the caller."""
        context = self._context
        return PartitionReader(context.kafka, topic, self._partition, ends=context.ends, outside=context.outside, **how)

    def read_offset_topic(self, start: int = 0) -> OffsetTopic:
        """Read OFFSET from `start` on: the last checkpoint, and the parked entries."""
        topic, partition = self._context.names.offset, self._partition
        offset_topic = OffsetTopic(self._context.names, partition, self._context.policy)
        strangers = Strangers(topic, partition)
        low, high = self._context.ends.bounds(topic, partition)
        if low > 0:
            # Compaction never moves the start of a log.
            raise TakeOverRefusedError(
                f"{topic}[{partition}] begins at offset {low}: records were deleted, although it must only be "
                f"compacted. Parked messages may be among them. `txbridge audit` tells what is lost; use a new "
                f"namespace"
            )
        with closing(self.open_reader(topic, committed=True)) as reader:
            reader.start(start)
            fold_offset_topic(reader, offset_topic, high, self._stopping, strangers.note_record)
        strangers.log_found()
        return offset_topic

    def last_op(self, checkpoint: Checkpoint, start: int) -> int:
        """Offset of OP's last committed record from `start` on; -1 if there is none.

        This is asked after a transaction that failed, when a broker may have died. Then the leader of OFFSET or of OP
        may lack its last records.
        """
        topic = self._context.names.op
        end = self.proven_end(topic)
        # Retention may have deleted what was written long ago.
        start = max(start, self._context.ends.bounds(topic, self._partition)[0])
        if end <= start:
            return -1
        with closing(self.open_reader(topic, committed=True)) as reader:
            reader.start(start)
            ops = read_ops(reader, checkpoint, end, self._stopping, lambda _offset, _error: None)
            try:
                return max((offset for offset, _, _ in ops), default=-1)
            except NewerOpError as error:
                return error.offset

    def proven_end(self, topic: str) -> int:
        """The proven end of a log. Every record below it counts: one of them may show that OFFSET has lost its tail.

        While too many replicas are down for a proof, it is the end that the leader reports. With two replicas that is
        so when one is down. With three and min.insync.replicas 2, nothing can be written then.

        Raises TimeoutError, UnansweredError, ReadStoppedError, KafkaException.
        """
        outside = self._context.outside
        until = outside.monotonic() + _PROVE_S
        while True:
            end = proven_end(self._context.brokers, topic, self._partition)
            if end is not None:
                return end
            if not can_be_proven(self._context.brokers, topic, self._partition):
                return self._context.ends.bounds(topic, self._partition)[1]
            if outside.monotonic() > until:
                raise TimeoutError(f"no majority of the brokers of {topic}[{self._partition}] says who leads it")
            self.wait_to_ask_again()

    def wait_to_ask_again(self) -> None:
        """Pause between two questions about an end that cannot be the true one. Raises ReadStoppedError."""
        if self._stopping():
            raise ReadStoppedError("asked to stop while reading")
        self._context.outside.wait(threading.Event(), _ASK_AGAIN_S)


class Strangers:
    """Records of strangers in a topic that only workers write. They say nothing about the partition's state.

    They share one log line, because every take-over reads them again.
    """

    def __init__(self, topic: str, partition: int) -> None:
        self._where = {"topic": topic, "partition": partition}
        self._first: tuple[int, str] | None = None
        self._count = 0

    def note_record(self, offset: int, error: MalformedRecordError) -> None:
        self._first = self._first or (offset, str(error))
        self._count += 1

    def log_found(self) -> None:
        if self._first is not None:
            offset, error = self._first
            _log.error("malformed_record", **self._where, offset=offset, count=self._count, error=error)


def why_unended(context: PartitionContext, partition: int, stopping: Callable[[], bool]) -> str:
    """Why Kafka does not end the last transaction: topics without room for its marker, and the remedy.

    Kafka says only that it has not ended. So the topics are looked at that it can have written to: those of the last
    half messages and our own.
    """
    names, suspects = context.names, context.topic_memory.too_large
    topics, found = {names.op, names.offset, names.discard, *suspects}, {}
    # Where Kafka does not answer, less is named, and the next attempt looks again.
    with suppress(KafkaException, TimeoutError, TxBridgeError):
        topics.update(_topics_in_half(context, partition, stopping))
    with suppress(TxBridgeError):
        found = TopicMemory().look_up(context.cluster, topics, 0.0)
    named = [f"topic {topic}: {why}" for topic, one in sorted(found.items()) if (why := one.rules.problem) is not None]
    hidden = {topic for topic, one in found.items() if one.partitions and one.rules.largest_batch is None}
    if hidden and not named:
        which = ", ".join(sorted(hidden & suspects or hidden)[:_MOST_NAMED])
        named = [f"raise {LARGEST_BATCH} if it is below {MARKER_BATCH}, of {which}"]
    if named:
        named = [*named[:_MOST_NAMED], "then restart its coordinator"]
    why = f"Kafka does not end the last transaction of {names.transactional_id(partition)}"
    return "; ".join([why, *named, "see docs/runbook.md#a-hanging-kafka-transaction"])


def _topics_in_half(context: PartitionContext, partition: int, stopping: Callable[[], bool]) -> Iterator[str]:
    """Real topics and check topics of the last half messages. Raises KafkaException, TxBridgeError."""
    names, deadline = context.names, Deadline(_LOOK_S, context.outside.monotonic)
    with closing(StateReader(context, partition, stopping).open_reader(names.half, committed=False)) as half:
        start, end = half.watermarks()
        half.start(max(start, end - _MOST_HALF))
        for message in half.read_below(end, lambda: stopping() or deadline.is_over):
            with suppress(MalformedRecordError):
                one = to_half(message, names)
                yield from (*topics_of(one.real_topic), names.check(one.group))
