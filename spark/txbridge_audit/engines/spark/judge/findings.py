"""Findings: refusals that worked, odd records, missing traces. They break no promise."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own convention)

from txbridge_audit.engines.spark.judge import fates, violations
from txbridge_audit.engines.spark.judge.rule import JudgeRule
from txbridge_audit.engines.spark.read.decode import COMMIT
from txbridge_audit.engines.spark.read.once import once

#: Findings that do not come from a row of the ledger.
MALFORMED, COPY, OTHER_NAMESPACE, HALF_GONE = "MALFORMED", "COPY", "OTHER_NAMESPACE", "HALF_GONE"
UNREADABLE_OP, OPEN_TRANSACTION, HALF_RANGE_GONE = "UNREADABLE_OP", "OPEN_TRANSACTION", "HALF_RANGE_GONE"
RIGHT_MISSING, BLIND = "RIGHT_MISSING", "BLIND"


def _lost_in_range() -> Column:
    """Whether no half message is at coordinates in the range that was read."""
    return ~F.col("present") & (F.coalesce(F.col("half"), F.lit(0)) >= F.coalesce("half_start", F.lit(0)))


def _unrecorded() -> Column:
    # Sound because OP is cut after the earlier cut of the real topics, and is settled.
    visible = (F.col("copies_before") > 0) & F.col("winner.decision").eqNullSafe(COMMIT)
    untold = ~violations.recorded() & F.col("parked").isNull() & ~violations.progress_ahead()
    whole = F.col("op_settled") & F.col("history_known") & F.col("parked_known")
    return F.col("valid") & whole & untold & visible


RULES: tuple[JudgeRule, ...] = (
    JudgeRule(
        "CONTRADICTION",
        "a later decision said the opposite and was refused",
        lambda: F.col("contrary").isNotNull() & (F.col("fate") != fates.WRONG_WINNER),
    ),
    JudgeRule(
        "REPEAT",
        "the same decision was sent again and refused",
        lambda: (F.col("decisions") - F.when(F.col("contrary").isNull(), 0).otherwise(1)) > 1,
    ),
    JudgeRule("LATE", "decided after it had been discarded, and refused", lambda: F.col("late") > 0),
    JudgeRule("WRONG_TRANSACTION_ID", "an END named it with another transaction id", lambda: F.col("wrong_id") > 0),
    JudgeRule("WRONG_GROUP", "an END of another producer group named it", lambda: F.col("wrong_group") > 0),
    # HALF is cut after END, and a half message is acknowledged before an END can name it.
    JudgeRule(
        "NO_HALF_MESSAGE",
        "an END names coordinates where no half message is",
        lambda: _lost_in_range() & (F.col("entries") > 0),
    ),
    JudgeRule(
        "OUTCOME_WITHOUT_HALF",
        "OP names coordinates where no half message is",
        lambda: _lost_in_range() & (F.col("entries") == 0) & violations.recorded(),
    ),
    # END is cut after OP.
    JudgeRule(
        "OUTCOME_WITHOUT_DECISION",
        "OP names an outcome that nobody decided",
        lambda: (
            F.col("valid")
            & F.col("ends_known")
            & F.col("winner").isNull()
            & F.coalesce("op_commit", "op_rollback", "op_abandon").isNotNull()
        ),
    ),
    JudgeRule(
        "UNRECORDED", "visible, but OP does not name it, and the checkpoint has not passed its decision", _unrecorded
    ),
    JudgeRule(
        "DISCARDED_TWICE",
        "more than one discard record, with no resume between",
        lambda: (
            F.col("valid")
            & (F.col("discards") > 1)
            & (F.col("resumed_at").isNull() | (F.col("resumed_at") < F.get("discard_ends", F.lit(0))))
        ),
    ),
    # Not where compaction or retention may be the reason. A topic that was deleted and created again leaves no trace.
    JudgeRule(
        "NOT_IN_TOPIC",
        "recorded as committed and not visible, nor is any older one: was the real topic deleted and created again?",
        lambda: (
            (F.col("fate") == fates.UNVERIFIABLE)
            & F.col("op_commit").isNotNull()
            & F.when(F.col("several"), F.size("missed_in_whole") > 0).otherwise(
                F.col("topic_exists") & ~F.col("compacted") & ~F.col("truncated")
            )
        ),
    ),
    JudgeRule(
        "HELD_LONG",
        "committed hours ago, its real topic is there, and it is not delivered: `txbridge pending` says why",
        lambda: (F.col("pending_state") == fates.HELD) & F.col("held_long"),
    ),
    JudgeRule("FOREIGN_COPY", "somebody forwarded the delivered record to another topic", lambda: F.col("foreign") > 0),
)

SAYS = {rule.kind: rule.says for rule in RULES} | {
    MALFORMED: "a record of HALF or END that is not ours or breaks a rule; it has no effect",
    COPY: "a half message that its producer has sent twice; the first one counts",
    OTHER_NAMESPACE: "a visible record that belongs to a half message of another namespace",
    HALF_GONE: "a visible record whose half message retention has removed",
    UNREADABLE_OP: "a record of OP that cannot be read",
    OPEN_TRANSACTION: "a Kafka transaction stayed open; what it may hide is not judged",
    HALF_RANGE_GONE: "retention removed half messages that the checkpoint had not passed; their fates are not known",
    RIGHT_MISSING: "a right on a real topic is missing, so that no loss can be proved there",
    BLIND: "a rule could judge nothing at all: its evidence was deleted",
}


def find(judged: DataFrame) -> DataFrame:
    """The judged ledger with `breaches` (violations beside the fate) and `findings`: the kinds that hold, in order."""
    return judged.withColumns({"breaches": _kinds(violations.RULES), "findings": _kinds(RULES)})


@once
def _kinds(rules: tuple[JudgeRule, ...]) -> Column:
    held = (F.when(F.coalesce(rule.holds(), F.lit(False)), F.lit(rule.kind)) for rule in rules)
    return F.array_compact(F.array(*held))


def malformed(halves: DataFrame, bad_ends: DataFrame, discards: DataFrame, half: str, end: str) -> DataFrame:
    """Malformed records of HALF and END (topic names given), copies included.

    Columns: kind, source_topic, partition, source_offset, says, set_aside. A record is malformed by our own reading, by
    that of the worker (it is in the discard topic), or by both. The worker's text is preferred.
    """

    def ours(rows: DataFrame, topic: str, offset: str) -> DataFrame:
        return rows.where(F.col("fault").isNotNull()).select(
            F.lit(topic).alias("source_topic"),
            "partition",
            F.col(offset).alias("source_offset"),
            "fault",
        )

    place = ["source_topic", "partition", "source_offset"]
    read = ours(halves, half, "half").unionByName(ours(bad_ends, end, "end_at"))
    aside = (
        discards.where("malformed")
        .groupBy(place)
        .agg(
            F.first("error", ignorenulls=True).alias("error"),
            F.bool_or(F.col("first").isNotNull()).alias("is_copy"),
            F.min(F.struct(F.col("at_partition").alias("partition"), F.col("at_offset").alias("offset"))).alias(
                "set_aside"
            ),
        )
    )
    return read.join(aside, place, "full_outer").select(
        F.when(F.col("is_copy"), COPY).otherwise(MALFORMED).alias("kind"),
        *place,
        F.coalesce("error", "fault", F.lit("set aside by the worker")).alias("says"),
        "set_aside",
    )
