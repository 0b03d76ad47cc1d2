"""The command line of txbridge in a process of its own, as a user runs it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

PROGRAM = (sys.executable, "-m", "txbridge.cli.main")


def run_txbridge(*arguments: str, timeout: float = 800, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, and return what it printed. `options` are those of subprocess.run."""
    return subprocess.run(
        [*PROGRAM, *arguments], capture_output=True, text=True, timeout=timeout, check=False, **options
    )
