"""The reading of topics up to their cuts, and the choice of an engine. No Kafka."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, Consumer, KafkaError
from txbridge_audit.audit import LOCAL_MOST, AuditEngine, fitting_engine, needed_engine
from txbridge_audit.cluster import reader
from txbridge_audit.cluster.cuts import Range
from txbridge_audit.cluster.kafka_admin import AuditedCluster
from txbridge_audit.engines.other_namespaces import parts_of
from txbridge_audit.errors import CouldNotAuditError, ElectionError
from txbridge_audit.ledger.place import local_folder, resolved
from txbridge_audit.protocol.record import records_of

A, B = ("orders", 0), ("orders", 1)


class Sent:
    """A message, or an event about a partition, as a consumer returns it."""

    def __init__(
        self, place: tuple[str, int], at: int = 0, error: int | None = None, kind: int = TIMESTAMP_LOG_APPEND_TIME
    ) -> None:
        self._place, self._at, self._kind = place, at, kind
        self._error = None if error is None else KafkaError(error)

    def topic(self) -> str:
        return self._place[0]

    def partition(self) -> int:
        return self._place[1]

    def offset(self) -> int:
        return self._at

    def error(self) -> KafkaError | None:
        return self._error

    def timestamp(self) -> tuple[int, int]:
        return self._kind, 1_000 + self._at

    def key(self) -> bytes:
        return b"key"

    def value(self) -> bytes:
        return b"value"

    def headers(self) -> list[tuple[str, bytes]]:
        return [("name", b"text")]

    def __len__(self) -> int:
        return 4


class Consuming:
    """A consumer that returns these messages, batch by batch, and then nothing."""

    def __init__(self, *batches: list[Sent]) -> None:
        self._batches = list(batches)
        self.unassigned: list[tuple[str, int]] = []

    def consume(self, *_: object) -> list[Sent]:
        return self._batches.pop(0) if self._batches else []

    def incremental_unassign(self, partitions: list[Any]) -> None:
        self.unassigned += [(one.topic, one.partition) for one in partitions]


def read(consumer: Consuming, **ends: int) -> list[tuple[int, int, bool]]:
    """Partition, offset, and whether the writer gave the timestamp, of what is read up to these ends."""
    spans = {("orders", int(name[1:])): Range(0, end) for name, end in ends.items()}
    found = reader._until_the_ends(cast("Consumer", consumer), spans)
    records = records_of(reader.batch_of(messages) for messages in found)
    return [(record.partition, record.offset, record.is_dated) for record in records]


END = KafkaError._PARTITION_EOF


def test_each_partition_is_read_up_to_its_end_and_no_further() -> None:
    dated = TIMESTAMP_CREATE_TIME
    consumer = Consuming([Sent(A, 0), Sent(B, 0, kind=dated), Sent(A, 1)], [Sent(A, 2), Sent(A, 3), Sent(B, 1)])
    assert read(consumer, p0=3, p1=2) == [(0, 0, False), (1, 0, True), (0, 1, False), (0, 2, False), (1, 1, False)]
    assert consumer.unassigned == []
    consumer = Consuming([Sent(A, 0)], [Sent(B, 0)], [Sent(B, 1)])
    assert len(read(consumer, p0=1, p1=2)) == 3
    assert consumer.unassigned == [A]


def test_markers_and_aborted_records_before_the_end_are_no_reason_to_wait() -> None:
    """Either the end of the log comes, or a record behind the cut."""
    assert read(Consuming([Sent(A, 0)], [Sent(A, 9, END)]), p0=9) == [(0, 0, False)]
    assert read(Consuming([Sent(A, 0), Sent(A, 12)]), p0=9) == [(0, 0, False)]


def test_claims_far_apart_are_read_in_parts() -> None:
    """Two forged records must not have a million half messages of another namespace read."""
    assert parts_of([3, 5, 900_000]) == [Range(3, 6), Range(900_000, 900_001)]
    assert parts_of([7]) == [Range(7, 8)]
    found = parts_of(range(0, 1_000_000, 10_000))
    assert len(found) == 8
    assert [(found[0].start, found[-1].end)] == [(0, 990_001)]


def test_a_silent_broker_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its passing errors are no sign of life."""
    monkeypatch.setattr(reader, "SILENCE", 0.2)
    errors = [[Sent(A, error=KafkaError._TRANSPORT)] for _ in range(1_000_000)]
    for consumer in (Consuming([Sent(A, 0)]), Consuming(*errors)):
        with pytest.raises(ElectionError, match="orders/0 could not be read within"):
            read(consumer, p0=2)


@pytest.mark.parametrize(
    ("error", "told", "kind"),
    [
        (KafkaError._AUTO_OFFSET_RESET, "retention removed records of orders/0", CouldNotAuditError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "missing right READ on topic orders", CouldNotAuditError),
        (KafkaError._LOG_TRUNCATION, "orders/0 lost records in an election", ElectionError),
    ],
)
def test_what_ends_a_reading(error: int, told: str, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=told):
        read(Consuming([Sent(A, error=error)]), p0=2)


# The choice of an engine


def test_a_relative_ledger_is_a_folder_of_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("HADOOP_CONF_DIR", "SPARK_CONF_DIR", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert resolved("ledger") == str(tmp_path / "ledger")
    assert resolved("/data/ledger") == "/data/ledger"
    assert resolved("hdfs://nn/ledger") == "hdfs://nn/ledger"
    # Only Hadoop's configuration says what it is relative to.
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    assert resolved("ledger") == "ledger"


def test_a_ledger_chooses_the_engine_that_can_write_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    folder, local, spark = str(tmp_path), AuditEngine.LOCAL, AuditEngine.SPARK
    assert needed_engine(None, None) is None
    assert needed_engine(None, folder) is None
    assert needed_engine(local, folder) is local
    assert needed_engine(spark, folder) is spark
    assert needed_engine(None, "s3a://bucket/ledger") is spark
    with pytest.raises(CouldNotAuditError, match="a folder of this machine"):
        needed_engine(local, "s3a://bucket/ledger")
    # Its configuration may say that a plain path is elsewhere. It is not for the local engine.
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert needed_engine(None, folder) is spark
    assert needed_engine(local, folder) is local


@pytest.mark.parametrize(
    ("number", "submitted", "expected"),
    [(LOCAL_MOST, False, AuditEngine.LOCAL), (LOCAL_MOST + 1, False, AuditEngine.SPARK), (1, True, AuditEngine.SPARK)],
)
def test_the_number_of_half_messages_chooses_the_engine(
    monkeypatch: pytest.MonkeyPatch, number: int, submitted: bool, expected: AuditEngine
) -> None:
    """A job that was submitted to Spark stays there."""
    if submitted:
        monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    else:
        monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    cluster = SimpleNamespace(
        log_starts=lambda keys: dict.fromkeys(keys, 10), high_watermarks=lambda keys: dict.fromkeys(keys, 10 + number)
    )
    said: list[str] = []
    assert fitting_engine(cast("AuditedCluster", cluster), [A], said.append) is expected
    assert submitted or said == [f"{number:,} half messages: --engine {expected}"]


def test_a_plain_path_of_a_continued_audit_is_here_whatever_spark_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert local_folder("ledger") is None
    assert local_folder("ledger", by_local_engine=True) == tmp_path / "ledger"
    assert local_folder("hdfs://nn/ledger", by_local_engine=True) is None
