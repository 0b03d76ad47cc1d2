"""The records that clients write: half messages and decisions.

Bad data raises no error: a record that cannot be read has a `fault`. Breaches that change no meaning, such as a long
remark, are no fault. The discard topic tells which records the worker has found malformed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from hashlib import blake2b

from txbridge.core import names as headers
from txbridge_audit.protocol.mentions import COMMANDS, EndMention, HalfMention, MessagePart, UnreadableMention
from txbridge_audit.protocol.record import DIGITS, MOST_PARTITIONS, HeaderTexts, KafkaRecord, number_of

#: Messages of a half message with several, in frames.
MOST_MESSAGES = 1_000
#: First byte of the value: frames without times, and with the time of each message.
_ALIKE, _TIMED = 1, 2


def content_of(
    key: bytes | None, value: bytes | None, given: Iterable[tuple[str, bytes | None]], surplus: int = 0
) -> int:
    """A hash of the user's key, value and headers, in their order. `surplus` is the number of headers of ours too many.

    Two contents share a hash once in 2^64. The lengths of all parts come first, so that null and empty differ.
    """
    parts: list[bytes | None] = [key, value]
    for name, text in given:
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
        given = [(self._read_text(), self._read_data()) for _ in range(count)]
        # Its copy has one more header of ours than that of a single message: its number.
        content = content_of(key, body, given, 1)
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


MAX_ENTRIES = 1_000

_ENTRY = re.compile(r"[0-9]+,[0-9A-F]{32},(?:0|8|12)(?:,[0-9]*(?:,.*)?)?", re.DOTALL)
_COMMAND_ENTRY = re.compile(r"[0-9]+,[0-9A-F]{32},0(?:,[0-9]*(?:,.*)?)?", re.DOTALL)
_EXACT_ENTRY = re.compile(r"[^,]*,[^,]*,[^,]*(?:,[^,]*(?:,[^,]{0,2048})?)?")
_SOURCES = COMMANDS | {"client", "check", "operator"}
_OF_AN_END = (headers.VERSION, headers.PGROUP, headers.SOURCE, headers.CLIENT_ID)
#: Header names that are not the user's.
_RESERVED = headers.HALF_HEADERS | {headers.CHECK_TIMES, "__transactionId__", "TRAN_PREPARED_QUEUE_OFFSET"}
_INTERNAL_NAMES = ("TRANS_CHECK_MAX_TIME_TOPIC", "TRANS_AUDIT_VIOLATIONS_TOPIC")
GROUP = re.compile(r"[A-Za-z0-9._-]{1,200}")
IDENTITY = re.compile(r"[0-9A-F]{32}")
#: The name of a reply has the same form.
BARRIER = re.compile(r"[A-Za-z0-9._-]{1,64}")
_TOPIC = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}")

#: What the headers of a half message must be, and what they may be.
_NEEDED = (
    (headers.VERSION, re.compile("1"), "TXB_V is not 1"),
    (headers.TRAN_MSG, re.compile("true"), "TRAN_MSG is not true"),
    (headers.UNIQ_KEY, IDENTITY, "UNIQ_KEY is not a transaction id"),
    (headers.PGROUP, GROUP, "PGROUP is not a producer group"),
    (headers.REAL_TOPIC, _TOPIC, "REAL_TOPIC is not a topic name"),
)
_ALLOWED = (
    (headers.REAL_QID, DIGITS, "REAL_QID is not a partition"),
    (headers.BORN_TIMESTAMP, DIGITS, "BORN_TIMESTAMP is not a time"),
    (headers.DELIVER_AT, DIGITS, "TXB_DELIVER_AT is not a time"),
    (headers.BARRIER, BARRIER, "TXB_BARRIER is not the identity of a table"),
)


def half_mention(record: KafkaRecord) -> HalfMention:
    """The half message of a record of HALF."""
    text = record.texts()
    count, deliver_at = number_of(text.get(headers.MESSAGES)), number_of(text.get(headers.DELIVER_AT))
    parts = None if count is None else parts_of(record.value, count, deliver_at)
    users = [(name, value) for name, value in record.headers if not is_reserved(name)]
    return HalfMention(
        partition=record.partition,
        half=record.offset,
        at=record.offset,
        born=record.timestamp,
        fault=_fault_of_half(text, parts),
        id=text.get(headers.UNIQ_KEY),
        group=text.get(headers.PGROUP),
        real_topic=text.get(headers.REAL_TOPIC),
        fixed_partition=number_of(text.get(headers.REAL_QID), MOST_PARTITIONS),
        deliver_at=deliver_at,
        content=content_of(record.key, record.value, users),
        # 0 counts as absent.
        dated=number_of(text.get(headers.BORN_TIMESTAMP)) or record.timestamp,
        parts=parts,
    )


def is_reserved(name: str) -> bool:
    """Whether a header is not the user's."""
    return name in _RESERVED or name.startswith("TXB_")


def is_deliverable(topic: str) -> bool:
    """Whether a message may go to the topic."""
    return _TOPIC.fullmatch(topic) is not None and not _is_forbidden(topic)


