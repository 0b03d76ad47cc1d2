"""Whether a committed record that is missing from a truncated real topic is proof of a loss.

Retention and DeleteRecords remove a *beginning* of a partition. One worker at a time writes the Kafka transactions of a
half partition, one after the other, and each names its commits in OP: so, for one half partition, real records lie in
a real partition in the order of their OP records. If a record with a lower OP offset is still there, in every truncated
partition of the topic, then the missing one (whichever partition it went to) was not removed with a beginning.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own convention)

from txbridge_audit.cuts import TopicPartition
from txbridge_audit.literals import frame


def add(spark: SparkSession, ledger: DataFrame, truncated: Collection[TopicPartition]) -> DataFrame:
    """The ledger with `proof_above`: the OP offset above which a missing commit is a loss; null when nothing proves it.

    `truncated` names the partitions of real topics whose log start is not 0.
    """
    rows: list[dict[str, Any]] = []
    if truncated:
        keys = ({"real_topic": topic, "copy_partition": partition} for topic, partition in truncated)
        wanted = frame(spark, keys, "real_topic: string, copy_partition: int")
        # Of a doubled one nobody knows which copy goes with the OP record.
        there = ledger.where((F.col("copies") == 1) & F.col("op_commit").isNotNull()).select(
            "partition",
            "real_topic",
            "op_commit",
            F.get("copied_to", F.lit(0))["partition"].alias("copy_partition"),
        )
        oldest = (
            there.join(F.broadcast(wanted), ["real_topic", "copy_partition"])
            .groupBy("partition", "real_topic", "copy_partition")
            .agg(F.min("op_commit").alias("oldest"))
            .groupBy("partition", "real_topic")
            .agg(F.max("oldest").alias("proof_above"), F.count("*").alias("found"))
        )
        needed: dict[str, int] = {}
        for topic, _ in truncated:
            needed[topic] = needed.get(topic, 0) + 1
        # One row per half partition and real topic.
        rows = [row.asDict() for row in oldest.collect() if row.found == needed[row.real_topic]]
    proofs = frame(spark, rows, "partition: int, real_topic: string, proof_above: bigint")
    return ledger.join(F.broadcast(proofs), ["partition", "real_topic"], "left")
