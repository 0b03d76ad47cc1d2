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

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import NamedTuple, NoReturn

from txbridge.core.checkpoint import Checkpoint
from txbridge.core.half_queue import HalfQueue
from txbridge.core.headers import MalformedRecordError
from txbridge.core.names import Names
from txbridge.core.offset_topic import OffsetTopic
from txbridge.kafka.body_cache import BodyCache
from txbridge.kafka.controller_requests import ControllerRequests
from txbridge.kafka.failures import FencedError, TakeOverRefusedError
from txbridge.kafka.lost_tail import lost_tails
from txbridge.kafka.partition_reader import PartitionReader, cut_agreement
from txbridge.kafka.proven_end import can_be_proven, proven_end
from txbridge.kafka.state_topics import NewerOpError, fold_offset_topic, read_ops
from txbridge.log import get_logger
from txbridge.text import counted
from txbridge.worker.failpoints import fault_point
from txbridge.worker.observe.offset_gaps import gaps_of_end, gaps_of_half
from txbridge.worker.partition_context import PartitionContext
from txbridge.worker.restored import Restored
from txbridge.worker.takeover.refusals import (
    Bounds,
    refuse_cut,
    refuse_lost,
    refuse_lost_ops,
    refuse_newer,
    refuse_other_topics,
    refuse_parked_beyond,
    wait_to_ask_again,
)
from txbridge.worker.transaction.writer import TransactionalWriter

_REQUEST_TIMEOUT_S = 10.0
#: Kafka takes a broker that stands still for alive during broker.session.timeout.ms (9 s by default). Until then it
#: delays each attempt by its time to answer. A take-over that gives up is tried again.
_PROVE_S = 30.0

_log = get_logger("txbridge.worker")


class _Readers(NamedTuple):
    """Readers that are not started yet."""

    half: PartitionReader
    end: PartitionReader


class _Start(NamedTuple):
    """The place in the logs where the new owner goes on."""

    #: It says how far HALF was read.
    checkpoint: Checkpoint
    #: HALF offset up to which previous owners may have read.
    half_known: int
    #: Log start and end, by the short name of the topic.
    bounds: Bounds


def take_over(context: PartitionContext, partition: int, stopping: Callable[[], bool]) -> Restored:
    """Become the owner and restore the state.

    Raises TakeOverRefusedError, FencedError, LogGoneError, HangingTransactionError, ReadStoppedError, TimeoutError,
    KafkaException.
    """
    names = context.names
    writer = TransactionalWriter(context.kafka, names, partition, context.commit_timeout_ms, context.outside)
    with ExitStack() as on_failure:
        writer.take_fence()
        fault_point("takeover.fenced")
        ids = _topic_ids(context.requests, names, partition)
        offset_topic = read_offset_topic(context, partition, stopping)
        try:
            if offset_topic.newer is not None:
                refuse_newer(names.offset, partition, *offset_topic.newer)
            readers = _Readers(
                _reader(context, names.half, partition, on_failure, committed=False, on_demand=True, follows=True),
                _reader(context, names.end, partition, on_failure, committed=False, on_demand=True),
            )
            start = _find_start(context, partition, offset_topic, ids, readers, stopping)
            queue = _restore_queue(context, partition, offset_topic, start, stopping)
        except TakeOverRefusedError:
            on_failure.close()
            # Another worker may have taken the partition over meanwhile. Then parts of two states do not fit together,
            # and the topics are fine.
            if read_offset_topic(context, partition, stopping).checkpoint != offset_topic.checkpoint:
                raise FencedError("another worker has written the checkpoint during this take-over") from None
            raise
        checkpoint = start.checkpoint
        restored = Restored(
            partition=partition,
            names=names,
            queue=queue,
            # Each connection takes file descriptors. END's reader is never started from here on.
            bodies=BodyCache(context.payload_memory, names, readers.end.on_same_connection(names.half)),
            writer=writer,
            half_reader=readers.half,
            end_reader=readers.end,
            decision_reader=_reader(context, names.end, partition, on_failure, committed=True, follows=True),
            half_gaps=gaps_of_half(names.half, partition, context.metrics),
            end_gaps=gaps_of_end(names.end, partition, context.metrics),
            checkpoint=checkpoint,
            checkpoint_offset=offset_topic.checkpoint_offset,
            offset_topic_end=offset_topic.position,
            stopping=stopping,
        )
        # Below the watermark HALF is read for the ids only. Records that retention has deleted there are not needed.
        recent = checkpoint.half if checkpoint.recent is None else min(checkpoint.recent, checkpoint.half)
        readers.half.start(max(recent, start.bounds["half"][0]))
        fault_point("takeover.restored")
        on_failure.pop_all()
    return restored


