"""The intake by Spark: each topic is read once, between fixed offsets, and its records become mentions in the tasks.

A row is a mention at its half coordinates, or something that belongs to no transaction (`what`). The driver sees only
what it needs for the next cut: names of real topics, checkpoints, and those of the discard topic.
"""

from __future__ import annotations

import json
import marshal
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial, reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own convention)

from txbridge.core.names import Names
from txbridge_audit.cluster.cuts import Range
from txbridge_audit.cluster.kafka_config import KafkaSettings
from txbridge_audit.engines.records import refuse_unknown_version
from txbridge_audit.engines.spark import tasks
from txbridge_audit.engines.spark.spark_session import PARALLELISM
from txbridge_audit.judge.facts import TopicPartition
from txbridge_audit.judge.transaction import SetAside
from txbridge_audit.protocol.mentions import AsideMention, UnreadableMention, from_row
from txbridge_audit.protocol.relay_records import Numbering, ProgressStep, numbered
from txbridge_audit.protocol.worker_records import AuditCheckpoint

Spans = Mapping[TopicPartition, Range]
#: Columns of every raw frame with their types: those of Spark's Kafka source that are used.
_COLUMNS = {
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "key": "binary",
    "value": "binary",
    "headers": "array<struct<key: string, value: binary>>",
}
#: The same as text.
_SCHEMA = ", ".join(f"{name}: {kind}" for name, kind in _COLUMNS.items())

#: Time-out of Spark's poll, ms. A task fails when no record comes for so long before the end of its range. A broker on
#: an overloaded machine must answer within this time. The default of two minutes would hide a dead broker for too long.
#: Where only markers of Kafka transactions are left, Kafka's client returns once it is past them, without the time-out.
POLL_TIMEOUT_MS = 20_000

#: Spark requests the first and the last offset after every poll. With Kafka's 500 records a poll that costs more than
#: the records. The size of a poll is bounded in bytes, too, so large records make it smaller. Kafka's client requests
#: the next records before they are needed. At the end of a partition the broker would keep that request, and those
#: behind it, for 500 ms in each task.
_POLLS = {
    "kafka.max.poll.records": "20000",
    "kafka.max.partition.fetch.bytes": str(8 * 1024 * 1024),
    "kafka.fetch.max.wait.ms": "20",
}

READ_COMMITTED, READ_UNCOMMITTED = "read_committed", "read_uncommitted"


