"""Records that the worker makes of a half message: delivered messages, check requests, and discarded copies."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from typing import Any

from txbridge.core import names
from txbridge.core.half_message import HalfMessage
from txbridge.core.headers import MalformedRecordError, whole_number

#: A record for a real topic: half offset, topic, value, key, partition (-1: by the key), timestamp and headers. A plain
#: tuple in the order in which confluent-kafka takes its arguments: one is made for every message.
Copy = tuple[int, str, Any, Any, int, int, list[tuple[str, bytes | None]]]


def coordinates(partition: int, offset: int) -> bytes:
    """Half coordinates as header TXB_HALF carries them."""
    return b"%d:%d" % (partition, offset)


def parse_coordinates(text: str) -> tuple[int, int]:
    """Partition and offset out of TXB_HALF. Raises MalformedRecordError."""
    partition, colon, offset = text.partition(":")
    if not colon:
        raise MalformedRecordError(f"{names.HALF_COORDINATES} is not <partition>:<offset>: {text[:40]!r}")
    return whole_number(partition, names.HALF_COORDINATES), whole_number(offset, names.HALF_COORDINATES)


def delivered_copies(half: HalfMessage, partition: int, due: Collection[int] | None = None) -> Iterator[Copy]:
    """Records that a commit delivers: one, or those of several messages of the transaction, in their order.

    `due`: indices of the messages, if these are not all of them. The records have the user's headers, an id and the
    half coordinates.
    """
    identity = (names.UNIQ_KEY, half.delivered_id.encode())
    where = (names.HALF_COORDINATES, coordinates(partition, half.offset))
    if half.messages is None:
        to = -1 if half.real_partition is None else half.real_partition
        headers = [*half.users, identity, where]
        yield half.offset, half.real_topic, half.value, half.key, to, half.delivered_timestamp, headers
        return
    messages = half.framed
    for index, (number, message) in enumerate(zip(_message_numbers(len(messages)), messages, strict=True)):
        if due is not None and index not in due:
            continue
        topic, key, value, users, real_partition, timestamp, _ = message
        headers = [*users, identity, where, number]
        to, when = -1 if real_partition is None else real_partition, half.born if timestamp is None else timestamp
        yield half.offset, topic, value, key, to, when, headers


@lru_cache(16)
def _message_numbers(count: int) -> Sequence[tuple[str, bytes]]:
    """Header TXB_MESSAGE of each of `count` messages. At most a thousand."""
    return [(names.MESSAGE_NUMBER, b"%d/%d" % (number, count)) for number in range(1, count + 1)]


def copy_headers(half: HalfMessage, partition: int, checks: int, end_position: int) -> list[tuple[str, bytes | None]]:
    """Headers of a discarded message: all of the half message's, then the history."""
    return [
        *half.headers,
        (names.CHECK_TIMES, b"%d" % checks),
        (names.HALF_COORDINATES, coordinates(partition, half.offset)),
        (names.END_POSITION, b"%d" % end_position),
    ]


def check_headers(half: HalfMessage, partition: int, checks: int, end_position: int) -> list[tuple[str, bytes | None]]:
    """Headers of a check request. They name the time of birth, because the record's timestamp is that of the check."""
    return [*copy_headers(half, partition, checks, end_position), (names.BORN, b"%d" % half.born)]
