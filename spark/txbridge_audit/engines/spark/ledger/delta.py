"""The ledger as a Delta Lake table with one row per transaction. Each step merges the rows that it has judged.

Delta Lake keeps the versions of the table, so a query can read the ledger of an earlier time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own convention)

#: Delta reads the list of a table's files with this many tasks (50 by default). A ledger has few files.
_SETTINGS = {
    "spark.databricks.delta.snapshotPartitions": "2",
    # Delta's own queries map rows to objects. For that Spark compiles code.
    "spark.sql.codegen.factoryMode": "FALLBACK",
}
_NOTE = "spark.databricks.delta.commitInfo.userMetadata"
#: A transaction has one row. Rows without a fate are matched by `delivered`, too: several phantoms may claim the same
#: coordinates, and each has its own place there. The row of an expired message has no such place.
_SAME = (
    "t.partition <=> s.partition AND t.half <=> s.half AND (t.fate IS NULL) = (s.fate IS NULL) "
    "AND (s.fate IS NOT NULL OR t.delivered <=> s.delivered)"
)


def write(rows: DataFrame, path: str) -> None:
    """Write a ledger that is written once. It replaces one that an earlier attempt of the same audit has left."""
    with _Settings(rows.sparkSession, _SETTINGS):
        _created(rows, path, "overwrite")


def merge(rows: DataFrame, path: str, step: int) -> None:
    """Merge the rows that a step has judged: each becomes the row of its transaction.

    A step that is repeated merges the same transactions again.
    """
    spark = rows.sparkSession
    rows = rows.withColumn("step", F.lit(step).cast("bigint"))
    with _Settings(spark, {**_SETTINGS, _NOTE: f"txbridge audit, step {step}"}):
        context: Any = spark.sparkContext
        tables = context._jvm.io.delta.tables.DeltaTable  # noqa: SLF001  (Delta's own Python package does the same)
        session: Any = spark._jsparkSession  # noqa: SLF001
        if not tables.isDeltaTable(session, path):
            _created(rows, path, "error")
            return
        given: Any = rows._jdf  # noqa: SLF001
        matched = getattr(tables.forPath(session, path), "as")("t").merge(getattr(given, "as")("s"), _SAME)
        matched.whenMatched().updateAll().whenNotMatched().insertAll().execute()


def _created(rows: DataFrame, path: str, mode: str) -> None:
    rows.write.format("delta").mode(mode).partitionBy("day", "real_topic").save(path)


class _Settings:
    """Settings of a session while the `with` block lasts."""

    def __init__(self, spark: SparkSession, settings: Mapping[str, str]) -> None:
        self._spark, self._settings = spark, settings
        self._before = {name: spark.conf.get(name, None) for name in settings}

    def __enter__(self) -> None:
        for name, value in self._settings.items():
            self._spark.conf.set(name, value)

    def __exit__(self, *_: object) -> None:
        for name, value in self._before.items():
            if value is None:
                self._spark.conf.unset(name)
            else:
                self._spark.conf.set(name, value)
