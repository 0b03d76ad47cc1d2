"""Waits for lines in the log of a test's worker. The worker is a small program that logs as one does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from txbridge.testing import workers
from txbridge.testing.workers import WorkerProcess


class Counted(WorkerProcess):
    """Counts the bytes that a wait reads."""

    read = 0

    def log_from(self, position: int) -> bytes:
        new = super().log_from(position)
        self.read += len(new)
        return new


def started(folder: Path, program: str) -> Counted:
    return Counted([sys.executable, "-uc", f"import sys, time\n{program}"], folder / "log", {})


def test_a_long_log_is_read_once(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "_POLL_S", 0.001)
    program = """
for number in range(200):
    print("x" * 10_000)
    time.sleep(0.005)
print('{"partition": 0, "seconds": 0.1}\\\\n{"partition": 1, "seconds": 0.1}')
time.sleep(60)
"""
    worker = started(tmp_path, program.replace("\\\\n", "\\n"))
    worker.wait_serving(2)
    assert worker.read < 2 * len(worker.log)
    worker.wait_logged('"partition": 1')
    assert worker.stop() == -15


def test_a_line_that_is_written_in_two_parts_is_found(tmp_path):
    program = """
for part in ('{"parti', 'tion": 0, "se', 'conds": 0.1, "note": "d\\xc3', '\\xb6ne"}\\n'):
    sys.stdout.buffer.write(part.encode('latin-1'))
    time.sleep(0.2)
time.sleep(60)
"""
    worker = started(tmp_path, program)
    worker.wait_serving(1)
    worker.wait_logged("döne")
    worker.kill()


def test_partitions_are_counted_once_and_not_only_the_new_ones(tmp_path):
    program = """
for partition in (0, 0, 1):
    print('{"partition": %d, "seconds": 0.1}' % partition)
    time.sleep(0.2)
print("all")
time.sleep(60)
"""
    worker = started(tmp_path, program)
    worker.wait_serving(2)
    worker.wait_logged("all")
    with pytest.raises(AssertionError, match=r'(?s)did not take over 3 partitions in 0\.2 s:\n.*"partition": 1'):
        worker.wait_serving(3, 0.2)
    worker.kill()


def test_a_worker_that_ends_is_not_waited_for(tmp_path):
    worker = started(tmp_path, "print('last words', end='')")
    worker.wait_logged("last words")
    with pytest.raises(AssertionError, match="the worker ended and did not log 'more':\nlast words"):
        worker.wait_logged("more", 3_600)
    with pytest.raises(AssertionError, match="the worker ended:\nlast words"):
        worker.wait_serving(1, 3_600)
