"""Reports of benches: one for each, the merged one, and the printed plain table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Report = Mapping[str, Any]
#: Beginning of the names of figures of processor time for each transaction, by process group (us).
CPU = "cpu us, "


def merged(
    environment: Mapping[str, Any], reports: Mapping[str, Report], before: Report | None = None
) -> dict[str, Any]:
    """Merge the environment, each bench's report, all ratios together, and the figures of the run before.

    Raises ValueError when two benches use the same name for a ratio.
    """
    ratios: dict[str, Any] = {}
    for name, report in reports.items():
        for ratio, found in report.get("ratios", {}).items():
            if ratio in ratios:
                raise ValueError(f"{ratio!r} of {name} is also a ratio of another bench")
            ratios[ratio] = found
    return {
        **environment,
        "benches": dict(reports),
        "ratios": ratios,
        "failed": [name for name, report in reports.items() if "error" in report],
        "before": before,
        "changed": [
            name for name, ratio in ratios.items() if before and has_changed(before["ratios"].get(name), ratio)
        ],
    }


def kept(report: Report) -> dict[str, Any]:
    """The part of this report that the next run's report keeps."""
    return {
        "commit": report["versions"]["commit"],
        "python": report["environment"]["python"],
        "ratios": report["ratios"],
        "figures": {name: found.get("figures", {}) for name, found in report["benches"].items()},
    }


def has_changed(before: Report | None, now: Report) -> bool:
    """Whether the change is beyond noise: the rounds of the two runs do not overlap."""
    if before is None or before.get("least") is None or now.get("least") is None:
        return False
    return bool(now["least"] > before["most"] or now["most"] < before["least"])


def table(report: Report) -> str:
    """The table of a merged report: results of each workload, then the ratios, then failures."""
    rows = [("workload", "what", "median", "least", "most")]
    for bench, found in report["benches"].items():
        for workload, figures in found.get("figures", {}).items():
            name = f"{bench}: {workload}"
            for what, one in figures.items():
                if not what.startswith(CPU):
                    rows.append((name, what, *(_number(one[key]) for key in ("median", "least", "most"))))
            # One row for all processes: what matters is each one's part of the sum.
            if groups := {what.removeprefix(CPU): one for what, one in figures.items() if what.startswith(CPU)}:
                medians = " + ".join(_number(one["median"]) for one in groups.values())
                rows.append((name, f"{CPU}{' + '.join(groups)}", medians, "", ""))
    parts = [_aligned(rows)]
    if report["ratios"]:
        ratios = [("ratio", "value", "least", "most", "goal", "met", "before", "changed")]
        before = (report["before"] or {}).get("ratios", {})
        for name, ratio in report["ratios"].items():
            met = {True: "yes", False: "no", None: "-"}[ratio["met"]]
            shown = [_number(ratio.get(key)) for key in ("value", "least", "most")]
            former = before.get(name, {}).get("value")
            changed = "yes" if name in report["changed"] else "-" if former is None else "no"
            ratios.append((name, *shown, ratio["goal"] or "-", met, _number(former), changed))
        parts.append(_aligned(ratios))
    # Some errors quote a whole log.
    failures = (f"{name} failed: {report['benches'][name]['error'].splitlines()[0]}" for name in report["failed"])
    return "\n\n".join([*parts, *failures])


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.4g}"


def _aligned(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
