"""The README's first listing and its five steps, executed as a reader does."""

from __future__ import annotations

import os
import re
import shlex
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

from tests.support.harness import WorkerProcess, eventually
from txbridge import LocalTransactionState
from txbridge.embedded import EmbeddedKafka
from txbridge.testing.inspection import read_committed

README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
#: The address in all examples of the README.
ADDRESS = "127.0.0.1:9092"


def listing() -> str:
    return next(iter(re.findall(r"```python\n(.*?)```", README, re.DOTALL)))


def steps() -> list[list[str]]:
    """Commands of the quickstart, without comments."""
    [block] = [one for one in re.findall(r"```console\n(.*?)```", README, re.DOTALL) if "# 1." in one]
    return [shlex.split(line.removeprefix("$ "), comments=True) for line in block.splitlines()]


def test_the_page_about_the_quickstart_has_the_same_listing_and_the_same_steps() -> None:
    page = (Path(__file__).parents[2] / "docs/quickstart.md").read_text("utf-8")
    assert f"```python\n{listing()}```" in page
    [block] = [one for one in re.findall(r"```console\n(.*?)```", README, re.DOTALL) if "# 1." in one]
    assert f"```console\n{block}```" in page


def test_the_quickstart(own_kafka: EmbeddedKafka, tmp_path: Path) -> None:
    servers = own_kafka.bootstrap_servers
    (install, export, topics, worker, program) = steps()
    assert install == ["pip", "install", "txbridge[embedded,worker]"]
    assert export == ["export", f"TXBRIDGE_BOOTSTRAP_SERVERS={ADDRESS}"]
    assert (worker, program) == (["txbridge", "worker"], ["python", "orders.py"])
    (tmp_path / "orders.py").write_text(listing().replace(ADDRESS, servers))
    environment = {**os.environ, "TXBRIDGE_BOOTSTRAP_SERVERS": servers}

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    made = run("-m", "txbridge.cli.main", *topics[1:])
    assert made.returncode == 0, made.stderr
    running = WorkerProcess([], tmp_path / "worker.log", environment)
    try:
        sent = run("orders.py")
        assert (sent.returncode, sent.stdout, sent.stderr) == (0, "COMMIT_MESSAGE\n", "")
        kafka = {"bootstrap.servers": servers, "log_level": 0}
        seen = lambda: [one.value() for one in read_committed(kafka, "orders.placed", 4)]  # noqa: E731
        eventually(lambda: seen() == [b'{"number": "A1"}'], 60)
        # A worker that gets no processor for longer than its session lasts joins again.
        eventually(lambda: run("-m", "txbridge.cli.main", "doctor").returncode == 0, 60)
        found = run("-m", "txbridge.cli.main", "doctor")
        assert (found.returncode, found.stderr) == (0, ""), found.stdout
    finally:
        running.stop()

    # The check finds exactly what the local transaction has stored.
    defined: dict[str, type] = {}
    exec(listing().partition("\nwith TransactionProducer")[0], defined)  # the class alone
    orders = defined["Orders"](tmp_path / "orders.sqlite")
    with closing(sqlite3.connect(tmp_path / "orders.sqlite")) as db:
        [(stored,)] = db.execute("SELECT transaction_id FROM orders").fetchall()
    asked = orders.check_local_transaction(SimpleNamespace(transaction_id=stored))
    assert asked is LocalTransactionState.COMMIT_MESSAGE
    asked = orders.check_local_transaction(SimpleNamespace(transaction_id="0" * 32))
    assert asked is LocalTransactionState.ROLLBACK_MESSAGE
