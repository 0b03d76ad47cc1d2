"""One audit by Spark, in a session of its own or in the one that is given.

Each topic is read once, between fixed offsets. The mentions of each transaction are brought together once, and judged
in the tasks, whose code is sent as a zip file. The driver sees only what it needs for the next cut. The ledger is
Parquet, wherever Spark can write to.
"""

from __future__ import annotations

import json
import pickle
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from functools import partial, reduce
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own convention)

from txbridge_audit.cluster.cuts import Range
from txbridge_audit.cluster.kafka_config import KafkaSettings
from txbridge_audit.cluster.plan import Plan
from txbridge_audit.engines import tasks
from txbridge_audit.engines.gather import AuditedTopics, Spans, Task
from txbridge_audit.engines.run import audit, until_leaders_stay
from txbridge_audit.engines.spark.spark_session import PARALLELISM, elections, own_folder, spark_session
from txbridge_audit.judge.facts import AuditSelection, Facts, TopicPartition
from txbridge_audit.ledger.place import SUMMARY, ledger_exists
from txbridge_audit.ledger.rows import SCHEMA, LedgerRow
from txbridge_audit.protocol.record import RAW
from txbridge_audit.report.model import AuditReport

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


_A = TypeVar("_A")
#: Those whose names differ.
_SQL_TYPES = {"int32": "int", "int64": "bigint", "date32[day]": "date", "timestamp[us, tz=UTC]": "timestamp"}


def _sql_type(kind: Any) -> str:
    if pa.types.is_list(kind):
        return f"array<{_sql_type(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{field.name}: {_sql_type(field.type)}' for field in kind)}>"
    return _SQL_TYPES.get(str(kind), str(kind))


#: The columns of ledger/rows.py as Spark declares them.
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
        self, spans: Spans, task: Task, *, at_once: bool, committed: bool = True, may_vanish: bool = False
    ) -> list[tuple[str, bytes]]:
        """See RowReader."""
        if all(span.empty for span in spans.values()):
            return []
        self._size += sum(span.end - span.start for span in spans.values())
        raw = read(self._spark, self._settings, spans, committed=committed, may_vanish=may_vanish)
        plain = raw.withColumn("timestamp", F.unix_millis("timestamp"))
        frame = plain.mapInArrow(partial(tasks.parsed, task), tasks.ROWS)
        self._frames.append(frame)
        if not at_once:
            return []
        self._kept.append(frame.persist())
        found = frame.where(F.col("what").isin(*tasks.LOOKS)).select("what", "row").collect()
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

    def ask_tasks(self, ask: Callable[[tasks.Blocks], _A]) -> Iterable[_A]:
        """See AuditRows."""
        frame = self._rows_by_block().mapInArrow(partial(tasks.answered, ask), tasks.ANSWERS)
        # Our own tasks have pickled them.
        return (pickle.loads(row.answer) for row in frame.toLocalIterator(prefetchPartitions=True))  # noqa: S301

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


#: What the tasks import (tasks.py) is among this. A test compares.
_PARTS = {
    "txbridge": (
        *("__init__.py", "errors.py", "masking.py", "murmur2.py", "text.py"),
        *("core/__init__.py", "core/names.py"),
    ),
    "txbridge_audit": ("**/*.py",),
}
#: The sessions that have it.
_SHIPPED: set[str] = set()
_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []


def spark_audit(
    source: AuditedTopics, plan: Plan, *, spark: SparkSession | None, ledger_path: str | None, with_overview: bool
) -> AuditReport:
    """See `txbridge_audit.audit.run_audit`."""
    with spark_session(spark, source.say) as session:
        if ledger_path is not None:
            _refuse_existing(session, ledger_path)
        ship(session)

        def attempt() -> AuditReport:
            with elections(), closing(SparkRows(session, source.settings, ledger_path)) as rows:
                return audit(source, plan, rows, with_ledger=ledger_path is not None, with_overview=with_overview)

        report = until_leaders_stay(source.say, attempt)
        if ledger_path is not None:
            # The JSON form of the report. A ledger without it is not complete.
            line = session.createDataFrame([(report.to_json().replace("\n", " "),)], "value string")
            line.coalesce(1).write.mode("overwrite").text(f"{ledger_path}/{SUMMARY}")
    return report


def ship(spark: SparkSession) -> None:
    """Send the code to the executors of a session, once."""
    # Spark Connect keeps files for each session, and the audit uses the one that is given.
    name = str(getattr(spark, "session_id", None) or spark.conf.get("spark.app.id"))
    if name in _SHIPPED:
        return
    _SHIPPED.add(name)
    # Executors fetch it when they start, at any time: it is there as long as the session, or this process.
    folder = own_folder(spark)
    if folder is None:
        _FOLDERS.append(tempfile.TemporaryDirectory(prefix="txbridge-audit-"))
        folder = Path(_FOLDERS[-1].name)
    file = folder / "txbridge_audit_tasks.zip"
    write_zip(file)
    spark.addArtifacts(str(file), pyfile=True)


def write_zip(file: Path) -> None:
    """Write the zip file."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as out:
        for package, patterns in _PARTS.items():
            found = find_spec(package)
            assert found is not None
            root = Path(str(found.origin)).parent
            for pattern in patterns:
                for path in sorted(root.glob(pattern)):
                    out.write(path, f"{package}/{path.relative_to(root)}")


def _refuse_existing(spark: SparkSession, path: str) -> None:
    """Raise CouldNotAuditError when there is anything at the path: writing the ledger would delete it."""
    try:
        # The names of the files alone: a file of another format is no error.
        files = spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(path).select("path")
        if files.head() is None:
            return
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return
        raise
    raise ledger_exists(path)
