"""Take-over of a partition, from the topics alone: after it, memory holds what the previous owner had committed.

1. The fence: whoever owned the partition can write nothing any more.
2. OFFSET to its end: the progress and the parked entries; then OP from the progress, then HALF from the low watermark.
3. A first Kafka transaction with nothing but the progress: it proves that nobody came in between.
END from the progress on is then read by the owner as any other END.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient

from txbridge.broker.errors import TakeOverRefusedError
from txbridge.broker.faults import fault_point
from txbridge.broker.payloads import PayloadStore, headers_of, offset_of, to_half
from txbridge.broker.reader import PartitionReader
from txbridge.broker.writer import MalformedRecord, TransactionalWriter
from txbridge.core.check_policy import CheckPolicy
from txbridge.core.half_queue import HalfQueue
from txbridge.core.headers import MalformedRecordError
from txbridge.core.names import Names
from txbridge.core.progress import ParkedEntry, Progress, parse_op
from txbridge.log import get_logger

_REQUEST_TIMEOUT_S = 10.0
_log = get_logger("txbridge.broker")


@dataclass(frozen=True, slots=True)
class PartitionContext:
    """What every partition of a worker shares."""

    kafka: Mapping[str, Any]
    admin: AdminClient
    names: Names
    policy: CheckPolicy
    commit_timeout_ms: int
    payload_memory: int
    check_rate: int


@dataclass(slots=True)
class PartitionState:
    """All that an owner holds of its partition."""

    partition: int
    names: Names
    queue: HalfQueue
    payloads: PayloadStore
    writer: TransactionalWriter
    half_reader: PartitionReader
    end_reader: PartitionReader
    #: The progress that Kafka has committed last, and where it stands in OFFSET.
    progress: Progress
    progress_offset: int
    #: Malformed records of HALF that were read and not yet set aside.
    malformed: dict[int, MalformedRecord] = field(default_factory=dict)

    def take_in_half(self, limit: int, timeout: float) -> int:
        """Read what HALF has, up to `limit` records; returns how many came."""
        reader, queue = self.half_reader, self.queue
        messages = reader.poll(limit, timeout)
        for message in messages:
            try:
                half = to_half(message, self.names)
            except MalformedRecordError as error:
                record = MalformedRecord(
                    topic=reader.topic,
                    partition=self.partition,
                    offset=offset_of(message),
                    key=message.key(),
                    value=message.value(),
                    headers=headers_of(message),
                    error=str(error),
                )
                if queue.read_malformed(record.offset, len(record.value or b"")):
                    self.malformed[record.offset] = record
            else:
                if queue.read(half):
                    self.payloads.put(half)
        queue.advance_reader(reader.position)
        return len(messages)


def topic_ids(admin: AdminClient, names: Names) -> dict[str, str]:
    """Kafka's ids of half, end, op and offset. Raises KafkaException."""
    topics = {"half": names.half, "end": names.end, "op": names.op, "offset": names.offset}
    answers = admin.describe_topics(TopicCollection(list(topics.values())), request_timeout=_REQUEST_TIMEOUT_S)
    return {short: str(answers[topic].result(_REQUEST_TIMEOUT_S).topic_id) for short, topic in topics.items()}


def take_over(context: PartitionContext, partition: int) -> PartitionState:
    """Become the owner and restore the state.

    Raises TakeOverRefusedError, FencedError, LogGoneError, TimeoutError (a hanging Kafka transaction), KafkaException.
    """
    names, kafka = context.names, context.kafka
    writer = TransactionalWriter(kafka, names, partition, context.commit_timeout_ms)
    readers: list[PartitionReader] = []

    def reader(topic: str, *, committed: bool) -> PartitionReader:
        readers.append(PartitionReader(kafka, topic, partition, committed=committed))
        return readers[-1]

    try:
        # 1. The fence.
        writer.fence()
        fault_point("takeover.fenced")
        # 2. OFFSET, OP, HALF.
        ids = topic_ids(context.admin, names)
        progress, progress_offset, parked = read_offset_topic(context, partition)
        half_reader, end_reader = reader(names.half, committed=False), reader(names.end, committed=False)
        ends = {"half": half_reader.watermarks(), "end": end_reader.watermarks()}
        ends["op"] = _bounds(context, names.op, partition)
        if progress is None:
            progress = Progress(half=ends["half"][0], end=ends["end"][0], op=ends["op"][0], topics=ids)
            first = True
        else:
            first = False
            _refuse_other_topics(names, partition, progress, ids, ends)
        queue = HalfQueue(context.policy, watermark=progress.half, next_end=progress.end, next_op=progress.op)
        queue.restore_parked(parked.values())
        replayed = _replay_op(context, partition, queue, progress.op, ends["op"][1])
        if first:
            _refuse_lost_progress(names, partition, replayed)
        state = PartitionState(
            partition=partition,
            names=names,
            queue=queue,
            payloads=PayloadStore(context.payload_memory, names, reader(names.half, committed=False)),
            writer=writer,
            half_reader=half_reader,
            end_reader=end_reader,
            progress=progress,
            progress_offset=progress_offset,
        )
        half_reader.start(progress.half)
        while half_reader.position < ends["half"][1]:
            state.take_in_half(5_000, 0.2)
        fault_point("takeover.restored")
    except BaseException:
        for open_reader in readers:
            open_reader.close()
        raise
    return state


