"""The evidence that a committed record which is missing from its real topic was lost.

One worker at a time writes the Kafka transactions of a half partition, one after the other, and each names its commits
in OP. So the real records of one half partition lie in a real partition in the order of their OP records. A missing
record may have been removed by

- retention or DeleteRecords, which remove a *beginning* of a partition. If each truncated partition of the topic still
  has a record with a lower OP offset, the missing one was not removed with a beginning, whichever partition it went
  to;
- the deletion of the topic, after which another one was created by its name. That removed everything. A record with a
  lower OP offset anywhere in the topic says that this has not happened since.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own convention)

from txbridge_audit.read.cuts import TopicPartition
from txbridge_audit.read.literals import frame


@dataclass(frozen=True, slots=True, order=True)
class Anchor:
    """A delivered record that is still in its real topic, and the OP record that names it."""

    #: Half partition.
    partition: int
    real_topic: str
    copy_partition: int
    #: Offset in OP.
    op_commit: int
    #: Offset in the real topic.
    copy_at: int


def anchors(ledger: DataFrame) -> list[Anchor]:
    """The oldest delivered record of each half partition in each partition of a real topic."""
    # Of a doubled one nobody knows which copy goes with the OP record.
    there = ledger.where((F.col("copies") == 1) & F.col("op_commit").isNotNull()).select(
        "partition",
        "real_topic",
        F.get("copied_to", F.lit(0))["partition"].alias("copy_partition"),
        F.struct("op_commit", F.get("copied_to", F.lit(0))["offset"].alias("copy_at")).alias("oldest"),
    )
    rows = there.groupBy("partition", "real_topic", "copy_partition").agg(F.min("oldest").alias("oldest")).collect()
    return [
        Anchor(row.partition, row.real_topic, row.copy_partition, row.oldest.op_commit, row.oldest.copy_at)
        for row in rows
    ]


def add(
    spark: SparkSession, ledger: DataFrame, truncated: Collection[TopicPartition], known: Iterable[Anchor]
) -> DataFrame:
    """The ledger with `proof_above`: the OP offset above which a missing commit is a loss; null when nothing proves it.

    `truncated` names the partitions of real topics whose log start is not 0; `known` are delivered records.
    """
    needed: dict[str, set[int]] = {}
    for topic, partition in truncated:
        needed.setdefault(topic, set()).add(partition)
    oldest: dict[tuple[int, str], dict[int, int]] = {}
    for anchor in known:
        of_half = oldest.setdefault((anchor.partition, anchor.real_topic), {})
        of_half[anchor.copy_partition] = min(anchor.op_commit, of_half.get(anchor.copy_partition, anchor.op_commit))
    rows = []
    for (partition, topic), first in oldest.items():
        edges = needed.get(topic, set())
        if edges <= first.keys():
            above = max((first[edge] for edge in edges), default=min(first.values()))
            rows.append({"partition": partition, "real_topic": topic, "proof_above": above})
    proofs = frame(spark, rows, "partition: int, real_topic: string, proof_above: bigint")
    return ledger.join(F.broadcast(proofs), ["partition", "real_topic"], "left")
