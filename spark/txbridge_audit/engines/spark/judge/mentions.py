"""Mentions: every record that names a half message, as rows of one shape at its coordinates (partition, half).

The half message itself is a mention, too. A record that names no coordinates has a null half: none is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own convention)

from txbridge.core.names import Names
from txbridge_audit.engines.spark.read.frames import Frames
from txbridge_audit.engines.spark.read.literals import frame
from txbridge_audit.engines.spark.read.once import once
from txbridge_audit.judge.facts import TopicPartition

KEY = ["partition", "half"]

#: Kinds of mentions. HALF is the half message itself. _MENTION tells the use of their columns.
HALF, END, OP, COPY, PARKED = range(5)
#: Half message that the discard topic has as malformed; END record that cannot be read; OP record that cannot be read.
ASIDE, BAD_END, BAD_OP = range(5, 8)
#: A check request.
CHECK = 8
_MENTION = (
    "kind: int, partition: int, half: bigint, "
    # Offset of the record. COPY, CHECK: its partition, too.
    "at: bigint, place: int, "
    # END: line in the record, decision. COPY: the partition that its key asks for, if that is another one.
    "line: int, decision: int, "
    # END: source. OP: outcome. COPY, CHECK: topic. PARKED: state, null for a tombstone.
    "name: string, "
    # END, COPY, CHECK, PARKED: as the record states them.
    "id: string, group: string, "
    # COPY: below the earlier cut.
    "before: boolean, "
    # END, CHECK, PARKED: number of the check that it answers, of the check, of checks sent. OP: END position
    # (exclusive) up to which the Kafka transaction has applied END (decode.position_of).
    "checks: bigint, "
    # COPY: hash of the content. CHECK: its END position. PARKED: when the next check is due, ms. OP: first END
    # position.
    "number: bigint, "
    # COPY: which one of several messages, and of how many.
    "part: int, parts: int, "
    # END, OP: append time, ms. PARKED: when it was resumed, ms. COPY: its timestamp, ms, if the worker gave it.
    "stamp: bigint"
)


def copies_before(spark: SparkSession, copies: DataFrame, before: Mapping[TopicPartition, int]) -> DataFrame:
    """The copies with `before`: whether they lie below the earlier cut."""
    rows = [{"topic": topic, "copy_partition": number, "before_end": end} for (topic, number), end in before.items()]
    cut = frame(spark, rows, "topic: string, copy_partition: int, before_end: bigint")
    below = F.coalesce(F.col("copy_at") < F.col("before_end"), F.lit(False))
    return copies.join(F.broadcast(cut), ["topic", "copy_partition"], "left").withColumn("before", below)


def all_mentions(
    spark: SparkSession,
    names: Names,
    frames: Frames,
    before: Mapping[TopicPartition, int],
) -> DataFrame:
    """Every mention in the frames; `before` is the earlier cut of the real topics."""
    faulty = F.col("fault").isNotNull()
    makers: tuple[tuple[str, Callable[[], DataFrame]], ...] = (
        ("halves", lambda: _as_mentions(frames.halves, HALF)),
        (
            "entries",
            lambda: _as_mentions(
                decisions(names, frames),
                END,
                at="end_at",
                line="line",
                decision="decision",
                name="source",
                id="id",
                group="group",
                checks="checks",
                stamp="stamp",
            ),
        ),
        ("bad_ends", lambda: _as_mentions(frames.bad_ends, BAD_END, half=None, at="end_at")),
        (
            "outcomes",
            lambda: _as_mentions(
                frames.outcomes.where(~faulty),
                OP,
                at="op_at",
                name="outcome",
                number="since",
                checks="until",
                stamp="stamp",
            ),
        ),
        ("outcomes", lambda: _as_mentions(frames.outcomes.where(faulty), BAD_OP, half=None, at="op_at")),
        (
            "copies",
            lambda: _as_mentions(
                copies_before(spark, frames.copies, before),
                COPY,
                at="copy_at",
                place="copy_partition",
                name="topic",
                id="id",
                before="before",
                line="by_key",
                number="content",
                stamp="dated",
                part="number",
                parts="numbers",
            ),
        ),
        (
            "parked",
            lambda: _as_mentions(
                frames.parked,
                PARKED,
                at="at",
                name="state",
                id="id",
                group="group",
                checks="checks",
                number="due",
                stamp="resumed",
            ),
        ),
        (
            "checks",
            lambda: _as_mentions(
                frames.checks,
                CHECK,
                at="check_at",
                place="check_partition",
                name="topic",
                id="id",
                checks="checks",
                number="end_position",
            ),
        ),
        (
            "discards",
            lambda: _as_mentions(
                _set_aside(frames).where(F.col("source_topic") == names.half), ASIDE, half="source_offset"
            ),
        ),
    )
    # Planning takes as long for empty tables as for others.
    there = [make for name, make in makers if name not in frames.none] or [makers[0][1]]
    return reduce(DataFrame.unionByName, (make() for make in there))


def decisions(names: Names, frames: Frames) -> DataFrame:
    """The entries of END that count (see decode.entries): readable, and not in the discard topic as malformed."""
    if "discards" in frames.none:
        return frames.entries
    ends = _set_aside(frames).where(F.col("source_topic") == names.end).withColumnRenamed("source_offset", "end_at")
    counting = frames.entries.join(ends, ["partition", "end_at"], "left_anti")
    return _of_firsts(counting, frames.discards)


def _set_aside(frames: Frames) -> DataFrame:
    """Coordinates of the malformed records that the worker has copied to the discard topic."""
    return frames.discards.where("malformed").select("source_topic", "partition", "source_offset").distinct()


def _of_firsts(named: DataFrame, discards: DataFrame) -> DataFrame:
    """The END entries. One that names a copy gets the coordinates of the first half message, which it decides.

    Sound because the discard topic has a copy at the latest with the Kafka transaction that applies an END naming it.
    """
    firsts = (
        discards.where(F.col("first").isNotNull())
        .groupBy("partition", F.col("source_offset").alias("half"))
        .agg(F.min("first").alias("first"))
    )
    return (
        named.join(F.broadcast(firsts), ["partition", "half"], "left")
        .withColumn("half", F.coalesce("first", "half"))
        .drop("first")
    )


def _as_mentions(rows: DataFrame, kind: int, half: str | None = "half", **columns: str) -> DataFrame:
    """The rows as mentions of one kind; columns that the kind does not have are null."""
    return rows.select(*_mention(kind, half, **columns))


@once
def _mention(kind: int, half: str | None, **columns: str) -> tuple[Column, ...]:
    given = {"partition": "partition", "half": half, **columns}

    def column(name: str, of_type: str) -> Column:
        source = given.get(name)
        value = F.lit(kind) if name == "kind" else F.lit(None) if source is None else F.col(source)
        return value.cast(of_type).alias(name)

    fields = (field.split(": ") for field in _MENTION.split(", "))
    return tuple(column(name, of_type) for name, of_type in fields)
