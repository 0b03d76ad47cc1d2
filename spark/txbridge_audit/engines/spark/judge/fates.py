"""The fate of each transaction: the first rule that holds. Each rule says which cut makes it sound.

The order of the cuts is: real topics (`before`), OFFSET, OP, discard, END, HALF, real topics again. A rule may
conclude from a *missing* record only if that record would have been written before the cut that was searched.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own convention)

from txbridge_audit.engines.spark.judge.rule import JudgeRule
from txbridge_audit.engines.spark.read.decode import COMMIT, ROLLBACK
from txbridge_audit.engines.spark.read.once import once

WRONG_WINNER, LEAKED, DUPLICATED, LOST, PHANTOM = "WRONG_WINNER", "LEAKED", "DUPLICATED", "LOST", "PHANTOM"
PARTIAL = "PARTIAL"
DELIVERED, ROLLED_BACK, PENDING = "delivered", "rolled_back", "pending"
DISCARDED, ABANDONED, UNVERIFIABLE = "discarded", "abandoned", "unverifiable"

#: Fates that break a promise. PHANTOM belongs to a visible record, not to a transaction: it is no fate.
WRONG_FATES = (LOST, PARTIAL, DUPLICATED, LEAKED, WRONG_WINNER)
FATES = (DELIVERED, ROLLED_BACK, PENDING, DISCARDED, ABANDONED, UNVERIFIABLE, *WRONG_FATES)

#: States of a pending transaction, in the order in which they are tested.
HELD, IN_COMMIT, MOVING, UNREAD = "held", "in_commit", "moving", "decision_unread"
SCHEDULED = "scheduled"
RESUMED, UNDECIDED = "resumed", "undecided"
PENDING_STATES = (HELD, SCHEDULED, IN_COMMIT, MOVING, UNREAD, RESUMED, UNDECIDED)


def _named(outcome: str) -> Column:
    return F.col(f"op_{outcome}").isNotNull()


def _decided(decision: int) -> Column:
    return F.col("winner.decision").eqNullSafe(decision)


def winner_known() -> Column:
    """Whether no decision is missing, and none is counted that came after a discard."""
    return F.col("ends_known") & F.col("discards_known")


def _undecided() -> Column:
    return F.col("winner").isNull()


def _provable() -> Column:
    """Whether a committed record that is not in the real topic is proved to be lost (see `loss_evidence.py`)."""
    older_is_there = F.coalesce(F.col("op_commit") > F.col("proof_above"), F.lit(False))
    of_one = F.col("topic_exists") & ~F.col("compacted") & older_is_there
    return F.when(F.col("several"), F.col("part_lost")).otherwise(of_one)


def _is_held() -> Column:
    return F.col("parked").eqNullSafe("held")


def _is_scheduled() -> Column:
    return F.col("parked").eqNullSafe("scheduled")


def _given_up() -> Column:
    """Whether an operator has abandoned it after it was committed."""
    return _decided(COMMIT) & F.coalesce(F.col("abandoned_at") >= F.col("winner.end_at"), F.lit(False))


def _is_partial() -> Column:
    return (F.col("copies") == 1) & F.col("incomplete")


def _discarded() -> Column:
    return (_named("discard") | (F.col("discards") > 0) | F.col("parked").eqNullSafe("discarded")) & ~F.col("reopened")


RULES: tuple[JudgeRule, ...] = (
    # Sound because OP is cut before END: the END behind an outcome in OP was read. The first valid decision in a prefix
    # of END stays the first, because END is append-only and applied in order.
    JudgeRule(
        WRONG_WINNER,
        "a later decision prevailed over the first valid one",
        lambda: (
            winner_known()
            & F.col("contrary").isNotNull()
            & ((_decided(COMMIT) & _named("rollback")) | (_decided(ROLLBACK) & _named("commit")))
        ),
    ),
    # Sound at any cut of the real topics for an outcome in OP. The same holds for a first decision "rollback" that the
    # checkpoint has passed: it never changes (above), and a discard before it is in the discard cut. If it is not
    # applied yet, the rule is sound only below the earlier cut: a discard and a resume that we do not see may have come
    # between.
    JudgeRule(
        LEAKED,
        "rolled back, yet visible",
        lambda: (
            (winner_known() & _decided(ROLLBACK) & (F.col("copies") > 0) & F.col("applied"))
            | (winner_known() & _decided(ROLLBACK) & (F.col("copies_before") > 0))
            | ((F.col("copies") > 0) & _named("rollback") & ~_named("commit"))
        ),
    ),
    # Sound only below the earlier cut of the real topics: a record visible there had its END in the log already, and
    # discard and END were cut later. Above that cut the decision may lie above the cut of END. A discard that is not
    # known could only take decisions away.
    JudgeRule(
        LEAKED,
        "visible without a decision to commit",
        lambda: (F.col("copies_before") > 0) & F.col("ends_known") & _undecided(),
    ),
    # Sound at any cut: a worker that has abandoned a message never tries to deliver it again.
    JudgeRule(
        LEAKED,
        "abandoned, yet visible",
        lambda: _named("abandon") & (F.col("copies") > 0),
    ),
    # Sound because OP is cut before END: the decision and the command behind an outcome in OP were read.
    JudgeRule(
        WRONG_WINNER,
        "rolled back by the first valid decision, and recorded as abandoned",
        lambda: _named("abandon") & winner_known() & _decided(ROLLBACK),
    ),
    JudgeRule(
        LOST,
        "recorded as abandoned, though no operator has abandoned a committed message",
        lambda: _named("abandon") & winner_known() & ~_given_up(),
    ),
    JudgeRule(
        ABANDONED,
        "committed, not deliverable, and given up by an operator",
        lambda: (F.col("copies") == 0) & _named("abandon") & ~_named("commit"),
    ),
    # Sound at any cut: every copy that is counted is committed and visible. Copies in other topics are not counted.
    JudgeRule(DUPLICATED, "more than one visible copy", lambda: F.col("copies") > 1),
    # Sound because the real topics were cut again after OP, once every Kafka transaction that had written by then was
    # decided (`settled`). The real record that belongs to the OP record is below that cut, or was never written. Where
    # compaction, retention, or a topic deleted and created again could explain it, it is `unverifiable` instead.
    JudgeRule(
        LOST,
        "recorded as committed, but not visible",
        lambda: (F.col("copies") == 0) & _named("commit") & F.col("settled") & _provable(),
    ),
    # Sound because the checkpoint (OFFSET) is cut before OP and OP is settled. The Kafka transaction that moved it past
    # this END also named the outcome in OP, or parked the message as held or scheduled. Both are below our cuts. So
    # END, OP and OFFSET must be whole.
    JudgeRule(
        LOST,
        "decided to commit and applied, but neither delivered, held nor scheduled",
        lambda: (
            (F.col("copies") == 0)
            & ~_named("commit")
            & _decided(COMMIT)
            & F.col("applied")
            & ~_is_held()
            & ~_is_scheduled()
            & F.col("op_settled")
            & F.col("history_known")
            & F.col("parked_known")
        ),
    ),
    JudgeRule(
        UNVERIFIABLE,
        "recorded as committed and not visible; compaction, retention or deletion of the real topic may be why",
        lambda: (F.col("copies") == 0) & _named("commit") & F.col("settled"),
    ),
    # Sound as the first LOST rule is, for the message that is not visible.
    JudgeRule(
        PARTIAL,
        "of its messages some are visible and some were never written, or are no longer in their topic",
        lambda: _is_partial() & _named("commit") & F.col("settled") & F.col("part_lost"),
    ),
    JudgeRule(
        UNVERIFIABLE,
        "some of its messages are not visible; compaction, retention or deletion of their topics may be why",
        lambda: _is_partial() & _named("commit") & F.col("settled"),
    ),
    JudgeRule(
        DELIVERED,
        "committed and delivered once",
        lambda: (F.col("copies") == 1) & ~F.col("incomplete") & (_named("commit") | _decided(COMMIT)),
    ),
    # Without its evidence there is no violation.
    JudgeRule(
        UNVERIFIABLE,
        "visible once; whether it was committed is no longer known",
        lambda: (F.col("copies") == 1) & ~winner_known(),
    ),
    JudgeRule(
        ROLLED_BACK,
        "rolled back and not visible",
        lambda: (F.col("copies") == 0) & (_named("rollback") | (_decided(ROLLBACK) & F.col("applied"))),
    ),
    JudgeRule(
        DISCARDED,
        "set aside undecided; an operator may resume it",
        lambda: (F.col("copies") == 0) & _discarded() & ~_named("commit") & (_undecided() | ~F.col("history_known")),
    ),
    # Finished according to the low watermark, and retention has removed every trace of the outcome.
    JudgeRule(
        UNVERIFIABLE,
        "finished so long ago that retention has removed how",
        lambda: (
            (F.col("copies") == 0)
            & ~(F.col("history_known") & F.col("parked_known"))
            & _undecided()
            & ~_named("commit")
            & (F.col("half") < F.col("low"))
            & F.col("parked").isNull()
        ),
    ),
    JudgeRule(PENDING, "waiting", lambda: F.lit(True)),
)


def assign(ledger: DataFrame) -> DataFrame:
    """The ledger with `rule` (index in RULES), `fate` and `pending_state`; null in rows that are not `valid`."""
    judged = ledger
    for name, column in _columns().items():
        judged = judged.withColumn(name, column)
    return judged


@once
def _columns() -> dict[str, Column]:
    """The new columns. Each one uses those before it."""
    holding = (F.when(F.coalesce(rule.holds(), F.lit(False)), F.lit(index)) for index, rule in enumerate(RULES))
    fates = F.array(*(F.lit(rule.kind) for rule in RULES))
    return {
        "rule": F.when(F.col("valid"), F.coalesce(*holding)),
        "fate": F.get(fates, F.col("rule")),
        "pending_state": F.when(F.col("fate") == PENDING, _pending_state()),
    }


def _pending_state() -> Column:
    return (
        F.when(_is_held(), HELD)
        .when(_is_scheduled(), SCHEDULED)
        .when(_named("commit"), IN_COMMIT)
        .when(F.col("copies") > 0, MOVING)
        .when(~_undecided(), UNREAD)
        .when(F.col("reopened"), RESUMED)
        .otherwise(UNDECIDED)
    )
