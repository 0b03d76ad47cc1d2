"""The report for a terminal: verdict first, then counts, then evidence."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from txbridge.text import counted, one_line
from txbridge_audit.judge import lacking
from txbridge_audit.judge.findings import BLIND
from txbridge_audit.judge.table import FATES, KINDS, VIOLATIONS
from txbridge_audit.report.entries import Place, Tally
from txbridge_audit.report.model import AuditReport, accepted, advice, readable_time, rule_of, some_of_each

#: Number of violations of each kind that are shown with evidence. The JSON form has more.
SHOWN = 5


def print_report(report: AuditReport, console: Console) -> None:
    """Print the report."""
    console.print(_verdict(report))
    console.print(str(report.subject), highlight=False, markup=False, soft_wrap=True)
    console.print(_fates(report))
    if report.pending:
        waiting = ", ".join(f"{state} {count:,}" for state, count in report.pending_states.items() if count)
        console.print(f"pending: {waiting}", highlight=False)
    if any(report.rows.values()):
        rows = ", ".join(f"{state} {count:,}" for state, count in report.rows.items() if count)
        console.print(f"rows of relays: {rows}", highlight=False)
    for text in advice(report):
        _line(console, text)
    if report.violations.total:
        _violations(report, console)
    if report.unjudged:
        console.print(_unjudged(report.unjudged))
    if report.findings.total:
        _findings(report.findings, console)


def _verdict(report: AuditReport) -> Text:
    scope = f"{report.scope} in {report.seconds:.1f} s"
    if report.clean:
        return Text.assemble(("clean", "bold green"), f": {scope}")
    if not report.violations.total:
        blind = "; ".join(entry.says for entry in report.findings.listed if entry.kind == BLIND.name)
        return Text.assemble(("not clean", "bold red"), f": {scope}: {blind}")
    verdict = f"{counted(report.violations.total, 'violation')}{accepted(report)}"
    return Text.assemble((verdict, "bold red" if report.unaccepted else "bold yellow"), f": {scope}")


def _fates(report: AuditReport) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column("fate")
    table.add_column("transactions", justify="right")
    table.add_column("meaning", style="dim")
    counts = dict.fromkeys(VIOLATIONS, 0) | dict(report.violations.by_kind) | dict(report.fates)
    for fate in (*(f for f in FATES if f not in VIOLATIONS), *VIOLATIONS):
        wrong = fate in VIOLATIONS and counts[fate]
        table.add_row(fate, f"{counts[fate]:,}", KINDS[fate].means, style="bold red" if wrong else None)
    return table


def _line(console: Console, text: str) -> None:
    """Print the text without wrapping or cutting it: a log keeps long lines, and evidence must be complete.

    Ids, names and errors come from records that others have written: what would control the terminal is escaped.
    """
    console.print(one_line(text), highlight=False, markup=False, soft_wrap=True)


def _violations(report: AuditReport, console: Console) -> None:
    console.print(Text("\nViolations", "bold red"))
    shown = 0
    for kind, entries in some_of_each(report.violations, SHOWN):
        _line(console, f"{kind} {report.violations.by_kind[kind]:,}: {KINDS[kind].means} ({rule_of(kind)})")
        _line(console, f"  {KINDS[kind].remedy}")
        for entry in entries:
            shown += 1
            group, topic = (
                f" of {entry.group}" if entry.group else "",
                f" to {entry.real_topic}" if entry.real_topic else "",
            )
            _line(console, f"  {entry.transaction or '-'}{group}{topic}: {entry.says}")
            if entry.accepted:
                _line(console, f"    {entry.accepted}")
            for place in entry.evidence:
                _line(console, f"    {_place(place)}")
            if entry.times:
                _line(console, "    " + ", ".join(f"{what} {readable_time(ms)}" for what, ms in entry.times.items()))
    if report.violations.total > shown:
        more = f"{shown:,} of {report.violations.total:,}, some of each kind; --report FILE has more"
        _line(console, more)


def _findings(tally: Tally, console: Console) -> None:
    console.print(Text("\nFindings (no violations)", "bold"))
    first = dict(some_of_each(tally, 1))
    for kind, count in tally.by_kind.items():
        _line(console, f"{kind} {count:,}: {KINDS[kind].means} ({rule_of(kind)})")
        for entry in first.get(kind, ()):
            about = f": {entry.says}" if entry.says != KINDS[kind].means else ""
            _line(console, f"  the first: {', '.join(map(_place, entry.evidence))}{about}")


def _unjudged(unjudged: Mapping[str, Mapping[str, int]]) -> Table:
    table = Table(title="\nNot judged: the evidence is gone", title_justify="left")
    table.add_column("rule", no_wrap=True)
    table.add_column("count", justify="right")
    table.add_column("because")
    for rule, reasons in unjudged.items():
        for reason, number in reasons.items():
            table.add_row(rule, f"{number:,}", lacking.SAYS[reason])
    return table


def _place(place: Place) -> str:
    return f"{place.role} {place.topic}/{place.partition}@{place.offset}"
