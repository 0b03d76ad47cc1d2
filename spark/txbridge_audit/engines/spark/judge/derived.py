"""Columns that several rules use, computed once for each row of the ledger."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own convention)

from txbridge_audit.engines.spark.judge import reach
from txbridge_audit.engines.spark.read import decode
from txbridge_audit.engines.spark.read.once import once
from txbridge_audit.judge.facts import CLOCK_MARGIN_MS, AuditLimits, Facts, RealTopicFacts

#: A held message is tried again after a minute at most, so it is delivered soon after its topic is back. If it is held
#: for hours more, something else is wrong.
HELD_LONG_MS = 2 * 3_600_000
#: A worker uses the clock of the broker that leads OFFSET, and OP has the append times of another one. Clocks that
#: differ by more are wrong.
EARLY_MARGIN_MS = 60_000


def derive(known: DataFrame, facts: Facts) -> DataFrame:
    """The ledger with the columns that several rules use."""
    now = F.lit(facts.now - CLOCK_MARGIN_MS)
    known = known.withColumns({"lacking": _lacking(facts), "several": F.col("parts").isNotNull(), "now": now})
    of_all = F.forall("parts", lambda part: part["topic"].isin([fact.topic for fact in facts.topics]))
    exists = F.coalesce("topic_exists", F.lit(False))
    known = known.withColumn("topic_exists", F.when(F.col("several"), of_all).otherwise(exists))
    there = [fact for fact in facts.topics if not fact.compacted]
    moving = [fact.topic for fact in facts.topics if not fact.settled]
    unsettled = F.exists("parts", lambda part: part["topic"].isin(moving))
    by_topic = {
        "settled": F.when(F.col("several"), ~unsettled).otherwise(F.coalesce("settled", F.lit(True))),
        # Of several messages: topics in which a missing message may prove a loss.
        "missed_in": _of_these("missing_topics", there),
        "missed_in_whole": _of_these("missing_topics", [fact for fact in there if not fact.truncated]),
    }
    return known.withColumns(_derived(facts.limits) | by_topic).drop("now")


@once
def _derived(limits: AuditLimits) -> dict[str, Column]:
    now = F.col("now")
    # The age counts from a resume. greatest() skips nulls.
    expires = F.greatest("born", "last_parked.resumed") + limits.transaction_max_age
    checked_out = (F.col("last_parked.checks") >= limits.transaction_check_max) & (F.col("last_parked.due") < now)
    resume_seen = (F.col("resumed_at") >= F.array_max("discard_ends")) & (F.col("resumed_at") < F.col("applied_to"))
    # An END record may be applied in part. Structs would not do: null is less than any value in them.
    decided_at, line = F.col("winner.end_at"), F.col("winner.line")
    applied = (decided_at < F.col("applied_to")) | (
        (decided_at == F.col("applied_to")) & (line < F.col("applied_entry"))
    )
    position = decode.position_of(decided_at, line)

    def nothing_of(*bits: int) -> Column:
        return F.col("lacking").bitwiseAND(sum(bits)) == 0

    return {
        # Whether no record of a kind is gone. The kinds are ENDs with the records of copies, outcomes in OP, discards
        # (which tell the late decisions), and parked entries.
        "ends_known": nothing_of(reach.END, reach.COPY),
        "outcomes_known": nothing_of(reach.OP),
        "discards_known": nothing_of(reach.DISCARD),
        "parked_known": nothing_of(reach.PARKED),
        "history_known": nothing_of(reach.END, reach.COPY, reach.OP, reach.DISCARD),
        # The worker's checkpoint is past the END entry that decided. An END that is not read yet is no fault.
        "applied": F.coalesce(applied, F.lit(False)),
        # The Kafka transaction that delivered it states which part of END it has applied: that part ends before the
        # decision, or begins behind it.
        "not_yet_decided": F.coalesce(position >= F.col("applied_until"), F.lit(False)),
        "passed_before": F.coalesce(position < F.col("applied_since"), F.lit(False)),
        # Resumed after its last discard, and the worker has applied the resume.
        "reopened": F.coalesce(resume_seen, F.lit(False)),
        # Older than an undecided message may become, or not discarded one interval after the last check.
        "overdue": F.coalesce(expires < now, F.lit(False)) | F.coalesce(checked_out, F.lit(False)),
        # OP names it as delivered before its time.
        "early": F.coalesce(F.col("committed_at") < F.col("deliver_at") - EARLY_MARGIN_MS, F.lit(False)),
        # The time of delivery in the parked entry has passed.
        "undelivered": F.coalesce(F.col("last_parked.due") < now, F.lit(False)),
        # Decided hours ago, and its real topic is there.
        "held_long": F.coalesce(F.col("topic_exists") & (F.col("winner.stamp") < now - HELD_LONG_MS), F.lit(False)),
        "op_settled": F.coalesce("op_settled", F.lit(True)),
        # Of several messages: some of them are not visible.
        "incomplete": F.coalesce(F.size("missing_topics") > 0, F.lit(False)),
    }


def _of_these(topics: str, facts: Iterable[RealTopicFacts]) -> Column:
    names = [fact.topic for fact in facts]
    return F.filter(topics, lambda topic: topic.isin(names))


def _lacking(facts: Facts) -> Column:
    """The bits for records of the transaction that are gone (see reach.py)."""
    # OP names each discard. So the record of a discard is gone if OP names the discard and there is no record. Only the
    # END position in the record tells which decisions came before it.
    unexplained = F.col("op_discard").isNotNull() & (F.coalesce(F.size("discard_ends"), F.lit(0)) <= 0)
    bits = F.when(unexplained, reach.DISCARD).otherwise(0).bitwiseOR(F.when(F.col("twin"), reach.COPY).otherwise(0))
    of_birth = reach.lacking_of_birth(facts)
    if of_birth is not None:
        bits = bits.bitwiseOR(F.coalesce(of_birth, F.lit(0)))
    of_decision = reach.lacking_of_decision(facts, F.col("group"), F.col("winner.stamp"))
    if of_decision is not None:
        bits = bits.bitwiseOR(F.when(F.col("winner").isNull(), 0).otherwise(of_decision))
    return bits


def delivery_latency() -> Column:
    """Milliseconds to the delivery, from the decision or from the time that the message names, whichever is later.

    Both are judged columns. The wait for a time that the sender wanted is no latency.
    """
    return F.col("committed_at") - F.greatest("winner.stamp", "deliver_at")
