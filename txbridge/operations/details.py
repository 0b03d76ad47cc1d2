"""Details of open messages that the view of their partition does not have: keys, barriers, the last remarks."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from urllib.parse import unquote

from txbridge.core.half_message import HalfMessage
from txbridge.core.headers import OurHeaders
from txbridge.core.names import BARRIER
from txbridge.kafka.body_cache import BodyCache
from txbridge.operations.connection import Connection, kafka_errors
from txbridge.operations.model import OpenMessage
from txbridge.operations.reading import bounds_of, never, open_reader
from txbridge.operations.since import admin_client, start_since

#: An answer "unknown" with a remark: half offset, transaction id, remark. It is a pattern for the whole value, because
#: END is long and such answers are rare.
_REMARK = re.compile(rb"^(\d{1,19}),([0-9A-F]{32}),0,\d*,(.+)$", re.MULTILINE)


def with_keys(connection: Connection, partition: int, messages: Collection[OpenMessage]) -> list[OpenMessage]:
    """The same messages of one partition with keys and barriers, and whether their bodies are gone.

    Raises as `read_view`.
    """
    topic = connection.names.half
    with (
        kafka_errors(f"reading {topic}[{partition}]"),
        open_reader(connection, topic, partition, committed=False) as reader,
    ):
        # A budget of 0 bytes: each body is used once.
        bodies = BodyCache(0, connection.names, reader).load(message.half_offset for message in messages)
    return [
        replace(message, gone=True)
        if (half := bodies.get(message.half_offset)) is None
        else replace(message, key=half.key, barrier_id=barrier_of(half))
        for message in messages
    ]


def barrier_of(half: HalfMessage) -> str | None:
    return OurHeaders(half.headers).find_text(BARRIER)


def last_remarks(connection: Connection, partition: int, messages: Collection[OpenMessage]) -> dict[int, str]:
    """The remark of the last "unknown" about each of these, by half offset. Raises as `read_view`.

    END is read from the birth of the oldest message to its end, which takes most of the time in a busy partition.
    """
    ids = {message.half_offset: message.transaction_id.encode() for message in messages}
    born = min(message.born for message in messages)
    remarks: dict[int, str] = {}
    with kafka_errors(f"reading {connection.names.end}[{partition}]"):
        start = start_since(admin_client(connection), connection.names.end, partition, born)
        if start is None:
            return remarks
        with open_reader(connection, connection.names.end, partition, committed=True) as reader:
            reader.start(start)
            for message in reader.read_to(bounds_of(reader)[1], never):
                for offset, transaction_id, remark in _REMARK.findall(message.value() or b""):
                    if ids.get(int(offset)) == transaction_id:
                        remarks[int(offset)] = unquote(remark.decode(errors="replace"), errors="replace")
    return remarks
