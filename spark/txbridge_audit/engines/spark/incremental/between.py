"""Data kept between the queries of a step, and between two steps: in files, or in memory if there are few rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.types import StructType

from txbridge_audit.engines.spark.read.frame_cache import FrameCache, let_go

#: Up to this many records and rows stay in memory. For so few, files cost too much time.
FEW_IN_MEMORY = 20_000


@dataclass(frozen=True, slots=True)
class Carried:
    """The rows that a step has left to the next one."""

    rows: DataFrame
    #: Number of rows of each table that has any.
    tables: Mapping[str, int]
    size: int
    #: The frame in memory (`FrameCache.hand_over`) from which the rows are taken; None if they are in files.
    held: DataFrame | None

    def let_go(self) -> None:
        """Release the memory. To be called when the next step has left its rows."""
        if self.held is not None:
            let_go(self.held)


class Materialise:
    """Function that computes a frame, in memory or into files. Later queries do not plan its inputs again."""

    def __init__(self, spark: SparkSession, cache: FrameCache, *, in_memory: bool) -> None:
        self._spark, self._cache, self._in_memory = spark, cache, in_memory

    def __call__(self, rows: DataFrame, path: str, tasks: int = 1) -> DataFrame:
        if self._in_memory:
            return self._cache.hold(rows, tasks)
        rows.write.mode("overwrite").parquet(path)
        return reader(self._spark, rows.schema).parquet(path)


def reader(spark: SparkSession, schema: StructType) -> DataFrameReader:
    """A reader with a schema. Without one Spark would run a job to read it from the files."""
    return spark.read.schema(schema)
