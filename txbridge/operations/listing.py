"""Lists of open messages, from the topics alone, and lookup of the one that a person names."""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from heapq import nsmallest
from typing import TypeVar
from urllib.parse import unquote

from txbridge.core.half_message import HalfMessage, parse_coordinates
from txbridge.core.headers import MalformedRecordError, OurHeaders
from txbridge.core.names import BARRIER, short_id
from txbridge.core.states import Outcome, TransactionState
from txbridge.errors import KafkaUnreachableError, TxBridgeError, UsageError
from txbridge.kafka.body_cache import BodyCache
from txbridge.operations.causes import GroupStates, cause_if
from txbridge.operations.connection import Connection, kafka_errors, start_since
from txbridge.operations.model import Listing, OpenMessage, Selection
from txbridge.operations.reading import (
    bounds_of,
    never,
    old_outcome,
    open_reader,
    read_view,
    read_views,
    try_read_views,
)
from txbridge.operations.view import PartitionView

#: A call in a parameter's default would look as if it were made for each call.
_DEFAULT = Selection()

#: An answer "unknown" with a remark: half offset, transaction id, remark. It is a pattern for the whole value, because
#: END is long and such answers are rare.
_REMARK = re.compile(rb"^(\d{1,19}),([0-9A-F]{32}),0,\d*,(.+)$", re.MULTILINE)


def list_pending(connection: Connection, selection: Selection = _DEFAULT, *, errors: bool = True) -> Listing:
    """Open messages, oldest first: pending and held ones unless the selection says otherwise.

    `errors` also looks in END for the remark of the last "unknown" about each. That reads END from the birth of the
    oldest message listed. A partition that cannot be read does not hide the others: the listing names it.

    Raises UsageError for a partition that does not exist, and KafkaUnreachableError. When no partition can be read, it
    raises HangingTransactionError (a Kafka transaction hangs in an internal topic) or EnvironmentProblemError.
    """
    if selection.partition is not None:
        connection.require_partition(selection.partition)
    wanted = range(connection.partitions) if selection.partition is None else [selection.partition]
    views, unread = _read(connection, wanted)
    now = time.time_ns() // 1_000_000
    problem_of = GroupStates(connection).problem_of
    causes, left_out = Counter[str](), Counter[TransactionState]()

    def fitting() -> Iterator[OpenMessage]:
        for view in views:
            for message in view.open_messages():
                cause = cause_if(selection, message, now, problem_of)
                if cause is not None:
                    causes[cause] += 1
                    yield message
                else:
                    left_out[message.state] += 1

    # A million messages may be open: only those that are shown are kept in memory.
    chosen = sorted(fitting(), key=_age) if selection.limit is None else nsmallest(selection.limit, fitting(), key=_age)
    warnings = [warning for view in views for warning in view.warnings]
    detailed, without = _with_details(connection, chosen, errors=errors)
    unread |= without
    return Listing(detailed, causes.total(), now, warnings, unread, dict(causes.most_common()), left_out)


def list_discarded(connection: Connection, selection: Selection = _DEFAULT, *, errors: bool = True) -> Listing:
    """Discarded messages that can be resumed, oldest first; otherwise like `list_pending`."""
    discarded = replace(selection, states=frozenset({TransactionState.DISCARDED}))
    return list_pending(connection, discarded, errors=errors)


def _read(connection: Connection, partitions: Sequence[int]) -> tuple[list[PartitionView], dict[int, str]]:
    """The views of partitions that can be read, and for each other partition the reason."""
    views: list[PartitionView] = []
    failures: dict[int, TxBridgeError] = {}
    for partition, found in zip(partitions, try_read_views(connection, partitions), strict=True):
        if isinstance(found, PartitionView):
            views.append(found)
        else:
            failures[partition] = found
    unreachable = (error for error in failures.values() if isinstance(error, KafkaUnreachableError))
    error = next(unreachable, None if views else next(iter(failures.values())))
    if error is not None:
        raise error
    return views, {partition: str(error) for partition, error in failures.items()}


