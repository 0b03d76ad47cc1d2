"""The reach of the rules: transactions that a rule could not judge, and why. Without evidence no audit is clean.

A rule can judge a transaction if the records that prove or disprove its violation are still there. The half partition
and the time tell which records are gone. A record comes after the birth of its transaction. So a topic still has all
records of transactions that were born after the oldest record in it. Each transaction has a set of bits, `lacking`, for
its records that are gone. Each rule needs some of these records. Transactions with the same facts are counted together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own convention)

from txbridge_audit.engines.spark.judge import fates, violations
from txbridge_audit.engines.spark.read.decode import COMMIT
from txbridge_audit.engines.spark.read.once import once
from txbridge_audit.judge.facts import Facts, HalfFacts

#: Evidence about a transaction that may be gone, one bit each.
END, OP, DISCARD, COPY, PARKED, CHECKPOINT, CHECKS, CHECKS_AGED, CHECK_TOPIC, OPEN = (1 << place for place in range(10))
#: Evidence of all decisions, and of the one that counted.
_DECISIONS = END | COPY
_WINNER = _DECISIONS | DISCARD

REASONS: Mapping[int, str] = {
    END: "END_GONE",
    OP: "OP_GONE",
    DISCARD: "DISCARD_GONE",
    COPY: "COPY_GONE",
    CHECKPOINT: "CHECKPOINT_GONE",
    PARKED: "PARKED_GONE",
    CHECKS: "CHECKS_GONE",
    CHECK_TOPIC: "NO_CHECK_TOPIC",
    CHECKS_AGED: "CHECKS_AGED",
    OPEN: "OPEN_TRANSACTION",
}
REAL_TOPIC, HALF_GONE = "REAL_TOPIC", "HALF_GONE"

SAYS: Mapping[str, str] = {
    "END_GONE": "END no longer holds all decisions of their time",
    "OP_GONE": "OP no longer holds all outcomes of their time",
    "DISCARD_GONE": "OP names a discard, and the discard topic no longer holds its record",
    "COPY_GONE": "the discard topic no longer says which of two half messages with the same id is the copy",
    "CHECKPOINT_GONE": "OFFSET holds no checkpoint of the half partition, and workers have written there",
    "PARKED_GONE": "OFFSET has lost its beginning, and parked entries with it",
    "CHECKS_GONE": "the check topic of the group has lost requests that are less than an hour old",
    "NO_CHECK_TOPIC": "the group has no check topic",
    "CHECKS_AGED": "decided more than an hour ago, which is how long check topics keep requests",
    "OPEN_TRANSACTION": "a Kafka transaction that stayed open hides what became of them",
    REAL_TOPIC: "compaction, retention or the deletion of the real topic may have removed the record",
    HALF_GONE: "HALF no longer holds the half message of a visible record",
}

#: Time for which check topics keep requests by the protocol, ms. Older requests do not count as missing.
CHECKS_KEPT = 3_600_000

#: Reasons for which a rule that judges nothing is no finding. The protocol or the policy of a real topic lets the
#: evidence go. An open Kafka transaction is a finding of its own. Without a check topic no worker could send a check.
_BY_DESIGN = frozenset({"CHECKS_AGED", "NO_CHECK_TOPIC", "OPEN_TRANSACTION", REAL_TOPIC})


@dataclass(frozen=True, slots=True)
class Alike:
    """Transactions with the same facts."""

    fate: str
    pending_state: str | None
    #: A copy is visible in the real topic; OP names it as committed; OP names any outcome.
    visible: bool
    committed: bool
    recorded: bool
    #: It has a decision that counts; that is a commit.
    decided: bool
    commit: bool
    #: Its group has asked to abandon it.
    given_up: bool
    #: An open parked entry is in OFFSET.
    parked: bool
    stuck: bool
    #: It has several messages; some of them are not visible.
    several: bool
    incomplete: bool
    #: It names a time of delivery.
    timed: bool
    lacking: int


#: Names of the columns, in the order of Alike's fields.
ALIKE = (
    *("fate", "pending_state", "visible", "committed", "recorded", "decided", "commit"),
    *("given_up", "is_parked", "stuck", "several", "incomplete", "timed", "lacking"),
)


@once
def group_columns() -> dict[str, Column]:
    """The columns of ALIKE that the judged ledger does not have."""
    return {
        "visible": F.col("copies") > 0,
        "committed": F.col("op_commit").isNotNull(),
        "recorded": violations.recorded(),
        "decided": F.col("winner").isNotNull(),
        "commit": F.col("winner.decision").eqNullSafe(COMMIT),
        "given_up": F.col("abandoned_at").isNotNull(),
        "is_parked": F.coalesce(F.col("parked").isin("pending", "held", "scheduled", "discarded"), F.lit(False)),
        "stuck": F.array_contains("breaches", violations.STUCK),
        "timed": F.col("deliver_at").isNotNull(),
    }


def _lost(one: Alike) -> int | str | None:
    is_partly_gone = one.visible and one.fate == fates.UNVERIFIABLE and one.committed
    if one.visible and not is_partly_gone:
        return None
    # END tells whether an operator had abandoned it, and whether there was a commit.
    if one.fate == fates.ABANDONED:
        return _WINNER
    if one.fate == fates.LOST:
        return 0
    if one.fate == fates.UNVERIFIABLE and one.committed:
        return REAL_TOPIC
    if one.pending_state == fates.IN_COMMIT:
        return REASONS[OPEN]
    # A held one is waiting.
    if one.pending_state in {fates.HELD, fates.SCHEDULED}:
        return 0
    if one.commit:
        return _WINNER | OP | PARKED | CHECKPOINT | OPEN
    # Without a commit it is lost only if OP names it as abandoned. After a rollback that is WRONG_WINNER.
    return _WINNER | (0 if one.decided else OP)


def _partial(one: Alike) -> int | str | None:
    if not (one.several and one.visible):
        return None
    if one.fate == fates.PARTIAL or not one.incomplete:
        return 0
    if one.fate == fates.UNVERIFIABLE and one.committed:
        return REAL_TOPIC
    return OP | OPEN


def _leaked(one: Alike) -> int | None:
    if not one.visible:
        return None
    if one.fate == fates.LEAKED:
        return 0
    return (_WINNER if one.decided else _DECISIONS) | (OP if one.given_up else 0)


def _wrong_winner(one: Alike) -> int | None:
    if one.fate == fates.WRONG_WINNER:
        return 0
    return _WINNER | (OP if one.decided and not one.recorded else 0)


def _in_turn(one: Alike) -> int | None:
    if not (one.visible and (one.commit or one.committed)):
        return None
    return _WINNER | (0 if one.committed else OP | OPEN)


def _stuck(one: Alike) -> int | None:
    if one.stuck:
        return 0
    waits = one.pending_state in {fates.UNDECIDED, fates.RESUMED}
    gone = one.fate == fates.UNVERIFIABLE and not one.committed
    if not (waits or gone):
        return None
    return PARKED if one.parked else _DECISIONS | OP | PARKED


def _early(one: Alike) -> int | None:
    """Evidence of EARLY: the append time of the OP record."""
    if not (one.timed and one.visible):
        return None
    return 0 if one.committed else OP | OPEN


def _overdue(one: Alike) -> int | None:
    """Evidence of OVERDUE: the parked entry with the state scheduled."""
    if not (one.timed and one.commit) or one.visible or one.recorded:
        return None
    return OPEN if one.parked else PARKED | OPEN


def _checked(one: Alike) -> int | None:
    return _WINNER | CHECKS | CHECK_TOPIC | CHECKS_AGED if one.decided else _DECISIONS


def _ahead(one: Alike) -> int | None:
    return CHECKPOINT | (0 if one.recorded else _DECISIONS | OP | PARKED | OPEN)


#: For each rule that can lack evidence: a function that returns the evidence that it needs for a transaction (bits). It
#: returns a reason (text) if the rule cannot judge it in any case, and None if the transaction cannot break the rule.
_NEEDS: Mapping[str, Callable[[Alike], int | str | None]] = {
    fates.LOST: _lost,
    fates.PARTIAL: _partial,
    fates.LEAKED: _leaked,
    fates.WRONG_WINNER: _wrong_winner,
    violations.BEFORE_DECISION: _in_turn,
    violations.OVERTAKEN: _in_turn,
    violations.STUCK: _stuck,
    violations.EARLY: _early,
    violations.OVERDUE: _overdue,
    violations.CHECKED_AFTER_DECISION: _checked,
    violations.PROGRESS_AHEAD: _ahead,
}


def tell(one: Alike, number: int) -> dict[str, int]:
    """Number of transactions that each rule judged, and could not, by `key_of` rule and reason ("" means judged)."""
    told: dict[str, int] = {}
    for rule, needs in _NEEDS.items():
        needed = needs(one)
        if needed is None:
            continue
        if isinstance(needed, str):
            reason = needed
        else:
            bits = needed & one.lacking
            reason = next((text for bit, text in REASONS.items() if bits & bit), "")
        told[key_of(rule, reason)] = number
    return told


def with_records(told: Mapping[str, int], half_gone: int, facts: Facts) -> dict[str, int]:
    """The sums, with visible records and parked entries whose half message is gone: they have no transaction."""
    records = dict(told)
    for rule in (fates.PHANTOM, violations.ALTERED):
        # The records of visible transactions were judged. There are hardly more records than transactions.
        records[key_of(rule, "")] = sum(number for key, number in told.items() if key.startswith(f"{fates.LEAKED} "))
        records[key_of(rule, HALF_GONE)] = half_gone
    for fact in facts.partitions:
        gone = "CHECKPOINT_GONE" if fact.checkpoint_gone else "PARKED_GONE" if fact.parked_since >= 0 else ""
        key = key_of(violations.EXPIRED, gone)
        records[key] = records.get(key, 0) + fact.log_start
    return records


def key_of(rule: str, reason: str) -> str:
    """The key of a sum. It is text because the state of a continued audit is JSON."""
    return f"{rule} {reason}"


def by_rule(told: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Number of transactions that were not judged, by rule and reason."""
    found: dict[str, dict[str, int]] = {}
    for key, number in sorted(told.items()):
        rule, reason = key.split(" ")
        if reason and number:
            found.setdefault(rule, {})[reason] = number
    return found


