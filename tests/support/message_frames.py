"""Message frames by docs/protocol.md, written and read here without the library's code."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256

Pairs = list[tuple[str, bytes | None]]


@dataclass(slots=True)
class Framed:
    """One message of a transaction that has several."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Pairs = field(default_factory=list)
    partition: int = -1
    timestamp: int = -1
    #: Time of delivery (ms): in the frames if the messages do not all have the same.
    deliver_at: int = -1


def write(messages: list[Framed]) -> bytes:
    """The value of the half message for these messages."""

    def number(value: int, size: int = 4) -> bytes:
        return value.to_bytes(size, "big", signed=True)

    def data(given: bytes | None) -> bytes:
        return number(-1) if given is None else number(len(given)) + given

    is_timed = len({one.deliver_at for one in messages}) > 1
    value = b"\x02" if is_timed else b"\x01"
    for one in messages:
        value += data(one.topic.encode()) + number(one.partition) + number(one.timestamp, 8)
        value += number(one.deliver_at, 8) if is_timed else b""
        value += data(one.key) + data(one.value) + number(len(one.headers))
        for name, text in one.headers:
            value += data(name.encode()) + data(text)
    return value


def delivered_id(transaction_id: str, times: Iterable[int]) -> str:
    """The UNIQ_KEY of delivered messages that name these times (-1: none)."""
    return transaction_id if len({*times}) < 2 else sha256(transaction_id.encode()).hexdigest()[:32].upper()


def read(value: bytes, count: int) -> list[Framed] | None:
    """Read the messages. None unless the value consists of this many whole frames."""
    at = 1

    def number(size: int = 4) -> int:
        nonlocal at
        at += size
        if at > len(value):
            raise EOFError
        return int.from_bytes(value[at - size : at], "big", signed=True)

    def data() -> bytes | None:
        nonlocal at
        length = number()
        if length < 0:
            return None
        at += length
        if at > len(value):
            raise EOFError
        return value[at - length : at]

    found = []
    try:
        for _ in range(count):
            topic, partition, timestamp = (data() or b"").decode(), number(), number(8)
            deliver_at = number(8) if value[0] == 2 else -1
            key, body, headers = data(), data(), number()
            pairs: Pairs = [((data() or b"").decode(), data()) for _ in range(headers)]
            found.append(Framed(topic, key, body, pairs, partition, timestamp, deliver_at))
    except EOFError:
        return None
    return found if at == len(value) else None
