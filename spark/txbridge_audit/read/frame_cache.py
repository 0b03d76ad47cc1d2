"""The frames that an audit keeps in memory, because several jobs use them."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from pyspark.sql import DataFrame, SparkSession

from txbridge_audit.read.spark_session import suit


class FrameCache:
    """Frames kept in memory until the `with` block ends."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self._persisted: list[DataFrame] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for frame in self._persisted:
            frame.unpersist()
        self._persisted.clear()

    def keep(self, frame: DataFrame) -> DataFrame:
        """The frame, which stays in memory once a job has computed it."""
        self._persisted.append(frame.persist())
        return frame

    def cut_off(self, frame: DataFrame, rows: int) -> DataFrame:
        """The frame computed, so that no later query is planned with all that leads to it. For about so many rows."""
        few = self.spark.sparkContext.defaultParallelism
        computed = frame.coalesce(few).localCheckpoint()
        suit(self.spark, rows)
        return computed
