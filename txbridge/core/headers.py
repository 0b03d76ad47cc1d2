"""Reading our headers out of a Kafka record: strict, because whoever can write to a topic may write anything."""

from __future__ import annotations

from collections.abc import Iterator

from txbridge.core.names import PROTOCOL_VERSION, VERSION, Headers


class MalformedRecordError(Exception):
    """The record is not ours or breaks a rule of docs/protocol.md (the text says which): it is set aside."""


class OurHeaders:
    """Our headers of one record. A user's header may repeat, one of ours may not."""

    __slots__ = ("_headers", "_values")

    def __init__(self, headers: Headers | None) -> None:
        self._headers = headers or ()
        self._values = dict(self._headers)

    def __iter__(self) -> Iterator[str]:
        """The names of all headers, each once."""
        return iter(self._values)

    def require_version(self, what: str) -> None:
        """Raise MalformedRecordError unless the record speaks our protocol version."""
        version = self.optional(VERSION)
        if version is None:
            raise MalformedRecordError(f"not a record of txbridge: no header {VERSION}, so it is no {what}")
        if version != PROTOCOL_VERSION.decode():
            raise MalformedRecordError(f"{VERSION}={version[:20]!r} is not a version that this worker knows")

    def optional(self, name: str) -> str | None:
        if name not in self._values:
            return None
        if len(self._values) < len(self._headers):
            times = sum(other == name for other, _ in self._headers)
            if times > 1:
                raise MalformedRecordError(f"header {name} is there {times} times")
        value = self._values[name]
        if value is None:
            raise MalformedRecordError(f"header {name} is null")
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise MalformedRecordError(f"header {name} is not UTF-8") from None

    def required(self, name: str) -> str:
        value = self.optional(name)
        if value is None:
            raise MalformedRecordError(f"header {name} is missing")
        return value

    def optional_number(self, name: str) -> int | None:
        text = self.optional(name)
        return None if text is None else whole_number(text, f"header {name}")


#: Kafka's offsets, partitions and timestamps fit into a signed 64-bit integer.
LARGEST_NUMBER = 2**63 - 1


def whole_number(text: str, what: str) -> int:
    """Decimal digits only: int() would also take signs, spaces, underscores and other alphabets' digits."""
    if not (text.isascii() and text.isdigit()) or len(text) > 19 or int(text) > LARGEST_NUMBER:
        raise MalformedRecordError(f"{what} is not a whole number: {text[:40]!r}")
    return int(text)
