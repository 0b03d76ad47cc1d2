"""Differences between a half message and a copy of it. Both records are read once more by their coordinates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from txbridge.core import names
from txbridge_audit.cluster.cuts import Range
from txbridge_audit.cluster.kafka_config import KafkaSettings
from txbridge_audit.cluster.reader import read
from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.protocol.record import KafkaRecord, RecordHeaders, number_of

#: Topic, partition, offset.
Coordinates = tuple[str, int, int]


def differences(settings: KafkaSettings, pairs: Sequence[tuple[Coordinates, Coordinates]]) -> list[str]:
    """The differences of each half message and its copy, as text; empty where a record cannot be read any more."""
    found: list[str] = []
    for half, copy in pairs:
        spans = {(topic, partition): Range(at, at + 1) for topic, partition, at in (half, copy)}
        try:
            records = {one.topic: one for one in read(settings, spans, committed=False, may_vanish=True)}
        except CouldNotAuditError:
            # The report has less detail, but is right. Each further record could cost a time-out, too.
            break
        told = differing(records[half[0]], records[copy[0]]) if len(records) == 2 else ()
        found.append(", ".join(told))
    return found + [""] * (len(pairs) - len(found))


def differing(half: KafkaRecord, copy: KafkaRecord) -> Iterable[str]:
    """The parts that differ: key, value, headers by name, or the order of the headers, and the timestamp."""
    texts = half.texts()
    if texts.get(names.MESSAGES) is not None:
        yield "one of its messages"
        return
    if half.key != copy.key:
        yield "key"
    if half.value != copy.value:
        yield "value"
    given = [header for header in half.headers if not names.is_reserved_header(header[0])]
    there = list(copy.headers)
    for name in (names.UNIQ_KEY, names.HALF_COORDINATES):
        # The last one of each name is the worker's.
        last = max((place for place, header in enumerate(there) if header[0] == name), default=None)
        if last is not None:
            del there[last]
    changed = sorted({name for name, _ in given + there if _values_of(name, given) != _values_of(name, there)})
    yield from (f"header {name}" for name in changed)
    if not changed and given != there:
        yield "order of headers"
    born = number_of(texts.get(names.BORN_TIMESTAMP)) or half.timestamp
    # An append time is not the writer's.
    if copy.is_dated and copy.timestamp != born:
        yield "timestamp"


def _values_of(name: str, headers: RecordHeaders) -> list[bytes | None]:
    return [value for other, value in headers if other == name]
