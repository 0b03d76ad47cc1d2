"""JSON fields of the values in OFFSET: written in one way, and refused unless a worker may have written them."""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import from_json

from txbridge.core.headers import LARGEST_NUMBER, MalformedRecordError


def number(value: Any) -> int:
    # Not int(): a worker writes numbers, and a guess about a state is worse than none.
    if type(value) is not int or not 0 <= value <= LARGEST_NUMBER:
        raise TypeError(f"not a whole number: {value!r:.40}")
    return value


def text(value: Any) -> str:
    # JSON can hold half a surrogate pair, which cannot be encoded, not even for a log.
    if not isinstance(value, str) or value.encode(errors="ignore").decode() != value:
        raise TypeError(f"not a text: {value!r:.40}")
    return value


def short(error: Exception) -> str:
    """The error for a log. Keys and values of unknown writers may be a megabyte long."""
    return f"{error!r:.200}"


def dump(data: dict[str, Any]) -> bytes:
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")


def load(value: bytes) -> dict[str, Any]:
    try:
        # Three times as fast as the standard library: a take-over may read a million values.
        data = from_json(value)
    except ValueError as error:
        raise MalformedRecordError(f"not JSON: {error}") from None
    if not isinstance(data, dict):
        raise MalformedRecordError("not a JSON object")
    return data