def _fault_of_half(text: HeaderTexts, parts: tuple[MessagePart, ...] | None) -> str | None:
    for name, pattern, fault in _NEEDED:
        if pattern.fullmatch(text.get(name) or "") is None:
            return fault
    topic = str(text[headers.REAL_TOPIC])
    if _is_forbidden(topic):
        return "REAL_TOPIC is forbidden"
    for name, pattern, fault in _ALLOWED:
        value = text.get(name)
        if value is not None and pattern.fullmatch(value) is None:
            return fault
    return None if text.get(headers.MESSAGES) is None else _fault_of_several(text, topic, parts)


def _fault_of_several(text: HeaderTexts, topic: str, parts: tuple[MessagePart, ...] | None) -> str | None:
    if parts is None:
        return "the message frames cannot be read"
    if parts[0].topic != topic:
        return "REAL_TOPIC is not that of the first message"
    if not all(is_deliverable(part.topic) for part in parts):
        return "a message has no topic that it may go to"
    if text.get(headers.REAL_QID) is not None or text.get(headers.BORN_TIMESTAMP) is not None:
        return "a header that each of several messages has itself"
    return None


def _is_forbidden(topic: str) -> bool:
    """Whether a topic is Kafka's own, or an internal one of any namespace."""
    return topic != "RMQ_SYS_TRACE_TOPIC" and (
        topic.startswith(("__", "RMQ_SYS_")) or ".RMQ_SYS_" in topic or topic.rpartition(".")[2] in _INTERNAL_NAMES
    )


def end_mentions(record: KafkaRecord, *, exactly: bool = False) -> Sequence[EndMention | UnreadableMention]:
    """The entries of a record of END, or the mention of a record that cannot be read.

    With `exactly` breaches that only the worker looks for are faults, too. That is for a discard topic that no longer
    tells all of them.
    """
    text = record.texts()
    source, group = text.get(headers.SOURCE), text.get(headers.PGROUP)
    lines = [] if record.value is None else record.value.decode("utf-8", "replace").split("\n")
    fault = _fault_of_end(text.get(headers.VERSION), source, group, lines)
    if fault is None and exactly:
        fault = _exact_fault(record, lines, text.get(headers.REPLY), is_command=source in COMMANDS)
    if fault is not None or group is None or source is None:
        return [UnreadableMention(record.partition, None, record.offset, record.topic, fault or "")]
    if source == "find":
        # A question. Its offset says how far to read, and names no transaction.
        return []
    client = text.get(headers.CLIENT_ID)
    mentions = []
    for number, line in enumerate(lines):
        half, identity, decision, *rest = line.split(",", 4)
        mentions.append(
            EndMention(
                partition=record.partition,
                # More digits than an offset can have: no half message is there.
                half=number_of(half),
                at=record.offset,
                line=number,
                id=identity,
                group=group,
                decision=int(decision),
                source=source,
                stamp=record.timestamp,
                client=client,
                checks=number_of(rest[0]) if rest else None,
                remark=rest[1] if len(rest) > 1 else None,
            )
        )
    return mentions


def _fault_of_end(version: str | None, source: str | None, group: str | None, lines: list[str]) -> str | None:
    if version != "1":
        return "TXB_V is not 1"
    if GROUP.fullmatch(group or "") is None:
        return "PGROUP is not a producer group"
    if source not in _SOURCES:
        return "SOURCE is unknown"
    if not 1 <= len(lines) <= MAX_ENTRIES:
        return "not 1 to 1,000 entries"
    shape = _COMMAND_ENTRY if source in COMMANDS else _ENTRY
    if not all(shape.fullmatch(line) for line in lines):
        return "an entry cannot be read"
    return None


def _exact_fault(record: KafkaRecord, lines: list[str], reply: str | None, *, is_command: bool) -> str | None:
    """The rest of the protocol's rules for END."""
    if not _is_utf8(record.value):
        return "the value is not UTF-8"
    if not all(_is_utf8(value) for name, value in record.headers if name == headers.CLIENT_ID):
        return "CLIENT_ID is not UTF-8"
    known = (*_OF_AN_END, headers.REPLY) if is_command else _OF_AN_END
    ours = [name for name, _ in record.headers if name in known]
    if len(ours) > len(set(ours)):
        return "a header of ours is there twice"
    if not all(_EXACT_ENTRY.fullmatch(line) for line in lines):
        return "an entry has too many fields or a remark too long"
    if not all(_has_numbers(line) for line in lines):
        return "a number is too large"
    if is_command and reply is not None and (len(lines) > 1 or BARRIER.fullmatch(reply) is None):
        return "TXB_REPLY is no name of a reply to one entry"
    return None


def _is_utf8(data: bytes | None) -> bool:
    try:
        (data or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def _has_numbers(line: str) -> bool:
    """Whether the numbers of an entry have at most 19 digits, and fit into 64 bits."""
    half, _, _, *rest = line.split(",")
    numbers = [half, *(text for text in rest[:1] if text)]
    return all(len(text) <= 19 and number_of(text) is not None for text in numbers)
