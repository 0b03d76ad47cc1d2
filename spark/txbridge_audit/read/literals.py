"""Small tables that the driver knows, as DataFrames."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own convention)
from pyspark.sql.types import ArrayType


def frame(spark: SparkSession, rows: Iterable[Mapping[str, Any]], fields: str) -> DataFrame:
    """The rows as a DataFrame with the fields, given as `name: type, ...`; binary values as base64 text.

    Unlike createDataFrame it starts no Python worker on the executors (they need no Python at all then).
    """
    given = list(rows)
    text = json.dumps(given)
    parsed = F.from_json(F.lit(text), f"array<struct<{fields}>>")
    table = spark.range(0, 1, 1, 1).select(F.inline(parsed))
    return table if given else without_rows(table)


def nothing_like(table: DataFrame) -> DataFrame:
    """No row of the same columns; its plan has nothing of what leads to the table."""
    none = F.from_json(F.lit("[]"), ArrayType(table.schema))
    return without_rows(table.sparkSession.range(0, 1, 1, 1).select(F.inline(none)))


def without_rows(table: DataFrame) -> DataFrame:
    """The table with no row, which Spark's optimiser sees: it leaves out what the table would be joined with."""
    return table.where(F.lit(False))
