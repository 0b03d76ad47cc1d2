"""The report as one self-contained HTML page, and as a text file for Prometheus."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

from txbridge.text import counted, one_line
from txbridge_audit.judge import lacking, table
from txbridge_audit.judge.findings import BLIND, BY_HAND
from txbridge_audit.report.model import AuditReport, accepted, advice, readable_time, rule_of, some_of_each
from txbridge_audit.report.overview import QUANTILES, AuditOverview, Latency

#: Number of violations of each kind that are shown. A phone must open the page at once.
SHOWN = 20
_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
#: Bounds of the latencies that are shown as one bar, ms. A bar has those below its bound.
_BOUNDS = (
    *(0, 2, 5, 10, 20, 50, 100, 200, 500, _SECOND, 2 * _SECOND, 5 * _SECOND, 10 * _SECOND, 30 * _SECOND, _MINUTE),
    *(2 * _MINUTE, 5 * _MINUTE, 10 * _MINUTE, 30 * _MINUTE, _HOUR, 3 * _HOUR, 12 * _HOUR, _DAY, 3 * _DAY, 10 * _DAY),
    *(30 * _DAY, 100 * _DAY, 1_000 * _DAY, 1_000_000 * _DAY),
)


def html(report: AuditReport, overview: AuditOverview) -> str:
    """The page. Nothing that comes from Kafka is taken for HTML, and none of it changes how the rest is read."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        # Marks that reverse the order of letters would make evidence look like other evidence.
        finalize=lambda value: one_line(value) if type(value) is str else value,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # Marks the `commands` in a text of ours.
    environment.filters["code"] = lambda text: Markup(re.sub("`(.*?)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704
    latencies = {
        name: latency
        for name, latency in (
            ("prepare to decision", overview.prepare_to_decision),
            ("decision to delivery", overview.decision_to_delivery),
        )
        if latency is not None
    }
    highest = max((sum(counts.values()) for counts in overview.over_time.values()), default=0)
    return environment.get_template("page.html.j2").render(
        report=report,
        overview=overview,
        verdict=_verdict(report),
        blind=[entry for entry in report.findings.listed if entry.kind == BLIND.name],
        sections=_sections(report, overview),
        shown=some_of_each(report.violations, SHOWN),
        findings=dict(some_of_each(report.findings, SHOWN)),
        wrong=table.WRONG_FATES,
        kinds=table.KINDS,
        advice=advice(report),
        columns=_columns(overview, highest),
        highest=highest,
        latencies=latencies,
        bars=_bars([*latencies.values()]),
        quantiles=QUANTILES,
        reasons=lacking.SAYS,
        rule_of=rule_of,
        count=lambda number: f"{number:,}",
        counted=counted,
        duration=duration,
        time=readable_time,
    )


def _verdict(report: AuditReport) -> str:
    if report.violations.total:
        return f"{counted(report.violations.total, 'violation')}{accepted(report)}"
    return "No violations" if report.clean else "Not clean: the evidence is gone"


def _sections(report: AuditReport, overview: AuditOverview) -> dict[str, str]:
    """The headings of the page by their anchors, in their order."""
    there = {
        "Fates": True,
        "Not judged": report.unjudged,
        "Violations": report.violations.total,
        "Operator actions": report.findings.by_kind.get(BY_HAND.name),
        "Findings": report.findings.total,
        "Oldest pending": overview.oldest_pending,
        "Over time": overview.over_time,
        "Latency": overview.prepare_to_decision or overview.decision_to_delivery,
        "Checks per group": overview.groups,
    }
    return {name.lower().replace(" ", "-"): name for name, is_there in there.items() if is_there}


def _columns(overview: AuditOverview, highest: int) -> list[list[tuple[str, float]]]:
    """The columns of the chart over time: the share of the highest one that each fate has, in percent."""
    starts = range(min(overview.over_time, default=0), max(overview.over_time, default=-1) + 1, overview.interval)
    found = (overview.over_time.get(start, {}) for start in starts)
    return [[(fate, 100 * counts[fate] / highest) for fate in table.FATES if fate in counts] for counts in found]


def _bars(latencies: Sequence[Latency]) -> list[tuple[int, list[float]]]:
    """The bars of the latencies: upper bound, and the share of the transactions of each latency, in percent."""
    shares: dict[int, list[float]] = {}
    for number, latency in enumerate(latencies):
        total = sum(latency.counts.values())
        for ms, count in latency.counts.items():
            place = min(bisect_right(_BOUNDS, ms), len(_BOUNDS) - 1)
            shares.setdefault(place, [0.0] * len(latencies))[number] += 100 * count / total
    span = range(min(shares, default=0), max(shares, default=-1) + 1)
    return [(_BOUNDS[place], shares.get(place, [0.0] * len(latencies))) for place in span]


def duration(ms: int) -> str:
    """A duration as short text, in its largest unit."""
    for unit, length in (("d", _DAY), ("h", _HOUR), ("min", _MINUTE), ("s", _SECOND)):
        if ms >= length:
            return f"{ms / length:.3g} {unit}"
    return f"{ms} ms"


def write_prometheus(report: AuditReport, path: Path) -> None:
    """Write the counts for the textfile collector of Prometheus' node exporter, atomically. Raises OSError."""
    registry = CollectorRegistry()

    def write(name: str, says: str, labels: Sequence[str], values: Mapping[tuple[str, ...], float]) -> None:
        gauge = Gauge(f"txbridge_audit_{name}", says, ("namespace", *labels), registry=registry)
        for of, value in values.items():
            gauge.labels(report.namespace, *of).set(value)

    def by_name(counts: Mapping[str, int]) -> dict[tuple[str, ...], float]:
        return {(name,): count for name, count in counts.items()}

    write("transactions", "Transactions by fate.", ["fate"], by_name(report.fates))
    write("rows", "Rows of relays by what became of them.", ["state"], by_name(report.rows))
    write("pending", "Pending transactions by state.", ["state"], by_name(report.pending_states))
    write("violations", "Violations by kind.", ["kind"], by_name(report.violations.by_kind))
    accepting = "Violations by kind that a person has accepted."
    write("accepted", accepting, ["kind"], by_name(report.violations.accepted))
    occur = "Findings by kind; those that do not occur are left out."
    write("findings", occur, ["kind"], by_name(report.findings.by_kind))
    blind: dict[tuple[str, ...], float] = {
        (kind, why): count for kind, reasons in report.unjudged.items() for why, count in reasons.items()
    }
    deleted = "Transactions that a rule could not judge, because evidence was deleted."
    write("unjudged", deleted, ["kind", "reason"], blind)
    write("clean", "1 when there are no violations, and no rule lacked all evidence.", [], {(): report.clean})
    write("started_seconds", "When the audit began, seconds since 1970.", [], {(): report.started_at / 1000})
    write("duration_seconds", "How long the audit took.", [], {(): report.seconds})
    write_to_textfile(str(path), registry)
