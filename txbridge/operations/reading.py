"""Readers of the topics of a partition that they do not own: no fence, no group, no writes.

OP and OFFSET are read committed, HALF uncommitted. END is read committed, as the worker does: aborted records are
passed over.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from confluent_kafka import KafkaException

from txbridge.core.checkpoint import Checkpoint
from txbridge.core.decision_record import DecisionRecord, parse_end
from txbridge.core.headers import MalformedRecordError
from txbridge.core.offset_topic import OffsetTopic
from txbridge.core.states import Outcome
from txbridge.deadline import Deadline
from txbridge.errors import EnvironmentProblemError, TxBridgeError
from txbridge.kafka.body_cache import to_half
from txbridge.kafka.errors import NO_LEADER
from txbridge.kafka.headers import headers_of, offset_of
from txbridge.kafka.partition_reader import PartitionReader
from txbridge.kafka.state_topics import (
    NewerOpError,
    PassedOver,
    fold_offset_record,
    fold_offset_topic,
    lost_heads,
    lost_tails,
    or_acknowledge,
    other_topics,
    read_ops,
)
from txbridge.operations.connection import Connection, kafka_errors
from txbridge.operations.view import DecisionCommand, PartitionView, commands_of

#: Longest wait for a leader (s).
_ELECTION_TIMEOUT_S = 5.0
_ELECTION_POLL_S = 0.1
#: Partitions read at the same time. Each needs a few connections and mostly waits for Kafka.
_AT_ONCE = 8


@contextmanager
def open_reader(connection: Connection, topic: str, partition: int, *, committed: bool) -> Iterator[PartitionReader]:
    reader = PartitionReader(connection.kafka, topic, partition, committed=committed)
    try:
        yield reader
    finally:
        reader.close()


def never() -> bool:
    """Never stop a PartitionReader: a person stops the operation with Ctrl-C."""
    return False


def try_read_views(connection: Connection, partitions: Iterable[int]) -> list[PartitionView | TxBridgeError]:
    """Views of these partitions in their order; for one that cannot be read, the error of `read_view`."""

    def attempt(partition: int) -> PartitionView | TxBridgeError:
        try:
            return read_view(connection, partition)
        except TxBridgeError as error:
            return error

    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        return list(pool.map(attempt, partitions))


def read_views(connection: Connection) -> list[PartitionView]:
    """Views of all partitions, in their order. Raises as `read_view`."""
    views = []
    for found in try_read_views(connection, range(connection.partitions)):
        if isinstance(found, TxBridgeError):
            raise found
        views.append(found)
    return views


def read_view(connection: Connection, partition: int) -> PartitionView:
    """All open messages of a partition, as its topics show them.

    Raises HangingTransactionError when a Kafka transaction stays open for 30 s, EnvironmentProblemError when a log was
    cut below the checkpoint, KafkaUnreachableError.
    """
    names = connection.names
    with (
        kafka_errors(f"reading partition {partition} of the internal topics"),
        open_reader(connection, names.half, partition, committed=False) as half,
    ):
        # HALF's end comes first: a message that is prepared and decided during this read must not appear as pending.
        half_start, half_end = bounds_of(half)
        offset_topic, warnings = read_offset(connection, partition, half)
        view = PartitionView(offset_topic, connection.policy, half_start, half_end, warnings=warnings)
        # These come after OFFSET: an offset in the checkpoint cannot lie behind them, unless a log was cut.
        bounds = {"half": bounds_of(half), "op": bounds_of(half, names.op), "end": bounds_of(half, names.end)}
        checkpoint = offset_topic.checkpoint or Checkpoint(half_start, bounds["end"][0], bounds["op"][0], {})
        others = other_topics(names, partition, checkpoint, connection.topic_ids)
        view.warnings += (others or lost_heads(names, partition, checkpoint, half_end, bounds)).values()
        half_from = _start(names.half, partition, checkpoint.half, bounds["half"])
        if offset_topic.checkpoint is not None:
            with open_reader(connection, names.end, partition, committed=False) as end:
                # The log of a recreated topic has lost no tail: none of its records was read.
                readers = {short: one for short, one in (("half", half), ("end", end)) if short not in others}
                view.warnings += lost_tails(names, offset_topic.checkpoint, readers).values()
        view.next_end = _start(names.end, partition, checkpoint.end, bounds["end"])
        view.next_entry = checkpoint.entry if view.next_end == checkpoint.end else 0
        view.op_position = _start(names.op, partition, checkpoint.op, bounds["op"])
        for outcome, half_offsets in _read_op(connection, view, view.op_position, bounds["op"][1]):
            view.take_op(outcome, half_offsets)
        view.op_position = bounds["op"][1]
        half.start(half_from)
        for message in half.read_below(half_end, never):
            try:
                view.take_half(to_half(message, names))
            except MalformedRecordError:
                # The worker copies it to the discard topic. It is no half message, so it is not pending.
                continue
    with kafka_errors(f"reading {names.end}[{partition}]"):
        for record in _read_end(connection, partition, view.next_end, None):
            view.take_end(view.rest_of(record))
    return view


def bounds_of(reader: PartitionReader, topic: str | None = None) -> tuple[int, int]:
    """Start and end of the reader's partition; waits out the election of a leader. Raises KafkaException."""
    deadline = Deadline(_ELECTION_TIMEOUT_S)
    while True:
        try:
            return reader.watermarks(topic)
        except KafkaException as failure:
            if failure.args[0].code() not in NO_LEADER or deadline.is_over:
                raise
            time.sleep(_ELECTION_POLL_S)


