"""Message frames: the messages of a transaction that has several, as the value of its one half message."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

from txbridge.core import names
from txbridge.core.headers import MalformedRecordError
from txbridge.core.names import Headers, Names

#: Most messages of one transaction.
MOST_MESSAGES = 1_000
#: Most different real topics of one transaction. Its entry has all of them while it is open.
MOST_TOPICS = 100
#: The layout of the frames, and the one in which each frame has its time of delivery. No other one is read.
_LAYOUT, _TIMED_LAYOUT = b"\x01", b"\x02"
_NULL = -1

_LENGTH = struct.Struct(">i")
#: Partition, timestamp and the length of the key.
_MIDDLE = struct.Struct(">iqi")
#: The same and four more bytes, which are always there. Without a key they are the length of the value. With a key they
#: are its first bytes, or the length behind an empty key.
_MIDDLE_AND_NEXT = struct.Struct(">iqii")
#: Both with the time of delivery before the key.
_TIMED_MIDDLE, _TIMED_MIDDLE_AND_NEXT = struct.Struct(">iqqi"), struct.Struct(">iqqii")


class FramedMessage(NamedTuple):
    """One message of a transaction that has several, as its reader will see it."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    partition: int | None = None
    timestamp: int | None = None
    #: Earliest time of delivery (ms), if the messages name different ones. Otherwise the half message has it.
    deliver_at: int | None = None

    @property
    def size(self) -> int:
        """Bytes of key, value and headers."""
        size = len(self.key or b"") + len(self.value or b"")
        return size + sum(len(name) + len(text or b"") for name, text in self.headers)


class Message(Protocol):
    """A message that can be written as a frame: a FramedMessage, or the message of an application."""

    @property
    def topic(self) -> str: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Headers: ...
    @property
    def partition(self) -> int | None: ...
    @property
    def timestamp(self) -> int | None: ...
    @property
    def deliver_at(self) -> int | None: ...


def common_time(messages: Iterable[Message]) -> tuple[bool, int | None]:
    """Whether all messages name the same time of delivery (ms), and that time; None and 0 are no time."""
    times = {message.deliver_at or None for message in messages}
    return (True, times.pop()) if len(times) == 1 else (False, None)


def encode_frames(messages: Sequence[Message]) -> bytes:
    """The value of a half message with these messages.

    If all of them name the same time of delivery, the half message has to state it.
    """
    is_timed = not common_time(messages)[0]
    parts = [_TIMED_LAYOUT if is_timed else _LAYOUT]
    for message in messages:
        key = message.key
        length = _NULL if key is None else len(key)
        where = _NULL if message.partition is None else message.partition
        when = _NULL if message.timestamp is None else message.timestamp
        parts += [
            *_sized(message.topic.encode()),
            _TIMED_MIDDLE.pack(where, when, message.deliver_at or _NULL, length)
            if is_timed
            else _MIDDLE.pack(where, when, length),
            key or b"",
            *_sized(message.value),
            _LENGTH.pack(len(message.headers)),
        ]
        for name, text in message.headers:
            parts += [*_sized(name.encode()), *_sized(text)]
    return b"".join(parts)


def _sized(data: bytes | None) -> tuple[bytes, bytes]:
    return (_LENGTH.pack(_NULL), b"") if data is None else (_LENGTH.pack(len(data)), data)


def parse_frames(value: bytes | None, count: int) -> list[FramedMessage]:
    """The `count` messages in the value of a half message. Raises MalformedRecordError."""
    if not 1 <= count <= MOST_MESSAGES:
        raise MalformedRecordError(f"{names.MESSAGES} is not 1 to {MOST_MESSAGES}: {count}")
    if value is None or value[:1] not in (_LAYOUT, _TIMED_LAYOUT):
        raise MalformedRecordError("the value does not begin with byte 1 or 2, the layouts of message frames")
    try:
        messages, rest = _parse(value, count)
    except struct.error:
        raise MalformedRecordError(f"the message frames end before {count} of them are complete") from None
    if rest:
        raise MalformedRecordError(f"{rest} bytes follow the last of {count} message frames")
    return messages


