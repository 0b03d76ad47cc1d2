"""The gate: tests that fail beside others are run again alone, and only a few may."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_GATE = Path(__file__).parents[2] / "gate.py"
_FAILS_ONCE = """
import pathlib, pytest
@pytest.mark.parametrize("number", range({count}))
def test_one(number):
    seen = pathlib.Path(f"seen{{number}}")
    first = not seen.exists()
    seen.touch()
    assert not first
def test_other(): pass
"""


_SCHEDULE = Path(__file__).parents[2] / "support/schedule.py"
_WITH_SCHEDULE = f"""
import importlib.util
spec = importlib.util.spec_from_file_location("schedule", {str(_SCHEDULE)!r})
schedule = importlib.util.module_from_spec(spec)
spec.loader.exec_module(schedule)
def pytest_xdist_make_scheduler(config, log):
    return schedule.Schedule(config, log)
"""
_DIES = """
import os, time
def test_before(): time.sleep(1)
def test_dies(): os._exit(1)
"""


def gate(folder: Path, body: str) -> subprocess.CompletedProcess[str]:
    (folder / "tests").mkdir()
    (folder / "tests/test_some.py").write_text(body)
    return subprocess.run([sys.executable, _GATE, "2"], check=False, cwd=folder, capture_output=True, text=True)


def test_what_fails_once_is_named_and_run_again_alone(tmp_path: Path) -> None:
    done = gate(tmp_path, _FAILS_ONCE.format(count=2))
    assert done.returncode == 0, done.stdout
    first, _, second = done.stdout.partition("Failed beside others, run again alone (2):")
    assert "2 failed, 1 passed" in first
    assert "tests/test_some.py::test_one[0]\n  tests/test_some.py::test_one[1]\n" in second
    assert "2 passed" in second.splitlines()[-1]


def test_what_fails_alone_too_fails_the_gate(tmp_path: Path) -> None:
    done = gate(tmp_path, "def test_bad(): assert False\ndef test_good(): pass")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "1 failed in" in done.stdout.splitlines()[-1]


def test_many_failures_are_no_accident(tmp_path: Path) -> None:
    done = gate(tmp_path, _FAILS_ONCE.format(count=6))
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "6 failed, 1 passed" in done.stdout.splitlines()[-1]


@pytest.mark.long
@pytest.mark.parametrize(
    ("more", "others"),
    [("", 0), ("", 1), ("def test_after(): pass", 4)],
    ids=["nothing is left", "another file is left", "in the midst"],
)
def test_when_a_process_dies_its_test_has_failed_once_and_all_others_are_run(
    tmp_path: Path, more: str, others: int
) -> None:
    (tmp_path / "conftest.py").write_text(_WITH_SCHEDULE)
    (tmp_path / "test_dying.py").write_text(_DIES + more)
    for number in range(others):
        (tmp_path / f"test_other{number}.py").write_text("def test_it(): pass")
    command = [sys.executable, "-m", "pytest", "-q", "--numprocesses", "2", "--dist", "loadfile"]
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert f"1 failed, {1 + bool(more) + others} passed" in done.stdout.splitlines()[-1]


def test_no_two_test_modules_have_the_same_name() -> None:
    # pytest imports test files by their bare name: in a process that has collected one, a second of the same name is an
    # error.
    names = [path.name for path in _GATE.parent.rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
