"""Processes that send themselves SIGSTOP."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any


def is_stopped(process: subprocess.Popen[Any]) -> bool:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def wait_stopped(process: subprocess.Popen[Any], timeout: float = 30.0) -> None:
    """Wait up to `timeout` seconds until the process has stopped itself."""
    from tests.support.harness import eventually  # Imported only here: the applications of tests start faster so.

    eventually(lambda: is_stopped(process), timeout, "the process did not stop")
