"""Runs pytest as `make test` and `make test-long` do: files side by side, then once more, alone, the few that failed.

`python -m tests.gate 4 -m "not long"`: four processes. A machine that is busy with four test processes makes a process
wait for seconds where it never does otherwise. So a failure beside others may be the machine's; one alone is not.
The names of those that failed first and passed alone stand before the second run: each is a defect to be looked for.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

#: More failures than these are no accident of a busy machine, and running them one by one would take too long.
MOST_AGAIN = 5

_CACHE = Path("build/gate")


def main(jobs: str, *arguments: str) -> int:
    """Exit code of pytest: of the second run, if there was one."""
    # What failed in an earlier run of the gate would be run again, too.
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
    """The tests that failed in the run before; an empty list as well when pytest noted none."""
    try:
        return list(json.loads((_CACHE / "v/cache/lastfailed").read_text()))
    except FileNotFoundError:
        return []


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
