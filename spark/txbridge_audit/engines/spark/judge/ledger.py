"""The ledger: one row per half message, with all facts that the topics hold about it. Verdicts are added later.

All mentions (mentions.py) are joined with HALF and aggregated in one pass, without another shuffle. The key is unique,
so it is not skewed. No mention is lost. Coordinates that are mentioned although no half message is there have a row
(`present` is false). Each partition has one with a null half for records that name no coordinates at all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own convention)

from txbridge.core.names import Names
from txbridge_audit.engines.spark.judge import derived
from txbridge_audit.engines.spark.judge.mentions import (
    ASIDE,
    BAD_END,
    BAD_OP,
    CHECK,
    COPY,
    END,
    KEY,
    OP,
    PARKED,
    all_mentions,
)
from txbridge_audit.engines.spark.read.decode import COMMIT, ROLLBACK, UNKNOWN
from txbridge_audit.engines.spark.read.frames import Frames
from txbridge_audit.engines.spark.read.literals import frame
from txbridge_audit.engines.spark.read.once import once
from txbridge_audit.judge.facts import Facts, HalfFacts, RealTopicFacts


def build(spark: SparkSession, names: Names, frames: Frames, facts: Facts) -> DataFrame:
    """The ledger. Lazy; to be persisted before rules are applied to it."""
    own = frames.halves.join(_discarded(frames.discards), KEY, "left").select(*_own())
    # A left join keeps the order and the partitions of the mentions, so that they can be aggregated as they come. With
    # an outer join Spark would shuffle and sort everything again.
    summed = all_mentions(spark, names, frames, facts.before).join(own, KEY, "left").groupBy(*KEY).agg(*_sums())
    known = (
        _resolve(summed)
        .join(F.broadcast(_partition_facts(spark, facts.partitions)), "partition", "left")
        .join(F.broadcast(_topic_facts(spark, facts.topics)), "real_topic", "left")
    )
    known = known.withColumn("twin", F.lit(False)) if not facts.discards_cut else _with_twins(known, frames)
    return derived.derive(known, facts)


@once
def _own() -> tuple[Column, ...]:
    """The columns that come from the half message itself."""
    return (
        *map(F.col, (*KEY, "born")),
        F.col("fault").isNull().alias("well_formed"),
        *(F.when(F.col("fault").isNull(), F.col(name)).alias(f"own_{name}") for name in ("id", "group", "real_topic")),
        F.col("content").alias("own_content"),
        F.col("dated").alias("own_dated"),
        F.col("fixed_partition").alias("own_fixed_partition"),
        F.col("parts").alias("own_parts"),
        F.col("deliver_at").alias("own_deliver_at"),
        *map(F.col, ("discard_checks", "discards", "discard_ends", "discarded_at")),
    )


def _with_twins(known: DataFrame, frames: Frames) -> DataFrame:
    """The ledger with `twin`: whether another half message has the same id, and its discard record is gone.

    The other one may be a copy. ENDs that name a copy decide the first half message. Only the
    discard record of the copy tells that it is one.
    """
    discarded = frames.outcomes.where(F.col("outcome") == "discard").select(*KEY).distinct()
    told = frames.discards.select("partition", F.col("source_offset").alias("half"))
    unexplained = discarded.join(told, KEY, "left_anti")
    ids = frames.halves.join(F.broadcast(unexplained), KEY, "left_semi").select(
        "partition", "id", F.col("half").alias("other")
    )
    known = known.join(F.broadcast(ids), ["partition", "id"], "left")
    # A message whose own discard record is gone is no twin of itself.
    others = F.coalesce(F.col("other") != F.col("half"), F.lit(False))
    # An id seldom has more than one copy. More than one must not make two rows of one transaction.
    return known.withColumn("twin", others).drop("other").dropDuplicates(KEY)


def _discarded(discards: DataFrame) -> DataFrame:
    """Discards of each half message: their number, their END positions (sorted), and their places."""
    rows = discards.where(~F.col("malformed") & ~F.col("reason").eqNullSafe("ABANDONED"))
    return rows.groupBy("partition", F.col("source_offset").alias("half")).agg(*_of_discards())


@once
def _of_discards() -> tuple[Column, ...]:
    place = F.struct(F.col("at_partition").alias("partition"), F.col("at_offset").alias("offset"))
    return (
        F.count("*").alias("discards"),
        F.sort_array(F.collect_list("discard_end")).alias("discard_ends"),
        F.sort_array(F.collect_list(place)).alias("discarded_at"),
        F.max("checks").alias("discard_checks"),
    )


@once
def _sums() -> tuple[Column, ...]:
    """Aggregates that make one row per coordinates of all mentions. Every row of a group has the same half message."""

    def of(kind: int, holds: Column | None = None) -> Column:
        return (F.col("kind") == kind) if holds is None else (F.col("kind") == kind) & holds

    def count(condition: Column, name: str) -> Column:
        return F.count_if(F.coalesce(condition, F.lit(False))).alias(name)

    def first(condition: Column, name: str) -> Column:
        return F.min(F.when(condition, F.col("at"))).alias(name)

    def ends(condition: Column, name: str) -> Column:
        """The first and the last place. Of more than two copies these are enough evidence."""
        where = F.when(condition, copied)
        return F.array_compact(F.array_distinct(F.array(F.min(where), F.max(where)))).alias(name)

    place = F.col("place").alias("partition")
    right_id = F.col("id") == F.col("own_id")
    ours = right_id & (F.col("group") == F.col("own_group"))
    decides = of(END, ours & F.col("decision").isin(COMMIT, ROLLBACK))
    resumes = of(END, ours & (F.col("name") == "resume"))
    entry = F.struct(F.col("at").alias("end_at"), "line", "decision", F.col("name").alias("source"), "stamp")
    several = F.col("own_parts").isNotNull()
    part = F.get("own_parts", F.col("part") - 1)

    def asked_for(of_one: Column, of_several: Column) -> Column:
        return F.when(several, of_several).otherwise(of_one)

    topic = asked_for(F.col("own_real_topic"), F.when(F.col("parts") == F.size("own_parts"), part["topic"]))
    home = right_id & (F.col("name") == topic)
    own = (
        *("born", "own_id", "own_group", "own_real_topic", "own_content", "own_dated", "own_fixed_partition"),
        *("well_formed", "own_parts", "own_deliver_at"),
        *("discards", "discard_ends", "discarded_at", "discard_checks"),
    )
    copied = F.struct(F.col("name").alias("topic"), place, F.col("at").alias("offset"))
    dated = asked_for(F.col("own_dated"), F.coalesce(part["dated"], F.col("born")))
    redated = F.coalesce(F.col("stamp") != dated, F.lit(False))
    same = F.col("number") == asked_for(F.col("own_content"), part["content"])
    altered = of(COPY, home & (~same | redated))
    # A partition that the user fixed wins over the key. An altered key does not tell the right partition.
    by_key = F.col("line").isNotNull() & same
    elsewhere = F.coalesce(F.col("place") != asked_for(F.col("own_fixed_partition"), part["place"]), by_key)
    misplaced = of(COPY, home & elsewhere)
    asked = F.struct(
        F.col("number").alias("end_position"), F.col("name").alias("topic"), place, F.col("at").alias("offset")
    )
    ends_applied = F.struct("at", F.col("number").alias("since"), F.col("checks").alias("until"))
    delivered_part = F.struct(F.col("name").alias("topic"), place, F.col("at").alias("offset"), "part")
    parked = F.struct(
        F.col("name").alias("state"),
        "id",
        "group",
        "checks",
        F.col("number").alias("due"),
        F.col("stamp").alias("resumed"),
        "at",
    )
    return (
        *(F.first(name).alias(name) for name in own),
        count(of(ASIDE), "set_aside"),
        count(of(END), "entries"),
        first(of(END), "named_at"),
        F.max(F.when(of(END), F.col("at"))).alias("last_named_at"),
        F.min(F.when(decides & (F.col("decision") == COMMIT), entry)).alias("first_commit"),
        F.min(F.when(decides & (F.col("decision") == ROLLBACK), entry)).alias("first_rollback"),
        # Discards are rare. Only for them `_resolve` examines the entries one by one.
        F.collect_list(F.when(F.col("discards").isNotNull() & (decides | resumes), entry)).alias("deciding"),
        count(decides, "decisions"),
        F.max(F.when(decides, F.col("at"))).alias("last_decision_at"),
        F.max(F.when(resumes, F.col("at"))).alias("resumed_at"),
        F.max(F.when(of(END, ours & (F.col("name") == "abandon")), F.col("at"))).alias("abandoned_at"),
        count(of(END, ~right_id), "wrong_id"),
        first(of(END, ~right_id), "wrong_id_at"),
        count(of(END, right_id & ~ours), "wrong_group"),
        first(of(END, right_id & ~ours), "wrong_group_at"),
        *(first(of(OP, F.col("name") == name), f"op_{name}") for name in ("commit", "rollback", "discard", "abandon")),
        count(of(COPY, home), "copies"),
        count(of(COPY, home & F.col("before")), "copies_before"),
        F.collect_set(F.when(of(COPY, home & several), F.col("part"))).alias("visible_parts"),
        count(of(COPY, right_id & ~home), "foreign"),
        count(of(COPY, F.col("before")), "mentions_before"),
        count(of(COPY, right_id & F.col("before")), "matches_before"),
        ends(of(COPY, home), "copied_to"),
        ends(of(COPY, right_id & ~home), "foreign_at"),
        count(altered, "altered"),
        F.min(F.when(altered, copied)).alias("altered_at"),
        F.min(F.when(misplaced, copied)).alias("misplaced_at"),
        F.max(F.when(of(CHECK, right_id), asked)).alias("checked"),
        F.max(F.when(of(CHECK, right_id) | of(PARKED) | of(END, ours), F.col("checks"))).alias("checks_known"),
        F.min(F.when(of(OP, F.col("name") == "commit"), F.col("stamp"))).alias("committed_at"),
        F.min(F.when(of(OP, F.col("name") == "commit"), ends_applied)).alias("ends_applied"),
        F.collect_list(F.when(of(COPY, home & several), delivered_part)).alias("delivered_parts"),
        F.max_by(F.when(of(PARKED), parked), F.when(of(PARKED), F.col("at"))).alias("last_parked"),
        count(of(BAD_END), "bad_ends"),
        count(of(BAD_OP), "bad_ops"),
    )


def _resolve(summed: DataFrame) -> DataFrame:
    """The rows with conclusions from the aggregates: whether the half message is valid, and which decision won.

    The protocol's rule: of the entries with the right transaction id and group, the first commit or rollback in the
    order of END (offset, then line) decides (`winner`). After a discard nothing decides until a resume has reopened the
    message; the discard's own END position says which entries came before it.
    """
    return summed.select(*_chosen()).withColumns(_decisive()).drop("first_commit", "first_rollback")


@once
def _chosen() -> tuple[Column, ...]:
    valid = F.coalesce(F.col("well_formed"), F.lit(False)) & (F.col("set_aside") == 0)
    discarded = F.col("discards").isNotNull()
    entered = F.filter("deciding", lambda entry: entry["decision"] != UNKNOWN)
    in_time, late = F.filter(entered, _is_open), F.filter(entered, lambda entry: ~_is_open(entry))

    def if_discarded(looked_at: Column, otherwise: Column) -> Column:
        return F.when(discarded, looked_at).otherwise(otherwise)

    def first(decision: int, summed_up: str) -> Column:
        these = F.filter(in_time, lambda entry: entry["decision"] == decision)
        return if_discarded(F.array_min(these), F.col(summed_up)).alias(summed_up)

    def end_offsets(these: Column) -> Column:
        return F.transform(these, lambda entry: entry["end_at"])

    return (
        *map(F.col, (*KEY, "born")),
        F.col("well_formed").isNotNull().alias("present"),
        valid.alias("valid"),
        *(F.when(valid, F.col(f"own_{name}")).alias(name) for name in ("id", "group", "real_topic")),
        *map(F.col, ("entries", "named_at", "last_named_at", "wrong_id", "wrong_id_at")),
        *map(F.col, ("wrong_group", "wrong_group_at", "resumed_at", "abandoned_at")),
        first(COMMIT, "first_commit"),
        first(ROLLBACK, "first_rollback"),
        if_discarded(F.size(in_time), F.col("decisions")).alias("decisions"),
        if_discarded(F.array_max(end_offsets(in_time)), F.col("last_decision_at")).alias("last_decision_at"),
        if_discarded(F.size(late), F.lit(0)).alias("late"),
        if_discarded(F.array_min(end_offsets(late)), F.lit(None)).alias("late_at"),
        *map(F.col, ("op_commit", "op_rollback", "op_discard", "op_abandon", "copies_before", "foreign")),
        _sets().alias("copies"),
        _missing_topics().alias("missing_topics"),
        F.when(valid, F.col("own_parts")).alias("parts"),
        (F.col("mentions_before") - F.when(valid, F.col("matches_before")).otherwise(0)).alias("strays"),
        F.coalesce("discards", F.lit(0)).alias("discards"),
        *map(F.col, ("discard_ends", "discarded_at", "last_parked", "copied_to", "foreign_at", "bad_ends", "bad_ops")),
        *map(F.col, ("altered", "altered_at", "misplaced_at", "checked", "committed_at")),
        F.col("ends_applied.since").alias("applied_since"),
        F.col("ends_applied.until").alias("applied_until"),
        F.when(_sets() == 1, _out_of_order()).alias("out_of_order_at"),
        F.col("last_parked.state").alias("parked"),
        F.col("own_fixed_partition").alias("fixed_partition"),
        F.col("own_deliver_at").alias("deliver_at"),
        F.coalesce(F.greatest("checks_known", "discard_checks"), F.lit(0)).alias("checks_sent"),
    )


@once
def _decisive() -> dict[str, Column]:
    both = F.col("first_commit").isNotNull() & F.col("first_rollback").isNotNull()
    return {
        "winner": F.least("first_commit", "first_rollback"),
        "contrary": F.when(both, F.greatest("first_commit", "first_rollback")),
    }


def _sets() -> Column:
    """Number of visible copies. Of several messages: 1 if none of them is there twice, even if some are missing."""
    doubled = F.when(F.col("copies") > F.size("visible_parts"), 2).otherwise(1)
    return F.when(F.col("own_parts").isNull() | (F.col("copies") == 0), F.col("copies")).otherwise(doubled)


def _out_of_order() -> Column:
    """Of several messages, the first copy that lies behind the copy of a later one in its partition, or null."""
    parts = F.array_sort("delivered_parts")
    pairs = F.transform(parts, lambda part, index: F.struct(part.alias("one"), F.get(parts, index + 1).alias("next")))

    def behind_a_later_one(pair: Column) -> Column:
        one, following = pair["one"], pair["next"]
        together = (following["topic"] == one["topic"]) & (following["partition"] == one["partition"])
        return F.coalesce(together & (following["part"] < one["part"]), F.lit(False))

    return F.get(F.filter(pairs, behind_a_later_one), F.lit(0))["next"]


def _missing_topics() -> Column:
    """The topics of those of several messages that are not visible; null for a single message."""
    topics = F.transform(
        "own_parts",
        lambda part, index: F.when(~F.array_contains("visible_parts", (index + 1).cast("int")), part["topic"]),
    )
    return F.array_distinct(F.array_compact(topics))


def _is_open(entry: Column) -> Column:
    """Whether the message was open to decisions at this entry: never discarded before it, or resumed since."""
    last = F.array_max(F.filter("discard_ends", lambda position: position <= entry["end_at"]))
    place = F.struct(entry["end_at"], entry["line"])
    reopened = F.exists(
        "deciding",
        lambda other: (
            (other["source"] == "resume")
            & (other["end_at"] >= last)
            & (F.struct(other["end_at"], other["line"]) < place)
        ),
    )
    return last.isNull() | reopened


def _partition_facts(spark: SparkSession, facts: Iterable[HalfFacts]) -> DataFrame:
    fields = (
        "partition: int, half_start: bigint, applied_to: bigint, low: bigint, "
        "op_settled: boolean, log_start: bigint, applied_entry: bigint"
    )
    return frame(spark, map(dataclasses.asdict, facts), fields)


def _topic_facts(spark: SparkSession, facts: Iterable[RealTopicFacts]) -> DataFrame:
    rows = ({"real_topic": fact.topic, "topic_exists": True} | dataclasses.asdict(fact) for fact in facts)
    fields = "real_topic: string, topic_exists: boolean, compacted: boolean, truncated: boolean, settled: boolean"
    return frame(spark, rows, fields)