def blind(told: Mapping[str, int]) -> list[str]:
    """Rules that judged none of the transactions that they should have judged."""
    found = []
    for rule, reasons in by_rule(told).items():
        if not told.get(key_of(rule, "")) and reasons.keys() - _BY_DESIGN:
            found.append(rule)
    return found


# Lacking evidence, by the facts


def lacking_of_birth(facts: Facts) -> Column | None:
    """The bits that follow from half partition and time of birth (columns partition, born); None: nothing is gone."""
    partitions = list(facts.partitions)
    bits = [
        _since(partitions, lambda fact: fact.ends_since, END),
        _since(partitions, lambda fact: fact.outcomes_since, OP),
        _since(partitions, lambda fact: min(fact.outcomes_since, fact.discards_since), DISCARD),
        _since(partitions, lambda fact: fact.parked_since, PARKED),
        _of(partitions, lambda fact: fact.checkpoint_gone, CHECKPOINT),
        _of(partitions, lambda fact: not fact.op_settled, OPEN),
    ]
    return _together([bit for bit in bits if bit is not None])


def lacking_of_decision(facts: Facts, group: Column, decided_at: Column) -> Column | None:
    """The bits that follow from the group and the time of the decision; None: no check request can be gone."""
    if facts.checks_since is None:
        return None
    cut = [name for name, edge in facts.checks_since.items() if edge >= 0]
    missing = F.when(~group.isin(sorted(facts.checks_since)), CHECK_TOPIC) if facts.checks_since else F.lit(CHECK_TOPIC)
    if not cut:
        return F.coalesce(missing, F.lit(0))
    edges = F.create_map(*(F.lit(part) for name in cut for part in (name, facts.checks_since[name])))
    aged = F.when(decided_at <= facts.now - CHECKS_KEPT, CHECKS_AGED).otherwise(CHECKS)
    return F.coalesce(missing, F.when(decided_at <= F.element_at(edges, group), aged), F.lit(0))


def _since(partitions: Collection[HalfFacts], edge: Callable[[HalfFacts], int], bit: int) -> Column | None:
    """The bit, set for transactions born at or before the edge of their half partition."""
    edges = {fact.partition: edge(fact) for fact in partitions}
    if all(at < 0 for at in edges.values()):
        return None
    by_number = F.array(*(F.lit(edges.get(number, -1)).cast("bigint") for number in range(max(edges) + 1)))
    return F.when(F.col("born") <= F.get(by_number, F.col("partition")), bit).otherwise(0)


def _of(partitions: Collection[HalfFacts], holds: Callable[[HalfFacts], bool], bit: int) -> Column | None:
    """The bit, set for all transactions of half partitions for which `holds` is true."""
    numbers = [fact.partition for fact in partitions if holds(fact)]
    return F.when(F.col("partition").isin(numbers), bit).otherwise(0) if numbers else None


def _together(bits: Collection[Column]) -> Column | None:
    if not bits:
        return None
    first, *others = bits
    for bit in others:
        first = first.bitwiseOR(bit)
    return first
