"""The corruption matrix: planted, found and falsely reported cases of each kind."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from txbridge_audit import AuditReport

from tests.corruption.writer import Truth


@dataclass(frozen=True)
class Line:
    """One kind of violation, finding or fate."""

    kind: str
    planted: int
    found: int
    false_alarms: int

    @property
    def right(self) -> bool:
        return self.planted == self.found and self.false_alarms == 0


def compare(truth: Truth, report: AuditReport) -> list[Line]:
    """Compare violations and findings by transaction, and the number of transactions by fate.

    A planted case counts as found if the report lists it. The report lists up to 1,000 findings and 10,000 violations
    of a kind; its counts are exact, and what it counts without listing it is taken as one that is planted.
    """
    listed = Counter(
        (entry.kind, entry.transaction or "") for entry in (*report.violations.listed, *report.findings.listed)
    )
    counted = Counter(report.violations.by_kind) + Counter(report.findings.by_kind)
    lines = []
    for kind in sorted(truth.kinds | set(+counted)):
        planted = truth.count_kind(kind)
        right = sum(count for (named, _), count in (truth.says & listed).items() if named == kind)
        unlisted = counted[kind] - sum(count for (named, _), count in listed.items() if named == kind)
        # What belongs to no planted transaction is compared by its number.
        strays = min(truth.strays[kind], counted[kind] - right - unlisted)
        found = min(planted, right + unlisted + strays)
        lines.append(Line(kind, planted, found, counted[kind] - found))
    for fate in sorted(set(truth.fates) | set(+Counter(report.fates))):
        planted, found = truth.fates[fate], report.fates.get(fate, 0)
        lines.append(Line(f"fate {fate}", planted, min(planted, found), max(0, found - planted)))
    return lines


def table(lines: list[Line]) -> str:
    """Text of the matrix; a line that is not right begins with `!`."""
    rows = [f"  {'kind':24} {'planted':>9} {'found':>9} {'false alarms':>13}"]
    rows += [
        f"{' ' if line.right else '!'} {line.kind:24} {line.planted:>9,} {line.found:>9,} {line.false_alarms:>13,}"
        for line in lines
    ]
    return "\n".join(rows)