def _reader(
    context: PartitionContext, topic: str, partition: int, on_failure: ExitStack, **how: bool
) -> PartitionReader:
    reader = PartitionReader(context.kafka, topic, partition, outside=context.outside, **how)
    on_failure.callback(reader.close)
    return reader


def _find_start(
    context: PartitionContext,
    partition: int,
    offset_topic: OffsetTopic,
    ids: Mapping[str, str],
    readers: _Readers,
    stopping: Callable[[], bool],
) -> _Start:
    """The checkpoint, if the logs are those for which it was written. Raises TakeOverRefusedError."""
    names, half_reader = context.names, readers.half
    bounds = {
        "half": half_reader.watermarks(),
        "end": readers.end.watermarks(),
        "op": half_reader.watermarks(names.op),
    }
    checkpoint = offset_topic.checkpoint
    if checkpoint is None:
        half, end, op = bounds["half"][0], bounds["end"][0], bounds["op"][0]
        # Nothing says how far a previous owner read, if there was one. So a record counts as that owner's if HALF holds
        # the messages that it names.
        start = _Start(Checkpoint(half=half, end=end, op=op, topics=ids, read=half), bounds["half"][1], bounds)
    else:
        half_read = max(checkpoint.half, bounds["half"][1] if checkpoint.read is None else checkpoint.read)
        refuse_other_topics(names, partition, checkpoint, half_read, ids, bounds)
        # An END record that is applied in part must be there.
        end = checkpoint.end + 1 if checkpoint.entry else checkpoint.end
        for topic, wanted in ((names.half, half_read), (names.end, end), (names.op, checkpoint.op)):
            refuse_cut(half_reader, topic, wanted, stopping, context.outside)
        refuse_lost(lost_tails(names, checkpoint, readers._asdict()))
        start = _Start(replace(checkpoint, read=half_read), half_read, bounds)
    refuse_parked_beyond(names, partition, offset_topic, start.half_known)
    return start


def _restore_queue(
    context: PartitionContext, partition: int, offset_topic: OffsetTopic, start: _Start, stopping: Callable[[], bool]
) -> HalfQueue:
    """The state of the partition, from the parked entries and OP. Raises TakeOverRefusedError, FencedError."""
    checkpoint = start.checkpoint
    queue = HalfQueue(
        context.policy,
        watermark=checkpoint.half,
        next_end=checkpoint.end,
        next_entry=checkpoint.entry,
        next_op=checkpoint.op,
    )
    had_parked = bool(offset_topic.parked)
    queue.restore_parked(offset_topic.parked)
    first_op = start.bounds["op"][0]
    stored = Stored(offset_topic.checkpoint, start.half_known)
    replayed = _replay_op(context, partition, queue, max(checkpoint.op, first_op), checkpoint, stored, stopping)
    if offset_topic.checkpoint is None and (replayed or had_parked or first_op > 0):
        _refuse_lost_checkpoint(context, partition, stopping)
    return queue


