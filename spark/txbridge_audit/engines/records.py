"""The records of Arrow batches, and the mentions in those of each topic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from txbridge.core.names import HALF_COORDINATES, OUTBOX_BATCH, Names
from txbridge_audit.judge.transaction import SetAside
from txbridge_audit.protocol import client_records, relay_records, worker_records
from txbridge_audit.protocol.mentions import Mention, NamedMention, UnreadableMention
from txbridge_audit.protocol.record import HIDDEN, HIDDEN_NAME, KafkaRecord
from txbridge_audit.protocol.relay_records import ProgressStep
from txbridge_audit.protocol.worker_records import AuditCheckpoint

#: Columns of a raw record (cluster/reader.py).
RAW = ("topic", "partition", "offset", "timestamp", "timestampType", "key", "value", "headers")


def records_of(batches: Iterable[Any]) -> Iterator[KafkaRecord]:
    """The records of Arrow batches with the columns of Kafka's source in Spark, the timestamp in ms."""
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in RAW)
        for topic, partition, offset, timestamp, kind, key, value, headers in zip(*columns, strict=True):
            pairs = [(header["key"], header["value"]) for header in headers or ()]
            if not (is_read := not any(HIDDEN_NAME in name for name, _ in pairs)):
                pairs.clear()
            yield KafkaRecord(topic, partition, offset, timestamp, kind == 0, key, value, pairs, is_read)


def offset_mentions(
    names: Names, checkpoints: dict[int, AuditCheckpoint], records: Iterable[KafkaRecord]
) -> Iterator[Mention]:
    """The parked entries of OFFSET. The last checkpoint of each partition goes into `checkpoints`.

    A record of a worker whose version is not known is an UnreadableMention with that version.
    """
    ours = f"{names.half}@".encode()
    for record in records:
        if (record.key or b"").startswith(ours) and (version := worker_records.unknown_version(record)):
            yield UnreadableMention(record.partition, None, record.offset, record.topic, "a newer version", version)
        told = worker_records.offset_mention(record, names)
        if isinstance(told, AuditCheckpoint):
            checkpoints[record.partition] = replace(told, follows=record.partition in checkpoints)
        elif told is not None:
            yield told


def progress_mentions(
    steps: list[ProgressStep], named: set[str], records: Iterable[KafkaRecord]
) -> Iterator[NamedMention | UnreadableMention]:
    """The rows that OUTBOX names. What it says of the batches goes into `steps`, and their real topics into `named`."""
    for record in records:
        told = relay_records.progress_of(record)
        if isinstance(told, UnreadableMention):
            yield told
        else:
            steps.append(told[0])
            named.update(row.topic for row in told[1])
            yield from told[1]


def other_mentions(
    names: Names, counts: Mapping[str, int], asides: SetAside, exactly: bool, records: Iterable[KafkaRecord]
) -> Iterator[Mention]:
    """The mentions of records of END, OP and real topics. See engines/gather.py for `counts` and `exactly`."""
    for record in records:
        if record.topic == names.end:
            ends = client_records.end_mentions(record, exactly=exactly)
            if isinstance(ends, UnreadableMention):
                yield ends
            else:
                yield from asides.entries_that_count(ends)
        elif record.topic == names.op:
            outcomes = worker_records.outcome_mentions(record)
            if isinstance(outcomes, UnreadableMention):
                yield outcomes
            else:
                yield from outcomes
        elif not record.has_headers:
            # It may claim a half message. So it is not passed over without a word.
            yield UnreadableMention(record.partition, None, record.offset, record.topic, HIDDEN)
        elif HALF_COORDINATES in (text := record.texts()):
            yield worker_records.copy_mention(record, text, counts[record.topic])
        elif OUTBOX_BATCH in text:
            yield relay_records.row_mention(record, text)
