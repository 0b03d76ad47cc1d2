"""Acknowledgement that HALF, END or OP has lost records: until a person gives it, no worker serves the partition.

The lost records are gone: a tail, what retention has deleted, or all of a topic that was made again. The new checkpoint
stands where the logs are intact, so that later records are read as any other. Parked entries of lost messages are
removed, and OP records that name them have no meaning any more. If OP does not say which messages are finished, those
above the watermark count as finished: none of them may be delivered twice.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from confluent_kafka import KafkaException, Message, Producer

from txbridge.core.checkpoint import Checkpoint, Cut, Mark, offset_headers
from txbridge.core.names import short_id
from txbridge.core.offset_topic import OffsetTopic
from txbridge.deadline import Deadline
from txbridge.errors import EnvironmentProblemError
from txbridge.kafka.errors import AbortedError, FencedError, IndefiniteError, RecordKind, RecordsRefusedError
from txbridge.kafka.fenced_producer import FencedProducer, TransactionFailedError, is_fenced
from txbridge.kafka.headers import offset_of
from txbridge.kafka.log_ends import cut_agreement
from txbridge.kafka.partition_reader import PartitionReader
from txbridge.kafka.produced_records import ProducedRecords
from txbridge.kafka.record_failures import Reports
from txbridge.kafka.state_topics import Bounds, lost_heads, lost_ops, lost_tails, other_topics, parked_beyond, read_ops
from txbridge.operations.commands import check_words
from txbridge.operations.connection import CLOCK_SKEW_MS, Connection, kafka_errors
from txbridge.operations.reading import bounds_of, never, open_reader, read_offset
from txbridge.text import counted

#: The same as the worker's default (ms); a few records take milliseconds.
_COMMIT_TIMEOUT_MS = 10_000
#: Longest wait for one record (s); a healthy broker answers in milliseconds.
_READ_TIMEOUT_S = 5.0
#: Pause (s) between two looks at an OP that lacks records: as a worker's.
_ASK_AGAIN_S = 0.5
#: Most lost messages that are named.
_NAMED = 20
#: Number of attempts. A worker whose take-over is refused tries again every half minute, and takes the fence for a
#: moment then. Each worker that was just started does so once more. If the fence is lost more often than this, a worker
#: serves the partition.
_TRIES = 5


class _Loss(Enum):
    """What a log has lost: its first records to retention, its last ones, or all, because the topic was made again."""

    HEAD = "head"
    TAIL = "tail"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The losses, in words. Nothing was written when there was nothing to acknowledge."""

    is_written: bool
    lines: Sequence[str]


