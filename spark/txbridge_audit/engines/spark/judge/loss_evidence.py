"""The evidence that a committed record which is missing from its real topic was lost.

One worker at a time writes the Kafka transactions of a half partition, one after the other, and each names its commits
in OP. So the real records of one half partition lie in a real partition in the order of their OP records. A missing
record may have been removed by

- retention or DeleteRecords, which remove a *beginning* of a partition. Suppose each truncated partition of the topic
  still has a record with a lower OP offset. Then the missing one was not removed with a beginning, whichever partition
  it was in;
- the deletion of the topic, after which another one was created by its name. That removed everything. A record with a
  lower OP offset anywhere in the topic says that this has not happened since.

Somebody may have put an old record back into the topic that was created again. That record proves nothing, and looks
like any other. So two older records are required.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own convention)

from txbridge_audit.engines.spark.read.literals import frame
from txbridge_audit.judge.facts import TopicPartition


@dataclass(frozen=True, slots=True, order=True)
class Anchor:
    """A delivered record that is still in its real topic, and the OP record that names it."""

    #: Half partition.
    partition: int
    real_topic: str
    copy_partition: int
    #: Offset in OP.
    op_commit: int
    #: Lowest offset in the real topic of the records that the OP record names there, and their number.
    copy_at: int
    records: int = 1


def anchors(ledger: DataFrame) -> list[Anchor]:
    """Delivered records of each half partition in each real partition: of two old OP records, and of the last one."""
    # Of a message that is there twice, it is unknown which copy belongs to the OP record.
    # Of several messages the first known one. Each would prove something in its own topic.
    there = ledger.where((F.col("copies") == 1) & F.col("op_commit").isNotNull()).select(
        "partition",
        F.get("copied_to", F.lit(0))["topic"].alias("real_topic"),
        F.get("copied_to", F.lit(0))["partition"].alias("copy_partition"),
        "op_commit",
        F.get("copied_to", F.lit(0))["offset"].alias("copy_at"),
    )
    place = ("partition", "real_topic", "copy_partition")
    by_op = there.groupBy(*place, "op_commit").agg(F.min("copy_at").alias("copy_at"), F.count("*").alias("records"))
    rows = by_op.groupBy(*place).agg(*oldest("op_commit", "copy_at", "records")).collect()
    return [
        Anchor(row.partition, row.real_topic, row.copy_partition, one.op_commit, one.copy_at, one.records)
        for row in rows
        for one in sorted({row.oldest, row.other, row.newest} - {None})
    ]


def oldest(op: str, copy_at: str, records: str) -> tuple[Column, Column, Column]:
    """`oldest`, `other` and `newest`: two of the oldest OP records in the rows, with their real records, and the last.

    A hash divides the OP offsets into two halves, and the first two are the oldest of each. So the younger of them is
    no older than the second of all. Two aggregates find them, without sorting. If all are in one half, the last one
    takes the place of the second.
    """
    told = F.struct(F.col(op).alias("op_commit"), F.col(copy_at).alias("copy_at"), F.col(records).alias("records"))
    half = F.pmod(F.xxhash64(op), F.lit(2))
    first, other = (F.min(F.when(half == number, told)) for number in range(2))
    return first.alias("oldest"), other.alias("other"), F.max(told).alias("newest")


def add(
    spark: SparkSession, ledger: DataFrame, truncated: Collection[TopicPartition], known: Iterable[Anchor]
) -> DataFrame:
    """The ledger with `proof_above`: the OP offset above which a missing commit is a loss; null when nothing proves it.

    `truncated` names the partitions of real topics whose log start is not 0; `known` are delivered records.
    """
    needed: dict[str, set[int]] = {}
    for topic, partition in truncated:
        needed.setdefault(topic, set()).add(partition)
    there: dict[tuple[int, str], dict[int, dict[int, int]]] = {}
    for anchor in known:
        in_place = there.setdefault((anchor.partition, anchor.real_topic), {}).setdefault(anchor.copy_partition, {})
        # An anchor may be known twice: from plain transactions or an earlier step, and from the ledger.
        in_place[anchor.op_commit] = max(anchor.records, in_place.get(anchor.op_commit, 0))
    rows = []
    for (partition, topic), places in there.items():
        edges = needed.get(topic, set())
        asked = [_second([places.get(edge, {})]) for edge in edges] or [_second(places.values())]
        above = None if None in asked else max(edge for edge in asked if edge is not None)
        if above is not None:
            rows.append({"partition": partition, "real_topic": topic, "proof_above": above})
    proofs = frame(spark, rows, "partition: int, real_topic: string, proof_above: bigint")
    with_proof = ledger.join(F.broadcast(proofs), ["partition", "real_topic"], "left")
    above_in = {f"{row['partition']} {row['real_topic']}": row["proof_above"] for row in rows}
    proof_in = F.from_json(F.lit(json.dumps(above_in)), "map<string, bigint>")
    missed = F.exists(
        "missed_in",
        lambda topic: F.col("op_commit") > F.try_element_at(proof_in, F.concat_ws(" ", F.col("partition"), topic)),
    )
    # Of several messages, one that its topic would still have is not visible.
    return with_proof.withColumn("part_lost", F.coalesce(missed, F.lit(False)))


def _second(places: Iterable[Mapping[int, int]]) -> int | None:
    """The OP offset up to which there are two delivered records; None if there are fewer."""
    records = sorted(op for place in places for op, number in place.items() for _ in range(min(number, 2)))
    return records[1] if len(records) > 1 else None
