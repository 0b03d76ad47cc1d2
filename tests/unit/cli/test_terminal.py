"""Output that goes to a file or a pipe: lines are not wrapped where they would be on a narrow terminal."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress

import pytest
from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.report.entry import Entry, Place
from txbridge_audit.report.model import AuditStep

from txbridge.cli import audit_program, topics
from txbridge.cli.audit_options import AuditOptions
from txbridge.cli.main import with_output
from txbridge.cli.terminal import console, warn
from txbridge.config.worker import WorkerSettings
from txbridge.errors import EnvironmentProblemError
from txbridge.subject import Subject
from txbridge.topics.plan import TopicAction, TopicPlan


def test_a_wide_console_has_the_width_of_the_terminal_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert console(wide=True).width == 250
    assert console().width == 100
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert console(wide=True).width == 100


def test_a_line_of_a_plan_is_as_wide_in_a_file_as_one_of_pending(capsys: pytest.CaptureFixture[str]) -> None:
    reason = " ".join(["cleanup.policy"] * 12)
    plan = TopicPlan("RMQ_SYS_TRANS_HALF_TOPIC", TopicAction.REFUSED, 4, 3, reasons=(reason,))
    topics._print_table(Subject("", "kafka:9092", "cluster"), [plan], done=False)
    assert reason in capsys.readouterr().out


def test_names_with_brackets_in_the_line_of_a_violation_are_no_markup(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def follow(*_: object, on_step, **__: object):
        entry = Entry("LOST", "it is not there", "[/red]", "g", "[bold]", (Place("half", "HALF", 0, 7),))
        on_step(AuditStep(None, [entry], 0))  # type: ignore[arg-type]
        raise CouldNotAuditError("enough")

    monkeypatch.setattr(audit_program, "follow", follow)
    with pytest.raises(EnvironmentProblemError, match="enough"):
        audit_program.run(AuditOptions(ledger="ledger", follow=True), WorkerSettings(bootstrap_servers="127.0.0.1:1"))
    assert capsys.readouterr().err == "LOST [/red] [bold] half HALF/0@7\n"


def test_a_lost_stderr_changes_no_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in `txbridge audit 2>&1 >report | head -1`: 1 would mean that the audit has found something."""
    reading, writing = os.pipe()
    os.close(reading)
    lost = os.fdopen(writing, "w", buffering=1)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setattr(sys, "stderr", lost)

    def program() -> int:
        warn("a warning")
        console(stderr=True).print("a line about progress")
        return 0

    assert with_output(program) == 0
    with suppress(BrokenPipeError):
        lost.close()