def acknowledge(connection: Connection, partition: int, *, reason: str, operator: str) -> Acknowledged:
    """Look for the losses of a partition, and let workers serve it again.

    Raises UsageError, EnvironmentProblemError, KafkaUnreachableError, HangingTransactionError.
    """
    reason, operator = check_words(reason, operator)
    connection.require_partition(partition)
    names = connection.names
    with (
        kafka_errors(f"examining the logs of partition {partition}"),
        open_reader(connection, names.half, partition, committed=False) as half,
        open_reader(connection, names.end, partition, committed=False) as end,
    ):
        offset_topic, _ = read_offset(connection, partition, half)
        checkpoint = offset_topic.checkpoint
        nothing = Acknowledged(False, [f"partition {partition} has lost nothing: all needed records are there"])
        if checkpoint is None:
            return nothing
        readers = {"half": half, "end": end}
        bounds = {short: bounds_of(half, topic) for short, topic in names.identified.items()}
        lost, texts = _losses(connection, partition, offset_topic, checkpoint, readers, bounds)
        if not lost:
            return nothing
        if checkpoint.cut is not None and checkpoint.op < checkpoint.cut.op:
            raise EnvironmentProblemError(
                f"an earlier loss of partition {partition} was acknowledged, and no worker has recovered from it yet: "
                f"restore the log and let a worker serve the partition, or use a new namespace"
            )
        after, lines = _after(checkpoint, lost, readers, bounds)
    until = bounds["op"][1] if lost.get("half", _Loss.HEAD) is not _Loss.HEAD else 0
    cut = Cut(after.read or after.half, until, time.time_ns() // 10**6, operator, reason)
    after = replace(after, topics=connection.topic_ids, owner=secrets.token_hex(8), seq=1, cut=cut)
    gone = sorted(offset for offset in offset_topic.parked if after.read is not None and offset >= after.read)
    parked = [offset_topic.parked[offset] for offset in gone[:_NAMED]]
    with kafka_errors(f"writing to {names.offset}[{partition}]"):
        _write(connection, partition, checkpoint, after, gone)
    if gone:
        named_ones = ", ".join(f"{one.offset} ({short_id(one.transaction_id)}, {one.group})" for one in parked)
        were = "was" if len(gone) == 1 else "were"
        rest = " ..." if len(gone) > _NAMED else ""
        lines.append(f"{counted(len(gone), 'open message')} {were} among them: {named_ones}{rest}")
    return Acknowledged(True, [*texts, *lines])


def _losses(
    connection: Connection,
    partition: int,
    offset_topic: OffsetTopic,
    checkpoint: Checkpoint,
    readers: Mapping[str, PartitionReader],
    bounds: Bounds,
) -> tuple[dict[str, _Loss], list[str]]:
    """What is lost of each topic, by its short name, and texts about it."""
    names = connection.names
    read = bounds["half"][1] if checkpoint.read is None else checkpoint.read
    others = other_topics(names, partition, checkpoint, connection.topic_ids)
    heads = lost_heads(names, partition, checkpoint, max(read, checkpoint.half), bounds)
    found = [(_Loss.ALL, others), (_Loss.HEAD, heads)]
    # The log of a topic that was made again has lost no tail.
    logs = {short: reader for short, reader in readers.items() if short not in others}
    found.append((_Loss.TAIL, lost_tails(names, checkpoint, logs)))
    if "op" not in others | heads:
        found.append((_Loss.TAIL, _lost_ops(connection, partition, checkpoint)))
    if "half" not in others:
        found.append((_Loss.ALL, parked_beyond(names, partition, offset_topic, read)))
    losses, texts = dict[str, _Loss](), list[str]()
    for loss, of_topics in found:
        new = {short: text for short, text in of_topics.items() if short not in losses}
        losses |= dict.fromkeys(new, loss)
        texts += new.values()
    return losses, texts


def _lost_ops(connection: Connection, partition: int, checkpoint: Checkpoint) -> dict[str, str]:
    """Count OP as a take-over does, until all answers agree that records are missing."""
    too_few = cut_agreement()
    while True:
        count = 0
        with open_reader(connection, connection.names.op, partition, committed=True) as reader:
            end = bounds_of(reader)[1]
            if end >= checkpoint.op:
                reader.start(checkpoint.op)
                count = sum(1 for _ in read_ops(reader, checkpoint, end, never, lambda *_: None))
                if count >= checkpoint.ops:
                    return {}
        if too_few.note(time.monotonic()):
            return {"op": lost_ops(connection.names, partition, checkpoint, count)}
        time.sleep(_ASK_AGAIN_S)


def _after(
    checkpoint: Checkpoint, lost: Mapping[str, _Loss], readers: Mapping[str, PartitionReader], bounds: Bounds
) -> tuple[Checkpoint, list[str]]:
    """The checkpoint for the logs as they are now, and its consequences in words."""
    lines: list[str] = []
    marks = {short: mark for short, mark in checkpoint.marks.items() if lost.get(short, _Loss.HEAD) is _Loss.HEAD}
    after, read = replace(checkpoint, cut=None, marks=marks), checkpoint.read or checkpoint.half
    first = bounds["half"][0]
    if lost.get("half") is _Loss.HEAD:
        lines.append(f"half messages from offset {after.half} up to {first - 1} are lost, unless finished or parked")
        after = replace(after, half=first, read=max(read, first), recent=first)
    elif "half" in lost:
        if lost["half"] is _Loss.TAIL:
            first = _half_from(readers["half"], checkpoint.marks["half"])
        lines.append(f"half messages from offset {first} up to {read - 1} are lost")
        recent = min(first, after.half if after.recent is None else after.recent)
        after = replace(after, half=min(after.half, first), read=first, recent=recent)
    if "op" in lost:
        read = after.read or after.half
        lines.append(
            f"nobody knows which half messages from offset {after.half} up to {read - 1} are finished: those that are "
            f"open and not parked are given up, and never delivered"
        )
        after = replace(after, half=read, op=bounds["op"][1], ops=0)
    if "end" in lost:
        is_tail = lost["end"] is _Loss.TAIL
        first = _end_from(readers["end"], checkpoint.marks["end"]) if is_tail else bounds["end"][0]
        if first <= checkpoint.end or not is_tail:
            after = replace(after, end=first, entry=0)
        lines.append(
            f"END is applied again from offset {after.end}; decisions that are no longer in it are lost, unless they "
            f"were applied before"
        )
    return after, lines


def _half_from(reader: PartitionReader, mark: Mark) -> int:
    """The offset at which HALF was cut."""
    if mark.epoch is None:
        raise EnvironmentProblemError(
            "the checkpoint has no leader epoch, so the offset at which HALF was cut cannot be found"
        )
    epoch, (low, high) = mark.epoch, bounds_of(reader)
    return _first(reader, low, min(high, mark.offset + 1), lambda message: (message.leader_epoch() or 0) > epoch)


def _end_from(reader: PartitionReader, mark: Mark) -> int:
    """The offset from which END has to be applied again. Records that are applied already do no harm."""
    low, high = bounds_of(reader)
    if mark.appended is None:
        return low
    since = mark.appended - CLOCK_SKEW_MS
    return _first(reader, low, min(high, mark.offset + 1), lambda message: message.timestamp()[1] > since)


def _first(reader: PartitionReader, low: int, high: int, is_new: Callable[[Message], bool]) -> int:
    """The lowest offset of [low, high] from which on records are new, found by bisection."""
    while low < high:
        middle = (low + high) // 2
        reader.start(middle)
        messages: list[Message] = []
        deadline = Deadline(_READ_TIMEOUT_S)
        while not messages and reader.position < high:
            if deadline.is_over:
                raise EnvironmentProblemError(
                    f"offset {middle} of {reader.topic}[{reader.partition}] could not be read in time"
                )
            messages = reader.poll(1, 0.2)
        if not messages or offset_of(messages[0]) >= high or is_new(messages[0]):
            high = middle
        else:
            low = offset_of(messages[0]) + 1
    reader.stop()
    return low


def _write(connection: Connection, partition: int, before: Checkpoint, after: Checkpoint, gone: Sequence[int]) -> None:
    """Write the new checkpoint and tombstones of lost entries, in one Kafka transaction under the worker's fence."""
    for _ in range(_TRIES):
        try:
            return _write_once(connection, partition, before, after, gone)
        except FencedError:
            continue
        except KafkaException as error:
            if not is_fenced(error):
                raise
    raise EnvironmentProblemError(
        f"workers took partition {partition} over from this command {_TRIES} times: see their logs, then try again"
    )


def _write_once(
    connection: Connection, partition: int, before: Checkpoint, after: Checkpoint, gone: Sequence[int]
) -> None:
    """Raises FencedError, or a KafkaException about the fence, when a worker has taken the partition meanwhile."""
    names, reports, stored, moved = connection.names, Reports(), list[Message](), ""
    fenced = FencedProducer(connection.kafka, names.transactional_id(partition), names.half, _COMMIT_TIMEOUT_MS)
    fenced.take_fence()
    with open_reader(connection, names.half, partition, committed=False) as reader:
        found, _ = read_offset(connection, partition, reader)
    if found.checkpoint != before:
        raise EnvironmentProblemError(
            f"a worker has written a new checkpoint of partition {partition}: run the command again"
        )
    new: dict[bytes, bytes | None] = {names.parked_key(partition, offset): None for offset in gone}
    new[names.checkpoint_key(partition)] = after.encode()

    def fill(producer: Producer) -> None:
        nonlocal moved
        records = ProducedRecords(producer, _COMMIT_TIMEOUT_MS / 1000, reports, {})
        for key, value in new.items():
            record = (None, names.offset, value, key, partition, 0, offset_headers())
            records.produce_record(RecordKind.INTERNAL, record, stored.append)
        records.flush()
        first = min(map(offset_of, stored))
        if first != found.position:
            # The end came from a former leader of OFFSET: the checkpoint that was read may be an old one.
            moved = (
                f"{names.offset}[{partition}] was read up to offset {found.position}, but it ends at {first}: "
                "nothing was written"
            )
            raise TransactionFailedError

    try:
        fenced.commit_records(fill, reports)
    except (AbortedError, IndefiniteError, RecordsRefusedError) as error:
        raise EnvironmentProblemError(f"{moved or error}, run the command again") from error
