"""The rows that a continued audit carries from step to step: those of all transactions that are not closed.

A row is stored as decode.py makes it; it has a hash instead of a user's key, value or header. So the next step joins
the rows with the new ones and applies the same rules. All tables are stored as one (frames.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own convention)

from txbridge.core.names import Names
from txbridge_audit.judge import mentions, orphans
from txbridge_audit.judge.mentions import KEY
from txbridge_audit.read.cuts import Ends, Range, TopicPartition
from txbridge_audit.read.frames import TABLE, TABLES, Frames, together


def unexpired(frames: Frames, names: Names, starts: Ends) -> Frames:
    """Without what retention has removed from HALF, and faulty records of END and OP that are gone, too.

    What END and OP said of a half message that is there still counts: it was read.
    """
    half = _start(starts, names.half)
    source = F.when(F.col("source_topic") == names.half, half).otherwise(_start(starts, names.end))
    return replace(
        frames,
        halves=frames.halves.where(F.col("half") >= half),
        bad_ends=frames.bad_ends.where(F.col("end_at") >= _start(starts, names.end)),
        outcomes=frames.outcomes.where(F.col("fault").isNull() | (F.col("op_at") >= _start(starts, names.op))),
        discards=frames.discards.where(~F.col("malformed") | (F.col("source_offset") >= source)),
    )


def _start(starts: Ends, topic: str) -> Column:
    """The log start of a row's partition of the topic."""
    pairs = [F.lit(value) for (name, partition), at in starts.items() if name == topic for value in (partition, at)]
    return F.coalesce(F.try_element_at(F.create_map(*pairs), "partition"), F.lit(0))


def may_be_new(names: Names, spans: Mapping[TopicPartition, Range]) -> frozenset[str]:
    """The tables that may have rows of these records."""
    of = {
        names.half: {"halves"},
        names.end: {"entries", "bad_ends"},
        names.op: {"outcomes"},
        names.offset: {"parked"},
        names.discard: {"discards"},
    }
    read = {topic for (topic, _), span in spans.items() if not span.empty}
    others = {topic: {"checks"} if topic.startswith(names.check("")) else {"copies"} for topic in read}
    return frozenset(table for topic in read for table in (others | of)[topic])


def tables_in(rows: DataFrame) -> dict[str, int]:
    """The tables that have any row among those that were put together, and how many."""
    return {row[TABLE]: row["count"] for row in rows.groupBy(TABLE).count().collect()}


def carried(
    spark: SparkSession,
    names: Names,
    frames: Frames,
    judged: DataFrame,
    before: Mapping[TopicPartition, int],
    *,
    with_strays: bool,
) -> DataFrame:
    """All rows that the next step may need, in one table, with `closed`: whether their transaction is.

    Left out are the rows of half messages that retention has removed, unless OFFSET still holds them open, and visible
    records without a half message (`with_strays`: there are some) below the earlier cut, which have been judged.
    """
    tables = {name: getattr(frames, name) for name in TABLES}
    # At the coordinates of what they decide; those that do not count never will.
    tables["entries"] = mentions.decisions(names, frames)
    if with_strays:
        copies = mentions.copies_before(spark, frames.copies, before)
        place = ["topic", "copy_partition", "copy_at"]
        tables["copies"] = frames.copies.join(orphans.candidates(copies, judged).select(*place), place, "left_anti")
    gone = ~F.col("present") & (F.col("half") < F.col("half_start")) & F.col("parked").isNull()
    told = judged.where(F.col("half").isNotNull()).select(*KEY, "closed", gone.alias("gone"))
    # A copy of a half message that is gone is a stray as soon as it lies below the earlier cut.
    left = F.coalesce(F.col("gone") & (F.col(TABLE) != "copies"), F.lit(False))
    joined = together(tables).join(told, KEY, "left").where(~left)
    return joined.withColumn("closed", F.coalesce("closed", F.lit(False))).drop("gone")
