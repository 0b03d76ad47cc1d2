"""The types of the public API in a user's `mypy --strict`: accepted and refused code."""

from __future__ import annotations

import os
import re
import shutil
import sys

import pytest

import txbridge
from tests.support.command_line import run
from tests.support.source import ROOT

ACCEPTED, REFUSED = ROOT / "tests" / "typing" / "accepted.py", ROOT / "tests" / "typing" / "refused.py"
FUNCTIONS = ROOT / "tests" / "typing" / "functions.py"


def refusals() -> set[tuple[str, int, str]]:
    """File, line and code of each error in the files."""
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--follow-imports=silent", "--no-pretty"]
    # A cache of its own: other options than the project's would clear the shared one.
    cache = f"--cache-dir={ROOT / '.mypy_cache' / 'public_types'}"
    done = run(
        [*command, cache, "--enable-error-code=unused-awaitable", *map(str, (ACCEPTED, REFUSED, FUNCTIONS))],
        env={**os.environ, "MYPYPATH": f"{ROOT}{os.pathsep}{ROOT / 'connectors'}"},
        timeout=280,
        cwd=ROOT,
    )
    assert done.stderr == ""
    found = re.findall(r"^(?:.*/)?(\w+\.py):(\d+): error: .*  \[([\w-]+)\]$", done.stdout, re.MULTILINE)
    assert len(found) == done.stdout.count(": error: "), done.stdout
    return {(file, int(line), code) for file, line, code in found}


def test_the_public_types() -> None:
    expected = {
        (REFUSED.name, number, code)
        for number, line in enumerate(REFUSED.read_text().splitlines(), 1)
        for code in re.findall(r"# refused: ([\w-]+)$", line)
    }
    assert len(expected) == 19
    found = refusals()
    assert {one for one in found if one[0] != FUNCTIONS.name} == expected
    # The kind of error is the checker's affair.
    assert {line for file, line, _ in found if file == FUNCTIONS.name} == refused_functions()


def refused_functions() -> set[int]:
    lines = enumerate(FUNCTIONS.read_text().splitlines(), 1)
    found = {number for number, line in lines if line.endswith("# refused")}
    assert len(found) == 10
    return found


@pytest.mark.skipif(shutil.which("pyright") is None, reason="pyright is not installed")
def test_pyright_agrees_about_functions() -> None:
    command = ["pyright", "--pythonpath", sys.executable, str(FUNCTIONS)]
    done = run(command, timeout=280, cwd=ROOT)
    assert {int(line) for line in re.findall(r"functions\.py:(\d+):\d+ - error", done.stdout)} == refused_functions()


def test_every_public_name_is_in_the_file_that_is_accepted() -> None:
    text = ACCEPTED.read_text()
    assert [name for name in txbridge.__all__ if not re.search(rf"\b{name}\b", text.partition(")")[2])] == []
