"""END records: batched EndTransaction commands (RocketMQ's END_TRANSACTION, B.7, in a log instead of a request)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple
from urllib.parse import quote, unquote

from txbridge.core import names
from txbridge.core.headers import MalformedRecordError, OurHeaders, whole_number
from txbridge.core.names import Headers

#: Bounds what is read and parsed at once. A Kafka transaction need not hold all of them (`batch`).
MAX_ENTRIES = 1_000
#: Percent-encoded characters of a remark: an exception's text, not its stack.
MAX_REMARK = 2_048


class Decision(IntEnum):
    """RocketMQ's numbers for commitOrRollback."""

    #: The client does not know: the message stays pending and will be checked.
    UNKNOWN = 0
    COMMIT = 8
    ROLLBACK = 12


class Source(Enum):
    """Who decided."""

    # Members are unique. Enum hashes their names, in Python.
    __hash__ = object.__hash__

    #: The producer, after its local transaction.
    CLIENT = "client"
    #: A producer of the group, in answer to a check.
    CHECK = "check"
    #: A person, by hand.
    OPERATOR = "operator"
    #: A person who wants a discarded message to be checked again (RocketMQ's RESUME_CHECK_HALF_MESSAGE).
    RESUME = "resume"
    #: A person who gives a held message up: it will not be delivered.
    ABANDON = "abandon"


#: Sources of commands that decide nothing: the decision of their entries is UNKNOWN.
_COMMANDS = (Source.RESUME, Source.ABANDON)


class EndEntry(NamedTuple):
    """One EndTransaction command."""

    # A tuple, as one is made for every transaction, here and there: a frozen dataclass takes three times as long.

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


@dataclass(frozen=True, slots=True)
class EndEvent:
    """A record of END as it came."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    #: When Kafka took it (ms), if that is known.
    appended: int | None = None


@dataclass(frozen=True, slots=True)
class EndRecord:
    """One valid record of END."""

    offset: int
    group: str
    source: Source
    entries: Sequence[EndEntry]
    client_id: str | None = None
    #: When Kafka took it (ms), if that is known.
    appended: int | None = None


def _quote(remark: str) -> str:
    return quote(remark.encode(errors="replace"), safe=" :;()[]{}'\"=/<>!?@#$&*+|^~`")


def _encode_remark(remark: str) -> str:
    encoded = _quote(remark)
    if len(encoded) <= MAX_REMARK:
        return encoded
    cut = encoded[:MAX_REMARK]
    # Never end in the middle of a %XX, nor of a character that takes several.
    return _quote(unquote(cut[: cut.rfind("%")] if "%" in cut[-2:] else cut, errors="ignore"))


def encode_end(
    entries: Sequence[EndEntry],
    group: str,
    source: Source,
    client_id: str | None = None,
) -> tuple[bytes, list[tuple[str, bytes | None]]]:
    """Value and headers of an END record. At most MAX_ENTRIES entries, all of one half partition."""
    if not 1 <= len(entries) <= MAX_ENTRIES:
        raise ValueError(f"an END record holds 1 to {MAX_ENTRIES} entries, not {len(entries)}")
    headers: list[tuple[str, bytes | None]] = [
        (names.VERSION, names.PROTOCOL_VERSION),
        (names.PGROUP, group.encode()),
        (names.SOURCE, source.value.encode()),
    ]
    if client_id is not None:
        headers.append((names.CLIENT_ID, client_id.encode()))
    return "\n".join([entry.encode() for entry in entries]).encode(), headers


_DECISIONS = {str(decision.value): decision for decision in Decision}
_SOURCES = {source.value: source for source in Source}


def parse_end(
    offset: int,
    value: bytes | None,
    headers: Headers | None,
    appended: int | None = None,
) -> EndRecord:
    """Read a record of END. Raises MalformedRecordError with the rule that it breaks; then none of it is applied."""
    ours = OurHeaders(headers)
    ours.require_version("END record")
    group = ours.required(names.PGROUP)
    if not names.is_group(group):
        raise MalformedRecordError(f"header {names.PGROUP} can not be a producer group: {group[:40]!r}")
    source = _SOURCES.get(ours.required(names.SOURCE))
    if source is None:
        raise MalformedRecordError(f"header {names.SOURCE} is not one of {', '.join(_SOURCES)}")
    if value is None:
        raise MalformedRecordError("the value is null")
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise MalformedRecordError("the value is not UTF-8") from None
    count = text.count("\n") + 1
    if count > MAX_ENTRIES:
        raise MalformedRecordError(f"{count} entries, more than {MAX_ENTRIES}")
    # All at once, if all of them are: half of what it takes to look at each.
    plain = _PLAIN_ENTRIES(text)
    if len(plain) == count and source not in _COMMANDS:
        entries = [
            EndEntry(int(half), transaction_id, _DECISIONS[decision]) for half, transaction_id, decision in plain
        ]
    else:
        entries = [_parse_entry(line, number, source) for number, line in enumerate(text.split("\n"), 1)]
    return EndRecord(
        offset=offset,
        group=group,
        source=source,
        entries=entries,
        client_id=ours.optional(names.CLIENT_ID),
        appended=appended,
    )


#: What nearly all entries are, a line each: no check times, no remark, and numbers that are small for certain.
_PLAIN_ENTRIES = re.compile(r"^([0-9]{1,18}),([0-9A-F]{32}),(0|8|12)$", re.MULTILINE).findall


def _parse_entry(line: str, number: int, source: Source) -> EndEntry:
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
    if source in _COMMANDS and decision is not Decision.UNKNOWN:
        raise MalformedRecordError(f"entry {number} {source.value}s with decision {decision.value}; it must be 0")
    if len(fields) == 3:
        return EndEntry(half_offset, transaction_id, decision)
    check_times = whole_number(fields[3], f"check times of entry {number}") if fields[3] else None
    remark = None
    if len(fields) == 5:
        if len(fields[4]) > MAX_REMARK:
            raise MalformedRecordError(f"remark of entry {number} is longer than {MAX_REMARK} characters")
        remark = unquote(fields[4], errors="replace")
    return EndEntry(half_offset, transaction_id, decision, check_times, remark)
