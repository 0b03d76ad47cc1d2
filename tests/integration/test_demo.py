"""The demo on its first 6,000 flights: the output and files of `make demo`, and the end of all its processes.

Also the notebook beside it, on the demo's results.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.audit_log import ENVIRONMENT
from tests.support.command_line import PROGRAM, run_txbridge
from tests.support.harness import eventually
from tests.support.notebook import run_notebook
from txbridge.embedded import EmbeddedKafka

NOTEBOOK = Path(__file__).parents[2] / "examples" / "flights" / "audit.ipynb"


def _processes_with(output: str) -> list[str]:
    """Command lines of running processes with the address of the demo's Kafka: the broker and the workers."""
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
@pytest.mark.timeout(1_800)
def test_first_flights(tmp_path: Path) -> None:
    """Of the first 6,000 flights 5,968 departed, 32 were cancelled and 21 departed without an air time."""
    folder = tmp_path / "demo"
    result = run_txbridge("demo", "--flights", "6000", "--folder", str(folder))
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
    with EmbeddedKafka(data_dir=folder / "kafka") as kafka:
        notebook_answers(kafka.bootstrap_servers, tmp_path)


def notebook_answers(servers: str, folder: Path) -> None:
    """The five answers of examples/flights/audit.ipynb about the demo's results."""
    ask = {
        "fates": "fates",
        "twice": "twice",
        "unseen": "unseen",
        "violations": "audit.violations.count()",
        "decided": "[list(row) for row in decided.collect()]",
        "airlines": "[[row.carrier, row.departures, *row.p50_p99_ms] for row in by_airline.collect()]",
        "pauses": "[row.pause_ms for row in longest.collect()]",
        "asked": "[[row.carrier, row.flight, row.checks_sent, row.waited_s] for row in asked.collect()]",
    }
    found, printed = run_notebook(NOTEBOOK, ask, folder, ENVIRONMENT | {"TXBRIDGE_BOOTSTRAP_SERVERS": servers}, 1_200)
    # 1. Every departed flight, exactly once.
    assert found["fates"] == {"delivered": 5968, "rolled_back": 32}
    assert found["twice"] == found["unseen"] == found["violations"] == 0
    # 2. The sources of the decisions.
    assert found["decided"] == [["check", "commit", 21], ["client", "commit", 5947], ["client", "rollback", 32]]
    # 3. The airlines; JetBlue has the most departures among the first flights of the year.
    assert found["airlines"][0][:2] == ["B6", 1075]
    assert sum(departures for _, departures, _, _ in found["airlines"]) == 5968
    assert all(0 <= median <= slow for _, _, median, slow in found["airlines"])
    # 4. The longest pauses, one of them during a take-over.
    assert found["pauses"] == sorted(found["pauses"], reverse=True)
    assert found["pauses"]
    # 5. The flights without an air time, which were checked.
    assert len(found["asked"]) == 21
    assert all(checks >= 1 and waited > 0 for _, _, checks, waited in found["asked"])
    assert "twice: 0 delivered and not seen: 0 violations: 0" in printed


@pytest.mark.long
def test_ctrl_c_leaves_no_process(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    demo = subprocess.Popen(
        [*PROGRAM, "demo", "--folder", str(folder)],
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
