"""Text of other programs in logs and on outputs. tests/property/test_secrets.py has what may control a terminal."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from txbridge import log


def test_a_value_of_several_lines_is_no_second_line(monkeypatch: pytest.MonkeyPatch) -> None:
    root, stream = logging.getLogger(), io.StringIO()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    monkeypatch.setattr(sys, "stderr", stream)
    log.configure("console", "info")
    log.get_logger("txbridge.test").warning("refused", remark="x\n2026-11-21 [info     ] all_is_well")
    logging.getLogger("aiokafka.test").warning("x\n2026-11-21 [info     ] all_is_well")
    assert len(stream.getvalue().splitlines()) == 2


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
@pytest.mark.parametrize(
    "printing", ["console().print(TEXT)", "sys.stdout.write(TEXT)", "console(stderr=True).print(TEXT)"]
)
def test_an_output_whose_encoding_lacks_a_character_gets_it_escaped(encoding: str, printing: str) -> None:
    program = f"""
import sys
from txbridge.cli.main import with_output
from txbridge.cli.terminal import console
TEXT = "größe … 値"
sys.exit(with_output(lambda: [{printing}] and 7))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONIOENCODING": encoding},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, (done.stdout + done.stderr).strip()) == (
        7,
        "größe … 値".encode(encoding, "backslashreplace"),
    )


def test_a_command_on_such_an_output_prints_its_report(tmp_path: Path) -> None:
    folder = tmp_path / "größe … 値"
    done = subprocess.run(
        [sys.executable, "-m", "txbridge.cli.main", "kafka", "status", "--data-dir", str(folder)],
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, b"")
    assert str(folder).encode("latin-1", "backslashreplace") in done.stdout
