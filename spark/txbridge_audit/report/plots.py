"""The plots of the page, as SVG text that the page contains."""

from __future__ import annotations

import datetime as dt
import io
from typing import Any

import matplotlib as mpl
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure

from txbridge_audit.judge import fates
from txbridge_audit.report.overview import AuditOverview, Latency

#: Width and height, inches. The page scales a plot to its width. At this size the text is readable on a phone.
_SIZE = (7.2, 3.2)
#: Okabe and Ito's colours, which people who do not see red and green can distinguish. Wrong fates have reddish ones.
_COLOURS = {
    fates.DELIVERED.name: "#0072b2",
    fates.ROLLED_BACK.name: "#56b4e9",
    fates.PENDING.name: "#f0e442",
    fates.DISCARDED.name: "#999999",
    fates.ABANDONED.name: "#666666",
    fates.UNVERIFIABLE.name: "#cccccc",
    fates.LOST.name: "#7a0000",
    fates.PARTIAL.name: "#aa4400",
    fates.DUPLICATED.name: "#d55e00",
    fates.LEAKED.name: "#cc0000",
    fates.WRONG_WINNER.name: "#cc79a7",
}
#: Text stays text, which can be searched and needs no embedded font. The same data make the same file.
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "txbridge",
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
#: Most labels on the axis of latencies. More would overlap.
_LABELS = 7


def over_time(overview: AuditOverview) -> str:
    """Transactions by time of birth and fate. Empty when there are none."""
    if not overview.over_time:
        return ""
    times = [dt.datetime.fromtimestamp(start / 1000, tz=dt.UTC) for start in overview.over_time]
    width = dt.timedelta(milliseconds=overview.interval)
    with mpl.rc_context(_STYLE):
        figure = Figure(_SIZE, layout="constrained")
        axes = figure.subplots()
        below = [0] * len(times)
        for fate, colour in _COLOURS.items():
            counts = [fates.get(fate, 0) for fates in overview.over_time.values()]
            if any(counts):
                axes.bar(times, counts, width=width, bottom=below, align="edge", color=colour, label=fate)  # type: ignore[arg-type]
                below = [under + count for under, count in zip(below, counts, strict=True)]
        locator = AutoDateLocator()  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
        axes.set_ylabel("transactions")
        axes.set_xlabel("prepared at (UTC)")
        figure.legend(loc="outside upper left", ncols=4, frameon=False)
        return _svg(figure)


def latencies(overview: AuditOverview) -> str:
    """Latencies of decisions and deliveries. Empty when no transaction has one."""
    kinds = {
        "prepare to decision": (overview.prepare_to_decision, "#0072b2"),
        "decision to delivery": (overview.decision_to_delivery, "#d55e00"),
    }
    powers = {power for latency, _ in kinds.values() if latency for power in latency.by_power}
    if not powers:
        return ""
    with mpl.rc_context(_STYLE):
        figure = Figure(_SIZE, layout="constrained")
        axes = figure.subplots()
        span = range(min(powers), max(powers) + 1)
        for number, (name, (latency, colour)) in enumerate(kinds.items()):
            if latency is not None:
                places = [power + 0.4 * number for power in span]
                axes.bar(places, _shares(latency, span), width=0.4, align="edge", color=colour, label=name)
        some = list(span)[:: -(-len(span) // _LABELS)]
        axes.set_xticks([power + 0.4 for power in some], [_under(power) for power in some])
        axes.set_ylabel("% of transactions")
        axes.set_xlabel("less than")
        figure.legend(loc="outside upper left", ncols=2, frameon=False)
        return _svg(figure)


def _shares(latency: Latency, span: range) -> list[float]:
    total = sum(latency.by_power.values())
    return [100 * latency.by_power.get(power, 0) / total for power in span]


def _under(power: int) -> str:
    return duration(2**power)


def duration(ms: int) -> str:
    """A duration as short text, in its largest unit."""
    for unit, length in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if ms >= length:
            return f"{ms / length:.3g} {unit}"
    return f"{ms} ms"


def _svg(figure: Figure) -> str:
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None}, transparent=True)
    text = out.getvalue()
    return text[text.index("<svg") :]
