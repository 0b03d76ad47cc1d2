"""The report as one self-contained HTML page, and as a text file for Prometheus."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

from txbridge.text import counted
from txbridge_audit.judge import lacking, table
from txbridge_audit.judge.findings import BLIND, BY_HAND
from txbridge_audit.report import plots
from txbridge_audit.report.entry import Entry
from txbridge_audit.report.meaning import advice, iso_time, remedy, rule_of, says, some_of_each
from txbridge_audit.report.model import AuditReport
from txbridge_audit.report.overview import QUANTILES, AuditOverview

#: Number of violations of each kind that are shown. A phone must open the page at once.
SHOWN = 20


def html(report: AuditReport, overview: AuditOverview) -> str:
    """The page. Everything that comes from Kafka is escaped."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2").render(
        report=report,
        overview=overview,
        verdict=_verdict(report),
        blind=[entry for entry in report.findings.listed if entry.kind == BLIND.name],
        unjudged_rules=counted(len(report.unjudged), "rule"),
        sections=_sections(report, overview),
        by_hand=_by_hand(report)[:SHOWN],
        remedy=remedy,
        iso_time=iso_time,
        wrong=table.WRONG_FATES,
        shown=some_of_each(report, SHOWN),
        advice=advice(report),
        says=says,
        rule_of=rule_of,
        # Safe: the plots contain only numbers and names of ours.
        over_time=Markup(plots.over_time(overview)),  # noqa: S704
        latencies=Markup(plots.latencies(overview)),  # noqa: S704
        quantiles=QUANTILES,
        reasons=lacking.SAYS,
        count=lambda number: f"{number:,}",
        duration=plots.duration,
        time=_time,
    )


def _verdict(report: AuditReport) -> str:
    if report.violations.total:
        return counted(report.violations.total, "violation")
    return "No violations" if report.clean else "Not clean: the evidence is gone"


def _sections(report: AuditReport, overview: AuditOverview) -> list[tuple[str, bool]]:
    """The headings of the page, and whether each is there."""
    violated = bool(report.violations.total)
    return [
        ("Fates", True),
        ("Not judged", bool(report.unjudged)),
        ("Violations", violated),
        ("Evidence", violated),
        ("Over time", bool(overview.over_time)),
        ("Latency", bool(overview.prepare_to_decision or overview.decision_to_delivery)),
        ("Checks per group", bool(overview.groups)),
        ("Oldest pending", bool(overview.oldest_pending)),
        ("Operator actions", bool(_by_hand(report))),
        ("Findings", bool(report.findings.total)),
    ]


def _by_hand(report: AuditReport) -> list[Entry]:
    return [entry for entry in report.findings.listed if entry.kind == BY_HAND.name]


def _time(ms: int) -> str:
    return dt.datetime.fromtimestamp(ms / 1000, tz=dt.UTC).strftime("%Y-%m-%d %H:%M:%S")


def write_prometheus(report: AuditReport, path: Path) -> None:
    """Write the counts for the textfile collector of Prometheus' node exporter, atomically. Raises OSError."""
    registry = CollectorRegistry()

    def gauge(name: str, says: str, *labels: str) -> Gauge:
        return Gauge(f"txbridge_audit_{name}", says, ("namespace", *labels), registry=registry)

    ours = report.namespace
    by_fate = gauge("transactions", "Transactions by fate.", "fate")
    for fate, number in report.fates.items():
        by_fate.labels(ours, fate).set(number)
    by_state = gauge("pending", "Pending transactions by state.", "state")
    for state, number in report.pending_states.items():
        by_state.labels(ours, state).set(number)
    wrong = gauge("violations", "Violations by kind.", "kind")
    for kind, number in report.violations.by_kind.items():
        wrong.labels(ours, kind).set(number)
    found = gauge("findings", "Findings by kind; those that do not occur are left out.", "kind")
    for kind, number in report.findings.by_kind.items():
        found.labels(ours, kind).set(number)
    blind = gauge(
        "unjudged", "Transactions that a rule could not judge, because evidence was deleted.", "kind", "reason"
    )
    for kind, reasons in report.unjudged.items():
        for reason, number in reasons.items():
            blind.labels(ours, kind, reason).set(number)
    gauge("clean", "1 when there are no violations.").labels(ours).set(int(report.clean))
    gauge("started_seconds", "When the audit began, seconds since 1970.").labels(ours).set(report.started_at / 1000)
    gauge("duration_seconds", "How long the audit took.").labels(ours).set(report.seconds)
    write_to_textfile(str(path), registry)
