"""The verdicts explained to people: a few words for each, advice, and a link to the rule."""

from __future__ import annotations

import itertools

from txbridge.text import iso_time
from txbridge_audit.judge import fates
from txbridge_audit.report.entry import Entry, Tally
from txbridge_audit.report.model import AuditReport

#: Every verdict has an anchor there, its name in lower case.
DOCS = "https://github.com/txbridge/txbridge/blob/main/docs/audit.md"


def rule_of(kind: str) -> str:
    """Link to the rule of a verdict or finding."""
    return f"{DOCS}#{kind.lower()}"


def advice(report: AuditReport) -> list[str]:
    """Advice about transactions that are no violation, and not finished either."""
    told = []
    if report.read_at > report.started_at:
        told.append(
            f"At the cuts of {readable_time(report.started_at)}, read again at {readable_time(report.read_at)}."
        )
    if report.lost_since:
        where = ", ".join(f"{number:,} of {place}" for place, number in report.lost_since.items())
        told.append(f"Retention has removed offsets since that audit: {where}. What they held is not judged.")
    if report.unverifiable:
        told.append(
            f"{report.unverifiable:,} unverifiable: retention or compaction has removed what would tell. Audit more "
            "often than records expire (--continue), or keep END, OP and the real topics longer."
        )
    if report.delivered_before_given_up:
        told.append(
            f"{report.delivered_before_given_up:,} messages of cancelled or abandoned transactions were delivered "
            "before, at their own times."
        )
    if report.pending_states.get(fates.HELD):
        told.append(
            f"{report.pending_states[fates.HELD]:,} held: decided, and the real topic cannot be written. "
            "`txbridge pending` says why. Create the topic or give the right, or give them up with "
            "`txbridge resolve ... abandon`."
        )
    return told


def some_of_each(tally: Tally, number: int) -> list[tuple[str, list[Entry]]]:
    """The kinds that have entries, with the first entries of each."""
    by_kind = itertools.groupby(tally.listed, key=lambda entry: entry.kind)
    return [(kind, list(itertools.islice(entries, number))) for kind, entries in by_kind]


def accepted(report: AuditReport) -> str:
    """How many of the violations are accepted, to be written behind their number."""
    number = report.violations.total - report.unaccepted
    if not number:
        return ""
    return ", all accepted" if not report.unaccepted else f" ({number:,} accepted)"


def readable_time(ms: int) -> str:
    """A time in UTC, with a space between the day and the hour."""
    return iso_time(ms).replace("T", " ")
