"""Visible records that carry TXB_HALF and match no half message: phantoms, unless something explains them.

The label is sound only below the earlier cut of the real topics. HALF is cut later, and a half message is in the log
before anything is delivered from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own convention)

from txbridge_audit.engines.spark.judge import fates, findings
from txbridge_audit.engines.spark.read.literals import frame


@dataclass(frozen=True, slots=True)
class OtherNamespaces:
    """Half messages of other namespaces of the cluster. A real topic may serve several, and its records name none."""

    #: partition, half, id
    halves: DataFrame
    #: Half messages that their ENDs name, where HALF has lost some: partition, half, id
    ends: DataFrame
    #: By partition number, the highest log start of HALF among those whose END was cut, too. A half message below it
    #: may have been removed without a trace.
    starts: Mapping[int, int]


def candidates(copies: DataFrame, ledger: DataFrame) -> DataFrame:
    """Copies below the earlier cut (`ledger.copies_before`) that match no valid half message of the ledger."""
    matching = ledger.where("valid").select("partition", "half", "id")
    return copies.where("before").join(matching, ["partition", "half", "id"], "left_anti")


def label(
    spark: SparkSession,
    unmatched: DataFrame,
    log_starts: Mapping[int, int],
    read_from: Mapping[int, int],
    others: OtherNamespaces | None = None,
) -> DataFrame:
    """The candidates with `kind`: PHANTOM, OTHER_NAMESPACE or HALF_GONE (removed by retention, here or there).

    A half message of another namespace that is gone did exist if an END there names its id, which nobody else knows.
    Where END was cut, too, it may have existed.

    Records of half messages that are still there, but below the offset from which HALF was read, are left out.
    """
    starts = dict(log_starts)
    known = frame(spark, [], "partition: int, half: bigint, id: string")
    ended = known
    if others is not None:
        known = others.halves.select("partition", "half", "id").distinct()
        ended = others.ends.select("partition", "half", "id").distinct()
        for partition, start in others.starts.items():
            starts[partition] = max(start, starts.get(partition, 0))
    rows = (
        {"partition": partition, "edge": edge, "start": log_starts.get(partition), "read": read_from.get(partition)}
        for partition, edge in starts.items()
    )
    edges = frame(spark, rows, "partition: int, edge: bigint, start: bigint, read: bigint")
    unread = F.coalesce((F.col("half") >= F.col("start")) & (F.col("half") < F.col("read")), F.lit(False))
    kind = (
        F.when(F.col("elsewhere"), findings.OTHER_NAMESPACE)
        .when(F.col("ended") | (F.col("half") < F.col("edge")), findings.HALF_GONE)
        .otherwise(fates.PHANTOM)
    )
    return (
        unmatched.join(known.withColumn("elsewhere", F.lit(True)), ["partition", "half", "id"], "left")
        .join(ended.withColumn("ended", F.lit(True)), ["partition", "half", "id"], "left")
        .join(F.broadcast(edges), "partition", "left")
        .where(~unread)
        .withColumn("kind", kind)
    )
