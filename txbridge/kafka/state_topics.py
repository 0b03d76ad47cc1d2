"""Readers of OFFSET and OP of a partition, from which its owner or an operation restores its state.

The meaning of a record is defined only here and in the core. The caller decides what follows from a record that is not
ours, or from a log that has changed. An owner has the fence: its logs do not change, so a contradiction means damage.
The checkpoint also shows lost tails of HALF and END: a log may lose its last records, and grow again with other ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from confluent_kafka import Message

from txbridge.core.checkpoint import Checkpoint, Mark, parse_op
from txbridge.core.headers import MalformedRecordError, NewerVersionError
from txbridge.core.names import Names
from txbridge.core.offset_topic import OffsetTopic
from txbridge.core.states import Outcome
from txbridge.kafka.body_cache import mark_of, read_back
from txbridge.kafka.errors import LogGoneError
from txbridge.kafka.headers import headers_of, offset_of
from txbridge.kafka.partition_reader import PartitionReader
from txbridge.text import counted

#: Start and end of each log, by the short name of its topic.
Bounds = Mapping[str, tuple[int, int]]
#: Called with the offset of a record that no worker of ours writes, and the reason. It does not affect the state.
PassedOver = Callable[[int, MalformedRecordError], None]


class NewerOpError(Exception):
    """An OP record that a worker of a later release has written: the state cannot be restored without it."""

    def __init__(self, offset: int, text: str) -> None:
        super().__init__(text)
        self.offset = offset


def fold_offset_record(offset_topic: OffsetTopic, message: Message, passed_over: PassedOver) -> None:
    """Take in one record of OFFSET."""
    offset = offset_of(message)
    try:
        offset_topic.take_record(message.key(), message.value(), headers_of(message), offset, message.timestamp()[1])
    except MalformedRecordError as error:
        passed_over(offset, error)


def fold_offset_topic(
    reader: PartitionReader, offset_topic: OffsetTopic, end: int, stopping: Callable[[], bool], passed_over: PassedOver
) -> None:
    """Take in OFFSET from the reader's position up to `end`."""
    for message in reader.read_to(end, stopping):
        fold_offset_record(offset_topic, message, passed_over)
    offset_topic.position = reader.position


def read_ops(
    reader: PartitionReader,
    checkpoint: Checkpoint | None,
    end: int,
    stopping: Callable[[], bool],
    passed_over: PassedOver,
) -> Iterator[tuple[int, Outcome, list[int]]]:
    """OP offset, outcome and half offsets of each record from the reader's position up to `end`.

    Raises NewerOpError, HangingTransactionError, LogGoneError, ReadStoppedError, KafkaException.
    """
    for message in reader.read_to(end, stopping):
        offset = offset_of(message)
        try:
            outcome, half_offsets = parse_op(message.value(), headers_of(message))
            if checkpoint is not None:
                half_offsets = checkpoint.meant(offset, half_offsets)
        except NewerVersionError as error:
            raise NewerOpError(offset, str(error)) from error
        except MalformedRecordError as error:
            passed_over(offset, error)
        else:
            yield offset, outcome, half_offsets


def other_topics(names: Names, partition: int, checkpoint: Checkpoint, ids: Mapping[str, str]) -> dict[str, str]:
    """Find topics that were made again, whose ids differ. Returns texts by short name, as the functions below."""
    return {
        short: f"{names.identified[short]} is not the topic that the checkpoint of partition {partition} was written "
        f"for (topic id {ids[short]}, not {topic_id}): it was deleted and created again. Use a new namespace, "
        f"{or_acknowledge(partition)}"
        for short, topic_id in checkpoint.topics.items()
        if ids.get(short, topic_id) != topic_id
    }


def lost_heads(names: Names, partition: int, checkpoint: Checkpoint, half_read: int, bounds: Bounds) -> dict[str, str]:
    """Find logs of which retention has deleted needed records. Returns as above."""
    wanted = {"half": checkpoint.half, "end": checkpoint.end}
    if half_read > checkpoint.half:
        # OP names half messages. With none read at or above the watermark, none of its records is needed.
        wanted["op"] = checkpoint.op
    why = "retention has deleted undecided messages or decisions. It must outlast every outage. Restore the log"
    return {
        short: f"{names.identified[short]}[{partition}] begins at offset {bounds[short][0]}, above offset {offset} "
        f"that is still needed: {why}, {or_acknowledge(partition)}"
        for short, offset in wanted.items()
        if offset < bounds[short][0]
    }


def lost_ops(names: Names, partition: int, checkpoint: Checkpoint, count: int) -> str:
    """The text for an OP of which only `count` records are there from the checkpoint's offset on."""
    return (
        f"{names.op}[{partition}] has {counted(count, 'record')} from offset {checkpoint.op} on, and workers have "
        f"written {checkpoint.ops}: the log was cut. Restore it, {or_acknowledge(partition)}"
    )


def parked_beyond(names: Names, partition: int, offset_topic: OffsetTopic, half_read: int) -> dict[str, str]:
    """Find parked entries of half messages that nobody has read, which cannot be open.

    Otherwise the next message at that offset would be taken for the parked one.
    """
    last = max(offset_topic.parked, default=-1)
    if last < half_read:
        return {}
    return {
        "parked": f"{names.offset}[{partition}] holds a parked entry of half offset {last}, and "
        f"{names.half}[{partition}] was read up to offset {half_read} only: a stranger wrote the entry. Remove it with "
        f"`txbridge acknowledge {partition}`"
    }


def or_acknowledge(partition: int) -> str:
    """What the text of a loss says in the end."""
    return f"or acknowledge the loss with `txbridge acknowledge {partition}`"


def lost_tails(names: Names, checkpoint: Checkpoint, readers: Mapping[str, PartitionReader]) -> dict[str, str]:
    """Find logs that do not hold the last record that was read of them; returns texts by short name of the topic.

    `readers` read uncommitted records, by the same names; they are stopped. Raises TimeoutError, KafkaException.
    """
    found: dict[str, str] = {}
    for short, mark in sorted(checkpoint.marks.items()):
        why = _why_lost(readers[short], names, mark) if short in readers else None
        if why is not None:
            found[short] = why
    return found


def _why_lost(reader: PartitionReader, names: Names, mark: Mark) -> str | None:
    where = f"{reader.topic}[{reader.partition}]"
    advice = (
        f"Its tail was lost (an unclean leader election, or a disk that did not keep what was acknowledged). Restore "
        f"it, {or_acknowledge(reader.partition)}"
    )
    try:
        reader.wait_for_end(mark.offset + 1)
        messages = list(read_back(reader, [mark.offset]))
    except LogGoneError:
        return f"{where} ends below offset {mark.offset}, which was read already. {advice}"
    if not messages:
        if reader.watermarks()[0] > mark.offset:
            # Retention has deleted it: the records behind it were appended after it.
            return None
        return f"{where} has no record at offset {mark.offset}, where one was read. {advice}"
    if mark_of(messages[0], names).digest == mark.digest:
        return None
    return f"{where} holds another record at offset {mark.offset} than the one that was read there. {advice}"
