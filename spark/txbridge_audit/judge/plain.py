"""Plain transactions: nearly all are, and a few comparisons settle them.

A plain transaction has a well-formed half message for one record, one decision, and one outcome in OP that agrees with
it. If it is committed, it has one visible copy with the same content in its real topic. Nothing else mentions it. That
is enough to say `delivered` or `rolled_back`. For such a transaction no earlier rule of fates.py and no rule of
violations.py or findings.py holds, whatever the facts, the cuts and the limits are. Records of it that are gone only
tell which rules could not judge it.

An engine may count plain ones by other means than this function, if it never settles more. A test draws histories, and
compares both with all the rules.
"""

from __future__ import annotations

from txbridge_audit.judge.fates import DELIVERED, ROLLED_BACK
from txbridge_audit.judge.rule import VerdictKind
from txbridge_audit.judge.transaction import AuditedTransaction
from txbridge_audit.protocol.mentions import BY_OPERATOR, COMMIT, ROLLBACK, CopyMention, HalfMention, position_of


def plain_fate(one: AuditedTransaction) -> VerdictKind | None:
    """The fate of a plain transaction; None for any other, which needs all the rules."""
    if len(one.halves) != 1 or len(one.ends) != 1 or len(one.outcomes) != 1:
        return None
    if one.parked or one.checks or one.discards or one.asides or len(one.copies) > 1:
        return None
    half, end, outcome = one.halves[0], one.ends[0], one.outcomes[0]
    # Several messages have several copies, all to be examined. A message with a time of delivery may have come early.
    if half.fault is not None or half.parts is not None or half.deliver_at is not None:
        return None
    if end.id != half.id or end.group != half.group or end.source in BY_OPERATOR:
        return None
    if end.decision == ROLLBACK and outcome.outcome == "rollback":
        return None if one.copies else ROLLED_BACK
    if end.decision != COMMIT or outcome.outcome != "commit" or not one.copies:
        return None
    # The delivering Kafka transaction has applied the decision, or OP does not state its part of END.
    position = position_of(end.at, end.line)
    if outcome.since is not None and position < outcome.since:
        return None
    if outcome.until is not None and position >= outcome.until:
        return None
    return DELIVERED if _is_same(half, one.copies[0]) else None


def _is_same(half: HalfMention, copy: CopyMention) -> bool:
    """Whether it is the copy that the half message asks for."""
    if copy.id != half.id or copy.topic != half.real_topic or copy.content != half.content:
        return False
    if copy.dated is not None and copy.dated != half.dated:
        return False
    return copy.by_key is None if half.fixed_partition is None else copy.place == half.fixed_partition
