"""The report of a judged log: what is not judged, what is shown, and the same sums by any way."""

from __future__ import annotations

import io

from rich.console import Console
from txbridge_audit.judge import table
from txbridge_audit.judge.facts import HalfFacts
from txbridge_audit.report.html import html
from txbridge_audit.report.model import AuditReport
from txbridge_audit.report.overview import AuditOverview
from txbridge_audit.report.terminal import print_report

from tests.support.audit_judged import BORN, Judged, MemoryLog, reported
from tests.support.audit_terms import COMMIT, ORDERS, PLAIN, ROLLBACK, Half


def test_an_emptied_half_is_not_clean_and_names_every_rule() -> None:
    """A message is visible twice. Nothing is left that would say how often it was sent."""
    log = MemoryLog()
    half = log.half()
    log.end(half, COMMIT)
    log.deliver(half)
    log.transaction(log.copy(half, partition=1))
    log.records = [record for record in log.records if record.topic != log.names.half]
    start = half.offset + 1
    about = HalfFacts(PLAIN, half_start=start, log_start=start, applied_to=1, low=1)
    report = reported(log, Judged(log, log.facts(partitions=[about])), {(log.names.half, PLAIN): start})
    assert (report.transactions, report.violations.total, report.clean, report.exit_code) == (0, 0, False, 1)
    assert report.unjudged.keys() == set(table.VIOLATIONS)
    assert report.unjudged["DUPLICATED"] == {"HALF_GONE": 1}
    assert dict(report.findings.by_kind) == {"HALF_GONE": 2, "BLIND": 1}
    text = shown(report)
    assert text.startswith("not clean: 0 transactions in 0.0 s: no rule could judge anything: retention has left")
    assert "clean:" not in text.replace("not clean:", "")


def test_an_empty_namespace_is_clean() -> None:
    log = MemoryLog()
    assert reported(log, Judged(log, log.facts()), {}).clean


def test_nothing_of_a_record_controls_the_terminal() -> None:
    """Anyone who can write to a real topic chooses what a phantom says about itself."""
    log = MemoryLog()
    evil = "\x1b]0;evil\x07"
    log.half()
    log.transaction(log.copy(Half(PLAIN, 90, evil + "F" * 24, "billing", ORDERS)))
    log.transaction(log.set_aside(log.names.end, PLAIN, 7, TXB_ERROR="\x1b[2J\u202eforged\nclean: 9 transactions"))
    text = shown(reported(log, Judged(log, log.facts()), {}))
    assert "PHANTOM 1" in text
    assert "forged" in text
    assert not {char for char in text if not char.isprintable() and char != "\n"}
    assert "\nclean: 9" not in text


def test_who_resolved_what_is_listed_with_time_and_reason() -> None:
    log = MemoryLog()
    resolved, refused = log.half(), log.half()
    by_hand = {"SOURCE": "operator", "CLIENT_ID": "ann\x1b[2J"}
    log.decision_record(resolved.entry(ROLLBACK, rest=",,order%20cancelled%1B[31m").encode(), **by_hand)
    log.transaction(log.op("rollback", resolved))
    log.end(refused, COMMIT)
    log.decision_record(refused.entry(0, rest=",,").encode(), SOURCE="abandon")
    log.deliver(refused)
    report = reported(log, Judged(log, log.facts()), {})
    assert (report.fates["rolled_back"], report.fates["delivered"], report.strict_exit_code) == (1, 1, 0)
    first, second = report.to_dict()["findings"]["listed"]
    assert (first["kind"], first["transaction"]) == ("BY_HAND", resolved.id[:8])
    # Anyone who can write to END chooses these texts.
    assert list(first["actions"]) == [
        {
            "at": BORN,
            "who": "ann\\x1b[2J",
            "what": "rollback",
            "reason": "order cancelled\\x1b[31m",
            "ruling": "decided",
        }
    ]
    assert first["says"] == "rollback by ann\\x1b[2J: order cancelled\\x1b[31m"
    assert second["says"] == "abandon by nobody named: no reason given"
    assert [place["role"] for place in second["evidence"]] == ["half", "end", "end", "op", "copy"]
    assert "Operator actions" in html(report, AuditOverview(1, {}, None, None, (), ()))


def shown(report: AuditReport) -> str:
    out = io.StringIO()
    print_report(report, Console(file=out, width=160))
    return out.getvalue()
