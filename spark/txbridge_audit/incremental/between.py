"""What is kept between the queries of a step, and between two steps: in files, or in memory if it is little."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.types import StructType

from txbridge_audit.read.frame_cache import FrameCache, let_go

#: So many records and rows stay in memory: files cost more than they hold.
FEW_IN_MEMORY = 20_000


@dataclass(frozen=True, slots=True)
class Carried:
    """The rows that a step has left to the next one."""

    rows: DataFrame
    #: Which tables there are, and how many rows each has.
    tables: Mapping[str, int]
    size: int
    #: What of them is in memory.
    held: DataFrame | None

    def let_go(self) -> None:
        """Once there is a newer one."""
        if self.held is not None:
            let_go(self.held)


class Cut:
    """Computes a frame, so that no later query is planned with all that leads to it: in memory, or in files."""

    def __init__(self, spark: SparkSession, cache: FrameCache, *, in_memory: bool) -> None:
        self._spark, self._cache, self._in_memory = spark, cache, in_memory

    def __call__(self, rows: DataFrame, path: str, tasks: int = 1) -> DataFrame:
        if self._in_memory:
            return self._cache.hold(rows, tasks)
        rows.write.mode("overwrite").parquet(path)
        return reader(self._spark, rows.schema).parquet(path)


def reader(spark: SparkSession, schema: StructType) -> DataFrameReader:
    """Told the schema, Spark need not look for it in the files, which is a job of its own."""
    return spark.read.schema(schema)
