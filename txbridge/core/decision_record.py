"""END records: batched EndTransaction commands (RocketMQ's END_TRANSACTION, B.7, in a log instead of a request)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple, overload
from urllib.parse import quote, unquote

from txbridge.core import names
from txbridge.core.headers import MalformedRecordError, OurHeaders, whole_number
from txbridge.core.names import Headers

#: Bounds the entries that are read and parsed at once. A Kafka transaction need not hold all of them (`batch`).
MAX_ENTRIES = 1_000
#: Most percent-encoded characters of a remark: an exception's text, not its stack.
MAX_REMARK = 2_048


class Decision(IntEnum):
    """RocketMQ's numbers for commitOrRollback."""

    #: The client does not know: the message stays pending and will be checked.
    UNKNOWN = 0
    COMMIT = 8
    ROLLBACK = 12


class Source(Enum):
    """The origin of an END record."""

    # Members are unique, so identity is enough. Enum hashes their names, in Python.
    __hash__ = object.__hash__

    #: The producer, after its local transaction.
    CLIENT = "client"
    #: A producer of the group, in answer to a check.
    CHECK = "check"
    #: A person, by hand.
    OPERATOR = "operator"
    #: A person who wants a discarded message to be checked again (RocketMQ's RESUME_CHECK_HALF_MESSAGE).
    RESUME = "resume"
    #: A person who gives up a held or scheduled message: it will not be delivered.
    ABANDON = "abandon"
    #: The application, which does the same (`TransactionProducer.cancel`).
    CANCEL = "cancel"
    #: A client that asks where a transaction is, and in which state. It has no effect on it.
    FIND = "find"


_PLAIN_DECISION = {b"%d" % decision.value: decision for decision in Decision}
_PLAIN_DECISIONS = frozenset(_PLAIN_DECISION)
_ID_CHARACTERS = 32
_are_ids = re.compile(rb"[0-9A-F]*\Z").match
#: Most digits of a half offset that fits into 63 bits for certain.
_MOST_DIGITS = 18
#: Sources of commands that decide nothing: the decision of their entries is UNKNOWN.
COMMANDS = (Source.RESUME, Source.ABANDON, Source.CANCEL, Source.FIND)
#: Those that give a message up.
GIVE_UP = (Source.ABANDON, Source.CANCEL)


class DecisionEntry(NamedTuple):
    """One EndTransaction command."""

    # A tuple, as client and worker make one for every transaction. A frozen dataclass takes three times as long.

    half_offset: int
    transaction_id: str
    decision: Decision
    check_times: int | None = None
    remark: str | None = None

    def encode(self) -> str:
        text = f"{self.half_offset},{self.transaction_id},{self.decision.value}"
        if self.check_times is None and self.remark is None:
            return text
        text += f",{'' if self.check_times is None else self.check_times}"
        return text if self.remark is None else f"{text},{_encode_remark(self.remark)}"


class PlainEntries(Sequence[DecisionEntry]):
    """Entries without check times, as nearly all are, in columns. Objects are made when they are first asked for."""

    __slots__ = ("_made", "decisions", "ids", "offsets", "remarks")
    # Equal to lists of the same entries, which have no hash.
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, offsets: list[int], ids: list[bytes], decisions: list[bytes], remarks: dict[int, str]) -> None:
        self.offsets, self.ids, self.decisions = offsets, ids, decisions
        #: By the number of their entry, from 0. Few have one: the reason of a rollback, the text of an exception.
        self.remarks = remarks
        self._made: list[DecisionEntry] | None = None

    @classmethod
    def read(cls, value: bytes) -> PlainEntries | None:
        """The entries of an END record; None unless all are plain: no check times, and numbers that are small."""
        remarks: dict[int, str] = {}
        if b",," in value:
            lines = value.split(b"\n")
            for index, line in enumerate(lines):
                if b",," in line:
                    lines[index], _, remark = line.partition(b",,")
                    if len(remark) > MAX_REMARK or b"," in remark or not remark.isascii():
                        return None
                    remarks[index] = unquote(remark.decode(), errors="replace")
            value = b"\n".join(lines)
        fields = value.replace(b"\n", b",\n,").split(b",")
        numbers, ids, decisions = fields[0::4], fields[1::4], fields[2::4]
        count = len(numbers)
        if (
            count > MAX_ENTRIES
            or len(fields) != 4 * count - 1
            or fields[3::4].count(b"\n") != count - 1
            or not _PLAIN_DECISIONS.issuperset(decisions)
            or set(map(len, ids)) != {_ID_CHARACTERS}
            or _are_ids(b"".join(ids)) is None
            or not 0 < min(map(len, numbers)) <= max(map(len, numbers)) <= _MOST_DIGITS
            or not b"".join(numbers).isdigit()
        ):
            return None
        return cls(list(map(int, numbers)), ids, decisions, remarks)

    def _make_entries(self) -> list[DecisionEntry]:
        if self._made is None:
            columns = zip(self.offsets, self.ids, self.decisions, strict=True)
            made = [DecisionEntry(offset, name.decode(), _PLAIN_DECISION[one]) for offset, name, one in columns]
            for index, remark in self.remarks.items():
                made[index] = made[index]._replace(remark=remark)
            self._made = made
        return self._made

    def __len__(self) -> int:
        return len(self.offsets)

    @overload
    def __getitem__(self, index: int) -> DecisionEntry: ...
    @overload
    def __getitem__(self, index: slice) -> list[DecisionEntry]: ...
    def __getitem__(self, index: int | slice) -> DecisionEntry | list[DecisionEntry]:
        return self._make_entries()[index]

    def __iter__(self) -> Iterator[DecisionEntry]:
        return iter(self._make_entries())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __repr__(self) -> str:
        return repr(self._make_entries())


