"""Violations beside the fate. A transaction has one fate, and may break any of these rules as well.

The conditions are columns of the judged ledger (fates.py). Each rule says what makes it sound.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own convention)

from txbridge_audit.engines.spark.judge import fates
from txbridge_audit.engines.spark.judge.rule import JudgeRule
from txbridge_audit.engines.spark.read.decode import COMMIT

ALTERED, MISPLACED, STUCK, EXPIRED = "ALTERED", "MISPLACED", "STUCK", "EXPIRED"
EARLY, OVERDUE = "EARLY", "OVERDUE"
BEFORE_DECISION, OVERTAKEN, OUT_OF_ORDER = "BEFORE_DECISION", "OVERTAKEN", "OUT_OF_ORDER"
CHECKED_AFTER_DECISION, PROGRESS_AHEAD = "CHECKED_AFTER_DECISION", "PROGRESS_AHEAD"


def recorded() -> Column:
    """Whether OP names any outcome."""
    return F.coalesce("op_commit", "op_rollback", "op_discard", "op_abandon").isNotNull()


def progress_ahead() -> Column:
    """The condition of the rule PROGRESS_AHEAD, whatever the fate is."""
    finished = F.col("applied") | (F.col("half") < F.col("low"))
    untold = ~recorded() & F.col("parked").isNull()
    whole = F.col("op_settled") & F.col("outcomes_known") & F.col("parked_known")
    return F.col("valid") & whole & untold & finished


def _delivered_by_decision() -> Column:
    """Whether it is visible and a commit won, and no record is gone that could tell of another winner."""
    visible = F.col("valid") & (F.col("copies") > 0)
    return fates.winner_known() & visible & F.col("winner.decision").eqNullSafe(COMMIT)


RULES: tuple[JudgeRule, ...] = (
    # Sound at any cut: the two compared records are there, and equal contents have equal hashes.
    JudgeRule(
        ALTERED,
        "key, value, timestamp or a header of a visible copy is not that of the half message",
        lambda: F.col("valid") & (F.col("altered") > 0),
    ),
    # Sound at any cut: the half message names the partition, and the copy is in another one. If the key
    # decides, it belongs to that partition for no number of partitions that the topic can have had.
    JudgeRule(
        MISPLACED,
        "a visible copy is in another partition than REAL_QID says, or without it the key",
        lambda: F.col("valid") & F.col("misplaced_at").isNotNull(),
    ),
    # Sound at any cut: the Kafka transaction that delivered it states which part of END it has applied. The first valid
    # decision lies behind that part, and never changes. No clock is compared.
    JudgeRule(
        BEFORE_DECISION,
        "delivered by a Kafka transaction that had not come to its decision in END",
        lambda: _delivered_by_decision() & F.col("not_yet_decided"),
    ),
    # Sound at any cut for the same reason. Messages that were held rightly come late. OP names them in records that
    # state no part of END.
    JudgeRule(
        OVERTAKEN,
        "delivered by a later Kafka transaction than the one that applied its decision, and it was not held",
        lambda: _delivered_by_decision() & F.col("passed_before"),
    ),
    # Sound at any cut: offsets tell in which order the messages of one transaction were written. If one of them is
    # there twice, the first of its copies is unknown, and the rule does not hold.
    JudgeRule(
        OUT_OF_ORDER,
        "the messages of one transaction have changed places in a partition of their real topic",
        lambda: F.col("valid") & F.col("out_of_order_at").isNotNull(),
    ),
    # Sound because clocks may differ by an hour without making anything overdue, and END, OP and discard are cut after
    # OFFSET. A record that ended the wait by then is known, and such a transaction is not pending undecided.
    JudgeRule(
        STUCK,
        "undecided beyond its greatest age, or an interval after its last check and not discarded",
        lambda: (
            F.col("pending_state").isin(fates.UNDECIDED, fates.RESUMED)
            & F.col("overdue")
            # An open entry proves that it waits. Without one, all records that could disprove that must be there.
            & (F.col("parked").isNotNull() | (F.col("history_known") & F.col("parked_known")))
        ),
    ),
    # Sound because the log start of HALF is requested before OFFSET is cut, where the entry is still open. OP, which
    # would name its end, is cut after OFFSET. Resumed ones are left out: OP has an outcome of theirs.
    JudgeRule(
        EXPIRED,
        "still open, but its half message is no longer in the log",
        lambda: (
            ~F.col("present")
            & (F.col("half") < F.col("log_start"))
            & F.col("parked").isin("pending", "held", "scheduled")
            & F.col("op_settled")
            & ~recorded()
        ),
    ),
    # Sound at any cut: the half message names the time, and OP names the message in the Kafka transaction that delivers
    # it. Clocks of brokers may differ by a minute.
    JudgeRule(
        EARLY,
        "delivered before the time that the half message names",
        lambda: F.col("valid") & F.col("op_commit").isNotNull() & F.col("early"),
    ),
    # Sound because clocks may differ by an hour without making anything overdue. OP, which would name its end, is cut
    # after OFFSET, where the entry is still open.
    JudgeRule(
        OVERDUE,
        "scheduled, and not delivered though its time has come",
        lambda: (F.col("pending_state") == fates.SCHEDULED) & F.col("undelivered") & F.col("op_settled") & ~recorded(),
    ),
    # Sound because every END below the position that a check states was applied before the worker sent the check, and
    # the first valid decision never changes. Check topics are cut before discard, so that a discard which makes the
    # decision late is known. No clock is compared.
    JudgeRule(
        CHECKED_AFTER_DECISION,
        "a check was sent although the decision had been applied",
        lambda: F.col("valid") & fates.winner_known() & (F.col("checked.end_position") > F.col("winner.end_at")),
    ),
    # Sound because OFFSET is cut before OP, and OP is settled: the Kafka transaction that moved the checkpoint past
    # a message also names it in OP or parks it.
    JudgeRule(
        PROGRESS_AHEAD,
        "the checkpoint has passed it, but OP names no outcome and it is not parked",
        lambda: progress_ahead() & (F.col("fate") != fates.LOST),
    ),
)

SAYS = {rule.kind: rule.says for rule in RULES}
KINDS = tuple(SAYS)
