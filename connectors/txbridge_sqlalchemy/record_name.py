"""Names of the records of real topics, which recognise a record that is read again."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from txbridge.core.names import HALF_COORDINATES, UNIQ_KEY, is_transaction_id
from txbridge.errors import UsageError

#: `i/n`, in records of a transaction with several messages: the i-th of n, from 1.
_MESSAGE = "TXB_MESSAGE"
_OF = re.compile(r"([1-9]\d{0,5})/([1-9]\d{0,5})\Z")


class RecordName(NamedTuple):
    """Name of a record. It is the same for every copy of a message that txbridge delivered, at any offset."""

    #: The transaction id; of a record that txbridge has not delivered, its coordinates.
    source: str
    #: Number of the message within its transaction, from 1.
    number: int


def name_of(record: Any) -> RecordName:
    """Name a record of confluent-kafka, aiokafka or kafka-python.

    Raises UsageError if it is no record.
    """
    error = getattr(record, "error", None)
    if callable(error) and error() is not None:
        raise UsageError(
            f"this is not a record but an error of the consumer, which the application has to handle: {error()}"
        )
    try:
        headers = _read(record, "headers") or ()
        ours = _ours(headers)
        if ours is not None:
            return ours
        topic, partition, offset = (_read(record, name) for name in ("topic", "partition", "offset"))
        timestamp = _read(record, "timestamp")
    except (AttributeError, TypeError, ValueError):
        raise UsageError(
            f"a record of confluent-kafka, aiokafka or kafka-python is needed, not {type(record).__name__}"
        ) from None
    if isinstance(timestamp, tuple):
        timestamp = timestamp[1]
    # With the time, because a topic that was deleted and created again has other records at the same offsets.
    return RecordName(f"{topic}:{partition}:{offset}@{max(timestamp or 0, 0)}", 1)


def _read(record: Any, name: str) -> Any:
    """Read a field: a method in confluent-kafka, an attribute in the others."""
    found = getattr(record, name)
    return found() if callable(found) else found


def _ours(headers: Iterable[tuple[str, bytes | None]]) -> RecordName | None:
    """The name of a record that txbridge delivered, else None. Others may have one of these headers by chance."""
    values: dict[str, list[bytes | None]] = {UNIQ_KEY: [], HALF_COORDINATES: [], _MESSAGE: []}
    for name, value in headers:
        if name in values:
            values[name].append(value)
    if len(values[UNIQ_KEY]) != 1 or len(values[HALF_COORDINATES]) != 1:
        return None
    transaction_id = _text(values[UNIQ_KEY][0])
    if not is_transaction_id(transaction_id):
        return None
    if not values[_MESSAGE]:
        return RecordName(transaction_id, 1)
    place = _OF.match(_text(values[_MESSAGE][0])) if len(values[_MESSAGE]) == 1 else None
    if place is None or int(place[1]) > int(place[2]):
        return None
    return RecordName(transaction_id, int(place[1]))


def _text(value: bytes | None) -> str:
    return (value or b"").decode("ascii", "replace")
