"""The verdicts explained to people: a few words for each, advice, and a link to the rule."""

from __future__ import annotations

import itertools

from txbridge_audit.engines.spark.judge import fates, violations
from txbridge_audit.engines.spark.judge.findings import SAYS
from txbridge_audit.report.model import AuditReport, Entry

#: Every verdict has an anchor there, its name in lower case.
DOCS = "https://github.com/txbridge/txbridge/blob/main/docs/audit.md"

MEANING = {
    fates.DELIVERED: "committed, one visible copy",
    fates.ROLLED_BACK: "rolled back, not visible",
    fates.PENDING: "waiting",
    fates.DISCARDED: "undecided after the last check, can be resumed",
    fates.ABANDONED: "committed, not deliverable, given up by an operator",
    fates.UNVERIFIABLE: "the log no longer says",
    fates.LOST: "committed, not visible",
    fates.PARTIAL: "some of its messages visible, some lost",
    fates.DUPLICATED: "more than one visible copy",
    fates.LEAKED: "visible though rolled back, undecided, discarded or abandoned",
    fates.WRONG_WINNER: "a later decision prevailed over the first",
    fates.PHANTOM: "visible without a half message (records)",
    violations.ALTERED: "a visible copy differs from its half message",
    violations.MISPLACED: "a visible copy is in another partition than asked for",
    violations.BEFORE_DECISION: "delivered before its decision",
    violations.OVERTAKEN: "delivered behind what was decided later",
    violations.OUT_OF_ORDER: "messages of one transaction have changed places",
    violations.STUCK: "undecided for too long",
    violations.EXPIRED: "open, and HALF no longer has its half message",
    violations.EARLY: "delivered before its time",
    violations.OVERDUE: "scheduled, and not delivered when its time had come",
    violations.CHECKED_AFTER_DECISION: "checked although decided",
    violations.PROGRESS_AHEAD: "passed by the checkpoint without a trace",
}


def rule_of(kind: str) -> str:
    """Link to the rule of a verdict or finding."""
    return f"{DOCS}#{kind.lower()}"


def advice(report: AuditReport) -> list[str]:
    """Advice about transactions that are no violation, and not finished either."""
    told = []
    if report.unverifiable:
        told.append(
            f"{report.unverifiable:,} unverifiable: retention or compaction has removed what would tell. Audit more "
            "often than records expire (--continue), or keep END, OP and the real topics longer."
        )
    if report.pending_states.get(fates.HELD):
        told.append(
            f"{report.pending_states[fates.HELD]:,} held: decided, and the real topic cannot be written. "
            "`txbridge pending` says why. Create the topic or give the right, or give them up with "
            "`txbridge resolve ... abandon`."
        )
    return told


def some_of_each(report: AuditReport, number: int) -> list[tuple[str, list[Entry]]]:
    """The kinds of violations that there are, with the first entries of each."""
    by_kind = itertools.groupby(report.violations.listed, key=lambda entry: entry.kind)
    return [(kind, list(itertools.islice(entries, number))) for kind, entries in by_kind]


def says(kind: str) -> str:
    """A violation or finding in a sentence."""
    return MEANING.get(kind) or SAYS[kind]
