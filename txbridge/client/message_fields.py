"""Arguments of a message, checked and converted to what a record holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeAlias

from txbridge.errors import UsageError

Data: TypeAlias = bytes | str | None
Headers: TypeAlias = Iterable[tuple[str, Data]] | Mapping[str, Data]


class Model(Protocol):
    """A model of pydantic's, which txbridge does not need."""

    def model_dump_json(self) -> str: ...


def serialized(value: Any, serializer: Callable[[Any, Any], Any], topic: str, headers: list[Any]) -> Any:
    """The value as the serializer makes it, which may add to the headers. Raises what it raises."""
    # Few messages need it.
    from confluent_kafka.serialization import MessageField, SerializationContext  # noqa: PLC0415

    return serializer(value, SerializationContext(topic, MessageField.VALUE, headers))


def body_of(value: Any) -> bytes | None:
    """The bytes of a value that has no serializer, or that comes from one."""
    if value is None or isinstance(value, bytes | str):
        return data_of(value, "value")
    if hasattr(value, "model_dump_json"):
        return _encoded(value.model_dump_json(), "value")
    raise UsageError(
        f"value must be bytes, text, None or a pydantic model, not {type(value).__name__}: json.dumps makes text of a "
        "dict, or give Message a serializer. One of asyncio is awaited before, and Message gets its bytes"
    )


def data_of(data: object, name: str) -> bytes | None:
    """The bytes of a key or a header."""
    if data is None or isinstance(data, bytes):
        return data
    if isinstance(data, str):
        return _encoded(data, name)
    raise UsageError(f"{name} must be bytes, text or None, not {type(data).__name__}")


def _encoded(text: str, name: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{name} cannot be encoded as UTF-8: {error.reason}") from None


def headers_of(headers: Headers) -> tuple[tuple[str, bytes | None], ...]:
    """The headers with their values as bytes."""
    if not headers:
        return ()
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    made = []
    try:
        for name, value in pairs:
            if not isinstance(name, str):
                raise UsageError(f"header names are text, not {type(name).__name__}")
            _encoded(name, "a header name")
            made.append((name, data_of(value, f"header {name!r}")))
    except (TypeError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError("headers must be pairs of name and value, or a mapping") from None
    return tuple(made)


def number_of(number: object, name: str) -> int | None:
    """The number, if it is one."""
    if number is not None and (not isinstance(number, int) or isinstance(number, bool)):
        raise UsageError(f"{name} must be a whole number or None, not {type(number).__name__}")
    return number
