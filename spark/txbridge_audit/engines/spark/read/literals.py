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

    Unlike createDataFrame it starts no Python worker on the executors, which then need no Python at all.
    """
    given = list(rows)
    text = json.dumps(given)
    parsed = F.from_json(F.lit(text), f"array<struct<{fields}>>")
    table = spark.range(0, 1, 1, 1).select(F.inline(parsed))
    return table if given else without_rows(table)


def nothing_like(table: DataFrame) -> DataFrame:
    """An empty table with the same columns. Its plan does not contain the plan of the table."""
    none = F.from_json(F.lit("[]"), ArrayType(table.schema))
    return without_rows(table.sparkSession.range(0, 1, 1, 1).select(F.inline(none)))


def without_rows(table: DataFrame) -> DataFrame:
    """The table without its rows. Spark's optimiser sees that it is empty, and leaves out tables joined with it."""
    return table.where(F.lit(False))
