"""Whether a committed record that is missing from a real topic is proof of a loss.

One worker at a time writes the Kafka transactions of a half partition, one after the other, and each names its commits
in OP: so, for one half partition, real records lie in a real partition in the order of their OP records. What may have
removed the missing one is

- retention or DeleteRecords, which remove a *beginning* of a partition. If a record with a lower OP offset is still
  there, in every truncated partition of the topic, then the missing one (whichever partition it went to) was not
  removed with a beginning;
- the deletion of the topic, after which another one was created by its name. It removed all that was there: a record
  with a lower OP offset anywhere in the topic says that this has not happened since.
"""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own convention)

from txbridge_audit.cuts import TopicPartition
from txbridge_audit.literals import frame


def add(spark: SparkSession, ledger: DataFrame, truncated: Collection[TopicPartition]) -> DataFrame:
    """The ledger with `proof_above`: the OP offset above which a missing commit is a loss; null when nothing proves it.

    `truncated` names the partitions of real topics whose log start is not 0.
    """
    needed: dict[str, set[int]] = {}
    for topic, partition in truncated:
        needed.setdefault(topic, set()).add(partition)
    # Of a doubled one nobody knows which copy goes with the OP record.
    there = ledger.where((F.col("copies") == 1) & F.col("op_commit").isNotNull()).select(
        "partition",
        "real_topic",
        "op_commit",
        F.get("copied_to", F.lit(0))["partition"].alias("copy_partition"),
    )
    # One row per half partition and partition of a real topic.
    oldest: dict[tuple[int, str], dict[int, int]] = {}
    for row in there.groupBy("partition", "real_topic", "copy_partition").agg(F.min("op_commit").alias("at")).collect():
        oldest.setdefault((row.partition, row.real_topic), {})[row.copy_partition] = row.at
    rows = []
    for (partition, topic), first in oldest.items():
        edges = needed.get(topic, set())
        if edges <= first.keys():
            above = max((first[edge] for edge in edges), default=min(first.values()))
            rows.append({"partition": partition, "real_topic": topic, "proof_above": above})
    proofs = frame(spark, rows, "partition: int, real_topic: string, proof_above: bigint")
    return ledger.join(F.broadcast(proofs), ["partition", "real_topic"], "left")
