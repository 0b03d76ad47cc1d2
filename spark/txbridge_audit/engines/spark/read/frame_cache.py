"""The frames that an audit keeps in memory, because several jobs use them."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession

from txbridge_audit.engines.spark.read.spark_session import suit


class FrameCache:
    """Frames kept in memory until the `with` block ends."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self._persisted: list[DataFrame] = []
        self._computed: list[DataFrame] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for frame in self._persisted:
            frame.unpersist()
        self._persisted.clear()
        for frame in self._computed:
            let_go(frame)
        self._computed.clear()

    def keep(self, frame: DataFrame) -> DataFrame:
        """The frame, which stays in memory once a job has computed it."""
        self._persisted.append(frame.persist())
        return frame

    def cut_off(self, frame: DataFrame, rows: int) -> DataFrame:
        """Hold the frame, and configure the session for its number of rows."""
        few = self.spark.sparkContext.defaultParallelism
        computed = self.hold(frame, few)
        suit(self.spark, rows)
        return computed

    def hold(self, frame: DataFrame, tasks: int = 1) -> DataFrame:
        """The computed frame, in memory until the `with` block ends. Later queries do not plan its inputs again.

        With one task all rows are in one partition, so that queries need no shuffle either.
        """
        self._computed.append(frame.coalesce(tasks).localCheckpoint())
        return self._computed[-1]

    def hand_over(self, frame: DataFrame) -> DataFrame:
        """A frame from `hold`, which now stays in memory until the caller passes it to `let_go`."""
        self._computed.remove(frame)
        return frame


def let_go(frame: DataFrame) -> None:
    """Release a frame from `hold`, and not one made from it. Spark itself would wait until the JVM collects garbage."""
    of_jvm: Any = frame._jdf  # noqa: SLF001  (PySpark cannot say it)
    with suppress(Py4JNetworkError):  # The JVM has ended, and its memory with it.
        of_jvm.logicalPlan().rdd().unpersist(False)  # Java: do not wait
