"""The records that only workers write: OP, OFFSET, discard, check requests, and the visible records of real topics."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from txbridge.core import names as headers
from txbridge.core.names import SYSTEM_GROUP, Names
from txbridge.murmur2 import hash_key
from txbridge_audit.protocol.client_records import content_of
from txbridge_audit.protocol.mentions import (
    AsideMention,
    CheckMention,
    CopyMention,
    DiscardMention,
    OutcomeMention,
    ParkedMention,
    UnreadableMention,
    position_of,
)
from txbridge_audit.protocol.record import DIGITS, MOST, HeaderTexts, KafkaRecord, coordinates_of, number_of

OUTCOMES = frozenset({"commit", "rollback", "discard", "abandon"})
_STATES = frozenset({"pending", "held", "scheduled", "discarded"})
_HALVES = re.compile(r"[0-9]{1,18}(?:,[0-9]{1,18})*")
#: TXB_ENDS of an OP record.
_ENDS = re.compile(r"([0-9]{1,15}):([0-9]{1,4})-([0-9]{1,15}):([0-9]{1,4})")
_SOURCE = re.compile(r"([A-Za-z0-9._-]+):([0-9]{1,9}):([0-9]{1,18})")
_NUMBER = re.compile(r"([1-9][0-9]{0,3})/([1-9][0-9]{0,3})")
#: The headers that the worker adds to a visible record.
_ADDED = frozenset({headers.UNIQ_KEY, headers.HALF_COORDINATES, headers.MESSAGE_NUMBER})


# OP


def outcome_mentions(record: KafkaRecord) -> Sequence[OutcomeMention | UnreadableMention]:
    """The half messages that a record of OP names, or the mention of a record that cannot be read."""
    text = record.texts()
    outcome = text.get(headers.OUTCOME)
    value = None if record.value is None else record.value.decode("utf-8", "replace")
    fault = _fault_of_op(text, outcome, value)
    if fault is not None or outcome is None or value is None:
        version = unknown_version(record)
        return [UnreadableMention(record.partition, None, record.offset, record.topic, fault or "", version)]
    ends = _ENDS.fullmatch(text.get(headers.ENDS_APPLIED) or "") if outcome == "commit" else None
    since, until = (position_of(int(ends[at]), int(ends[at + 1])) if ends else None for at in (1, 3))
    return [
        OutcomeMention(record.partition, int(half), record.offset, outcome, record.timestamp, since, until)
        for half in value.split(",")
    ]


def _fault_of_op(text: HeaderTexts, outcome: str | None, value: str | None) -> str | None:
    if text.get(headers.VERSION) != "1":
        return "TXB_V is not 1"
    if text.get(headers.TAGS) != headers.REMOVE_TAG.decode():
        return "TAGS is not d"
    if outcome not in OUTCOMES:
        return "OUTCOME is unknown"
    if value is None or _HALVES.fullmatch(value) is None:
        return "not a list of half offsets"
    return None


def unknown_version(record: KafkaRecord) -> str | None:
    """The version of the protocol, if it is a number and not ours: a newer worker wrote the record."""
    version = record.texts().get(headers.VERSION)
    is_other = version is not None and DIGITS.fullmatch(version) and version != headers.PROTOCOL_VERSION.decode()
    return version if is_other else None


# OFFSET


@dataclass(frozen=True, slots=True)
class AuditCheckpoint:
    """A checkpoint of a partition: END is applied up to `applied_to`; `low` is the low watermark.

    The first `applied_entry` entries of the END record at `applied_to` are applied, too.
    """

    applied_to: int | None = None
    low: int | None = None
    applied_entry: int = 0
    #: Append time, ms.
    stamp: int | None = None
    #: Topic ids by short names.
    topics: Mapping[str, str] = field(default_factory=dict)
    #: Whether an older checkpoint of the partition was read, too: then compaction has not come this far.
    follows: bool = False

    @property
    def least_end(self) -> int | None:
        """The least end that END can have after this checkpoint."""
        return None if self.applied_to is None else self.applied_to + (self.applied_entry > 0)


def offset_mention(record: KafkaRecord, names: Names) -> ParkedMention | AuditCheckpoint | None:
    """The checkpoint or the parked entry of a record of OFFSET.

    None for one that is not about its own partition, has not our version or cannot be read: a worker ignores it, too.
    """
    key = _key_pattern(names.half).fullmatch((record.key or b"").decode("utf-8", "replace"))
    if key is None or int(key[1]) != record.partition or record.texts().get(headers.VERSION) != "1":
        return None
    told = json_object(record.value)
    if key[2] is None:
        return None if told is None else _checkpoint(record, told)
    if record.value is None:
        return ParkedMention(record.partition, int(key[2]), record.offset, None, record.timestamp)
    return None if told is None else _parked(record, int(key[2]), told)


@lru_cache
def _key_pattern(half: str) -> re.Pattern[str]:
    return re.compile(rf"{re.escape(half)}@{SYSTEM_GROUP}/([0-9]{{1,9}})(?:/([0-9]{{1,18}}))?")


def json_object(value: bytes | None) -> dict[str, Any] | None:
    """The JSON object; None for anything else."""
    try:
        told = json.loads(value or b"")
        # JSON can escape half of a character. That is no text: a worker refuses it, and no file could hold it.
        json.dumps(told, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return told if isinstance(told, dict) else None


def _checkpoint(record: KafkaRecord, told: dict[str, Any]) -> AuditCheckpoint | None:
    low, applied_to, entry = whole(told, "half"), whole(told, "end"), told.get("entry", 0)
    topics = told.get("topics") or {}
    if low is None or applied_to is None or not isinstance(entry, int) or not isinstance(topics, dict):
        return None
    return AuditCheckpoint(applied_to, low, entry, record.timestamp, {str(name): str(topics[name]) for name in topics})


def _parked(record: KafkaRecord, half: int, told: dict[str, Any]) -> ParkedMention | None:
    """The parked entry. A field that breaks a rule counts as missing."""
    state = told.get("state")
    if state not in _STATES:
        return None

    def text(name: str) -> str | None:
        value = told.get(name)
        return value if isinstance(value, str) else None

    return ParkedMention(
        partition=record.partition,
        half=half,
        at=record.offset,
        state=state,
        stamp=record.timestamp,
        id=text("id"),
        group=text("group"),
        topic=text("topic"),
        born=whole(told, "born"),
        due=whole(told, "next"),
        resumed=whole(told, "resumed"),
        checks=whole(told, "checks"),
        error=text("error"),
        delivered=whole(told, "delivered") or 0,
        end_position=whole(told, "end"),
    )


def whole(told: Mapping[str, Any], name: str) -> int | None:
    """The field if it is a number that fits into 64 bits and has no sign."""
    value = told.get(name)
    return value if type(value) is int and 0 <= value <= MOST else None


# Discard and check topics


def discard_mention(record: KafkaRecord) -> DiscardMention | AsideMention | None:
    """A record of the discard topic; None when it names no coordinates.

    A malformed record and a copy are named by the coordinates where they were found. All others are half messages.
    """
    text = record.texts()
    reason = text.get(headers.REASON)
    where = text.get(headers.HALF_COORDINATES)
    partition, half = coordinates_of(where)
    if reason in {"MALFORMED", "COPY"}:
        source = _SOURCE.fullmatch(text.get(headers.RECORD_SOURCE) or "")
        if source is None:
            return None
        is_copy = reason == "COPY"
        return AsideMention(
            partition=int(source[2]),
            half=int(source[3]),
            at=record.offset,
            source_topic=source[1],
            place=record.partition,
            error=text.get(headers.ERROR),
            first=half if is_copy else None,
            is_copy=is_copy,
        )
    if partition is None:
        return None
    return DiscardMention(
        partition=partition,
        half=half,
        at=record.offset,
        place=record.partition,
        reason=reason,
        stamp=record.timestamp,
        end_position=number_of(text.get(headers.END_POSITION)),
        checks=number_of(text.get(headers.CHECK_TIMES)),
        delivered=number_of(text.get(headers.DELIVERED)) or 0,
    )


def check_mention(record: KafkaRecord) -> CheckMention | None:
    """A check request; None for a reply, and when it names no coordinates: it proves nothing."""
    text = record.texts()
    if headers.REPLY in text:
        return None
    partition, half = coordinates_of(text.get(headers.HALF_COORDINATES))
    if partition is None:
        return None
    return CheckMention(
        partition=partition,
        half=half,
        at=record.offset,
        topic=record.topic,
        place=record.partition,
        id=text.get(headers.UNIQ_KEY),
        checks=number_of(text.get(headers.CHECK_TIMES)),
        end_position=number_of(text.get(headers.END_POSITION)),
    )


# Real topics


def copy_mention(record: KafkaRecord, text: HeaderTexts, partitions: int) -> CopyMention:
    """A visible record that carries TXB_HALF.

    `partitions` says how many its topic has. The content includes headers of ours that should not be there.
    """
    partition, half = coordinates_of(text.get(headers.HALF_COORDINATES))
    users = [header for header in record.headers if header[0] not in _ADDED]
    told = _NUMBER.fullmatch(text.get(headers.MESSAGE_NUMBER) or "")
    return CopyMention(
        partition=-1 if partition is None else partition,
        half=half,
        at=record.offset,
        topic=record.topic,
        place=record.partition,
        id=text.get(headers.UNIQ_KEY),
        # The worker adds two headers, each once.
        content=content_of(record.key, record.value, users, len(record.headers) - len(users) - 2),
        dated=record.timestamp if record.is_dated else None,
        by_key=misplaced(record.key, record.partition, partitions) if record.key else None,
        number=int(told[1]) if told else None,
        numbers=int(told[2]) if told else None,
    )


def misplaced(key: bytes, place: int, partitions: int) -> int | None:
    """The partition that the key asks for, if the record is in one (`place`) where the key was never put.

    A topic may have had fewer partitions before, so each number that leaves room for the record counts. Today's number
    nearly always explains the place, and then no other number is tried.
    """
    number = hash_key(key)
    asked = number % partitions
    if asked == place or place >= partitions:
        return None
    return None if any(number % count == place for count in range(partitions, place, -1)) else asked