def read_offset(connection: Connection, partition: int, any_reader: PartitionReader) -> tuple[OffsetTopic, list[str]]:
    """OFFSET of a partition, and warnings. A reader of any other of its topics asks where OFFSET begins and ends."""
    topic = connection.names.offset
    bounds = bounds_of(any_reader, topic)
    # With the policy, the next check has the same due time as in the owner.
    offset_topic = OffsetTopic(connection.names, partition, connection.policy)
    warnings: list[str] = []
    if bounds[0] > 0:
        # Compaction never moves the start of a log.
        warnings.append(
            f"{topic}[{partition}] begins at offset {bounds[0]}: records were deleted, perhaps with parked messages. "
            f"Workers do not serve this partition"
        )
    with open_reader(connection, topic, partition, committed=True) as reader:
        reader.start(bounds[0])
        fold_offset_topic(reader, offset_topic, bounds[1], never, _warn_of_strangers(topic, partition, warnings))
        offset_topic.position = max(offset_topic.position, bounds[1])
    if offset_topic.newer is not None:
        raise _of_later_release(topic, partition, *offset_topic.newer)
    return offset_topic, warnings


def _warn_of_strangers(topic: str, partition: int, warnings: list[str]) -> PassedOver:
    def passed_over(offset: int, error: MalformedRecordError) -> None:
        where = f"{topic}[{partition}] offset {offset}"
        warnings.append(f"{where} was skipped, because txbridge did not write it: {error}")

    return passed_over


def _of_later_release(topic: str, partition: int, offset: int, error: str) -> EnvironmentProblemError:
    return EnvironmentProblemError(
        f"{topic}[{partition}] offset {offset} was written by a later release of txbridge: {error}. Use that release"
    )


def _start(topic: str, partition: int, wanted: int, bounds: tuple[int, int]) -> int:
    """The offset to read from. Records that retention has deleted cannot be read; a log that ends too early was cut."""
    low, high = bounds
    if wanted > high:
        raise EnvironmentProblemError(
            f"{topic}[{partition}] ends at offset {high}, below offset {wanted} that a worker had reached: the log was "
            f"cut, or deleted and recreated. Restore it, {or_acknowledge(partition)}"
        )
    return max(wanted, low)


