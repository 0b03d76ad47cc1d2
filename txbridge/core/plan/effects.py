"""Effects of a draft other than entries: refusals, abandoned messages, counts, and the reasons of waiting messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from txbridge.core import names
from txbridge.core.decision_record import DecisionEntry, Source
from txbridge.core.half_entry import HalfEntry
from txbridge.core.half_message import HalfMessage, copy_headers
from txbridge.core.names import Headers
from txbridge.core.states import RefusalReason

#: Function that tells why a message cannot be delivered now, or returns None. Called once for every commit.
Obstacle = Callable[[HalfEntry], str | None]

#: Bytes of an error text that are copied into a header.
_MAX_ERROR = 1_000


class InTurn(str):
    """An obstacle of other messages: this one was not offered to its topic, but waits for them."""

    __slots__ = ()


MAX_CHECKS = "MAX_CHECKS"
EXPIRED = "EXPIRED"


@dataclass(frozen=True, slots=True)
class Refusal:
    """An END entry without effect."""

    end_offset: int
    source: Source
    entry: DecisionEntry
    reason: RefusalReason


@dataclass(frozen=True, slots=True)
class Abandoned:
    """A held or scheduled message that is given up, with the sender and the reason that END states."""

    entry: HalfEntry
    operator: str | None
    reason: str | None
    source: Source = Source.ABANDON


@dataclass(frozen=True, slots=True)
class MalformedRecord:
    """A record that breaks the protocol, as it came, and the rule that it breaks."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    error: str
    #: If it is a copy (core/dedup.py): half offset of the first record.
    copy_of: int | None = None

    @property
    def size(self) -> int:
        """Bytes of key and value, at least 1.

        Headers are not looked at: confluent-kafka ends the process when those that cannot be decoded are.
        """
        return max(1, len(self.key or b"") + len(self.value or b""))

    def discard_headers(self) -> list[tuple[str, bytes | None]]:
        """Our headers, which follow those of the record. So the last header of a name is ours."""
        headers: list[tuple[str, bytes | None]] = [
            (names.VERSION, names.PROTOCOL_VERSION),
            (names.REASON, b"MALFORMED" if self.copy_of is None else b"COPY"),
            (names.ERROR, self.error[:_MAX_ERROR].encode(errors="replace")),
            (names.RECORD_SOURCE, f"{self.topic}:{self.partition}:{self.offset}".encode()),
        ]
        if self.copy_of is not None:
            headers.append((names.HALF_COORDINATES, f"{self.partition}:{self.copy_of}".encode()))
        return headers


def given_up_headers(half: HalfMessage, entry: HalfEntry, partition: int, end: int) -> Headers:
    headers = copy_headers(half, partition, entry.checks, end)
    headers.append((names.REASON, (entry.reason or "").encode()))
    return [*headers, *_said(names.ERROR, entry.error)]


def abandoned_headers(half: HalfMessage, abandoned: Abandoned, partition: int, end: int) -> Headers:
    return [
        *copy_headers(half, partition, abandoned.entry.checks, end),
        (names.REASON, b"ABANDONED"),
        *([(names.DELIVERED, b"%d" % abandoned.entry.delivered)] if abandoned.entry.delivered else []),
        *_said(names.ERROR, abandoned.entry.error),
        *_said(names.CLIENT_ID, abandoned.operator),
        *_said(names.REMARK, abandoned.reason),
    ]


def _said(name: str, text: str | None) -> Headers:
    """A header for people; none if there is no text."""
    return [] if text is None else [(name, text[:_MAX_ERROR].encode(errors="replace"))]