def _topic_ids(requests: ControllerRequests, names: Names, partition: int) -> dict[str, str]:
    """Kafka's ids of half, end, op and offset, all of which have the partition.

    Raises TakeOverRefusedError, KafkaException.
    """
    topics = names.identified
    answers = requests.describe_topics(topics.values(), _REQUEST_TIMEOUT_S)
    facts = {short: answers[topic].result() for short, topic in topics.items()}
    for short, topic in topics.items():
        count = len(facts[short].partitions)
        if count <= partition:
            others = len(facts["end"].partitions)
            raise TakeOverRefusedError(
                f"{topic} has {counted(count, 'partition')}, {names.end} has {others}: their number was changed, and "
                f"partition {partition} cannot be served. The others go on; use a new namespace to grow",
            )
    return {short: str(found.topic_id) for short, found in facts.items()}


def read_offset_topic(
    context: PartitionContext,
    partition: int,
    stopping: Callable[[], bool],
    start: int = 0,
) -> OffsetTopic:
    """Read OFFSET from `start` on: the last checkpoint, and the parked entries."""
    names = context.names
    offset_topic = OffsetTopic(names, partition, context.policy)
    strangers = _Strangers(names.offset, partition)
    low, high = _bounds(context, names.offset, partition)
    if low > 0:
        # Compaction never moves the start of a log.
        raise TakeOverRefusedError(
            f"{names.offset}[{partition}] begins at offset {low}: records were deleted, although it must only be "
            f"compacted. Parked messages may be among them. `txbridge audit` tells what is lost; use a new "
            f"namespace",
        )
    # Connect only now: a consumer that was connected with nothing to read may find the leader a second later.
    reader = PartitionReader(context.kafka, names.offset, partition, committed=True, outside=context.outside)
    try:
        reader.start(start)
        fold_offset_topic(reader, offset_topic, high, stopping, strangers.note_record)
    finally:
        reader.close()
    strangers.log_found()
    return offset_topic


def _bounds(context: PartitionContext, topic: str, partition: int) -> tuple[int, int]:
    """Log start and end. A reader of committed records would return the last stable offset instead of the end."""
    reader = PartitionReader(context.kafka, topic, partition, committed=False, outside=context.outside)
    try:
        return reader.watermarks()
    finally:
        reader.close()


def has_later_op(
    context: PartitionContext, partition: int, checkpoint: Checkpoint, start: int, stopping: Callable[[], bool]
) -> bool:
    """Whether OP holds a committed record from `start` on.

    This is asked after an unknown outcome, when a broker has died. Then the leader of OFFSET may lack its last records.
    """
    end = _proven_end(context, context.names.op, partition, stopping)
    if end <= start:
        return False
    reader = PartitionReader(context.kafka, context.names.op, partition, committed=True, outside=context.outside)
    try:
        reader.start(start)
        return any(True for _ in read_ops(reader, checkpoint, end, stopping, lambda _offset, _error: None))
    except NewerOpError:
        return True
    finally:
        reader.close()


def _proven_end(context: PartitionContext, topic: str, partition: int, stopping: Callable[[], bool]) -> int:
    """The proven end of a log. Every record below it counts: one of them may show that OFFSET has lost its tail.

    While too many replicas are down for a proof, it is the end that the leader reports. With two replicas that is so
    when one is down. With three and min.insync.replicas 2, nothing can be written then.

    Raises TimeoutError, ReadStoppedError, KafkaException.
    """
    outside = context.outside
    until = outside.monotonic() + _PROVE_S
    while True:
        with context.each_broker() as brokers:
            end = proven_end(brokers, topic, partition)
            gone = end is None and not can_be_proven(brokers, topic, partition)
        if end is not None:
            return end
        if gone:
            return _bounds(context, topic, partition)[1]
        if outside.monotonic() > until:
            raise TimeoutError(f"no majority of the brokers of {topic}[{partition}] says who leads it")
        wait_to_ask_again(stopping, outside)


class Stored(NamedTuple):
    """The facts from OFFSET with which OP is compared."""

    #: None when OFFSET holds none.
    checkpoint: Checkpoint | None
    #: HALF offset up to which previous owners may have read.
    half_read: int


