"""`judge(transaction, facts) -> Verdict`: the whole of the audit's judgement about one transaction.

Nearly all transactions are *plain*: a few comparisons settle them. A plain one has a well-formed half message for one
record, one decision, and one outcome in OP that agrees with it. If it is committed, it has one visible copy with the
same content in its real topic. Nothing else mentions it. That is enough to say `delivered` or `rolled_back`. For such a
transaction no earlier rule of fates.py and no rule of violations.py or findings.py holds, whatever the facts, the cuts
and the limits are. Records of it that are gone only tell which rules could not judge it. An engine may count plain ones
by other means than `plain_fate`, if it never settles more. A test draws histories and compares both with all the rules.

Closed transactions are those whose verdict changes only when a new record names them. A continued audit does not judge
them again until then. So a rule that closes too early does not make the report wrong: it only costs reading the
transaction again. A transaction stays open if the next step is likely to name it, or if the checkpoint or time alone
changes its verdict.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from txbridge_audit.judge import fates, findings, violations
from txbridge_audit.judge.case import Case
from txbridge_audit.judge.facts import Facts
from txbridge_audit.judge.lacking import reason_for
from txbridge_audit.judge.relays import judge_row
from txbridge_audit.judge.rule import VerdictKind
from txbridge_audit.judge.table import NEEDING
from txbridge_audit.judge.transaction import AuditedTransaction
from txbridge_audit.protocol.mentions import BY_OPERATOR, COMMIT, ROLLBACK, CopyMention, HalfMention, position_of

#: The reach of plain transactions, by fate and missing evidence. Millions of them share some dozens.
_PLAIN_REACH: dict[tuple[str, int], Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the judge says about one transaction, or about coordinates where no half message is."""

    #: The transaction with everything that follows from its mentions: what evidence and ledger are made of.
    case: Case
    #: None where there is no valid half message.
    fate: str | None
    #: The text of the rule that gave the fate.
    says: str
    pending_state: str | None
    #: Violations beside the fate, and findings, in the order of the table.
    violations: tuple[str, ...]
    findings: tuple[str, ...]
    #: By kind of violation that can lack evidence, and that the transaction could have broken: the reason why it was
    #: not judged; empty when it was.
    reach: Mapping[str, str]
    #: Of a relay's row, what became of it (relays.STATES).
    row: str | None = None

    @property
    def key(self) -> tuple[int, int | None]:
        """Half partition and offset."""
        return self.case.transaction.partition, self.case.transaction.half

    @property
    def kinds(self) -> tuple[str, ...]:
        """The violations and findings."""
        wrong = (self.fate,) if self.fate is not None and self.fate.isupper() else ()
        return (*wrong, *self.violations, *self.findings)

    @property
    def is_closed(self) -> bool:
        """Whether only a new record could change it."""
        case = self.case
        if self.row is not None:
            return self.row != fates.PENDING.name
        if case.message is None:
            # An open parked entry has expired once HALF has lost the half message.
            return case.parked is None
        if not case.is_recorded or case.about.checkpoint_gone:
            return False
        # A copy that nobody has decided to commit is a leak once it lies below the earlier cut, as in the next step.
        # One that OP does not name may be too early.
        is_delivered = case.is_decided(COMMIT) and case.is_named("commit")
        if not (is_delivered or all(map(case.is_before, case.home))):
            return False
        # Records that an open Kafka transaction hides may prove a loss, or explain one.
        if not (case.is_settled and case.about.op_settled):
            return False
        # The worker may find an END that it has not reached malformed. Its copy in the discard topic does not name the
        # half message. For an END below the checkpoint there is no such doubt: one Kafka transaction wrote checkpoint
        # and copy.
        to = case.about.applied_to
        if any(to is None or end.at >= to for end in case.transaction.ends):
            return False
        if self.fate == fates.DISCARDED.name:
            return case.parked in {None, "discarded"}
        # OFFSET is cut before OP: the tombstone of an entry whose outcome OP names may come with the next step.
        return self.fate != fates.PENDING.name and case.parked is None


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
        return None if one.copies else fates.ROLLED_BACK
    if end.decision != COMMIT or outcome.outcome != "commit" or not one.copies:
        return None
    # The delivering Kafka transaction has applied the decision, or OP does not state its part of END.
    position = position_of(end.at, end.line)
    if outcome.since is not None and position < outcome.since:
        return None
    if outcome.until is not None and position >= outcome.until:
        return None
    return fates.DELIVERED if _is_same(half, one.copies[0]) else None


def _is_same(half: HalfMention, copy: CopyMention) -> bool:
    """Whether it is the copy that the half message asks for."""
    if copy.id != half.id or copy.topic != half.real_topic or copy.content != half.content:
        return False
    if copy.dated is not None and copy.dated != half.dated:
        return False
    return copy.by_key is None if half.fixed_partition is None else copy.place == half.fixed_partition


def judge(transaction: AuditedTransaction, facts: Facts) -> Verdict:
    """Judge one transaction, or a relay's row."""
    if transaction.named or transaction.rows:
        case = Case(transaction, facts)
        return Verdict(case, None, "", None, *judge_row(case))
    plain = plain_fate(transaction)
    return judge_by_rules(transaction, facts) if plain is None else _judge_plain(transaction, facts, plain)


def _judge_plain(transaction: AuditedTransaction, facts: Facts, fate: VerdictKind) -> Verdict:
    case = Case(transaction, facts)
    case.fate, case.winner = fate.name, transaction.ends[0]
    alike = fate.name, case.missing_evidence
    if alike not in _PLAIN_REACH:
        _PLAIN_REACH[alike] = _reach_of(case)
    return Verdict(case, fate.name, "", None, (), (), _PLAIN_REACH[alike])


def judge_by_rules(transaction: AuditedTransaction, facts: Facts) -> Verdict:
    """Judge one transaction by all the rules, plain or not."""
    case = Case(transaction, facts)
    says = ""
    if case.message is not None:
        rule = next(rule for rule in fates.RULES if rule.holds(case))
        case.fate, says = rule.kind.name, rule.says
        if rule.kind is fates.PENDING:
            case.pending_state = fates.pending_state(case)
    breaches = tuple(rule.kind.name for rule in violations.RULES if rule.holds(case))
    return Verdict(
        case=case,
        fate=case.fate,
        says=says,
        pending_state=case.pending_state,
        violations=breaches,
        findings=tuple(rule.kind.name for rule in findings.RULES if rule.holds(case)),
        reach={} if case.fate is None else _reach_of(case),
    )


def _reach_of(case: Case) -> Mapping[str, str]:
    """See Verdict.reach."""
    needed = ((kind, needs(case)) for kind, needs in NEEDING)
    return {kind: reason_for(bits, case.missing_evidence) for kind, bits in needed if bits is not None}