def _read_op(connection: Connection, view: PartitionView, start: int, end: int) -> Iterator[tuple[Outcome, list[int]]]:
    """Outcome and half offsets of each OP record of [start, end).

    Raises HangingTransactionError, LogGoneError, KafkaException.
    """
    topic, partition = connection.names.op, view.partition
    with open_reader(connection, topic, partition, committed=True) as reader:
        reader.start(start)
        passed_over = _warn_of_strangers(topic, partition, view.warnings)
        try:
            for _, outcome, half_offsets in read_ops(reader, view.offset_topic.checkpoint, end, never, passed_over):
                yield outcome, half_offsets
        except NewerOpError as error:
            raise _of_later_release(topic, partition, error.offset, str(error)) from error


def old_outcome(connection: Connection, view: PartitionView, half_offset: int) -> Outcome | None:
    """The outcome of a message below the low watermark, from all of OP; None when OP does not go back that far.

    Raises as `read_view`.
    """
    found = None
    with kafka_errors(f"reading {connection.names.op}[{view.partition}]"):
        with open_reader(connection, connection.names.op, view.partition, committed=False) as reader:
            low, high = bounds_of(reader)
        for outcome, half_offsets in _read_op(connection, view, low, high):
            if half_offset in half_offsets:
                found = outcome
    return found


def _read_end(connection: Connection, partition: int, start: int, stop: int | None) -> Iterator[DecisionRecord]:
    """Valid END records of [start, stop), or up to the log end. Malformed ones are skipped: they decide nothing."""
    with open_reader(connection, connection.names.end, partition, committed=True) as reader:
        end = bounds_of(reader)[1] if stop is None else stop
        reader.start(start)
        for message in reader.read_below(end, never):
            try:
                yield parse_end(offset_of(message), message.value(), headers_of(message))
            except MalformedRecordError:
                continue


@dataclass(frozen=True, slots=True)
class Applied:
    """Records of the topics after a worker has applied END beyond an offset."""

    #: By half offset, all outcomes in OP since the view was read, in their order.
    outcomes: Mapping[int, list[Outcome]]
    #: By half offset, the commands about it in END, from the view's next END offset to the command itself.
    commands: Mapping[int, list[DecisionCommand]]


def wait_applied(
    connection: Connection, view: PartitionView, end_offset: int, half_offsets: Collection[int], deadline: Deadline
) -> Applied | None:
    """Wait until the checkpoint has passed this END offset, and update the view's OFFSET. None at the deadline.

    Raises as `read_view`.
    """
    partition, names, offset_topic = view.partition, connection.names, view.offset_topic
    passed_over = _warn_of_strangers(names.offset, partition, view.warnings)
    with (
        kafka_errors(f"waiting for END offset {end_offset} of partition {partition} to be applied"),
        open_reader(connection, names.offset, partition, committed=True) as reader,
    ):
        reader.start(offset_topic.position)
        while offset_topic.checkpoint is None or offset_topic.checkpoint.end <= end_offset:
            # A short wait: the deadline, which a person chooses, is in whole seconds.
            for message in reader.poll(1_000, 0.1):
                fold_offset_record(offset_topic, message, passed_over)
            offset_topic.position = max(offset_topic.position, reader.position)
            if deadline.is_over and (offset_topic.checkpoint is None or offset_topic.checkpoint.end <= end_offset):
                return None
    outcomes: dict[int, list[Outcome]] = {offset: [] for offset in half_offsets}
    with kafka_errors(f"reading {names.op}[{partition}]"):
        # The OP records are in the same Kafka transaction as the checkpoint, whose markers come one partition after the
        # other. So OP is read to its true end, past transactions that are still open.
        with open_reader(connection, names.op, partition, committed=False) as uncommitted:
            end = bounds_of(uncommitted)[1]
        # From the view's position each time: an outcome may be older than the command that asks for it.
        for outcome, named in _read_op(connection, view, view.op_position, end):
            for offset in outcomes.keys() & set(named):
                outcomes[offset].append(outcome)
    commands: dict[int, list[DecisionCommand]] = {offset: [] for offset in half_offsets}
    with kafka_errors(f"reading {names.end}[{partition}]"):
        for record in _read_end(connection, partition, view.next_end, end_offset + 1):
            for command in commands_of(view.rest_of(record)):
                if command.entry.half_offset in commands:
                    commands[command.entry.half_offset].append(command)
    return Applied(outcomes, commands)
