"""Options of every command from flag, environment and file, and the commands' statement of the values they use."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from txbridge.cli.app import app
from txbridge.core.names import Names
from txbridge.embedded import EmbeddedKafka
from txbridge.embedded.ports import free_port

#: Every command that uses a cluster, with the arguments that it needs.
COMMANDS = {
    "worker": [],
    "topics plan": ["--format", "json"],
    "doctor": ["--json"],
    "audit": [],
    "pending": [],
    "show": ["0:1"],
    "resolve": ["0:1", "commit", "--reason", "test"],
    "resume": ["0:1", "--reason", "test"],
    "resolve-all": ["commit", "--cause", "test", "--dry-run"],
    "acknowledge": ["0", "--reason", "test"],
    "topics apply": ["--format", "json"],
    "rocketmq": [],
}
#: Commands with an embedded Kafka, and others without these options. The demo empties what it uses, so only a flag may
#: name its cluster. answer-checks needs a database with its table, and has tests of its own.
WITHOUT_CLUSTER = {"answer-checks", "kafka start", "kafka stop", "kafka status", "demo", "dev"}
#: Commands that print a report for a namespace without topics; the others name the missing topic.
REPORTS = {"topics plan", "topics apply", "doctor"}


def leaves(command: object, name: str = "") -> Iterator[str]:
    if hasattr(command, "commands"):
        for inner in command.commands.values():
            yield from leaves(inner, f"{name} {inner.name}".strip())
    else:
        yield name


def test_the_table_has_every_command() -> None:
    assert set(leaves(typer.main.get_command(app))) == set(COMMANDS) | WITHOUT_CLUSTER


def run(command: str, flags: list[str], variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TXBRIDGE_")}
    return subprocess.run(
        [sys.executable, "-m", "txbridge.cli.main", *command.split(), *COMMANDS[command], *flags],
        # Only the door needs the secret; the other commands ignore it.
        env={**environment, "TXBRIDGE_ROCKETMQ_SECRET": "x" * 32, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


PLACES = ["flag", "environment", "file", "file named by the environment"]


def cells() -> Iterator[object]:
    """Each command with each place. All options are read in the same way, so most are long tests."""
    for command in COMMANDS:
        for place in PLACES:
            marks = () if command == "topics plan" or place == "flag" else pytest.mark.long
            yield pytest.param(command, place, marks=marks)


@pytest.mark.parametrize(("command", "place"), list(cells()))
def test_flag_over_environment_over_file(command: str, place: str, kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """The weaker places name a cluster that does not exist and a wrong namespace."""
    namespace = f"n{secrets.token_hex(4)}"
    right = {"bootstrap_servers": kafka.bootstrap_servers, "namespace": namespace}
    wrong = {"bootstrap_servers": f"127.0.0.1:{free_port()}", "namespace": "wrong"}
    file = tmp_path / "txbridge.toml"
    in_file = right if place.startswith("file") else wrong
    file.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in in_file.items()))
    flags, variables = [], {}
    if place == "file named by the environment":
        variables["TXBRIDGE_CONFIG"] = str(file)
    else:
        flags += ["--config", str(file)]
    if place in {"flag", "environment"}:
        in_environment = right if place == "environment" else wrong
        variables |= {f"TXBRIDGE_{name.upper()}": value for name, value in in_environment.items()}
    if place == "flag":
        flags += [f"--{name.replace('_', '-')}={value}" for name, value in right.items()]
    done = run(command, flags, variables)
    said = done.stdout + done.stderr
    assert Names(namespace).half in said, said
    assert "wrong" not in said
    assert "Traceback" not in said
    if command in REPORTS:
        report = json.loads(done.stdout)
        assert (report["namespace"], report["bootstrap_servers"]) == (namespace, kafka.bootstrap_servers)
        assert len(report["cluster_id"]) == 22
    else:
        assert done.returncode == 2
        assert kafka.bootstrap_servers in said
