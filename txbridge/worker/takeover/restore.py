"""Take-over of a partition, from the topics alone: afterwards memory holds the state that the previous owner committed.

1. The fence: no previous owner of the partition can write any more.
2. OFFSET to its end: the checkpoint and the parked entries. Then OP from the checkpoint on.
3. A first Kafka transaction with nothing but the checkpoint. It proves that no other worker came in between, and that
   OFFSET was read to its true end.

The owner then reads END from the checkpoint on. It reads HALF as decisions need it, from the low watermark. It begins a
little below that, for the ids of the last messages.

A broker that no longer leads a partition may answer for a moment as if it did, with an old end. So no reported end is
trusted. The first transaction proves the end of OFFSET. A majority of its brokers proves the end of OP, and the
checkpoint has the number of its records. The checkpoint also says how far HALF was read.

Only workers write OP and OFFSET. A record that cannot be a worker's is skipped and reported. A record that looks like a
worker's is trusted, unless the logs contradict it: then the take-over is refused. It is also refused when a worker of a
later release has written a record that this one cannot read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn

from confluent_kafka import KafkaException

from txbridge.core.checkpoint import Checkpoint
from txbridge.core.half_queue import HalfQueue
from txbridge.core.headers import MalformedRecordError
from txbridge.core.names import topics_of
from txbridge.core.offset_topic import OffsetTopic
from txbridge.deadline import Deadline
from txbridge.errors import TxBridgeError
from txbridge.failpoints import fault_point
from txbridge.kafka import state_topics
from txbridge.kafka.body_cache import BodyCache, to_half
from txbridge.kafka.errors import FencedError, LogGoneError, ReadStoppedError, TakeOverRefusedError
from txbridge.kafka.log_ends import cut_agreement
from txbridge.kafka.partition_reader import PartitionReader
from txbridge.kafka.proven_end import can_be_proven, proven_end
from txbridge.kafka.state_topics import NewerOpError, fold_offset_topic, read_ops
from txbridge.kafka.topic_lookup import LARGEST_BATCH, MARKER_BATCH, TopicMemory
from txbridge.log import get_logger
from txbridge.text import counted
from txbridge.worker.partition_context import Gaps, PartitionContext, PartitionState
from txbridge.worker.transaction.writer import TransactionalWriter

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
        self._context, self._names = context, context.names
        self._partition = partition
        self._stopping = stopping

    def open_reader(self, topic: str, **how: Any) -> PartitionReader:
        """A reader of one of the topics, to be closed by the caller."""
        context = self._context
        return PartitionReader(context.kafka, topic, self._partition, ends=context.ends, outside=context.outside, **how)

    def read_offset_topic(self, start: int = 0) -> OffsetTopic:
        """Read OFFSET from `start` on: the last checkpoint, and the parked entries."""
        topic, partition = self._names.offset, self._partition
        offset_topic = OffsetTopic(self._names, partition, self._context.policy)
        foreign = ForeignRecords(topic, partition)
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
            fold_offset_topic(reader, offset_topic, high, self._stopping, foreign.note_record)
        foreign.log_found()
        return offset_topic

    def last_op(self, checkpoint: Checkpoint, start: int) -> int:
        """Offset of OP's last committed record from `start` on; -1 if there is none.

        This is asked after a transaction that failed, when a broker may have died. Then the leader of OFFSET or of OP
        may lack its last records.
        """
        topic = self._names.op
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


class ForeignRecords:
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


_REQUEST_TIMEOUT_S = 10.0

#: Interval (ms) at which HALF's reader looks whether its messages are taken, if the owner rests and so takes them late.
#: At 200 messages a second, looks each millisecond take 2 % of the worker's processor time more.
_LOOKS_BESIDE_RESTS_MS = 3


class _Start(NamedTuple):
    """The place in the logs where the new owner goes on."""

    #: It says how far HALF was read.
    checkpoint: Checkpoint
    #: HALF offset up to which previous owners may have read.
    half_known: int
    #: Log start and end, by the short name of the topic.
    bounds: state_topics.Bounds


def take_over(context: PartitionContext, partition: int, stopping: Callable[[], bool]) -> PartitionState:
    """Become the owner and restore the state.

    Raises TakeOverRefusedError, FencedError, LogGoneError, HangingTransactionError, ReadStoppedError, TimeoutError,
    UnansweredError, KafkaException.
    """
    return _TakeOver(context, partition, stopping).restore_state()


class _TakeOver(StateReader):
    """One attempt at a partition."""

    def restore_state(self) -> PartitionState:
        context, names, partition = self._context, self._names, self._partition
        writer = TransactionalWriter(context.kafka, names, partition, context.commit_timeout_ms, context.outside)
        with ExitStack() as on_failure:
            # Step 1: the fence.
            writer.take_fence()
            fault_point("takeover.fenced")
            # Step 2: OFFSET, then OP.
            ids = self._topic_ids()
            offset_topic = self.read_offset_topic()
            try:
                if offset_topic.newer is not None:
                    refuse_newer(names.offset, partition, *offset_topic.newer)
                body_reader = self._open_reader(on_failure, names.half, committed=False, on_demand=1)
                start = self._find_start(offset_topic, ids, body_reader)
                queue = self._restore_queue(offset_topic, start)
            except TakeOverRefusedError:
                on_failure.close()
                # Another worker may have taken the partition over meanwhile. Then parts of two states do not fit
                # together, and the topics are fine.
                if self.read_offset_topic().checkpoint != offset_topic.checkpoint:
                    raise FencedError("another worker has written the checkpoint during this take-over") from None
                raise
            checkpoint = start.checkpoint
            looks = _LOOKS_BESIDE_RESTS_MS if context.commit_interval else 1
            half_reader = self._open_reader(on_failure, names.half, committed=False, on_demand=looks, follows=True)
            restored = PartitionState(
                partition=partition,
                names=names,
                queue=queue,
                bodies=BodyCache(context.payload_memory, names, body_reader),
                writer=writer,
                half_reader=half_reader,
                decision_reader=self.open_reader(names.end, committed=True, follows=True),
                body_reader=body_reader,
                ends=context.ends,
                half_gaps=Gaps(names.half, partition, context.metrics),
                end_gaps=Gaps(names.end, partition, context.metrics, is_end=True),
                checkpoint=checkpoint,
                checkpoint_offset=offset_topic.checkpoint_offset,
                offset_topic_end=offset_topic.position,
                stopping=self._stopping,
            )
            # Below the watermark HALF is read for the ids only. Records that retention has deleted there are not
            # needed.
            recent = checkpoint.half if checkpoint.recent is None else min(checkpoint.recent, checkpoint.half)
            half_reader.start(max(recent, start.bounds["half"][0]))
            fault_point("takeover.restored")
            on_failure.pop_all()
        # Step 3 is the owner's first commit.
        return restored

    def _open_reader(self, on_failure: ExitStack, topic: str, **how: Any) -> PartitionReader:
        reader = self.open_reader(topic, **how)
        on_failure.callback(reader.close)
        return reader

    def _find_start(self, offset_topic: OffsetTopic, ids: Mapping[str, str], half_reader: PartitionReader) -> _Start:
        """The checkpoint, if the logs are those for which it was written. Raises TakeOverRefusedError."""
        names, partition, ends = self._names, self._partition, self._context.ends
        topics = {"half": names.half, "end": names.end, "op": names.op}
        bounds = {short: ends.bounds(topic, partition) for short, topic in topics.items()}
        checkpoint = offset_topic.checkpoint
        if checkpoint is None:
            half, end, op = bounds["half"][0], bounds["end"][0], bounds["op"][0]
            # Nothing says how far a previous owner read, if there was one. So a record counts as that owner's if HALF
            # holds the messages that it names.
            start = _Start(Checkpoint(half=half, end=end, op=op, topics=ids, read=half), bounds["half"][1], bounds)
        else:
            half_read = max(checkpoint.half, bounds["half"][1] if checkpoint.read is None else checkpoint.read)
            others = state_topics.other_topics(names, partition, checkpoint, ids)
            refuse_lost(others or state_topics.lost_heads(names, partition, checkpoint, half_read, bounds))
            # An END record that is applied in part must be there.
            end = checkpoint.end + 1 if checkpoint.entry else checkpoint.end
            for topic, wanted in ((names.half, half_read), (names.end, end), (names.op, checkpoint.op)):
                self._refuse_cut(topic, wanted)
            with closing(self.open_reader(names.end, committed=False, on_demand=1)) as end_reader:
                refuse_lost(state_topics.lost_tails(names, checkpoint, {"half": half_reader, "end": end_reader}))
            start = _Start(replace(checkpoint, read=half_read), half_read, bounds)
        refuse_lost(state_topics.parked_beyond(names, partition, offset_topic, start.half_known))
        return start

    def _refuse_cut(self, topic: str, wanted: int) -> None:
        """Refuse a log that was cut: every answer says that it ends below `wanted`, which was reached before."""
        try:
            while self._context.ends.end_from(topic, self._partition, wanted) is None:
                self.wait_to_ask_again()
        except LogGoneError as error:
            raise TakeOverRefusedError(
                f"{error}: the log was cut. Restore it, {state_topics.or_acknowledge(self._partition)}"
            ) from None

    def _restore_queue(self, offset_topic: OffsetTopic, start: _Start) -> HalfQueue:
        """The state of the partition, from the parked entries and OP. Raises TakeOverRefusedError, FencedError."""
        checkpoint = start.checkpoint
        queue = HalfQueue(
            self._context.policy,
            watermark=checkpoint.half,
            next_end=checkpoint.end,
            next_entry=checkpoint.entry,
            next_op=checkpoint.op,
        )
        had_parked = bool(offset_topic.parked)
        queue.restore_parked(offset_topic.parked)
        replayed = self._replay_op(queue, offset_topic.checkpoint, start)
        if offset_topic.checkpoint is None and (replayed or had_parked or start.bounds["op"][0] > 0):
            self._refuse_lost_checkpoint()
        return queue

    def _topic_ids(self) -> dict[str, str]:
        """Kafka's ids of half, end, op and offset, all of which have the partition.

        Raises TakeOverRefusedError, KafkaException.
        """
        topics, partition = self._names.identified, self._partition
        answers = self._context.cluster.describe_topics(topics.values(), _REQUEST_TIMEOUT_S)
        facts = {short: answers[topic].result() for short, topic in topics.items()}
        for short, topic in topics.items():
            count = len(facts[short].partitions)
            if count <= partition:
                others = len(facts["end"].partitions)
                raise TakeOverRefusedError(
                    f"{topic} has {counted(count, 'partition')}, {self._names.end} has {others}: their number was "
                    f"changed, and partition {partition} cannot be served. The others go on; use a new namespace to "
                    f"grow"
                )
        return {short: str(found.topic_id) for short, found in facts.items()}

    def _replay_op(self, queue: HalfQueue, stored: Checkpoint | None, start: _Start) -> int:
        """Take in OP to its end, and return the number of workers' records. `stored`: the checkpoint in OFFSET.

        Raises TakeOverRefusedError when there are fewer than the checkpoint counts, or when one belongs to a later
        checkpoint that OFFSET lacks. Raises FencedError when OFFSET has a later checkpoint.
        """
        names, partition, checkpoint = self._names, self._partition, start.checkpoint
        foreign = ForeignRecords(names.op, partition)
        reader = self.open_reader(names.op, committed=True)
        first = max(checkpoint.op, start.bounds["op"][0])
        count, half_end = 0, -1
        try:
            reader.start(first)
            too_few = cut_agreement()
            while True:
                end = self.proven_end(names.op)
                for op_offset, outcome, half_offsets in state_topics.read_ops(
                    reader, checkpoint, end, self._stopping, foreign.note_record
                ):
                    last = max(half_offsets, default=-1)
                    if last < start.half_known:
                        count += 1
                        queue.restore_op(op_offset, outcome, half_offsets)
                        continue
                    text = f"it names half offset {last}, but HALF was read up to {start.half_known} only"
                    if last >= half_end:
                        half_end = self.proven_end(names.half)
                    if last < half_end:
                        self._refuse_older_checkpoint(stored, f"{op_offset} {text}")
                    # A message that HALF does not hold yet must not count as finished.
                    foreign.note_record(op_offset, MalformedRecordError(text))
                # Records that retention has deleted are not needed, and not counted.
                if count >= checkpoint.ops or first > checkpoint.op:
                    break
                if too_few.note(self._context.outside.monotonic()):
                    refuse_lost({"op": state_topics.lost_ops(names, partition, checkpoint, count)})
                self.wait_to_ask_again()
        except state_topics.NewerOpError as error:
            refuse_newer(names.op, partition, error.offset, str(error))
        finally:
            reader.close()
        foreign.log_found()
        return count

    def _refuse_older_checkpoint(self, checkpoint: Checkpoint | None, what: str) -> None:
        """Refuse a checkpoint that is older than OP: OP has a record of a Kafka transaction that OFFSET lacks.

        A worker that went on from the older checkpoint would deliver finished messages again.
        """
        offset, op, partition = self._names.offset, self._names.op, self._partition
        self._refuse_checkpoint(
            checkpoint,
            f"{offset}[{partition}] has lost its last records: {op}[{partition}] has one of a later Kafka transaction "
            f"at offset {what}. Restore the offset topic, or drain and use a new namespace. (If a stranger wrote that "
            f"record: who has WRITE on {op}?)",
        )

    def _refuse_lost_checkpoint(self) -> None:
        """Refuse an OFFSET without a checkpoint."""
        self._refuse_checkpoint(
            None,
            f"{self._names.offset}[{self._partition}] holds no checkpoint although {self._names.op} has had records: "
            f"the offset topic was recreated or emptied. Restore it from a backup, or drain and use a new namespace",
        )

    def _refuse_checkpoint(self, checkpoint: Checkpoint | None, refusal: str) -> NoReturn:
        """Refuse OFFSET with this checkpoint as its last one.

        Raises TakeOverRefusedError when all answers agree, FencedError when OFFSET has another checkpoint now.
        """
        lost = cut_agreement()
        while self.read_offset_topic().checkpoint == checkpoint:
            if lost.note(self._context.outside.monotonic()):
                raise TakeOverRefusedError(refusal)
            self.wait_to_ask_again()
        raise FencedError(
            f"{self._names.offset}[{self._partition}] has a checkpoint that was not read: another worker has written "
            f"it during this take-over, or a former leader of the partition has answered"
        )


def refuse_lost(lost: Mapping[str, str]) -> None:
    """Refuse a partition with a loss until a person has acknowledged it. A worker's writes would hide it."""
    if lost:
        raise TakeOverRefusedError("; ".join(lost.values()))


def refuse_newer(topic: str, partition: int, offset: int, error: str) -> NoReturn:
    """Refuse a record of a later release, because this one cannot read it.

    Without its content messages would be delivered twice, or checked although they are decided.
    """
    raise TakeOverRefusedError(
        f"{topic}[{partition}] offset {offset} was written by a later release of txbridge: {error}. Let workers of "
        f"that release serve this partition; this one does not guess"
    )
