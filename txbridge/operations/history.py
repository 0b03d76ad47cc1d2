"""The whole history of one transaction, finished or not, from the topics alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import dropwhile

from confluent_kafka import KafkaException, Message

from txbridge.core import names as header_names
from txbridge.core.checkpoint import parse_op
from txbridge.core.decision_record import COMMANDS, Source, parse_end
from txbridge.core.half_message import HalfMessage
from txbridge.core.headers import MalformedRecordError
from txbridge.core.names import short_id
from txbridge.core.states import TransactionState
from txbridge.deadline import Deadline
from txbridge.errors import EnvironmentProblemError, UsageError
from txbridge.kafka.admin import REQUEST_TIMEOUT_S
from txbridge.kafka.body_cache import to_half
from txbridge.kafka.errors import MISSING, is_denied
from txbridge.kafka.headers import copyable_headers, headers_of, offset_of
from txbridge.operations.connection import Connection, kafka_errors, start_since
from txbridge.operations.listing import barrier_of, is_id_prefix, only_one, parse_place
from txbridge.operations.reading import never, open_reader, read_view
from txbridge.text import counted

#: Longest search of HALF for an id (s). A second reads some hundred thousand records; coordinates need just one.
SEARCH_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Step:
    """One event, at ms since 1970 UTC."""

    at: int
    what: str
    detail: str = ""
    #: Whether it is an END that no worker obeys.
    is_refused: bool = False


@dataclass(frozen=True, slots=True)
class History:
    """Everything that the topics hold about a transaction, oldest first. It never has the whole id."""

    partition: int
    half_offset: int
    short_id: str
    group: str
    real_topic: str
    born: int
    size: int
    #: pending, held, scheduled, discarded, or how it ended.
    state: str
    steps: Sequence[Step]
    #: Topics that could not be read, and why.
    missing: Sequence[str]


def read_history(connection: Connection, target: str) -> History:
    """The history of the transaction at `<partition>:<half offset>`, or whose id begins so (8 to 32 characters).

    An id is searched for in HALF, for at most SEARCH_TIMEOUT_S. Raises UsageError when there is no such transaction,
    HangingTransactionError, KafkaUnreachableError, EnvironmentProblemError.
    """
    half, partition = _find(connection, target.strip())
    view = read_view(connection, partition)
    message = view.find_open(half.offset)
    missing: list[str] = []
    names, where = connection.names, f"{partition}:{half.offset}".encode()

    def since_birth(topic: str, only: int | None, look: Callable[[Message], Iterator[Step]]) -> list[Step]:
        return list(_collect(connection, topic, only, half.born, look, missing))

    outcomes = since_birth(names.op, partition, lambda record: _op_steps(record, half.offset))
    steps = [
        Step(half.born, "prepared", _prepared(half)),
        *since_birth(names.end, partition, lambda record: _end_steps(record, half)),
        *outcomes,
        *since_birth(names.check(half.group), None, lambda record: _check_steps(record, where)),
        *since_birth(names.discard, None, lambda record: _discard_steps(record, where)),
    ]
    steps.sort(key=lambda step: step.at)
    if message is not None:
        state = message.state.value
        if message.state is TransactionState.HELD and message.error:
            steps.append(Step(_now(), "not delivered yet", ": ".join(filter(None, (message.progress, message.error)))))
        if message.state is TransactionState.SCHEDULED and message.deliver_at is not None:
            at = datetime.fromtimestamp(message.deliver_at / 1000, UTC).isoformat(timespec="milliseconds")
            what = "not all delivered yet" if message.delivered else "not delivered yet"
            detail = f"{message.progress}, next at {at}" if message.delivered else f"to be delivered at {at}"
            steps.append(Step(_now(), what, detail))
    else:
        state = outcomes[-1].what if outcomes else "finished, but OP does not go back that far"
        if state == "abandoned" and _is_cancelled(steps):
            state = "cancelled"
    return History(
        partition=partition,
        half_offset=half.offset,
        short_id=short_id(half.transaction_id),
        group=half.group,
        real_topic=half.real_topic,
        born=half.born,
        size=half.size,
        state=state,
        steps=steps,
        missing=missing,
    )


def _is_cancelled(steps: Iterable[Step]) -> bool:
    """Whether the application has given it up: the first command after the commit that may have an effect."""
    ends = [step.what for step in steps if not step.is_refused]
    after = dropwhile(lambda what: what != "END commit", ends)
    return next((what for what in after if what in ("END abandon", "END cancel")), "") == "END cancel"


def _prepared(half: HalfMessage) -> str:
    several = "" if half.messages is None else f", {counted(half.messages, 'message')}"
    barrier_id = barrier_of(half)
    where = "" if barrier_id is None else f", barrier table {barrier_id}"
    return f"{half.size} bytes{several} for {half.real_topic}, by group {half.group}{where}"


def _now() -> int:
    return time.time_ns() // 1_000_000


def _find(connection: Connection, target: str) -> tuple[HalfMessage, int]:
    if is_id_prefix(target):
        return _find_id(connection, target)
    partition, offset = parse_place(connection, target)
    for record in _records(connection, connection.names.half, partition, offset, offset + 1):
        try:
            return to_half(record, connection.names), partition
        except MalformedRecordError as error:
            raise UsageError(f"the record at {target} is not a half message: {error}") from None
    raise UsageError(f"there is no half message at {target}: HALF ends before it, or retention has removed it")


def _find_id(connection: Connection, target: str) -> tuple[HalfMessage, int]:
    # By id: a half message may stand in HALF more than once, and the first one counts.
    found = dict[str, tuple[HalfMessage, int]]()
    for half, partition in _with_id(connection, target):
        found.setdefault(half.transaction_id, (half, partition))
        if target in {half.transaction_id, half.delivered_id}:
            break
    if (one := only_one([*found.values()], target, lambda it: f"{it[1]}:{it[0].offset}")) is not None:
        return one
    shown = f"{short_id(target)}..."
    raise UsageError(f"HALF has no half message with the transaction id {shown}; retention may have removed it")


def _with_id(connection: Connection, begin: str) -> Iterator[tuple[HalfMessage, int]]:
    """The half messages whose id, or that of their delivered messages, begins so, and their partitions."""
    deadline = Deadline(SEARCH_TIMEOUT_S)
    for partition in range(connection.partitions):
        for record in _records(connection, connection.names.half, partition, 0, None):
            with suppress(MalformedRecordError):
                half = to_half(record, connection.names)
                if half.transaction_id.startswith(begin) or half.delivered_id.startswith(begin):
                    yield half, partition
            if deadline.is_over:
                raise EnvironmentProblemError(
                    f"HALF could not be searched for {short_id(begin)}... within {SEARCH_TIMEOUT_S:g} s: give "
                    f"<partition>:<half offset>; logs and the delivered message's header TXB_HALF have them"
                )


def _records(
    connection: Connection, topic: str, partition: int, start: int, end: int | None, *, committed: bool = False
) -> Iterator[Message]:
    """Records of a partition from `start` (or the log start, if that is later) to `end` (or the current log end)."""
    with (
        kafka_errors(f"reading {topic}[{partition}]"),
        # A reader of committed records does not see the end of the log.
        open_reader(connection, topic, partition, committed=False) as uncommitted,
        open_reader(connection, topic, partition, committed=committed) as reader,
    ):
        low, high = uncommitted.watermarks()
        stop = high if end is None else min(end, high)
        start = max(start, low)
        if start < stop:
            reader.start(start)
            yield from reader.read_below(stop, never)


def _collect(
    connection: Connection,
    topic: str,
    partition: int | None,
    born: int,
    look: Callable[[Message], Iterator[Step]],
    missing: list[str],
) -> Iterator[Step]:
    """The steps that `look` finds in the records since birth. A topic that this user may not read goes to `missing`."""
    try:
        for number in _partitions(connection, topic) if partition is None else [partition]:
            start = start_since(connection, topic, number, born)
            if start is not None:
                for record in _records(connection, topic, number, start, None, committed=True):
                    yield from look(record)
    except KafkaException as failure:
        error = failure.args[0]
        if error.code() in MISSING:
            return
        if not is_denied(error):
            raise EnvironmentProblemError(f"{topic} cannot be read: {error.str()}") from failure
        missing.append(f"missing right READ on topic {topic}")
    except TimeoutError as failure:
        raise EnvironmentProblemError(f"{topic} cannot be read: Kafka does not answer in time") from failure
    except EnvironmentProblemError as error:
        if not isinstance(error.__cause__, KafkaException) or not is_denied(error.__cause__.args[0]):
            raise
        missing.append(f"missing right READ on topic {topic}")


def _partitions(connection: Connection, topic: str) -> range:
    """Raises KafkaException when there is no such topic, or it is hidden from this user."""
    return range(len(connection.cluster.describe_topics([topic], REQUEST_TIMEOUT_S)[topic].result().partitions))


def _end_steps(record: Message, half: HalfMessage) -> Iterator[Step]:
    value = record.value() or b""
    # A cheap test first: END is long, and few of its records name this message.
    if b"%d," % half.offset not in value:
        return
    try:
        end = parse_end(offset_of(record), value, headers_of(record))
    except MalformedRecordError:
        return
    for entry in end.entries:
        if entry.half_offset == half.offset and end.source is not Source.FIND:
            wrong = "group" if end.group != half.group else ""
            if entry.transaction_id != half.transaction_id:
                wrong = "transaction id"
            forged = f" (refused: wrong {wrong})" if wrong else ""
            asked = f", answer to check {entry.check_times}" if entry.check_times else ""
            who = " ".join(filter(None, (end.source.value, end.client_id)))
            detail = f"{who}, END offset {end.offset}{asked}{forged}{': ' if entry.remark else ''}{entry.remark or ''}"
            what = end.source.value if end.source in COMMANDS else entry.decision.name.lower()
            yield Step(record.timestamp()[1], f"END {what}", detail, bool(wrong))


def _op_steps(record: Message, offset: int) -> Iterator[Step]:
    if b"%d" % offset not in (record.value() or b""):
        return
    try:
        outcome, offsets = parse_op(record.value(), headers_of(record))
    except MalformedRecordError:
        return
    if offset in offsets:
        past = {"commit": "delivered", "rollback": "rolled back", "discard": "discarded", "abandon": "abandoned"}
        yield Step(record.timestamp()[1], past[outcome.value], f"OP offset {offset_of(record)}")


def _check_steps(record: Message, where: bytes) -> Iterator[Step]:
    headers = dict(copyable_headers(record))
    if headers.get(header_names.HALF_COORDINATES) == where and header_names.REPLY not in headers:
        times = (headers.get(header_names.CHECK_TIMES) or b"?").decode(errors="replace")
        yield Step(record.timestamp()[1], f"check {times} sent")


def _discard_steps(record: Message, where: bytes) -> Iterator[Step]:
    headers = dict(copyable_headers(record))
    if headers.get(header_names.HALF_COORDINATES) == where:
        reason = (headers.get(header_names.REASON) or b"?").decode(errors="replace")
        place = f"{record.partition()}:{offset_of(record)}"
        count = headers.get(header_names.DELIVERED)
        after = "" if count is None else f" after {count.decode(errors='replace')} of its messages were delivered"
        yield Step(record.timestamp()[1], "set aside", f"{reason}{after}, at {place} of the discard topic")
