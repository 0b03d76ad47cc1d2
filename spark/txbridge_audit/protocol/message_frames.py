"""Message frames: the messages of a half message with several, and the hash of a user's content."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from txbridge_audit.protocol.mentions import MessagePart

MOST_MESSAGES = 1_000
#: First byte of the value: frames without times, and with the time of each message.
_ALIKE, _TIMED = 1, 2


def content_of(
    key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes | None]], surplus: int = 0
) -> int:
    """A hash of the user's key, value and headers, in their order. `surplus` is the number of headers of ours too many.

    Two contents share a hash once in 2^64. The lengths of all parts come first, so that null and empty differ.
    """
    parts: list[bytes | None] = [key, value]
    for name, text in headers:
        parts += (name.encode(), text)
    lengths = [None if part is None else len(part) for part in parts]
    data = b"".join([repr((lengths, surplus)).encode(), *filter(None, parts)])
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")


def parts_of(value: bytes | None, count: int, deliver_at: int | None) -> tuple[MessagePart, ...] | None:
    """The messages; None when the value is not `count` whole frames.

    `deliver_at` is TXB_DELIVER_AT: the time of all messages, so it must not stand beside times of their own.
    """
    if not value or not 1 <= count <= MOST_MESSAGES or value[0] not in {_ALIKE, _TIMED}:
        return None
    if value[0] == _TIMED and deliver_at is not None:
        return None
    reader = _FrameReader(value, deliver_at or 0)
    try:
        parts = tuple(reader.read_part() for _ in range(count))
    except (EOFError, UnicodeDecodeError):
        return None
    return parts if reader.is_at_end else None


class _FrameReader:
    """Reads fields one after the other. Every method raises EOFError when the field is not whole, or cannot be."""

    def __init__(self, value: bytes, deliver_at: int) -> None:
        self._value, self._at = value, 1
        self._deliver_at = deliver_at

    @property
    def is_at_end(self) -> bool:
        return self._at == len(self._value)

    def read_part(self) -> MessagePart:
        topic, place, dated = self._read_text(), self._read_number(4), self._read_number(8)
        deliver_at = self._read_time() if self._value[0] == _TIMED else self._deliver_at
        key, body = self._read_data(), self._read_data()
        count = self._read_number(4)
        if count < 0:
            raise EOFError
        headers = [(self._read_text(), self._read_data()) for _ in range(count)]
        # Its copy has one more header of ours than that of a single message: its number.
        content = content_of(key, body, headers, 1)
        return MessagePart(topic, place if place >= 0 else None, dated if dated > 0 else None, content, deliver_at)

    def _read_time(self) -> int:
        time = self._read_number(8)
        if time < -1 or time == 0:
            raise EOFError
        return max(time, 0)

    def _read_number(self, size: int) -> int:
        return int.from_bytes(self._take(size), "big", signed=True)

    def _read_data(self) -> bytes | None:
        length = self._read_number(4)
        return None if length == -1 else self._take(length)

    def _read_text(self) -> str:
        return self._take(self._read_number(4)).decode()

    def _take(self, size: int) -> bytes:
        taken = self._value[self._at : self._at + size]
        if size < 0 or len(taken) < size:
            raise EOFError
        self._at += size
        return taken