def _age(message: OpenMessage) -> tuple[int, int, int]:
    return message.born, message.partition, message.half_offset


def _with_details(
    connection: Connection, messages: list[OpenMessage], *, errors: bool
) -> tuple[list[OpenMessage], dict[int, str]]:
    """The same messages in the same order, with the details of other records: key, loss of the body, last remark.

    For each partition whose details cannot be read there is the reason. Raises KafkaUnreachableError.
    """
    by_partition: dict[int, list[OpenMessage]] = defaultdict(list)
    for message in messages:
        by_partition[message.partition].append(message)
    detailed: dict[tuple[int, int], OpenMessage] = {}
    without: dict[int, str] = {}
    for partition, here in by_partition.items():
        unexplained = [message for message in here if message.error is None]
        try:
            remarks = last_remarks(connection, partition, unexplained) if errors and unexplained else {}
            found = with_keys(connection, partition, here)
        except KafkaUnreachableError:
            raise
        except TxBridgeError as problem:
            without[partition] = f"its messages are listed without keys and last errors; {problem}"
            continue
        for message in found:
            error = remarks.get(message.half_offset) if message.error is None else message.error
            detailed[partition, message.half_offset] = replace(message, error=error)
    return [detailed.get((message.partition, message.half_offset), message) for message in messages], without


def with_keys(connection: Connection, partition: int, messages: Collection[OpenMessage]) -> list[OpenMessage]:
    """The same messages of one partition with keys and barriers, and whether their bodies are gone.

    Raises as `read_view`.
    """
    topic = connection.names.half
    with (
        kafka_errors(f"reading {topic}[{partition}]"),
        open_reader(connection, topic, partition, committed=False) as reader,
    ):
        # A budget of 0 bytes: each body is used once.
        bodies = BodyCache(0, connection.names, reader).load(message.half_offset for message in messages)
    return [
        replace(message, gone=True)
        if (half := bodies.get(message.half_offset)) is None
        else replace(message, key=half.key, barrier_id=barrier_of(half))
        for message in messages
    ]


def barrier_of(half: HalfMessage) -> str | None:
    return OurHeaders(half.headers).find_text(BARRIER)


def last_remarks(connection: Connection, partition: int, messages: Collection[OpenMessage]) -> dict[int, str]:
    """The remark of the last "unknown" about each of these, by half offset. Raises as `read_view`.

    END is read from the birth of the oldest message to its end, which takes most of the time in a busy partition.
    """
    ids = {message.half_offset: message.transaction_id.encode() for message in messages}
    born = min(message.born for message in messages)
    remarks: dict[int, str] = {}
    with kafka_errors(f"reading {connection.names.end}[{partition}]"):
        start = start_since(connection, connection.names.end, partition, born)
        if start is None:
            return remarks
        with open_reader(connection, connection.names.end, partition, committed=True) as reader:
            reader.start(start)
            for message in reader.read_to(bounds_of(reader)[1], never):
                for offset, transaction_id, remark in _REMARK.findall(message.value() or b""):
                    if ids.get(int(offset)) == transaction_id:
                        remarks[int(offset)] = unquote(remark.decode(errors="replace"), errors="replace")
    return remarks


#: At least as many characters of an id as are shown; fewer would not protect against a mistyped offset.
_ID_PREFIX = re.compile(r"[0-9A-F]{8,32}\Z")

_Found = TypeVar("_Found")

_PAST = {
    Outcome.COMMIT: "it was committed and delivered",
    Outcome.ROLLBACK: "it was rolled back",
    Outcome.DISCARD: "it was discarded, and can no longer be resumed",
    Outcome.ABANDON: "it was committed, and abandoned by an operator or cancelled by the application",
}


class FinishedError(TxBridgeError):
    """Messages have changed since the caller looked at them: one is finished, for example. Nothing was written."""


