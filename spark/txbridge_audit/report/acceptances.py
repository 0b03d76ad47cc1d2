"""The listed violations and findings as CSV, for a spreadsheet, and the violations that a person has accepted there.

A row that a person fills is one of `--accept`.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
import unicodedata
from collections.abc import Collection
from dataclasses import replace

from txbridge.text import one_line, plain
from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.judge.table import KINDS, VIOLATIONS
from txbridge_audit.report.entries import Acceptance, Entry
from txbridge_audit.report.model import AuditReport, readable_time, rule_of

#: A spreadsheet takes a cell that begins so for a formula, and formulas can send what other cells hold.
_FORMULA = frozenset("=+-@")
#: Columns that the file must have, those that a person fills, and one that may be there. Others are for people.
NEEDED, FILLED, HASH = ("id", "who", "why", "until"), ("who", "why", "until"), "id_sha256"


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


def read_acceptances(text: str, file: str) -> tuple[Acceptance, ...]:
    """The rows that somebody has filled. Raises CouldNotAuditError, which names the line, for a row that is wrong."""
    found: dict[str, Acceptance] = {}
    rows = csv.DictReader(io.StringIO(text, newline=""), strict=True)

    def wrong(what: str) -> CouldNotAuditError:
        return CouldNotAuditError(f"--accept {file}, line {max(1, rows.reader.line_num)}: {what}")

    try:
        if missing := [name for name in NEEDED if name not in (rows.fieldnames or ())]:
            raise wrong(
                f"no column {', '.join(missing)}: the first line is id,who,why,until with commas, and more columns if "
                "you like; a file of --csv has them"
            )
        for row in rows:
            told = {name: (row.get(name) or "").strip() for name in (*NEEDED, HASH)}
            if not any(told[name] for name in FILLED):
                continue
            if empty := [name for name in NEEDED if not told[name]]:
                raise wrong(f"no {', '.join(empty)}: a row that accepts a violation has id, who, why and until")
            try:
                dt.date.fromisoformat(told["until"])
            except ValueError:
                raise wrong(f"until is {plain(told['until'], 40)!r}: write a day as 2026-12-31") from None
            if told["id"] in found:
                raise wrong(f"{plain(told['id'], 100)} is accepted in an earlier line, too: leave one of them")
            found[told["id"]] = Acceptance(told["id"], told["who"], told["why"], told["until"], told[HASH])
    except csv.Error as error:
        raise wrong(f"not a CSV file ({error}): correct the quotes, or write it again with --csv") from error
    return tuple(found.values())


def accept(report: AuditReport, acceptances: Collection[Acceptance], now: int) -> AuditReport:
    """The report with its accepted violations marked, and the acceptances that match none of them. `now` is in ms."""
    by_id = {one.id: one for one in acceptances}
    today = dt.datetime.fromtimestamp(now / 1000, tz=dt.UTC).date()
    used: set[str] = set()

    def marked(entry: Entry) -> Entry:
        one = by_id.get(entry.id)
        if one is None or one.id_sha256 not in {"", entry.id_sha256}:
            return entry
        used.add(one.id)
        return replace(entry, accepted=replace(one, is_expired=today > dt.date.fromisoformat(one.until)))

    listed = tuple(map(marked, report.violations.listed))
    stale = tuple(one.id for one in acceptances if one.id not in used)
    return replace(report, violations=replace(report.violations, listed=listed), stale_acceptances=stale)
