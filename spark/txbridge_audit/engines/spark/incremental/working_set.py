"""The rows that a continued audit carries from step to step: those of all transactions that are not closed.

A row is stored as decode.py makes it, with a hash instead of a user's key, value and headers. So the next step can join
the rows with the new ones and apply the same rules. All tables are stored as one (frames.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own convention)

from txbridge.core.names import Names
from txbridge_audit.cluster.cuts import Ends, Range
from txbridge_audit.engines.spark.judge import mentions, orphans
from txbridge_audit.engines.spark.judge.mentions import KEY
from txbridge_audit.engines.spark.read.frames import TABLE, TABLES, Frames, together
from txbridge_audit.judge.facts import TopicPartition


def unexpired(frames: Frames, names: Names, starts: Ends) -> Frames:
    """The frames without half messages, and without malformed records of HALF, END and OP, that retention has removed.

    Readable records of END and OP count as long as their half message is there, because they were read.
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
    """The log start of the topic's partition that belongs to a row."""
    pairs = [F.lit(value) for (name, partition), at in starts.items() if name == topic for value in (partition, at)]
    return F.coalesce(F.try_element_at(F.create_map(*pairs), "partition"), F.lit(0))


def may_be_new(names: Names, spans: Mapping[TopicPartition, Range]) -> frozenset[str]:
    """The tables that may have rows from these ranges of offsets."""
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
    """The number of rows of each table that has any, in the table of all rows (frames.py)."""
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
    """All rows that the next step may need, in one table. `closed` says whether their transaction is closed.

    Rows of half messages that retention has removed are left out, unless OFFSET still holds the message open. Visible
    records without a half message (`with_strays`: there are some) are left out below the earlier cut, as they have been
    judged.
    """
    tables = {name: getattr(frames, name) for name in TABLES}
    # At the coordinates of the messages that they decide. Entries that do not count are left out: they never will.
    tables["entries"] = mentions.decisions(names, frames)
    if with_strays:
        copies = mentions.copies_before(spark, frames.copies, before)
        place = ["topic", "copy_partition", "copy_at"]
        tables["copies"] = frames.copies.join(orphans.candidates(copies, judged).select(*place), place, "left_anti")
    gone = ~F.col("present") & (F.col("half") < F.col("half_start")) & F.col("parked").isNull()
    told = judged.where(F.col("half").isNotNull()).select(*KEY, "closed", gone.alias("gone"))
    # Copies of a half message that is gone stay: they are judged as strays once they lie below the earlier cut.
    left = F.coalesce(F.col("gone") & (F.col(TABLE) != "copies"), F.lit(False))
    joined = together(tables).join(told, KEY, "left").where(~left)
    return joined.withColumn("closed", F.coalesce("closed", F.lit(False))).drop("gone")
