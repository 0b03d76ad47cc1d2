"""The listed violations and findings as CSV, for a spreadsheet. A row that a person fills is one of `--accept`."""

from __future__ import annotations

import csv
import io
import unicodedata

from txbridge.text import one_line
from txbridge_audit.judge.table import KINDS, VIOLATIONS
from txbridge_audit.report.entry import Entry
from txbridge_audit.report.meaning import readable_time, rule_of
from txbridge_audit.report.model import AuditReport

#: A spreadsheet takes a cell that begins so for a formula, and formulas can send what other cells hold.
_FORMULA = frozenset("=+-@")


def csv_of(report: AuditReport) -> str:
    """A row for each listed violation, then for each listed finding."""
    out = io.StringIO(newline="")
    rows = [_row(entry) for entry in (*report.violations.listed, *report.findings.listed)]
    writer = csv.DictWriter(out, _row(Entry("LOST", "")))
    writer.writeheader()
    writer.writerows({name: _cell(text) for name, text in row.items()} for row in rows)
    return out.getvalue()


def _row(entry: Entry) -> dict[str, str | None]:
    times = {name: None if ms is None else readable_time(ms) for name, ms in entry.times.items()}
    accepted = entry.accepted
    return {
        "id": entry.id,
        "sort": "violation" if entry.kind in VIOLATIONS else "finding",
        "kind": entry.kind,
        "says": entry.says,
        "transaction": entry.transaction,
        "id_sha256": entry.id_sha256,
        "group": entry.group,
        "real_topic": entry.real_topic,
        **{f"{what}_at": times.get(what) for what in ("prepared", "decided", "delivered")},
        "evidence": "; ".join(f"{at.role} {at.topic}/{at.partition}@{at.offset}" for at in entry.evidence),
        "what_to_do": KINDS[entry.kind].remedy,
        "rule": rule_of(entry.kind),
        "who": accepted.who if accepted else None,
        "why": accepted.why if accepted else None,
        "until": accepted.until if accepted else None,
    }


def _cell(text: str | None) -> str:
    """The text on one line, so that nothing of it is a formula: records that others have written chose some of it."""
    shown = one_line(text or "")
    # Some spreadsheets take full-width signs for these, too.
    return f"'{shown}" if unicodedata.normalize("NFKC", shown[:1]) in _FORMULA else shown
