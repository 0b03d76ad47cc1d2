"""The pytest runs of `make test` and `make test-long`: files side by side, then a second run of the few that failed.

`python -m tests.gate 4 -m "not long"`: four processes. On a machine that is busy with four test processes, a process
sometimes has to wait for seconds. So the machine may be the reason when a test fails beside others, but not when it
fails alone. The names of tests that failed first and passed alone are printed before the second run: each is a defect
to investigate.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

#: More failures than these have another reason than a busy machine, and running them one by one would take too long.
MOST_AGAIN = 5

_CACHE = Path("build/gate")


def main(jobs: str, *arguments: str) -> int:
    """Return the exit code of pytest, that of the second run if there was one."""
    # Otherwise failures of an earlier run of the gate would be run again, too.
    shutil.rmtree(_CACHE, ignore_errors=True)
    code = _pytest("tests", *arguments, "--numprocesses", jobs, "--dist", "loadfile")
    failed = _failed()
    if code != pytest.ExitCode.TESTS_FAILED or not 0 < len(failed) <= MOST_AGAIN:
        return code
    print(f"\nFailed beside others, run again alone ({len(failed)}):", *failed, sep="\n  ", flush=True)
    return _pytest(*failed, *arguments)


def _pytest(*arguments: str) -> int:
    return subprocess.run(
        [sys.executable, "-m", "pytest", *arguments, "-o", f"cache_dir={_CACHE}"], check=False
    ).returncode


def _failed() -> list[str]:
    """The tests that failed in the run before, or an empty list if pytest noted none."""
    try:
        return list(json.loads((_CACHE / "v/cache/lastfailed").read_text()))
    except FileNotFoundError:
        return []


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
