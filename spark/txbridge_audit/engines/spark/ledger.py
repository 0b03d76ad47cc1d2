"""The ledger that Spark writes, as Parquet, wherever it can write to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from txbridge_audit.ledger.place import SUMMARY, ledger_exists
from txbridge_audit.ledger.rows import LedgerRow
from txbridge_audit.ledger.schema import SCHEMA, table_of

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


def write(judged: DataFrame, phantoms: Sequence[LedgerRow], path: str) -> None:
    """Write the rows, partitioned by the day of birth (UTC).

    There was no ledger at the start. One that is there now comes from an attempt that was repeated: it is replaced.
    """
    rows = judged
    if phantoms:
        table: Any = table_of(phantoms)
        rows = judged.union(judged.sparkSession.createDataFrame(table, judged.schema))
    rows.write.mode("overwrite").partitionBy("day").parquet(path)


def write_summary(spark: SparkSession, text: str, path: str) -> None:
    """Write the JSON form of the report beside the ledger. A ledger without it is not complete."""
    line = spark.createDataFrame([(text.replace("\n", " "),)], "value string")
    line.coalesce(1).write.mode("overwrite").text(f"{path}/{SUMMARY}")
