"""Rows that were stored while Kafka was away: their relay lets all that they follow pass first (forwarding.py).

Such a row follows messages of its key that went directly. They are visible once the worker has applied the ENDs in the
key's half partition. So the relay sends those ENDs again that the row names, and then an END that asks about nothing.
It waits until the checkpoint has passed that one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from confluent_kafka import Producer

from txbridge.core.checkpoint import Checkpoint
from txbridge.core.decision_record import Decision, DecisionEntry, Source, encode_end
from txbridge.core.headers import MalformedRecordError
from txbridge.core.names import Names
from txbridge.kafka import config
from txbridge.kafka.partition_reader import PartitionReader
from txbridge.kafka.produced_records import store_record
from txbridge.murmur2 import hash_key
from txbridge_sqlalchemy.outbox_messages import OutboxRow

#: Longest wait (s) for the worker at a time. Other rows go on after it.
_WAIT_S = 2.0
#: A little longer (s) than message.timeout.ms, after which librdkafka gives a record up and reports that.
_FLUSH_TIMEOUT_S = config.END_MESSAGE_TIMEOUT_MS / 1000 + 5
_POLL_S = 0.1
_AT_ONCE = 100


class HalfSettling:
    """Waits for the worker, for rows that need it. All methods belong to one thread."""

    def __init__(self, kafka: Mapping[str, Any], names: Names) -> None:
        self._kafka = kafka
        self._names = names
        #: The messages of the round, and by half partition the reader of OFFSET and the END that must be passed.
        self._round: frozenset[str] = frozenset()
        self._waits: dict[int, tuple[PartitionReader, int]] = {}

    def settle_rows(self, rows: Sequence[OutboxRow]) -> bool:
        """Whether all that these rows follow is visible. Waits some seconds at most. Raises KafkaException."""
        messages = frozenset(row.message_id for row in rows)
        if not messages <= self._round:
            self._begin_round(rows)
            self._round = messages
        until = time.monotonic() + _WAIT_S
        for partition, (reader, end) in tuple(self._waits.items()):
            while not self._is_passed(reader, partition, end):
                if time.monotonic() > until:
                    return False
            reader.close()
            del self._waits[partition]
        return True

    def _begin_round(self, rows: Sequence[OutboxRow]) -> None:
        self.close()
        producer = config.create(Producer, config.end_producer_config(self._kafka))
        try:
            half = producer.list_topics(self._names.half, _WAIT_S).topics[self._names.half]
            keys = {row.message.key for row in rows if row.message is not None} - {None}
            asked = {hash_key(key) % len(half.partitions) for key in keys if key is not None}
            for partition in asked:
                self._waits[partition] = (self._read_from_now(partition), -1)
            for end in dict.fromkeys(end for row in rows for end in row.after or ()):
                commit = DecisionEntry(end.half_offset, end.transaction_id, Decision.COMMIT)
                self._send(producer, end.half_partition, commit, end.group, Source.CLIENT)
            question = DecisionEntry(0, "0" * 32, Decision.UNKNOWN)
            for partition, (reader, _) in self._waits.items():
                self._waits[partition] = (reader, self._send(producer, partition, question, "relay", Source.FIND))
        finally:
            producer.close()

    def _read_from_now(self, partition: int) -> PartitionReader:
        """A reader of OFFSET. A checkpoint that passes an END of later is behind the end of now."""
        reader = PartitionReader(self._kafka, self._names.offset, partition, committed=True, follows=True)
        reader.start(reader.watermarks()[1])
        return reader

    def _send(self, producer: Producer, partition: int, entry: DecisionEntry, group: str, source: Source) -> int:
        """Write an END record, and return its offset."""
        value, headers = encode_end([entry], group, source, None)
        return store_record(producer, self._names.end, value, partition, headers, _FLUSH_TIMEOUT_S)

    def _is_passed(self, reader: PartitionReader, partition: int, end: int) -> bool:
        key = self._names.checkpoint_key(partition)
        for message in reader.poll(_AT_ONCE, _POLL_S):
            if message.key() == key:
                # A worker of another release stops workers, and tells it.
                with suppress(MalformedRecordError):
                    if Checkpoint.decode(message.value() or b"").end > end:
                        return True
        return False

    def close(self) -> None:
        """Give up the round."""
        for reader, _ in self._waits.values():
            reader.close()
        self._waits, self._round = {}, frozenset()
