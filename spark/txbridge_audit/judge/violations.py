"""Violations beside the fate. A transaction has one fate, and may break any of these rules as well.

PHANTOM belongs to a visible record, not to a transaction (strays.py). EXPIRED belongs to a parked entry whose half
message is gone.
"""

from __future__ import annotations

from collections.abc import Callable

from txbridge_audit.judge import fates
from txbridge_audit.judge.case import Case
from txbridge_audit.judge.lacking import (
    CHECK_TOPIC,
    CHECKPOINT,
    CHECKS,
    CHECKS_AGED,
    DECISIONS,
    OP,
    OPEN,
    PARKED,
    WINNER,
)
from txbridge_audit.judge.rule import Needs, Rule, Sort, VerdictKind, if_lacking
from txbridge_audit.protocol.mentions import COMMIT

_OPEN_STATES = frozenset({"pending", "held", "scheduled"})
#: Fates of messages that may wait for their time. What was delivered before may be lost, or there twice.
_WAITING = frozenset(kind.name for kind in (fates.PENDING, fates.LOST, fates.PARTIAL, fates.DUPLICATED))


# Evidence


def _in_turn_needs(case: Case) -> int | None:
    if not case.is_visible:
        return None
    if case.is_decided(COMMIT) or case.is_named("commit"):
        # The first record of OP that names it counts, and of messages with different times each parked entry.
        return WINNER | OP | (PARKED if case.is_stepwise else 0) | (0 if case.is_named("commit") else OPEN)
    # A commit that won, or its record in OP, may be among the records that are gone.
    return if_lacking(case, WINNER | OP | (PARKED if case.is_stepwise else 0))


def _stuck_needs(case: Case) -> int | None:
    if _is_stuck(case):
        return 0
    if case.fate == "discarded" and case.parked != "discarded":
        # It may have been resumed since: the resume, the discards and the checkpoint behind it tell.
        parked = case.last_parked
        is_resumed = case.resumed_at is not None or (parked is not None and parked.resumed is not None)
        return if_lacking(case, (WINNER | OP | CHECKPOINT if is_resumed else DECISIONS) | PARKED)
    waits = case.pending_state in {fates.UNDECIDED, fates.RESUMED}
    gone = case.fate == "unverifiable" and not case.is_named("commit")
    if not (waits or gone):
        return None
    return PARKED if case.parked is not None else DECISIONS | OP | PARKED


def _early_needs(case: Case) -> int | None:
    """The append times of the OP record and, of messages with different times, of parked entries."""
    if not any(case.times):
        return None
    records = OP | PARKED if case.is_stepwise else OP
    if case.is_named("commit"):
        # The first record of OP that names it counts.
        return records
    return records | OPEN if case.is_visible else if_lacking(case, records)


def _overdue_needs(case: Case) -> int | None:
    """The parked entry with the state scheduled."""
    if not any(case.times) or not case.unseen or case.is_recorded:
        return None
    if not case.is_decided(COMMIT) and not case.missing_evidence & WINNER:
        return None
    return OPEN if case.parked is not None else PARKED | OPEN


# Conditions


def is_passed_without_trace(case: Case) -> bool:
    """The condition of PROGRESS_AHEAD, whatever the fate is."""
    return (
        case.message is not None
        and not case.is_recorded
        and case.parked is None
        and (case.is_applied or case.is_below_watermark)
        and case.about.op_settled
        and case.has_all(OP | PARKED)
    )


def _is_delivered_by_decision(case: Case) -> bool:
    """Whether it is visible and a commit won, and no record is gone that could tell of another winner."""
    return case.is_visible and case.is_decided(COMMIT) and case.has_all(WINNER)


def _is_stuck(case: Case) -> bool:
    if case.pending_state not in {fates.UNDECIDED, fates.RESUMED} or not case.is_overdue:
        return False
    # An open entry proves that it waits. Without one, all records that could disprove that must be there.
    return case.parked is not None or case.has_all(WINNER | OP | PARKED)


def _is_expired(case: Case) -> bool:
    half = case.transaction.half
    return (
        case.half is None
        and half is not None
        and half < case.about.log_start
        and case.parked in _OPEN_STATES
        and case.about.op_settled
        and not case.is_recorded
    )


def _is_checked_late(case: Case) -> bool:
    checked, winner = case.last_check, case.winner
    if checked is None or winner is None or case.message is None:
        return False
    return (checked.end_position or 0) > winner.at and case.has_all(WINNER)


def _is_overdue(case: Case) -> bool:
    waits = case.fate in _WAITING and case.parked == "scheduled" and bool(case.unseen)
    return waits and case.is_undelivered and case.about.op_settled and not case.is_recorded


# Entries, in the order in which they are counted and shown

_RULES: list[Rule] = []


def _violation(
    name: str, means: str, do: str, *, says: str, holds: Callable[[Case], bool], sound: str, needs: Needs | None = None
) -> VerdictKind:
    """A violation with its rule: all that a new one takes, besides its cases and its row in docs/audit.md."""
    kind = VerdictKind(name, Sort.VIOLATION, means, do, needs)
    _RULES.append(Rule(kind, says, holds, sound))
    return kind


