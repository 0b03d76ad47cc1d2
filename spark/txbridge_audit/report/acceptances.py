"""Violations that a person has accepted: read from a CSV file (that of `--csv` is one), and marked in a report."""

from __future__ import annotations

import csv
import datetime as dt
import io
from collections.abc import Collection
from dataclasses import replace

from txbridge.text import plain
from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.report.entry import Acceptance, Entry
from txbridge_audit.report.model import AuditReport

#: Columns that the file must have, those that a person fills, and one that may be there. Others are for people.
NEEDED, FILLED, HASH = ("id", "who", "why", "until"), ("who", "why", "until"), "id_sha256"


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
