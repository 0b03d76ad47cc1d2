"""The demo on its first 6,000 flights: what `make demo` prints and writes, and that it leaves no process behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.harness import eventually


def _processes_with(output: str) -> list[str]:
    """Command lines of processes that mention the address of the demo's Kafka: the broker and the workers."""
    found = re.search(r"Kafka runs on (127\.0\.0\.1:\d+)", output)
    assert found, output
    lines = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if found[1] in line:
                lines.append(line)
    return lines


@pytest.mark.long
def test_first_flights(tmp_path: Path) -> None:
    """Of the first 6,000 flights 5,968 departed, 32 were cancelled and 21 departed without an air time."""
    folder = tmp_path / "demo"
    result = subprocess.run(
        [sys.executable, "-m", "txbridge.cli.main", "demo", "--flights", "6000", "--folder", str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads((folder / "report.json").read_text())
    assert report["transactions"] == 6000
    assert report["delivered"] == report["seen_by_reader"] == 5968
    assert report["rolled_back"] == 32
    assert report["answered_by_check"] == 21
    assert report["delivered_more_than_once"] == report["rolled_back_but_visible"] == report["violations"] == 0
    assert report["worker_killed"] > 0
    assert report["committed_per_second"] > 0
    assert report["seconds"] > 0
    assert "worker 1" in result.stdout
    assert "was killed with -9" in result.stdout
    assert _processes_with(result.stdout) == []


def test_ctrl_c_leaves_no_process(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    demo = subprocess.Popen(
        [sys.executable, "-m", "txbridge.cli.main", "demo", "--folder", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    eventually((folder / "worker-2.log").exists, 60, "the demo did not start its workers")
    time.sleep(1)
    demo.send_signal(signal.SIGINT)
    output, _ = demo.communicate(timeout=300)
    assert demo.returncode == 130, output
    assert "Traceback" not in output
    eventually(lambda: _processes_with(output) == [], 20, "processes are left")
