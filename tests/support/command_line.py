"""The command line of txbridge in a process of its own, as a user runs it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

PROGRAM = (sys.executable, "-m", "txbridge.cli.main")


def run(command: Sequence[Any], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, and return what it printed. `options` are those of subprocess.run."""
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def run_txbridge(*arguments: str, timeout: float = 800, **options: Any) -> subprocess.CompletedProcess[str]:
    """Do so with a command of txbridge."""
    return run([*PROGRAM, *arguments], timeout=timeout, **options)
