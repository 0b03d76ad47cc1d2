"""The tests' own tools: the distribution of files over pytest's processes, and the experiments that break the code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutation import lay_out

_TESTS = Path(__file__).parents[2]
_SCHEDULE = _TESTS / "support/schedule.py"
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
    names = [path.name for path in _TESTS.rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


def test_the_mutants_tree_has_the_tests_of_the_core_and_all_that_they_import(tmp_path: Path) -> None:
    lay_out(tree := tmp_path / "tree", ["draft"])
    of_core = {path.name for path in (_TESTS / "unit/core").rglob("test_*.py")}
    there = {path.name for path in tree.rglob("test_*.py")}
    assert of_core | {"test_schedules.py", "test_half_queue.py", "test_any_frames.py", "test_records.py"} <= there
    assert not there & {"test_secrets.py", "test_fuzzed_checks.py", "test_sql_scripts.py"}
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider"]
    found = subprocess.run(command, check=False, cwd=tree, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stdout