def find_target(connection: Connection, target: str, id_prefix: str | None) -> tuple[PartitionView, OpenMessage]:
    """Find the open message that `target` names, by coordinates or the beginning of its id, and its partition.

    `id_prefix` guards against a mistyped offset: the id of the message must begin with it.
    Raises UsageError when there is no such message, FinishedError when it is finished, and as `read_view`.
    """
    target = target.strip()
    if id_prefix is not None and not is_id_prefix(id_prefix):
        raise UsageError(
            f"--id takes the first 8 to 32 characters of a transaction id (0-9 A-F), not {id_prefix[:40]!r}"
        )
    view, message = _by_id(connection, target) if is_id_prefix(target) else _by_place(connection, target)
    if id_prefix is not None and not message.transaction_id.startswith(id_prefix):
        raise UsageError(
            f"the half message at {message.coordinates} has the transaction id {message.short_id}..., not "
            f"{short_id(id_prefix)}...: nothing was done. `txbridge pending` lists what is open"
        )
    return view, message


def is_id_prefix(text: str) -> bool:
    """Whether this is a transaction id, or as much of one as commands and logs show."""
    return _ID_PREFIX.match(text) is not None


def only_one(found: Sequence[_Found], target: str, coordinates: Callable[[_Found], str]) -> _Found | None:
    """The only message whose id begins with `target`, or None. Raises UsageError when there are several."""
    if len(found) > 1:
        listed = " and ".join(map(coordinates, found))
        raise UsageError(f"the half messages at {listed} have ids that begin with {short_id(target)}: give coordinates")
    return found[0] if found else None


def _by_id(connection: Connection, target: str) -> tuple[PartitionView, OpenMessage]:
    found = [
        (view, message)
        for view in read_views(connection)
        for message in view.open_messages()
        if message.transaction_id.startswith(target)
    ]
    if (one := only_one(found, target, lambda it: it[1].coordinates)) is not None:
        return one
    raise UsageError(
        f"no open half message has the transaction id {short_id(target)}...: it is finished, or was never prepared in "
        f"this namespace. Give <partition>:<half offset> instead of the id to find out which"
    )


def parse_place(connection: Connection, target: str) -> tuple[int, int]:
    """Partition and half offset of `<partition>:<half offset>`. Raises UsageError."""
    try:
        partition, half_offset = parse_coordinates(target)
    except MalformedRecordError:
        # It may be most of a transaction id, so no more of it is shown than of one.
        shown = f"{short_id(target)}..." if len(target) > len(short_id(target)) else target
        raise UsageError(
            f"{shown!r} is not the address of a half message: give <partition>:<half offset>, as in 0:42, or 8 to "
            f"32 characters of a transaction id (0-9 A-F); `txbridge pending` lists what is open"
        ) from None
    connection.require_partition(partition)
    return partition, half_offset


def _by_place(connection: Connection, target: str) -> tuple[PartitionView, OpenMessage]:
    partition, half_offset = parse_place(connection, target)
    view = read_view(connection, partition)
    if view.outcome_of(half_offset) is Outcome.DISCARD:
        # OP is read after OFFSET: the message may have been discarded in between, and its parked entry is there now.
        view = read_view(connection, partition)
    message = view.find_open(half_offset)
    if message is not None:
        return view, message
    half = f"{connection.names.half}[{partition}]"
    if half_offset >= view.half_end:
        raise UsageError(f"there is no half message at {target}: {half} ends at offset {view.half_end}")
    outcome = view.outcome_of(half_offset) or old_outcome(connection, view, half_offset)
    if outcome is not None:
        raise FinishedError(f"{target} is finished: {_PAST[outcome]}. Nothing was written")
    if half_offset >= view.watermark:
        raise UsageError(f"the record at {target} is not a half message: txbridge did not write it")
    raise FinishedError(
        f"{target} is finished, or was never a half message: everything below offset {view.watermark} is settled, and "
        f"OP does not go back that far. Nothing was written"
    )