class SparkIntake:
    """Reads spans as rows of mentions (see engines/gather.py)."""

    def __init__(self, spark: SparkSession, settings: KafkaSettings, names: Names) -> None:
        self._spark, self._settings, self._names = spark, settings, names
        self._frames: list[DataFrame] = []
        self._kept: list[DataFrame] = []
        self.named: set[str] = set()
        self.checkpoints: dict[int, AuditCheckpoint] = {}
        self.relays: dict[int, Numbering] = {}
        self._asides = SetAside(names)

    def take_halves(self, spans: Spans) -> None:
        frame = self._rows(spans, partial(tasks.halves, self._names), isolation=READ_UNCOMMITTED)
        self.named.update(map(marshal.loads, self._collect_packed(frame, tasks.NAMED)))

    def take_offsets(self, spans: Spans) -> None:
        frame = self._rows(spans, partial(tasks.offsets, self._names))
        for packed in self._collect_packed(frame, tasks.ODD):
            mention = from_row(marshal.loads(packed))
            assert isinstance(mention, UnreadableMention)
            refuse_unknown_version(mention)
        for packed in self._collect_packed(frame, tasks.CHECKPOINT):
            partition, *values = marshal.loads(packed)
            told = AuditCheckpoint(*values)
            # Of several tasks the last record of a partition: checkpoints move on.
            known = self.checkpoints.get(partition, told)
            last = max(known, told, key=lambda one: (one.stamp or 0, one.applied_to or 0))
            self.checkpoints[partition] = replace(last, follows=last.follows or known != told)

    def take_progress(self, spans: Spans) -> None:
        frame = self._rows(spans, partial(tasks.progress, self._names))
        self.named.update(map(marshal.loads, self._collect_packed(frame, tasks.NAMED)))
        # Several tasks may have read a partition.
        for step in sorted(
            ProgressStep(*marshal.loads(packed)) for packed in self._collect_packed(frame, tasks.PROGRESS)
        ):
            self.relays |= numbered(self.relays, step)

    def take_discards(self, spans: Spans) -> None:
        for packed in self._collect_packed(self._rows(spans, partial(tasks.discards, self._names)), tasks.ODD):
            aside = from_row(marshal.loads(packed))
            if isinstance(aside, AsideMention):
                self._asides.add_record(aside)

    def take_others(self, spans: Spans, counts: Mapping[str, int], *, exactly: bool) -> None:
        others = partial(tasks.others, self._names, dict(counts), self._asides, exactly)
        self._frames.append(self._rows(spans, others))

    def take_checks(self, spans: Spans) -> None:
        self._frames.append(self._rows(spans, partial(tasks.checks, self._names), may_vanish=True))

    def rows(self) -> DataFrame:
        """Everything that was read. Lazy."""
        return reduce(DataFrame.union, [*self._kept, *self._frames]).where(
            ~F.col("what").isin(tasks.NAMED, tasks.CHECKPOINT, tasks.PROGRESS)
        )

    def close(self) -> None:
        """Release what the driver has looked at."""
        for frame in self._kept:
            frame.unpersist()

    def _rows(
        self,
        spans: Spans,
        parse: Callable[[Iterable[Any]], Iterable[tasks.Told]],
        *,
        isolation: str = READ_COMMITTED,
        may_vanish: bool = False,
    ) -> DataFrame:
        raw = read(self._spark, self._settings, spans, isolation, may_vanish=may_vanish)
        plain = raw.withColumn("timestamp", F.unix_millis("timestamp"))
        return plain.mapInArrow(partial(tasks.parsed, parse), tasks.ROWS)

    def _collect_packed(self, frame: DataFrame, what: str) -> list[bytes]:
        """The rows of one sort. The frame is kept, because its other rows are needed later."""
        if frame not in self._kept:
            self._kept.append(frame.persist())
        return [bytes(row.row) for row in frame.where(F.col("what") == what).select("row").distinct().collect()]


def read(
    spark: SparkSession,
    settings: KafkaSettings,
    spans: Mapping[TopicPartition, Range],
    isolation: str,
    *,
    may_vanish: bool = False,
) -> DataFrame:
    """Records of the spans (all of them, whatever their topic) with _COLUMNS. Lazy: nothing is read yet.

    If retention removes a record while we read, the job fails. With `may_vanish` it skips the record instead. Then only
    records that are there prove anything.
    """
    wanted = {key: span for key, span in spans.items() if not span.empty}
    if not wanted:
        return spark.createDataFrame([], _SCHEMA)
    partitions: dict[str, list[int]] = defaultdict(list)
    starts: dict[str, dict[str, int]] = defaultdict(dict)
    ends: dict[str, dict[str, int]] = defaultdict(dict)
    for (topic, partition), span in sorted(wanted.items()):
        partitions[topic].append(partition)
        starts[topic][str(partition)] = span.start
        ends[topic][str(partition)] = span.end
    reader = spark.read.format("kafka").options(**_POLLS).options(**dict(settings.spark))
    return (
        reader.option("assign", json.dumps(partitions))
        .option("startingOffsets", json.dumps(starts))
        .option("endingOffsets", json.dumps(ends))
        .option("kafka.isolation.level", isolation)
        .option("includeHeaders", "true")
        .option("failOnDataLoss", "false" if may_vanish else "true")
        .option("kafkaConsumer.pollTimeoutMs", str(POLL_TIMEOUT_MS))
        # So that a topic of one partition keeps every core busy. Order within a partition does not matter to us.
        .option("minPartitions", str(spark.conf.get(PARALLELISM)))
        .load()
        .select(*_COLUMNS)
    )