PHANTOM = VerdictKind(
    "PHANTOM",
    Sort.VIOLATION,
    "visible records without a half message, or that no batch names",
    "nobody has sent it through txbridge: find who wrote it",
)
ALTERED = _violation(
    "ALTERED",
    "a visible copy differs from its half message",
    "consumers have read something else than was sent: find who wrote the copy",
    says="key, value, timestamp or a header of a visible copy is not that of the half message",
    holds=lambda case: case.altered_at is not None,
    sound="At any cut: the two compared records are there, and equal contents have equal hashes.",
)
MISPLACED = _violation(
    "MISPLACED",
    "a visible copy is in another partition than asked for",
    "consumers that rely on the order of a key have lost it: compare the partitioners",
    says="a visible copy is in another partition than REAL_QID says, or without it the key",
    holds=lambda case: case.misplaced_at is not None,
    sound="At any cut: the half message names the partition, and the copy is in another one. If the key decides, it "
    "belongs to that partition for no number of partitions that the topic can have had.",
)
BEFORE_DECISION = _violation(
    "BEFORE_DECISION",
    "delivered before its decision",
    "consumers saw it before the sender had committed: report it as an error of the worker",
    says="delivered by a Kafka transaction that had not come to its decision in END",
    holds=lambda case: case.is_not_yet_decided and _is_delivered_by_decision(case),
    sound="At any cut: the Kafka transaction that delivered it states which part of END it has applied. The first "
    "valid decision lies behind that part, and never changes. No clock is compared.",
    needs=_in_turn_needs,
)
OVERTAKEN = _violation(
    "OVERTAKEN",
    "delivered behind what was decided later",
    "consumers that rely on the order of decisions have lost it: report it as an error of the worker",
    says="delivered by a later Kafka transaction than the one that applied its decision, and it was not held",
    holds=lambda case: case.is_passed_before and _is_delivered_by_decision(case),
    sound="At any cut for the same reason. Messages that were held rightly come late. OP names them in records that "
    "state no part of END.",
    needs=_in_turn_needs,
)
OUT_OF_ORDER = _violation(
    "OUT_OF_ORDER",
    "messages of one transaction have changed places",
    "consumers that rely on their order have lost it: report it as an error of the worker",
    says="the messages of one transaction have changed places in a partition of their real topic",
    holds=lambda case: case.out_of_order_at is not None,
    sound="At any cut: offsets tell in which order the messages of one transaction were written. If one of them is "
    "there twice, the first of its copies is unknown, and the rule does not hold. If retention removed one of "
    "them, it was DUPLICATED.",
)
STUCK = _violation(
    "STUCK",
    "undecided for too long",
    "`txbridge pending` says why: start a worker if none serves the partition, or a client of the group",
    says="undecided beyond its greatest age, or an interval after its last check and not discarded",
    holds=_is_stuck,
    sound="Clocks may differ by an hour without making anything overdue, and END, OP and discard are cut after "
    "OFFSET. A record that ended the wait by then is known, and such a transaction is not pending undecided.",
    needs=_stuck_needs,
)
EXPIRED = _violation(
    "EXPIRED",
    "open, and HALF no longer has its half message",
    "it cannot be delivered any more: keep HALF longer than a message may wait",
    says="still open, but its half message is no longer in the log",
    holds=_is_expired,
    sound="The log start of HALF is requested before OFFSET is cut, where the entry is still open. OP, which would "
    "name its end, is cut after OFFSET. Resumed ones are left out: OP has an outcome of theirs.",
)
EARLY = _violation(
    "EARLY",
    "delivered before its time",
    "compare the clocks of the brokers",
    says="delivered before the time that the half message names",
    holds=lambda case: case.is_early,
    sound="At any cut: the half message names the time, and OP or a parked entry names the message in the Kafka "
    "transaction that delivers it. Clocks of brokers may differ by a minute. Without such a record it was visible at "
    "the earlier cut, more than an hour before its time.",
    needs=_early_needs,
)
OVERDUE = _violation(
    "OVERDUE",
    "scheduled, and not delivered when its time had come",
    "`txbridge pending` says why: start a worker if none serves the partition",
    says="scheduled, and not delivered though its time has come",
    holds=_is_overdue,
    sound="Clocks may differ by an hour without making anything overdue. OP, which would name its end, is cut after "
    "OFFSET, where the entry is still open.",
    needs=_overdue_needs,
)
CHECKED_AFTER_DECISION = _violation(
    "CHECKED_AFTER_DECISION",
    "checked although decided",
    "harmless for consumers: report it as an error of the worker",
    says="a check was sent although the decision had been applied",
    holds=_is_checked_late,
    sound="Every END below the position that a check states was applied before the worker sent the check, and the "
    "first valid decision never changes. Check topics are cut before discard, so that a discard which makes "
    "the decision late is known. No clock is compared.",
    needs=lambda case: DECISIONS if case.winner is None else WINNER | CHECKS | CHECK_TOPIC | CHECKS_AGED,
)
PROGRESS_AHEAD = _violation(
    "PROGRESS_AHEAD",
    "passed by the checkpoint without a trace",
    "no worker will look at it again: compare it with the sender's database",
    says="the checkpoint has passed it, but OP names no outcome and it is not parked",
    holds=lambda case: case.fate != "LOST" and is_passed_without_trace(case),
    sound="OFFSET is cut before OP, and OP is settled: the Kafka transaction that moved the checkpoint past a "
    "message also names it in OP or parks it.",
    needs=lambda case: CHECKPOINT | (0 if case.is_recorded else DECISIONS | OP | PARKED | OPEN),
)

RULES = tuple(_RULES)
#: PHANTOM comes before those of transactions.
KINDS = (PHANTOM, *(rule.kind for rule in RULES))
