"""The rows of an audit by Spark: each topic is read once, between fixed offsets, and made into rows by the tasks.

The driver sees only what it needs for the next cut: names of real topics, checkpoints, and those of the discard topic.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial, reduce
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own convention)

from txbridge_audit.cluster.cuts import Range
from txbridge_audit.cluster.kafka_config import KafkaSettings
from txbridge_audit.engines import tasks
from txbridge_audit.engines.intake import Spans, Task
from txbridge_audit.engines.records import RAW
from txbridge_audit.engines.spark.spark_session import PARALLELISM
from txbridge_audit.judge.facts import AuditSelection, Facts, TopicPartition
from txbridge_audit.ledger.rows import LedgerRow
from txbridge_audit.ledger.schema import SCHEMA

#: Rows of one task: enough to be worth a task, few enough to be sorted in memory.
_ROWS_OF_A_TASK = 200_000
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


#: Those whose names differ.
_SQL_TYPES = {"int32": "int", "int64": "bigint", "date32[day]": "date", "timestamp[us, tz=UTC]": "timestamp"}


def _sql_type(kind: Any) -> str:
    if pa.types.is_list(kind):
        return f"array<{_sql_type(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{field.name}: {_sql_type(field.type)}' for field in kind)}>"
    return _SQL_TYPES.get(str(kind), str(kind))


#: The columns of ledger/schema.py as Spark declares them.
COLUMNS = ", ".join(f"{field.name} {_sql_type(field.type)}" for field in SCHEMA)


class SparkRows:
    """See AuditRows."""

    engine = "spark"

    def __init__(self, spark: SparkSession, settings: KafkaSettings, ledger_path: str | None) -> None:
        self._spark, self._settings, self._ledger = spark, settings, ledger_path
        self._frames: list[DataFrame] = []
        #: Frames that are kept, because they are read more than once.
        self._kept: list[DataFrame] = []
        self._size = 0
        self._blocks: DataFrame | None = None

    def take_rows(
        self, spans: Spans, task: Task, looks: Collection[str] = (), *, committed: bool = True, may_vanish: bool = False
    ) -> list[tuple[str, bytes]]:
        """See RowReader."""
        if all(span.empty for span in spans.values()):
            return []
        self._size += sum(span.end - span.start for span in spans.values())
        raw = read(self._spark, self._settings, spans, committed=committed, may_vanish=may_vanish)
        plain = raw.withColumn("timestamp", F.unix_millis("timestamp"))
        frame = plain.mapInArrow(partial(tasks.parsed, task), tasks.ROWS)
        self._frames.append(frame)
        if not looks:
            return []
        self._kept.append(frame.persist())
        found = frame.where(F.col("what").isin(*looks)).select("what", "row").collect()
        return [(row.what, bytes(row.row)) for row in found]

    def _rows_by_block(self) -> DataFrame:
        """All rows, those of a block together."""
        if self._blocks is None:
            frames = self._frames or [self._spark.createDataFrame([], tasks.ROWS)]
            rows = reduce(DataFrame.union, frames).where(~F.col("what").isin(*tasks.FOR_CUTS))
            number = max(int(str(self._spark.conf.get(PARALLELISM))), self._size // _ROWS_OF_A_TASK)
            blocks = rows.repartition(number, "partition", "block").sortWithinPartitions("partition", "block")
            self._blocks = blocks.persist()
            self._kept.append(self._blocks)
        return self._blocks

    def ask_tasks(self, ask: Callable[[tasks.Blocks], Iterable[tasks.Answer]]) -> Iterable[tasks.Answer]:
        """See AuditRows."""
        frame = self._rows_by_block().mapInArrow(partial(tasks.answered, ask), tasks.ANSWERS)
        return ((row.what, bytes(row.told), row.n) for row in frame.toLocalIterator(prefetchPartitions=True))

    def write_ledger(self, facts: Facts, selection: AuditSelection, phantoms: Collection[LedgerRow]) -> None:
        """Write the rows, partitioned by the day of birth (UTC).

        There was no ledger at the start. One that is there now comes from an attempt that was repeated: it is replaced.
        """
        ask = partial(tasks.ledger_rows, facts, selection)
        rows = self._rows_by_block().mapInArrow(lambda some: ask(tasks.blocks_of(tasks.rows_in(some))), COLUMNS)
        if phantoms:
            table: Any = pa.Table.from_pylist([*phantoms], schema=SCHEMA)
            rows = rows.union(self._spark.createDataFrame(table, rows.schema))
        rows.write.mode("overwrite").partitionBy("day").parquet(str(self._ledger))

    def close(self) -> None:
        """Release what is kept."""
        for frame in self._kept:
            frame.unpersist()


def read(
    spark: SparkSession,
    settings: KafkaSettings,
    spans: Mapping[TopicPartition, Range],
    *,
    committed: bool,
    may_vanish: bool = False,
) -> DataFrame:
    """Records of the spans (all of them, whatever their topic) with the columns RAW. Lazy: nothing is read yet.

    If retention removes a record while we read, the job fails. With `may_vanish` it skips the record instead. Then only
    records that are there prove anything.
    """
    wanted = {key: span for key, span in spans.items() if not span.empty}
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
        .option("kafka.isolation.level", "read_committed" if committed else "read_uncommitted")
        .option("includeHeaders", "true")
        .option("failOnDataLoss", "false" if may_vanish else "true")
        .option("kafkaConsumer.pollTimeoutMs", str(POLL_TIMEOUT_MS))
        # So that a topic of one partition keeps every core busy. Order within a partition does not matter to us.
        .option("minPartitions", str(spark.conf.get(PARALLELISM)))
        .load()
        .select(*RAW)
    )
