"""The workflows: nothing runs in them that the project does not name exactly."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import Any

import yaml

from tests.support.source import ROOT

WORKFLOWS = {path.name: path.read_text("utf-8") for path in sorted((ROOT / ".github/workflows").glob("*.yml"))}
JOBS = [
    (f"{name}, {key}", job) for name, text in WORKFLOWS.items() for key, job in yaml.safe_load(text)["jobs"].items()
]


def steps() -> Iterator[dict[str, Any]]:
    for _, job in JOBS:
        yield from job.get("steps", [])


def test_every_action_is_pinned_by_its_commit_and_says_its_version() -> None:
    used = [line.strip() for text in WORKFLOWS.values() for line in text.splitlines() if "uses:" in line]
    foreign = [line for line in used if "uses: ./.github/workflows/" not in line]
    assert foreign
    pinned = re.compile(r"(?:- )?uses: [\w.-]+(?:/[\w.-]+)+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
    assert [line for line in foreign if not pinned.fullmatch(line)] == []
    # One action has one commit everywhere.
    pins = {line.partition("uses: ")[2] for line in foreign}
    assert len(pins) == len({one.partition("@")[0] for one in pins})


def test_every_make_target_exists() -> None:
    makefiles = "".join((ROOT / name).read_text("utf-8") for name in ("Makefile", "tests/laboratory.mk"))
    targets = set(re.findall(r"^([a-z-]+):", makefiles, re.MULTILINE))
    called = {name for step in steps() for name in re.findall(r"^make ([a-z-]+)", step.get("run", ""), re.MULTILINE)}
    assert {"check", "quick", "test", "test-long", "test-containers", "docs", "release-check"} <= called <= targets


def test_the_gate_runs_on_every_python_that_the_package_promises() -> None:
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["classifiers"]
    promised = {match[1] for one in classifiers if (match := re.fullmatch(r"Programming .* :: (3\.\d+)", one))}
    jobs = yaml.safe_load(WORKFLOWS["ci.yml"])["jobs"]
    assert set(jobs["gate"]["strategy"]["matrix"]["python"]) == promised
    [set_up] = [step for step in jobs["package"]["steps"] if "actions/setup-python@" in step.get("uses", "")]
    assert set(set_up["with"]["python-version"].split()) == promised


def test_every_job_has_rights_of_its_own_and_an_end_and_no_workflow_runs_twice() -> None:
    for name, text in WORKFLOWS.items():
        workflow = yaml.safe_load(text)
        assert workflow["permissions"] == {}, name
        assert workflow["concurrency"]["group"], name
    for name, job in JOBS:
        assert job["permissions"], name
        assert "uses" in job or job["timeout-minutes"] <= 150, name


def test_only_the_release_and_the_site_may_write() -> None:
    writing = {(name, right) for name, job in JOBS for right, level in job["permissions"].items() if level == "write"}
    assert writing == {
        ("docs.yml, deploy", "id-token"),
        ("docs.yml, deploy", "pages"),
        ("release.yml, announce", "contents"),
        ("release.yml, attest", "attestations"),
        ("release.yml, attest", "id-token"),
        ("release.yml, image", "attestations"),
        ("release.yml, image", "id-token"),
        ("release.yml, image", "packages"),
        ("release.yml, publish", "id-token"),
    }


def test_no_text_that_others_choose_becomes_part_of_a_command() -> None:
    assert [step["run"] for step in steps() if "${{" in step.get("run", "").replace("${{ matrix.python }}", "")] == []
