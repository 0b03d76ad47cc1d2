"""The message of a command that needs the source tree, in an installed package without one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import txbridge


def test_the_demo(tmp_path: Path) -> None:
    shutil.copytree(Path(txbridge.__file__).parent, tmp_path / "txbridge")
    ended = subprocess.run(
        [sys.executable, "-m", "txbridge", "demo"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 2
    assert "not part of the installed package" in ended.stderr
    assert "clone the repository of txbridge, and run `make demo` there" in ended.stderr
    assert "Traceback" not in ended.stderr
