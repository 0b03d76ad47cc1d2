"""Lists of open messages, from the topics alone, with or without a worker, and the details of their messages."""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from heapq import nsmallest
from urllib.parse import unquote

from txbridge.core.half_message import HalfMessage
from txbridge.core.headers import OurHeaders
from txbridge.core.names import BARRIER
from txbridge.core.states import TransactionState
from txbridge.errors import KafkaUnreachableError, TxBridgeError
from txbridge.kafka.body_cache import BodyCache
from txbridge.operations.causes import GroupStates, cause_if
from txbridge.operations.connection import Connection, admin_client, kafka_errors, start_since
from txbridge.operations.model import Listing, OpenMessage, Selection
from txbridge.operations.reading import bounds_of, never, open_reader, try_read_views
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
        start = start_since(admin_client(connection), connection.names.end, partition, born)
        if start is None:
            return remarks
        with open_reader(connection, connection.names.end, partition, committed=True) as reader:
            reader.start(start)
            for message in reader.read_to(bounds_of(reader)[1], never):
                for offset, transaction_id, remark in _REMARK.findall(message.value() or b""):
                    if ids.get(int(offset)) == transaction_id:
                        remarks[int(offset)] = unquote(remark.decode(errors="replace"), errors="replace")
    return remarks
