"""Details of open messages that the view of their partition does not have: keys, lost bodies, the last remarks."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from urllib.parse import unquote

from confluent_kafka import TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public there, but re-exported without saying so
    AdminClient,
    OffsetSpec,
)

from txbridge.errors import EnvironmentProblemError
from txbridge.kafka import config as kafka_config
from txbridge.kafka.body_cache import BodyCache
from txbridge.kafka.log import librdkafka_logger
from txbridge.kafka.partition_reader import PartitionReader
from txbridge.operations.connection import Connection, kafka_errors
from txbridge.operations.model import OpenMessage
from txbridge.operations.reading import bounds_of, never, open_reader

#: Time limit (s), the same for all requests that a person waits for. A healthy broker answers in milliseconds.
_REQUEST_TIMEOUT_S = 10.0
#: The search for remarks starts this long (ms) before the birth of the oldest message, as brokers' clocks differ.
_CLOCK_SKEW_MS = 60_000
#: An answer "unknown" with a remark: half offset, transaction id, remark. It is a pattern for the whole value, because
#: END is long and such answers are rare.
_REMARK = re.compile(rb"^(\d{1,19}),([0-9A-F]{32}),0,\d*,(.+)$", re.MULTILINE)


def with_keys(connection: Connection, partition: int, messages: Collection[OpenMessage]) -> list[OpenMessage]:
    """The same messages of one partition with their keys, and whether their bodies are gone. Raises as `read_view`."""
    with kafka_errors(f"reading {connection.names.half}[{partition}]"):
        reader = PartitionReader(connection.kafka, connection.names.half, partition, committed=False)
        # A budget of 0 bytes: each body is used once.
        cache = BodyCache(0, connection.names, reader)
        try:
            bodies = cache.load(message.half_offset for message in messages)
        except TimeoutError as error:
            raise EnvironmentProblemError(f"a half message could not be read: {error}") from error
        finally:
            cache.close()
    return [
        replace(message, gone=True)
        if (half := bodies.get(message.half_offset)) is None
        else replace(message, key=half.key)
        for message in messages
    ]


def last_remarks(connection: Connection, partition: int, messages: Collection[OpenMessage]) -> dict[int, str]:
    """The remark of the last "unknown" about each of these, by half offset. Raises as `read_view`.

    END is read from the birth of the oldest message to its end, which takes most of the time in a busy partition.
    """
    ids = {message.half_offset: message.transaction_id.encode() for message in messages}
    born = min(message.born for message in messages) - _CLOCK_SKEW_MS
    where = TopicPartition(connection.names.end, partition)
    remarks: dict[int, str] = {}
    with kafka_errors(f"reading {connection.names.end}[{partition}]"):
        config = {"logger": librdkafka_logger(), **kafka_config.admin_config(connection.kafka)}
        admin = kafka_config.create(AdminClient, config)
        spec = {where: OffsetSpec.for_timestamp(max(born, 0))}
        start = admin.list_offsets(spec, request_timeout=_REQUEST_TIMEOUT_S)[where].result().offset
        # Kafka answers -1 when nothing came since then.
        if start < 0:
            return remarks
        with open_reader(connection, connection.names.end, partition, committed=True) as reader:
            reader.start(start)
            for message in reader.read_to(bounds_of(reader)[1], never):
                for offset, transaction_id, remark in _REMARK.findall(message.value() or b""):
                    if ids.get(int(offset)) == transaction_id:
                        remarks[int(offset)] = unquote(remark.decode(errors="replace"), errors="replace")
    return remarks
