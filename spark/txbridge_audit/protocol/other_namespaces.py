"""The half messages of other namespaces, by what their HALF and END say."""

from __future__ import annotations

from collections.abc import Iterable

from txbridge_audit.protocol import client_records
from txbridge_audit.protocol.mentions import HalfMention, UnreadableMention
from txbridge_audit.protocol.record import KafkaRecord


def identities_of(records: Iterable[KafkaRecord]) -> set[tuple[int, int, str]]:
    """Half partition, offset and id of the half messages in these records of HALF."""
    return {_identity(half) for half in map(client_records.half_mention, records) if half.id is not None}


def _identity(half: HalfMention) -> tuple[int, int, str]:
    return half.partition, half.half, str(half.id)


def named_identities_of(records: Iterable[KafkaRecord]) -> set[tuple[int, int, str]]:
    """Half partition, offset and id of the half messages that these records of END name."""
    return {
        (end.partition, end.half, end.id)
        for found in map(client_records.end_mentions, records)
        if not isinstance(found, UnreadableMention)
        for end in found
        if end.half is not None
    }
