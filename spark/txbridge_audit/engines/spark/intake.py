"""The intake by Spark: each topic is read once, its records become mentions in the tasks.

A row is a mention at its half coordinates, or something that belongs to no transaction (`what`). The driver sees only
what it needs for the next cut: names of real topics, checkpoints, and those of the discard topic.
"""

from __future__ import annotations

import marshal
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
from txbridge_audit.engines.spark.kafka_source import READ_COMMITTED, READ_UNCOMMITTED, read
from txbridge_audit.judge.facts import TopicPartition
from txbridge_audit.judge.transaction import SetAside
from txbridge_audit.protocol.mentions import AsideMention, UnreadableMention, from_row
from txbridge_audit.protocol.worker_records import AuditCheckpoint

Spans = Mapping[TopicPartition, Range]


class SparkIntake:
    """Reads spans as rows of mentions (see engines/gather.py)."""

    def __init__(self, spark: SparkSession, settings: KafkaSettings, names: Names) -> None:
        self._spark, self._settings, self._names = spark, settings, names
        self._frames: list[DataFrame] = []
        self._kept: list[DataFrame] = []
        self.named: set[str] = set()
        self.checkpoints: dict[int, AuditCheckpoint] = {}
        self._asides = SetAside(names)

    def take_halves(self, spans: Spans) -> None:
        for packed in self._look(
            self._rows(spans, partial(tasks.halves, self._names), isolation=READ_UNCOMMITTED), tasks.NAMED
        ):
            self.named.add(marshal.loads(packed))

    def take_offsets(self, spans: Spans) -> None:
        frame = self._rows(spans, partial(tasks.offsets, self._names))
        for packed in self._look(frame, tasks.ODD):
            mention = from_row(marshal.loads(packed))
            assert isinstance(mention, UnreadableMention)
            refuse_unknown_version(mention)
        for packed in self._look(frame, tasks.CHECKPOINT):
            partition, *values = marshal.loads(packed)
            told = AuditCheckpoint(*values)
            # Of several tasks the last record of a partition: checkpoints move on.
            known = self.checkpoints.get(partition, told)
            last = max(known, told, key=lambda one: (one.stamp or 0, one.applied_to or 0))
            self.checkpoints[partition] = replace(last, follows=last.follows or known != told)

    def take_discards(self, spans: Spans) -> None:
        for packed in self._look(self._rows(spans, partial(tasks.discards, self._names)), tasks.ODD):
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
            ~F.col("what").isin(tasks.NAMED, tasks.CHECKPOINT)
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

    def _look(self, frame: DataFrame, what: str) -> list[bytes]:
        """The rows of one sort. The frame is kept, because its other rows are needed later."""
        if frame not in self._kept:
            self._kept.append(frame.persist())
        return [bytes(row.row) for row in frame.where(F.col("what") == what).select("row").distinct().collect()]