@dataclass(frozen=True, slots=True)
class DecisionEvent:
    """A record of END as it came."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    #: Append time (ms), if it is known.
    appended: int | None = None


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """One valid record of END."""

    offset: int
    group: str
    source: Source
    entries: Sequence[DecisionEntry]
    client_id: str | None = None
    #: Append time (ms), if it is known.
    appended: int | None = None
    #: Name of the reply that its sender waits for. Such a record has one entry.
    reply: str | None = None

    @property
    def half_offsets(self) -> Sequence[int]:
        """The half offsets that its entries name."""
        entries = self.entries
        return entries.offsets if isinstance(entries, PlainEntries) else [entry.half_offset for entry in entries]


def _quote(remark: str) -> str:
    return quote(remark.encode(errors="replace"), safe=" :;()[]{}'\"=/<>!?@#$&*+|^~`")


def _encode_remark(remark: str) -> str:
    encoded = _quote(remark)
    if len(encoded) <= MAX_REMARK:
        return encoded
    cut = encoded[:MAX_REMARK]
    # Do not cut within a %XX, nor within a character that takes several.
    return _quote(unquote(cut[: cut.rfind("%")] if "%" in cut[-2:] else cut, errors="ignore"))


def encode_end(
    entries: Sequence[DecisionEntry], group: str, source: Source, client_id: str | None = None, reply: str | None = None
) -> tuple[bytes, list[tuple[str, bytes | None]]]:
    """Value and headers of an END record. At most MAX_ENTRIES entries, all of one half partition; one with a reply."""
    if not 1 <= len(entries) <= MAX_ENTRIES:
        raise ValueError(f"an END record holds 1 to {MAX_ENTRIES} entries, not {len(entries)}")
    headers: list[tuple[str, bytes | None]] = [
        (names.VERSION, names.PROTOCOL_VERSION),
        (names.PGROUP, group.encode()),
        (names.SOURCE, source.value.encode()),
    ]
    if client_id is not None:
        headers.append((names.CLIENT_ID, client_id.encode()))
    if reply is not None:
        headers.append((names.REPLY, reply.encode()))
    return "\n".join([entry.encode() for entry in entries]).encode(), headers


_DECISIONS = {str(decision.value): decision for decision in Decision}
_SOURCES = {source.value: source for source in Source}


def parse_end(offset: int, value: bytes | None, headers: Headers | None, appended: int | None = None) -> DecisionRecord:
    """Read a record of END. Raises MalformedRecordError with the rule that it breaks; then none of it is applied."""
    ours = OurHeaders(headers)
    ours.require_version("END record")
    group = ours.require_text(names.PGROUP)
    if not names.is_group(group):
        raise MalformedRecordError(f"header {names.PGROUP} cannot be a producer group: {group[:40]!r}")
    source = _SOURCES.get(ours.require_text(names.SOURCE))
    if source is None:
        raise MalformedRecordError(f"header {names.SOURCE} is not one of {', '.join(_SOURCES)}")
    if value is None:
        raise MalformedRecordError("the value is null")
    entries: Sequence[DecisionEntry] | None = None if source in COMMANDS else PlainEntries.read(value)
    if entries is None:
        entries = _read_entries(value, source)
    reply = ours.find_text(names.REPLY) if source in COMMANDS else None
    if reply is not None and (not names.is_reply_name(reply) or len(entries) > 1):
        raise MalformedRecordError(f"header {names.REPLY} is no name of a reply to one entry: {reply[:40]!r}")
    return DecisionRecord(
        offset=offset,
        group=group,
        source=source,
        entries=entries,
        client_id=ours.find_text(names.CLIENT_ID),
        appended=appended,
        reply=reply,
    )


def _read_entries(value: bytes, source: Source) -> list[DecisionEntry]:
    try:
        lines = value.decode().split("\n")
    except UnicodeDecodeError:
        raise MalformedRecordError("the value is not UTF-8") from None
    if len(lines) > MAX_ENTRIES:
        raise MalformedRecordError(f"{len(lines)} entries, more than {MAX_ENTRIES}")
    return [_parse_entry(line, number, source) for number, line in enumerate(lines, 1)]


def _parse_entry(line: str, number: int, source: Source) -> DecisionEntry:
    fields = line.split(",")
    if not 3 <= len(fields) <= 5:
        raise MalformedRecordError(f"entry {number} has {len(fields)} fields, not 3 to 5: {line[:80]!r}")
    half_offset = whole_number(fields[0], f"half offset of entry {number}")
    transaction_id = fields[1]
    if not names.is_transaction_id(transaction_id):
        raise MalformedRecordError(f"transaction id of entry {number} is not 32 digits of 0-9A-F")
    decision = _DECISIONS.get(fields[2])
    if decision is None:
        raise MalformedRecordError(f"decision of entry {number} is not 8, 12 or 0: {fields[2][:40]!r}")
    if source in COMMANDS and decision is not Decision.UNKNOWN:
        raise MalformedRecordError(f"entry {number} {source.value}s with decision {decision.value}; it must be 0")
    if len(fields) == 3:
        return DecisionEntry(half_offset, transaction_id, decision)
    check_times = whole_number(fields[3], f"check times of entry {number}") if fields[3] else None
    remark = None
    if len(fields) == 5:
        if len(fields[4]) > MAX_REMARK:
            raise MalformedRecordError(f"remark of entry {number} is longer than {MAX_REMARK} characters")
        remark = unquote(fields[4], errors="replace")
    return DecisionEntry(half_offset, transaction_id, decision, check_times, remark)
