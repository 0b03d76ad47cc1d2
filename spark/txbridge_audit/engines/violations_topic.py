"""The violations topic: each violation of a ledger is written there as one record.

The records of a step are written in one Kafka transaction before the step counts (local/state.py). An audit that dies
between the two repeats the step. So before its first step an audit reads the records that were written since the last
step that counts, and does not write them again. The transactional id belongs to the ledger. So an audit that starts
fences a predecessor that still runs.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from txbridge.kafka.errors import named
from txbridge_audit.cluster.cuts import ranges
from txbridge_audit.cluster.kafka_admin import AuditedCluster, kind_of, partitions_of
from txbridge_audit.cluster.kafka_config import KafkaSettings
from txbridge_audit.cluster.reader import read
from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.judge.facts import TopicPartition
from txbridge_audit.protocol.record import records_of
from txbridge_audit.report.entries import Entry

#: Version of the records. It is raised when a key changes its meaning or is removed.
FORMAT = 1
#: Time-out of each request of the producer, seconds. During an election a partition may be without a leader for so
#: long.
TIMEOUT = 30.0


def existing_partitions(cluster: AuditedCluster, topic: str) -> list[TopicPartition]:
    """The partitions of the topic. Raises CouldNotAuditError when it does not exist: it is never created."""
    count = cluster.partition_counts().get(topic)
    if count is None:
        raise CouldNotAuditError(
            f"no topic {topic}, to which violations are to be written: create it, name another one with "
            "--violations-topic, or give the audit's user the right to describe it"
        )
    return partitions_of(topic, count)


class Alarms:
    """The violations topic of one ledger. Every method raises CouldNotAuditError when Kafka fails."""

    def __init__(self, settings: KafkaSettings, cluster: AuditedCluster, topic: str, audit: str) -> None:
        self._settings, self._cluster, self._topic, self._audit = settings, cluster, topic, audit
        self._partitions = existing_partitions(cluster, topic)
        self._sent: set[str] = set()
        self._at: dict[TopicPartition, int] = {}
        try:
            self._producer = Producer({**settings.librdkafka, "transactional.id": f"{topic}-{audit}", "log_level": 0})
            self._producer.init_transactions(TIMEOUT)
        except KafkaException as error:
            raise self._explain_error(error) from error

    def recall(self, since: Mapping[TopicPartition, int]) -> None:
        """Read the records written after the last step that counts. `since` is the result of that step's `send`."""
        starts, ends = self._cluster.log_starts(self._partitions), self._cluster.stable_offsets(self._partitions)
        begin = {key: max(starts[key], since.get(key, 0)) for key in self._partitions}
        self._at = begin
        for record in records_of(read(self._settings, ranges(begin, ends), committed=True)):
            self._remember_id(record.value)

    def send(self, step: int, alarms: Sequence[Entry]) -> Mapping[TopicPartition, int]:
        """Write the alarms that were not written yet. Returns offsets by partition, below which no later alarm lies."""
        new = [alarm for alarm in alarms if alarm.id not in self._sent]
        if not new:
            return self._at
        try:
            self._producer.begin_transaction()
            for alarm in new:
                key = (alarm.transaction or alarm.id).encode()
                self._producer.produce(self._topic, value=self._encode_alarm(step, alarm), key=key)
                self._producer.poll(0)
            self._producer.commit_transaction(TIMEOUT)
        except (KafkaException, BufferError) as error:
            raise self._explain_error(error) from error
        self._sent |= {alarm.id for alarm in new}
        self._at = self._cluster.stable_offsets(self._partitions)
        return self._at

    def _encode_alarm(self, step: int, alarm: Entry) -> bytes:
        told: dict[str, Any] = {
            "format": FORMAT,
            "id": alarm.id,
            "audit": self._audit,
            "step": step,
            "raised_at": int(time.time() * 1000),
        }
        return json.dumps(told | dataclasses.asdict(alarm)).encode()

    def _remember_id(self, value: bytes | None) -> None:
        try:
            told = json.loads(value or b"")
        except ValueError:
            return  # not a record of an audit
        if isinstance(told, dict) and told.get("audit") == self._audit:
            self._sent.add(str(told.get("id")))

    def _explain_error(self, error: Exception) -> CouldNotAuditError:
        first = error.args[0] if error.args else error
        reason, kind = str(first), CouldNotAuditError
        if isinstance(first, KafkaError):
            is_about_id = first.code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            what = f"transactional id {self._topic}-{self._audit}" if is_about_id else f"topic {self._topic}"
            reason, kind = named(first, "WRITE", what).str(), kind_of(first)
        return kind(
            f"violations cannot be written to {self._topic} ({reason}): check that it is up, and that no other audit "
            "follows this ledger"
        )
