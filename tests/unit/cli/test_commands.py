"""Rules of all commands: names of options, output to a file, and what a command says that cannot work here."""

from __future__ import annotations

import io
import os
import re
import shutil
import socket
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import typer
from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.report.entries import Entry, Place
from txbridge_audit.report.model import AuditStep
from typer.testing import CliRunner

import txbridge
from tests.support.command_line import run
from txbridge.cli import audit_program, topics
from txbridge.cli.app import app
from txbridge.cli.audit_options import AuditOptions
from txbridge.cli.dev import dev
from txbridge.cli.main import with_output
from txbridge.cli.terminal import console, warn
from txbridge.config.worker import WorkerSettings
from txbridge.embedded.ports import HOST, free_port
from txbridge.errors import EnvironmentProblemError
from txbridge.subject import Subject
from txbridge.topics.plan import TopicAction, TopicPlan

#: Names that other programs give to output for programs and to consent.
FOREIGN = {"--json", "--output", "--output-format", "-o", "--force", "-f", "--confirm", "--assume-yes", "-y", "--apply"}
#: Commands that act on much at once, or delete what is not theirs, with arguments that lack the consent.
CONSENT = {"resolve-all": ["commit", "--cause", "x", "--reason", "x"], "demo": ["--folder", "."]}


def commands(group: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    group = group or typer.main.get_command(app)
    for name in group.list_commands(None):
        one = group.get_command(None, name)
        if hasattr(one, "commands"):
            yield from commands(one, (*path, name))
        else:
            yield " ".join((*path, name)), one


def options() -> Iterator[tuple[str, str, Any]]:
    for command, one in commands():
        for parameter in one.params:
            yield from ((command, name, parameter) for name in parameter.opts if name.startswith("-"))


def test_what_programs_read_is_asked_for_by_format() -> None:
    found = []
    for command, _ in commands():
        text = CliRunner().invoke(app, [*command.split(), "--help"], env={"COLUMNS": "200"}).stdout
        found += [match for match in re.findall(r"(--[a-z-]+)\s+[<\[]([a-z|]*)[>\]]", text) if "json" in match[1]]
    assert len(found) > 5
    assert set(found) == {("--format", "table|json")}


def test_no_command_has_another_name_for_output_or_consent() -> None:
    assert [(command, name) for command, name, _ in options() if name in FOREIGN] == []


def test_consent_is_yes_and_nothing_is_asked_without_it() -> None:
    assert {command for command, name, _ in options() if name == "--yes"} == set(CONSENT)
    assert not any(one.prompt or one.confirmation_prompt for _, _, one in options())
    for command, arguments in CONSENT.items():
        done = CliRunner().invoke(app, [command, *arguments], input="y\n")
        assert "--yes" in str(done.exception), command


@pytest.mark.parametrize("attribute", ["metavar", "is_flag"])
def test_an_option_takes_the_same_in_every_command(attribute: str) -> None:
    found = defaultdict(set)
    for _, name, parameter in options():
        # TOPIC[:PARTITIONS] is a TOPIC with something that only one command needs.
        found[name].add(str(getattr(parameter, attribute)).partition("[")[0])
    assert {name: values for name, values in found.items() if len(values) > 1} == {}


@pytest.mark.parametrize(("option", "flag"), [("port", "--port"), ("metrics_port", "--metrics-port")])
def test_a_taken_port_is_named_before_anything_starts(tmp_path, option, flag):
    with closing(socket.create_server((HOST, 0))) as other:
        taken = other.getsockname()[1]
        ports = {"port": free_port(), "metrics_port": free_port(), option: taken}
        with pytest.raises(
            EnvironmentProblemError, match=f"^port {taken} on {HOST} is taken. Choose another with {flag} "
        ):
            dev(data_dir=tmp_path / "data", **ports)
    assert list(tmp_path.iterdir()) == []


def test_the_demo(tmp_path: Path) -> None:
    shutil.copytree(Path(txbridge.__file__).parent, tmp_path / "txbridge")
    ended = run(
        [sys.executable, "-m", "txbridge", "demo"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        timeout=60,
    )
    assert ended.returncode == 2
    assert "not part of the installed package" in ended.stderr
    assert "clone the repository of txbridge, and run `make demo` there" in ended.stderr
    assert "Traceback" not in ended.stderr


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
        on_step(AuditStep(None, [entry]))  # type: ignore[arg-type]
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