def _parse(value: bytes, count: int) -> tuple[list[FramedMessage], int]:
    """Messages, and number of bytes behind the last. Raises struct.error if the value ends too early."""
    # This loop is a third of a worker's work for a transaction with several messages, so it avoids calls.
    length_at, middle_at, end = _LENGTH.unpack_from, _MIDDLE_AND_NEXT.unpack_from, len(value)
    is_timed, timed_at, time = value[:1] == _TIMED_LAYOUT, _TIMED_MIDDLE_AND_NEXT.unpack_from, None
    messages = []
    at = len(_LAYOUT)
    for number in range(1, count + 1):
        (length,) = length_at(value, at)
        if length < 0:
            raise _negative(length, number, "topic")
        # A slice may be cut off by the end of the value. The next number, behind that end, then raises struct.error.
        start, at = at + 4, at + 4 + length
        raw_topic = value[start:at]
        if is_timed:
            partition, timestamp, time, length, following = timed_at(value, at)
            at += 8
            if time <= 0:
                if time != _NULL:
                    raise MalformedRecordError(f"the time of delivery of message {number} is {time}")
                time = None
        else:
            partition, timestamp, length, following = middle_at(value, at)
        if length == _NULL:
            key, length = None, following
        else:
            if length < 0:
                raise _negative(length, number, "key")
            start, at = at + 16, at + 16 + length
            key = value[start:at]
            (length,) = length_at(value, at)
            at -= 16
        at += 20
        body = None
        if length != _NULL:
            if length < 0:
                raise _negative(length, number, "value")
            start, at = at, at + length
            body = value[start:at]
        (length,) = length_at(value, at)
        at += 4
        if length < 0:
            raise _negative(length, number, "list of headers")
        headers: list[tuple[str, bytes | None]] = []
        for _ in range(length):
            (length,) = length_at(value, at)
            if length < 0:
                raise _negative(length, number, "header name")
            start, at = at + 4, at + 4 + length
            name = _header_name(value[start:at], number)
            (length,) = length_at(value, at)
            at += 4
            text = None
            if length != _NULL:
                if length < 0:
                    raise _negative(length, number, "header")
                start, at = at, at + length
                text = value[start:at]
            headers.append((name, text))
        if at > end:
            raise struct.error
        if partition < _NULL or timestamp < _NULL:
            raise MalformedRecordError(f"partition or timestamp of message {number} is below -1")
        topic = _known_topic(raw_topic)
        if topic is None:
            raise MalformedRecordError(f"message {number} has no topic that it may go to: {raw_topic[:40]!r}")
        # librdkafka takes 0 for "now", as in BORN_TIMESTAMP.
        where, when = None if partition == _NULL else partition, timestamp if timestamp > 0 else None
        messages.append(tuple.__new__(FramedMessage, (topic, key, body, headers, where, when, time)))
    return messages, end - at


def _negative(length: int, number: int, what: str) -> MalformedRecordError:
    return MalformedRecordError(f"the length of the {what} of message {number} is {length}")


@lru_cache(1_000)
def _known_topic(raw: bytes) -> str | None:
    """The topic, as one text for all messages that share it; None if no message may go there."""
    topic = raw.decode("ascii", "replace")
    return sys.intern(topic) if names.is_topic(topic) and not Names.is_forbidden(topic) else None


def _header_name(raw: bytes, number: int) -> str:
    name = _known_header_name(raw) if len(raw) <= _LONG_NAME else _decoded(raw)
    if name is None:
        raise MalformedRecordError(f"message {number} has a header that it must not have: {raw[:40]!r}")
    return name


#: Longer names are not cached: anyone may have written them.
_LONG_NAME = 249


def _decoded(raw: bytes) -> str | None:
    try:
        name = raw.decode()
    except UnicodeDecodeError:
        return None
    # librdkafka would cut it off at a NUL.
    return None if names.is_reserved_header(name) or "\0" in name else name


_known_header_name = lru_cache(1_000)(_decoded)


def joined_topics(messages: Sequence[FramedMessage]) -> str:
    """The real topics of a transaction in one text, each once, in the order of the messages.

    Raises MalformedRecordError.
    """
    topics = dict.fromkeys([message.topic for message in messages])
    if len(topics) > MOST_TOPICS:
        raise MalformedRecordError(f"the messages go to {len(topics)} real topics, more than {MOST_TOPICS}")
    return sys.intern(",".join(topics))
