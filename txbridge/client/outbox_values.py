"""The values of an outbox's row: which messages it takes, and headers as text. Outboxes of every library share it."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from txbridge.client.message import Message, check_content, check_units, now_ms
from txbridge.core.names import Headers, Names, is_group, is_transaction_id
from txbridge.errors import UsageError

#: Names of the environment do not matter to a message, which may go to no system topic of any namespace.
_NAMES = Names()
#: Key of a header's value that is not text: `{"base64": "..."}`.
_BASE64 = "base64"

#: The first header of a row that was stored because Kafka was away: what must be applied before it. Never sent.
AFTER = "TXB_AFTER"


class EarlierEnd(NamedTuple):
    """A transaction that was committed before a row was stored, and whose END its sender has not seen acknowledged."""

    group: str
    transaction_id: str
    half_partition: int
    half_offset: int


def check_for_outbox(message: Message) -> None:
    """Raise UsageError for a message that no relay could send."""
    check_content(message, _NAMES)
    if message.check_immunity_time is not None:
        raise UsageError("check_immunity_time has no meaning in an outbox: no check asks about its rows")


def row_of_message(message: Message) -> dict[str, object]:
    """The row of a message by the names of the columns of `txbridge_outbox`, without its id.

    Raises UsageError for a message that no relay could send.
    """
    check_for_outbox(message)
    check_units(message)
    return _row_of(message)


def _row_of(message: Message) -> dict[str, object]:
    return {
        "topic": message.topic,
        "key": message.key,
        "value": message.value,
        "headers": encode_headers(message.headers),
        "partition": message.partition,
        "timestamp": message.timestamp,
        "deliver_at": message.deliver_at,
        "created_at": now_ms(),
    }


def row_after(message: Message, ends: list[EarlierEnd]) -> dict[str, object]:
    """The row of a message that was meant for Kafka, to be sent after these ENDs and all others of its key."""
    return _row_of(message) | {"headers": encode_headers(((AFTER, json.dumps(ends).encode()), *message.headers))}


def decode_after(text: Any) -> tuple[EarlierEnd, ...]:
    """The ENDs in a header `AFTER`. Raises UsageError for a text that `row_after` does not write."""
    try:
        ends = tuple(EarlierEnd(*end) for end in json.loads(text))
    except (TypeError, ValueError):
        ends = (EarlierEnd("", "", -1, -1),)
    for group, transaction_id, *numbers in ends:
        are_numbers = all(isinstance(number, int) and number >= 0 for number in numbers)
        if not (is_group(str(group)) and is_transaction_id(str(transaction_id)) and are_numbers):
            raise UsageError(f"the header {AFTER} is not as a listener with an outbox writes it")
    return ends


def message_of_row(row: Mapping[str, Any]) -> tuple[Message, tuple[EarlierEnd, ...]]:
    """The message of a row as `row_of_message` and `row_after` make it, and the ENDs before it."""
    headers = decode_headers(row["headers"] or "[]")
    after = decode_after(headers.pop(0)[1]) if headers and headers[0][0] == AFTER else ()
    fields = (row["timestamp"], row["partition"], None, row["deliver_at"])
    return Message(row["topic"], row["value"], row["key"], headers, *fields), after


def encode_headers(headers: Headers) -> str | None:
    """Headers as the text of a column; None if there are none.

    It is a JSON list of pairs. A value is text, null, or an object with its bytes as base64. All characters are ASCII,
    so that a database of any encoding can store it.
    """
    if not headers:
        return None
    return json.dumps([[name, _encode(value)] for name, value in headers])


def _encode(value: bytes | None) -> object:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {_BASE64: base64.b64encode(value).decode()}


def decode_headers(text: str) -> list[tuple[str, str | bytes | None]]:
    """The headers in a column. Raises UsageError for text that is not as `encode_headers` writes it.

    A JSON object is read, too, as many outboxes store headers. Its values that are no text become JSON text.
    """
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"the headers are not JSON: {error}") from None
    if found is None:
        return []
    if isinstance(found, dict):
        return [(name, _decode(value)) for name, value in found.items()]
    pairs = found if isinstance(found, list) else [None]
    if not all(isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs):
        raise UsageError(
            'the headers are neither an object nor pairs as in [["name", "text"], ["name", {"base64": "AA=="}]]'
        )
    return [(name, _decode(value)) for name, value in found]


def _decode(value: object) -> str | bytes | None:
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, dict) or list(value) != [_BASE64]:
        return json.dumps(value)
    try:
        return base64.b64decode(value[_BASE64], validate=True)
    except (TypeError, ValueError):
        raise UsageError("a header's base64 cannot be decoded") from None