def _replay_op(
    context: PartitionContext,
    partition: int,
    queue: HalfQueue,
    start: int,
    checkpoint: Checkpoint,
    stored: Stored,
    stopping: Callable[[], bool],
) -> int:
    """Take in OP from `start` to its end, and return the number of workers' records.

    Raises TakeOverRefusedError when there are fewer than the checkpoint counts, or when one belongs to a later
    checkpoint that OFFSET lacks. Raises FencedError when OFFSET has a later checkpoint.
    """
    outside = context.outside
    strangers = _Strangers(context.names.op, partition)
    reader = PartitionReader(context.kafka, context.names.op, partition, committed=True, outside=context.outside)
    count, half_end = 0, -1
    try:
        reader.start(start)
        too_few = cut_agreement()
        while True:
            end = _proven_end(context, context.names.op, partition, stopping)
            for op_offset, outcome, half_offsets in read_ops(reader, checkpoint, end, stopping, strangers.note_record):
                last = max(half_offsets, default=-1)
                if last < stored.half_read:
                    count += 1
                    queue.restore_op(op_offset, outcome, half_offsets)
                    continue
                text = f"it names half offset {last}, but HALF was read up to {stored.half_read} only"
                if last >= half_end:
                    half_end = _proven_end(context, context.names.half, partition, stopping)
                if last < half_end:
                    _refuse_older_checkpoint(context, partition, stored.checkpoint, f"{op_offset} {text}", stopping)
                # A message that HALF does not hold yet must not count as finished.
                strangers.note_record(op_offset, MalformedRecordError(text))
            # Records that retention has deleted are not needed, and not counted.
            if count >= checkpoint.ops or start > checkpoint.op:
                break
            if too_few.note(outside.monotonic()):
                refuse_lost_ops(context.names, partition, checkpoint, count)
            wait_to_ask_again(stopping, outside)
    except NewerOpError as error:
        refuse_newer(context.names.op, partition, error.offset, str(error))
    finally:
        reader.close()
    strangers.log_found()
    return count


class _Strangers:
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


def _refuse_older_checkpoint(
    context: PartitionContext, partition: int, checkpoint: Checkpoint | None, what: str, stopping: Callable[[], bool]
) -> NoReturn:
    """Refuse a checkpoint that is older than OP: OP has a record of a Kafka transaction that OFFSET lacks.

    A worker that went on from the older checkpoint would deliver finished messages again. Raises TakeOverRefusedError
    when all answers agree, FencedError when OFFSET has another checkpoint now.
    """
    names, outside = context.names, context.outside
    lost = cut_agreement()
    while read_offset_topic(context, partition, stopping).checkpoint == checkpoint:
        if lost.note(outside.monotonic()):
            raise TakeOverRefusedError(
                f"{names.offset}[{partition}] has lost its last records: {names.op}[{partition}] has one of a later "
                f"Kafka transaction at offset {what}. Restore the offset topic, or drain and use a new namespace. (If "
                f"a stranger wrote that record: who has WRITE on {names.op}?)",
            )
        wait_to_ask_again(stopping, outside)
    raise FencedError(
        f"{names.offset}[{partition}] has a later checkpoint than was read: another worker has written it during this "
        f"take-over, or a former leader of the partition has answered",
    )


def _refuse_lost_checkpoint(context: PartitionContext, partition: int, stopping: Callable[[], bool]) -> NoReturn:
    """Refuse an OFFSET without a checkpoint.

    Raises TakeOverRefusedError when all answers agree, FencedError when OFFSET has a checkpoint now.
    """
    names, outside = context.names, context.outside
    lost = cut_agreement()
    while read_offset_topic(context, partition, stopping).checkpoint is None:
        if lost.note(outside.monotonic()):
            raise TakeOverRefusedError(
                f"{names.offset}[{partition}] holds no checkpoint although {names.op} has had records: the offset "
                f"topic was recreated or emptied. Restore it from a backup, or drain and use a new namespace",
            )
        wait_to_ask_again(stopping, outside)
    raise FencedError(
        f"{names.offset}[{partition}] has a checkpoint that was not read: another worker has written it during this "
        f"take-over, or a former leader of the partition has answered",
    )
