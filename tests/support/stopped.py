"""Processes that send themselves SIGSTOP."""

from __future__ import annotations

import subprocess
from typing import Any

from txbridge.embedded.process import read_stat


def is_stopped(process: subprocess.Popen[Any]) -> bool:
    return read_stat(process.pid)[0] == "T"


def wait_stopped(process: subprocess.Popen[Any], timeout: float = 30.0) -> None:
    """Wait up to `timeout` seconds until the process has stopped itself."""
    from tests.support.harness import eventually  # Imported only here: the applications of tests start faster so.

    eventually(lambda: is_stopped(process), timeout, "the process did not stop")
