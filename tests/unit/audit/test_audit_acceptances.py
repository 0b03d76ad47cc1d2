"""A person accepts violations: from the file of --csv to an exit code, and back to red when the day is over."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from txbridge_audit.cluster.cuts import AuditCut, settle
from txbridge_audit.cluster.plan import past_audit
from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.judge.table import FATES, VIOLATIONS
from txbridge_audit.report.acceptances import csv_of, read_acceptances
from txbridge_audit.report.entries import Entry, Place, Tally
from txbridge_audit.report.model import AuditReport
from txbridge_audit.report.overview import AuditOverview

from txbridge.cli import audit_program
from txbridge.cli.audit_options import AuditOptions
from txbridge.cli.options import Format
from txbridge.config.worker import WorkerSettings
from txbridge.errors import EnvironmentProblemError

#: 2026-11-26, 23:59:59 UTC.
LATE_IN_THE_EVENING = 1_795_737_599_000
HASH = "ab" * 32
LOST = Entry(
    "LOST", "not visible", "0123ABCD", "billing", "orders", (Place("half", "HALF", 0, 7), Place("op", "OP", 0, 2)), HASH
)
PHANTOM = Entry(
    "PHANTOM", "visible without a half message", real_topic="orders", evidence=(Place("copy", "orders", 1, 9),)
)
REPORT = AuditReport(
    namespace="shop",
    transactions=3,
    fates=dict.fromkeys(FATES, 0) | {"delivered": 2, "LOST": 1},
    pending_states={},
    violations=Tally(dict.fromkeys(VIOLATIONS, 0) | {"LOST": 1, "PHANTOM": 1}, (LOST, PHANTOM)),
    findings=Tally({"LATE": 1}, (Entry("LATE", "=HYPERLINK(1)", "89ABCDEF"),)),
    delivered_more_than_once=0,
    rolled_back_but_visible=0,
    answered_by_check=0,
    cuts={},
    started_at=LATE_IN_THE_EVENING,
    read_at=LATE_IN_THE_EVENING,
    seconds=1.0,
)


@pytest.fixture
def audit(monkeypatch: pytest.MonkeyPatch):
    """The exit code of `txbridge audit` with these options, if it finds what REPORT says."""

    def run(found: AuditReport = REPORT, **options: object) -> int:
        monkeypatch.setattr(audit_program, "run_audit", lambda *_, **__: found)
        return audit_program.run(AuditOptions(**options), WorkerSettings(bootstrap_servers="127.0.0.1:1"))  # type: ignore[arg-type]

    return run


def filled(file: Path, until: str, *ids: str) -> None:
    """Fill the rows of these violations, as a person does in a spreadsheet."""
    rows = list(csv.DictReader(io.StringIO(file.read_text(encoding="utf-8-sig"))))
    for row in rows:
        if row["id"] in ids:
            row |= {"who": "Ann", "why": "restored from the backup", "until": until}
    out = io.StringIO()
    writer = csv.DictWriter(out, rows[0])
    writer.writeheader()
    writer.writerows(rows)
    # As a spreadsheet saves it.
    file.write_text(out.getvalue(), encoding="utf-8-sig")


def test_what_a_person_has_accepted_does_not_fail_the_audit(audit, tmp_path: Path, capsys) -> None:
    file = tmp_path / "accepted.csv"
    assert audit(csv=file) == 1
    filled(file, "2026-11-26", "LOST HALF/0@7")
    assert audit(accept=file) == 1
    assert "2 violations (1 accepted): 3 transactions" in capsys.readouterr().out
    filled(file, "2026-11-26", "LOST HALF/0@7", "PHANTOM orders/1@9")
    assert audit(accept=file) == 0
    told = capsys.readouterr()
    assert "2 violations, all accepted: 3 transactions" in told.out
    assert "accepted by Ann until 2026-11-26: restored from the backup" in told.out
    assert told.err == ""
    assert audit(accept=file, strict=True) == 1

    page, numbers, again = tmp_path / "page.html", tmp_path / "audit.prom", tmp_path / "again.csv"
    report = replace(REPORT, overview=AuditOverview(1, {}, None, None, (), ()))
    capsys.readouterr()
    assert audit(report, accept=file, html=page, prometheus=numbers, csv=again, output=Format.JSON) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["clean"], found["accepted"]) == (False, {"LOST": 1, "PHANTOM": 1})
    accepted = found["violations"]["listed"][0]["accepted"]
    assert (accepted["who"], accepted["until"], accepted["is_expired"]) == ("Ann", "2026-11-26", False)
    assert "2 violations, all accepted" in page.read_text()
    assert "accepted by Ann until 2026-11-26: restored from the backup" in page.read_text()
    assert 'txbridge_audit_accepted{kind="LOST",namespace="shop"} 1.0' in numbers.read_text()
    # The file of --csv keeps what was filled, so that it can take the place of the old one.
    assert audit(accept=again) == 0


def test_an_acceptance_ends_with_its_last_day(audit, tmp_path: Path, capsys) -> None:
    file = tmp_path / "accepted.csv"
    file.write_text("id,who,why,until\nLOST HALF/0@7,Ann,known,2026-11-26\nPHANTOM orders/1@9,Ann,known,2027-01-01\n")
    assert audit(accept=file) == 0
    assert audit(replace(REPORT, read_at=LATE_IN_THE_EVENING + 1_000), accept=file) == 1
    assert "no longer accepted by Ann until 2026-11-26: known" in capsys.readouterr().out


def test_an_acceptance_that_matches_nothing_is_named(audit, tmp_path: Path, capsys) -> None:
    """It may be old, or about another transaction at the same coordinates."""
    file = tmp_path / "accepted.csv"
    file.write_text(
        "id,id_sha256,who,why,until,notes\n"
        f"LOST HALF/0@7,{'cd' * 32},Ann,known,2027-01-01,\n"
        "STUCK HALF/0@1,,Ann,known,2027-01-01,a note\n"
    )
    assert audit(accept=file, output=Format.JSON) == 1
    told = capsys.readouterr()
    assert [line.partition(" in this audit")[0] for line in told.err.splitlines()] == [
        "--accept: no violation LOST HALF/0@7",
        "--accept: no violation STUCK HALF/0@1",
    ]
    assert json.loads(told.out)["stale_acceptances"] == ["LOST HALF/0@7", "STUCK HALF/0@1"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "line 1: no column id, who, why, until: the first line is id,who,why,until"),
        ("id;who;why;until\n", "line 1: no column id, who, why, until"),
        ("id,who,why,until\na,Ann,,2026-12-31\n", "line 2: no why: a row that accepts"),
        ("id,who,why,until\n\na,Ann,known,31.12.2026\n", "line 3: until is '31.12.2026': write a day as 2026-12-31"),
        ("id,who,why,until\na,A,b,2026-12-31\na,A,b,2026-12-31\n", "line 3: a is accepted in an earlier line"),
        ('id,who,why,until\na,"Ann"x,b,2026-12-31\n', "line 2: not a CSV file"),
    ],
)
def test_a_wrong_file_is_an_error_with_its_line(text: str, says: str) -> None:
    with pytest.raises(CouldNotAuditError) as caught:
        read_acceptances(text, "accepted.csv")
    assert str(caught.value).startswith(f"--accept accepted.csv, {says}")


def test_a_file_that_is_not_there_and_following_are_refused(audit, tmp_path: Path) -> None:
    with pytest.raises(
        EnvironmentProblemError, match=r"--accept .*missing\.csv cannot be read .*: give a text file in UTF-8"
    ):
        audit(accept=tmp_path / "missing.csv")
    with pytest.raises(EnvironmentProblemError, match="leave --accept out"):
        audit(accept=tmp_path / "missing.csv", follow=True, ledger="ledger")


def test_an_audit_is_made_again_as_it_was(audit, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    cut = {"start": 2, "end": 9, "before": 7, "target": 11}
    made = replace(REPORT, cuts={"orders": {"1": cut}}, topic_ids={"orders": "A"})
    assert audit(made, report=file) == 1
    for option, name in (("since", "--since"), ("real_topic", "--real-topic"), ("continued", "--continue")):
        with pytest.raises(EnvironmentProblemError, match=f"--at makes an audit again as it was: leave {name} out"):
            audit(at=file, **{option: "2026-11-26"})
    past = past_audit(file.read_text(), "report.json")
    assert (past.namespace, past.now, past.topic_ids) == ("shop", LATE_IN_THE_EVENING, {"orders": "A"})
    assert settle(past, [("orders", 1)], timeout=0) == AuditCut({("orders", 1): 9}, {("orders", 1): 11})
    assert past.before == {("orders", 1): 7}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"continued": false, "selection": []}', "[" * 100_000])
def test_what_is_no_report_cannot_be_made_again(text: str) -> None:
    with pytest.raises(CouldNotAuditError, match=r"is no report .*: give a file that --report has written"):
        past_audit(text, "report.json")
    with pytest.raises(CouldNotAuditError, match="is the report of a continued audit"):
        past_audit('{"continued": true}', "report.json")


def test_acceptances_are_not_written_over(audit, tmp_path: Path) -> None:
    file = tmp_path / "accepted.csv"
    file.write_text("id,who,why,until\nLOST OTHER/0@1,Ann,restored,2026-12-31\n")
    with pytest.raises(EnvironmentProblemError, match="the file of --accept: name another file"):
        audit(accept=file, csv=tmp_path / "." / "accepted.csv")
    assert "OTHER" in file.read_text()


def test_a_spreadsheet_gets_no_formula_and_every_row(tmp_path: Path) -> None:
    """Anyone who can write to a real topic chooses some of these texts."""
    evil = [f"{sign}cmd|'/C calc'!A0" for sign in ("=", "+", "-", "@", "\uff1d", "\t=", "\r=")]
    entries = tuple(replace(LOST, says=text, group=text) for text in evil)
    rows = list(csv.DictReader(io.StringIO(csv_of(replace(REPORT, violations=Tally({"LOST": 7}, entries))))))
    assert [row["group"][:1] for row in rows] == ["'", "'", "'", "'", "'", "\\", "\\", ""]


def test_the_rows_of_the_file(tmp_path: Path) -> None:
    lost = replace(LOST, prepared_at=1_700_000_000_000)
    rows = list(csv.DictReader(io.StringIO(csv_of(replace(REPORT, violations=Tally({"LOST": 1}, (lost,)))))))
    assert [(row["sort"], row["kind"]) for row in rows] == [("violation", "LOST"), ("finding", "LATE")]
    first = rows[0]
    assert (first["id"], first["id_sha256"], first["transaction"]) == ("LOST HALF/0@7", HASH, "0123ABCD")
    assert (first["prepared_at"], first["decided_at"]) == ("2023-11-14 22:13:20.000Z", "")
    assert first["evidence"] == "half HALF/0@7; op OP/0@2"
    assert first["what_to_do"].endswith(".")
    assert first["rule"].endswith("docs/audit.md#lost")
    assert rows[1]["says"] == "'=HYPERLINK(1)"
