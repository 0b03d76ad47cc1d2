"""One name for the same thing in all commands: an option means in each of them what it means in the others."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from txbridge.cli.app import app

#: Names that other programs give to output for programs and to consent.
FOREIGN = {"--json", "--output", "--output-format", "-o", "--force", "-f", "--confirm", "--assume-yes", "-y", "--apply"}
#: Commands that act on much at once, or delete what is not theirs, with arguments that lack the consent.
CONSENT = {
    "resolve-all": ["commit", "--cause", "x", "--reason", "x"],
    "demo": ["--folder", "."],
}


def commands(group: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, one in (group or typer.main.get_command(app)).commands.items():
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
