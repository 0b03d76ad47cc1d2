"""Strict reading of our headers in a Kafka record: anyone who can write to a topic may write anything."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from txbridge.core.names import PROTOCOL_VERSION, VERSION, Headers


class MalformedRecordError(Exception):
    """The record is not ours, or breaks a rule of docs/protocol.md. The text names the rule."""


class NewerVersionError(MalformedRecordError):
    """The record has a later version of the protocol. Its content is not guessed.

    In a topic that any client may write it is treated like every malformed record. In OP and OFFSET, where only workers
    write, a later release wrote it, and its content must not be missed.
    """


class OurHeaders:
    """Our headers of one record. A user's header may repeat, one of ours may not."""

    __slots__ = ("_headers", "_repeats", "_values")

    def __init__(self, headers: Headers | None) -> None:
        self._headers = headers or ()
        self._values = dict(self._headers)
        self._repeats = len(self._values) < len(self._headers)

    def names_beside(self, known: AbstractSet[str]) -> list[str]:
        """The names of all headers but these, each once."""
        return [name for name in self._values if name not in known]

    def require_version(self, what: str) -> None:
        """Raise MalformedRecordError unless the record has our protocol version (NewerVersionError: a later one)."""
        if VERSION not in self._values:
            raise MalformedRecordError(f"not a record of txbridge: no header {VERSION}, so it is no {what}")
        version = self.required_bytes(VERSION)
        if version != PROTOCOL_VERSION:
            text = decoded(VERSION, version)
            newer = text.isascii() and text.isdigit() and len(text) <= _VERSION_DIGITS and int(text) > _OUR_VERSION
            raise (NewerVersionError if newer else MalformedRecordError)(
                f"{VERSION}={text[:20]!r} is not a version that this worker knows"
            )

    def optional_bytes(self, name: str) -> bytes | None:
        """The value of a header. None if the header is missing or its value is null, which mean the same."""
        value = self._values.get(name)
        if self._repeats and name in self._values:
            times = sum(other == name for other, _ in self._headers)
            if times > 1:
                raise MalformedRecordError(f"header {name} is there {times} times")
        return value

    def required_bytes(self, name: str) -> bytes:
        value = self.optional_bytes(name)
        if value is None:
            raise MalformedRecordError(f"header {name} is {'null' if name in self._values else 'missing'}")
        return value

    def find_text(self, name: str) -> str | None:
        value = self.optional_bytes(name)
        return None if value is None else decoded(name, value)

    def require_text(self, name: str) -> str:
        return decoded(name, self.required_bytes(name))

    def optional_number(self, name: str) -> int | None:
        text = self.find_text(name)
        return None if text is None else whole_number(text, f"header {name}")


_OUR_VERSION = int(PROTOCOL_VERSION)
#: Most digits of a version. int() refuses thousands of digits with another exception.
_VERSION_DIGITS = 9


def decoded(name: str, value: bytes) -> str:
    """A header's text. Raises MalformedRecordError."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise MalformedRecordError(f"header {name} is not UTF-8") from None


#: Kafka's offsets, partitions and timestamps fit into a signed 64-bit integer.
LARGEST_NUMBER = 2**63 - 1


def whole_number(text: str, what: str) -> int:
    """The number in decimal digits. int() would also take signs, spaces, underscores and other alphabets' digits."""
    if not (text.isascii() and text.isdigit()) or len(text) > 19 or int(text) > LARGEST_NUMBER:
        raise MalformedRecordError(f"{what} is not a whole number: {text[:40]!r}")
    return int(text)