def close(state: PartitionState) -> None:
    """Let go of every connection; the partition's state is in the topics."""
    state.half_reader.close()
    state.end_reader.close()
    state.payloads.close()


def read_offset_topic(
    context: PartitionContext,
    partition: int,
    start: int | None = None,
) -> tuple[Progress | None, int, dict[int, ParkedEntry]]:
    """The last progress of OFFSET, its offset, and the parked entries, reading from `start` (default: all of it)."""
    names = context.names
    progress_key = names.progress_key(partition)
    progress: Progress | None = None
    progress_offset = -1
    parked: dict[int, ParkedEntry] = {}
    low, high = _bounds(context, names.offset, partition)
    reader = PartitionReader(context.kafka, names.offset, partition, committed=True)
    try:
        reader.start(low if start is None else max(start, low))
        for message in reader.read_to(high):
            key, value = message.key() or b"", message.value()
            try:
                if key == progress_key and value is not None:
                    progress, progress_offset = Progress.decode(value), offset_of(message)
                elif key.startswith(progress_key + b"/"):
                    half_offset = int(key[len(progress_key) + 1 :])
                    if value is None:
                        parked.pop(half_offset, None)
                    else:
                        parked[half_offset] = ParkedEntry.decode(half_offset, value)
            except (MalformedRecordError, ValueError) as error:
                _log.error(
                    "malformed_record",
                    topic=names.offset,
                    partition=partition,
                    offset=message.offset(),
                    error=str(error),
                )
    finally:
        reader.close()
    return progress, progress_offset, parked


def _bounds(context: PartitionContext, topic: str, partition: int) -> tuple[int, int]:
    """Log start and end; a reader of committed records would answer the last stable offset instead of the end."""
    reader = PartitionReader(context.kafka, topic, partition, committed=False)
    try:
        return reader.watermarks()
    finally:
        reader.close()


def _replay_op(context: PartitionContext, partition: int, queue: HalfQueue, start: int, end: int) -> int:
    """Take in OP from `start` to `end`; returns how many records there were."""
    reader = PartitionReader(context.kafka, context.names.op, partition, committed=True)
    count = 0
    try:
        reader.start(start)
        for message in reader.read_to(end):
            count += 1
            try:
                outcome, half_offsets = parse_op(message.value(), headers_of(message))
            except MalformedRecordError as error:
                _log.error(
                    "malformed_record",
                    topic=context.names.op,
                    partition=partition,
                    offset=message.offset(),
                    error=str(error),
                )
            else:
                queue.restore_op(offset_of(message), outcome, half_offsets)
    finally:
        reader.close()
    return count


def _refuse_lost_progress(names: Names, partition: int, op_records: int) -> None:
    if op_records:
        raise TakeOverRefusedError(
            f"{names.offset}[{partition}] holds no progress although {names.op} has records: the offset topic was "
            f"recreated or emptied. Restore it from a backup, or drain and use a new namespace",
        )


def _refuse_other_topics(
    names: Names,
    partition: int,
    progress: Progress,
    ids: Mapping[str, str],
    ends: Mapping[str, tuple[int, int]],
) -> None:
    """Topics that were recreated, or lost records that are still needed, look normal otherwise."""
    topics = {"half": names.half, "end": names.end, "op": names.op, "offset": names.offset}
    for short, topic in topics.items():
        if progress.topics.get(short, ids[short]) != ids[short]:
            raise TakeOverRefusedError(
                f"{topic} is not the topic that the progress of partition {partition} was written for (topic id "
                f"{ids[short]}, not {progress.topics[short]}): it was deleted and created anew. Use a new namespace",
            )
    for short, wanted in (("half", progress.half), ("end", progress.end), ("op", progress.op)):
        low, high = ends[short]
        if wanted < low:
            raise TakeOverRefusedError(
                f"{topics[short]}[{partition}] begins at offset {low}, above offset {wanted} that is still needed: "
                f"retention has eaten undecided messages or decisions. Their retention must outlast every outage",
            )
        if wanted > high:
            raise TakeOverRefusedError(
                f"{topics[short]}[{partition}] ends at offset {high}, below offset {wanted} that was reached already: "
                f"the log was cut. Restore it, or use a new namespace",
            )
