"""The ledger that Spark writes, as Parquet or as a Delta Lake table, wherever it can write to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from txbridge_audit.ledger.place import SUMMARY, LedgerFormat, ledger_exists
from txbridge_audit.ledger.rows import LedgerRow
from txbridge_audit.ledger.schema import table_of

_PLACE = "topic: string, partition: int, offset: bigint"
_DECISION = (
    "end: bigint, line: int, at: timestamp, decision: int, source: string, client: string, group: string, "
    "check: bigint, remark: string, ruling: string"
)
_DISCARD = "at: timestamp, partition: int, offset: bigint, reason: string, end: bigint, checks: bigint"
#: The columns, those of ledger/schema.py in Spark's types; a test compares them.
COLUMNS = (
    "partition int, half bigint, transaction string, id_sha256 string, group string, real_partition int, "
    "prepared_at timestamp, fate string, pending_state string, violations array<string>, findings array<string>, "
    "decision string, decided_by string, decided_at timestamp, decided_end bigint, prepare_to_decision_ms bigint, "
    "delivered_at timestamp, decision_to_delivery_ms bigint, entries bigint, "
    f"decisions array<struct<{_DECISION}>>, checks_sent bigint, held_since timestamp, held_ms bigint, "
    f"held_why string, copies bigint, delivered array<struct<{_PLACE}>>, op_commit_offset bigint, "
    "op_rollback_offset bigint, op_discard_offset bigint, op_abandon_offset bigint, "
    f"discard_records array<struct<{_DISCARD}>>, resumed_end bigint, real_topic string, day date"
)


def refuse_existing(spark: SparkSession, path: str) -> None:
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


def write(judged: DataFrame, phantoms: Sequence[LedgerRow], path: str, form: LedgerFormat) -> None:
    """Write the rows, partitioned by the day of birth (UTC).

    There was no ledger at the start. One that is there now comes from an attempt that was repeated: it is replaced.
    """
    rows = judged
    if phantoms:
        table: Any = table_of(phantoms)
        rows = judged.union(judged.sparkSession.createDataFrame(table, judged.schema))
    rows.write.format(str(form)).mode("overwrite").partitionBy("day").save(path)


def write_summary(spark: SparkSession, text: str, path: str) -> None:
    """Write the JSON form of the report beside the ledger. A ledger without it is not complete."""
    line = spark.createDataFrame([(text.replace("\n", " "),)], "value string")
    line.coalesce(1).write.mode("overwrite").text(f"{path}/{SUMMARY}")
