"""The records of relays: the progress of each outbox in OUTBOX, and the rows that are visible in real topics.

A row has no half message, so its mentions have coordinates of their own. The *writer* is a number below -1 that stands
for the identity of the outbox. The number of the row stands for the 16 digits of its UNIQ_KEY that the progress names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from txbridge.core import names as headers
from txbridge_audit.protocol.client_records import IDENTITY, is_deliverable
from txbridge_audit.protocol.mentions import NamedMention, RowMention, UnreadableMention
from txbridge_audit.protocol.record import HeaderTexts, KafkaRecord
from txbridge_audit.protocol.worker_records import json_object, unknown_version, whole

_OUTBOX = re.compile(r"[0-9a-f]{16}")
_CLAIM = re.compile(r"([0-9a-f]{8}):([0-9]{1,18})")
_DIGITS = re.compile(r"[0-9A-F]{16}")
#: A row's number has a sign, so that it fits into 64 bits everywhere.
_ZERO = 2**63


class ProgressStep(NamedTuple):
    """A readable record of the progress."""

    #: Where it lies in OUTBOX. An outbox has one partition there.
    place: int
    at: int
    writer: int
    batch: int
    #: Whether it says that a relay has taken the outbox over, and names no rows.
    is_owner: bool


@dataclass(frozen=True, slots=True)
class Numbering:
    """What the progress of one outbox tells about the numbers of its batches."""

    #: Partition of OUTBOX.
    place: int
    #: Rows of this batch and of later ones are named there. Of earlier ones nothing is known.
    first: int
    last: int
    #: Offsets of records that break the rule of numbers, with the reason.
    breaks: tuple[tuple[int, str], ...] = ()


def numbered(known: Mapping[int, Numbering], step: ProgressStep) -> dict[int, Numbering]:
    """The numbering of the outbox that the next record is about, by its writer."""
    there = known.get(step.writer)
    if there is None:
        # Retention may have removed the batches around the first ownership record. So the first batch begins.
        return {} if step.is_owner else {step.writer: Numbering(step.place, step.batch, step.batch)}
    first, told = there.first, ""
    if step.is_owner and step.batch > there.last:
        first, told = (
            step.batch + 1,
            f"a relay goes on behind batch {step.batch}, but batch {there.last} is the last one",
        )
    elif not step.is_owner and step.batch != there.last + 1:
        told = f"batch {step.batch} comes behind batch {there.last}"
    breaks = (*there.breaks, (step.at, told)) if told else there.breaks
    return {step.writer: Numbering(there.place, first, max(step.batch, there.last), breaks)}


def progress_of(record: KafkaRecord) -> tuple[ProgressStep, list[NamedMention]] | UnreadableMention:
    """What a record of OUTBOX says, and the rows that it names; or the mention of a record that cannot be read."""
    identity = (record.key or b"").decode("utf-8", "replace")
    told = json_object(record.value) or {}
    batch, rows = whole(told, "batch"), told.get("rows")
    fault = _fault_of(record, identity, batch, told)
    if fault is not None or batch is None:
        version = unknown_version(record)
        return UnreadableMention(record.partition, None, record.offset, record.topic, fault or "", version)
    writer = _writer_of(identity)
    step = ProgressStep(record.partition, record.offset, writer, batch, "owner" in told)
    return step, [
        NamedMention(writer, _number_of(digits), record.offset, told["topics"][place], batch, record.partition)
        for _, digits, place in ([] if step.is_owner else rows or ())
    ]


def _fault_of(record: KafkaRecord, identity: str, batch: int | None, told: Mapping[str, Any]) -> str | None:
    if record.texts().get(headers.VERSION) != "1":
        return "TXB_V is not 1"
    if _OUTBOX.fullmatch(identity) is None:
        return "the key is not the identity of an outbox"
    is_owner = isinstance(told.get("owner"), str)
    return None if batch is not None and (is_owner or _has_rows(told)) else "not the progress of a relay"


def _has_rows(told: Mapping[str, Any]) -> bool:
    topics, rows = told.get("topics"), told.get("rows")
    if "owner" in told or not isinstance(topics, list) or not isinstance(rows, list):
        return False
    are_topics = all(isinstance(topic, str) and is_deliverable(topic) for topic in topics)
    return are_topics and all(_is_row(row, len(topics)) for row in rows)


def _is_row(row: object, topics: int) -> bool:
    if not isinstance(row, list) or len(row) != 3:
        return False
    row_id, digits, place = row
    is_named = isinstance(digits, str) and _DIGITS.fullmatch(digits) is not None
    return type(row_id) in {int, str} and is_named and type(place) is int and 0 <= place < topics


def row_mention(record: KafkaRecord, text: HeaderTexts) -> RowMention | UnreadableMention:
    """A visible record that carries TXB_OUTBOX."""
    claim = _CLAIM.fullmatch(text.get(headers.OUTBOX_BATCH) or "")
    identity = text.get(headers.UNIQ_KEY) or ""
    if claim is None or IDENTITY.fullmatch(identity) is None:
        fault = "TXB_OUTBOX or UNIQ_KEY cannot be read"
        return UnreadableMention(record.partition, None, record.offset, record.topic, fault)
    writer, number = _writer_of(claim[1]), _number_of(identity[:16])
    return RowMention(writer, number, record.offset, record.topic, record.partition, identity, int(claim[2]))


def _writer_of(identity: str) -> int:
    return -2 - int(identity[:8], 16)


def _number_of(digits: str) -> int:
    return int(digits, 16) - _ZERO


def digits_of(number: int) -> str:
    """The digits of a UNIQ_KEY that a row's number stands for."""
    return f"{number + _ZERO:016X}"
