"""Parser of check requests. It trusts no record, because the topic may hold anything."""

from __future__ import annotations

from dataclasses import dataclass

from confluent_kafka import Message as Record

from txbridge.client.message import MessageExt
from txbridge.core import names
from txbridge.core.half_copies import parse_coordinates
from txbridge.core.half_message import parse_half
from txbridge.core.headers import MalformedRecordError, OurHeaders, whole_number
from txbridge.core.names import Names, is_reserved_header
from txbridge.kafka.headers import headers_of


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """The worker's question about a transaction."""

    message: MessageExt
    #: Bytes of the half message, as the END record of the answer counts them.
    size: int


def parse_check(record: Record, group: str, topic_names: Names, partitions: int) -> CheckRequest:
    """Parse a record of the group's check topic. `partitions` is the number of partitions of HALF.

    Raises MalformedRecordError with the broken rule.
    """
    headers = headers_of(record)
    ours = OurHeaders(headers)
    partition, offset = parse_coordinates(ours.require_text(names.HALF_COORDINATES))
    if partition >= partitions:
        raise MalformedRecordError(f"{names.HALF_COORDINATES} names partition {partition}, there are {partitions}")
    # Only headers of the half message. Other reserved headers belong to the request, or to a later version of it.
    copied = [header for header in headers if header[0] in names.HALF_HEADERS or not is_reserved_header(header[0])]
    stored = record.timestamp()[1]
    half = parse_half(offset, stored, record.key(), record.value(), copied, topic_names)
    if half.group != group:
        raise MalformedRecordError(f"it is for group {half.group!r}")
    check_times = whole_number(ours.require_text(names.CHECK_TIMES), names.CHECK_TIMES)
    if check_times < 1:
        raise MalformedRecordError(f"{names.CHECK_TIMES} is {check_times}, the first check has 1")
    born = ours.optional_number(names.BORN)
    barrier_id = ours.find_text(names.BARRIER)
    return CheckRequest(MessageExt.for_check(half, partition, check_times, born, barrier_id, stored), half.size)
