"""Messages of modules that need the source tree, in an installed package without one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import txbridge


@pytest.mark.parametrize(
    ("words", "what_to_do"),
    [
        (["txbridge.cli.main", "demo"], "clone the repository of txbridge, and run `make demo` there"),
        (["txbridge.testing.simulator"], "Clone the repository of txbridge, run `make setup` there"),
    ],
)
def test_the_demo_and_the_simulator(words: list[str], what_to_do: str, tmp_path: Path) -> None:
    shutil.copytree(Path(txbridge.__file__).parent, tmp_path / "txbridge")
    ended = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 2
    assert "not part of the installed package" in ended.stderr
    assert what_to_do in ended.stderr
    assert "Traceback" not in ended.stderr
