"""The report as a person reads it in a terminal: verdict first, then counts, then evidence."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from txbridge.text import counted
from txbridge_audit.judge import fates, reach, violations
from txbridge_audit.judge.findings import SAYS
from txbridge_audit.judge.summary import VIOLATIONS
from txbridge_audit.report.model import AuditReport, Entry, Tally

#: Violations and findings shown with evidence; the JSON form has more of them.
ROWS = 20

_MEANING = {
    fates.DELIVERED: "committed, one visible copy",
    fates.ROLLED_BACK: "rolled back, not visible",
    fates.PENDING: "waiting",
    fates.DISCARDED: "undecided after the last check, can be resumed",
    fates.ABANDONED: "committed, not deliverable, given up by an operator",
    fates.UNVERIFIABLE: "the log no longer says",
    fates.LOST: "committed, not visible",
    fates.DUPLICATED: "more than one visible copy",
    fates.LEAKED: "visible though rolled back, undecided, discarded or abandoned",
    fates.PHANTOM: "visible without a half message (records)",
    violations.ALTERED: "a visible copy differs from its half message",
    violations.STUCK: "undecided for too long",
    violations.EXPIRED: "open, and its half message is gone",
    violations.CHECKED_AFTER_DECISION: "checked although decided",
    violations.PROGRESS_AHEAD: "passed by the checkpoint without a trace",
    fates.WRONG_WINNER: "a later decision prevailed over the first",
}


def print_report(report: AuditReport, console: Console) -> None:
    """Print the report."""
    console.print(_verdict(report))
    console.print(str(report.subject), highlight=False, markup=False, soft_wrap=True)
    console.print(_fates(report))
    if report.pending:
        waiting = ", ".join(f"{state} {count:,}" for state, count in report.pending_states.items() if count)
        console.print(f"pending: {waiting}", highlight=False)
    if report.violations.total:
        console.print(_violations(report.violations))
        if report.violations.total > ROWS:
            more = f"the first {ROWS} of {report.violations.total:,}; --format json or --report shows more"
            console.print(more, highlight=False)
    if report.unjudged:
        console.print(_unjudged(report.unjudged))
    if report.findings.total:
        console.print(_findings(report.findings))


def _verdict(report: AuditReport) -> Text:
    scope = f"{counted(report.transactions, 'transaction')} in {report.seconds:.1f} s"
    if report.clean:
        return Text.assemble(("clean", "bold green"), f": {scope}")
    return Text.assemble((counted(report.violations.total, "violation"), "bold red"), f": {scope}")


def _fates(report: AuditReport) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column("fate")
    table.add_column("transactions", justify="right")
    table.add_column("meaning", style="dim")
    counts = dict.fromkeys(VIOLATIONS, 0) | dict(report.violations.by_kind) | dict(report.fates)
    for fate in (*(f for f in fates.FATES if f not in VIOLATIONS), *VIOLATIONS):
        wrong = fate in VIOLATIONS and counts[fate]
        table.add_row(fate, f"{counts[fate]:,}", _MEANING[fate], style="bold red" if wrong else None)
    return table


def _violations(tally: Tally) -> Table:
    table = Table(title="Violations", title_justify="left")
    table.add_column("kind", no_wrap=True)
    table.add_column("transaction", no_wrap=True)
    table.add_column("real topic")
    table.add_column("evidence")
    for entry in tally.listed[:ROWS]:
        table.add_row(entry.kind, entry.transaction or "-", entry.real_topic or "-", _evidence(entry))
    return table


def _findings(tally: Tally) -> Table:
    table = Table(title="Findings (no violations)", title_justify="left")
    table.add_column("kind", no_wrap=True)
    table.add_column("count", justify="right")
    table.add_column("meaning")
    table.add_column("first seen at")
    first: dict[str, Entry] = {}
    for entry in tally.listed:
        first.setdefault(entry.kind, entry)
    for kind, count in tally.by_kind.items():
        table.add_row(kind, f"{count:,}", SAYS[kind], _evidence(first[kind]) if kind in first else "-")
    return table


def _unjudged(unjudged: Mapping[str, Mapping[str, int]]) -> Table:
    table = Table(title="Not judged: the evidence is gone", title_justify="left")
    table.add_column("rule", no_wrap=True)
    table.add_column("count", justify="right")
    table.add_column("because")
    for rule, reasons in unjudged.items():
        for reason, number in reasons.items():
            table.add_row(rule, f"{number:,}", reach.SAYS[reason])
    return table


def _evidence(entry: Entry) -> str:
    return "\n".join(f"{place.role} {place.topic}/{place.partition}@{place.offset}" for place in entry.evidence)
