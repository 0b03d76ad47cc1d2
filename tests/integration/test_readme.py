"""The quickstart of the README and of docs/quickstart.md, executed as a reader does."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from tests.integration.test_embedded_kafka import none_left
from tests.support.harness import eventually
from txbridge.embedded.ports import free_port

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
#: The address in all listings.
ADDRESS = "127.0.0.1:9092"


def listings() -> list[str]:
    """The two programs of the quickstart: orders.py and billing.py."""
    return re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def steps() -> str:
    [block] = [one for one in re.findall(r"```console\n(.*?)```", README, re.DOTALL) if "# 1." in one]
    return block


def test_the_page_about_the_quickstart_has_the_same_listings_and_the_same_steps() -> None:
    page = (ROOT / "docs/quickstart.md").read_text("utf-8")
    for listing in listings():
        assert f"```python\n{listing}```" in page
    assert f"```console\n{steps()}```" in page


def test_the_quickstart(tmp_path: Path) -> None:
    """Its commands as they are, with `-m txbridge` of this Python, and with ports that no other test uses."""
    install, dev, *programs = (shlex.split(line.removeprefix("$ "), comments=True) for line in steps().splitlines())
    assert install == ["pip", "install", "txbridge[embedded,sqlalchemy,worker]"]
    assert programs == [["python", "orders.py"], ["python", "billing.py"]]
    port, metrics_port = free_port(), free_port()
    for (_, name), listing in zip(programs, listings(), strict=True):
        (tmp_path / name).write_text(listing.replace(ADDRESS, f"127.0.0.1:{port}"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TXBRIDGE_")}
    environment["XDG_DATA_HOME"] = str(tmp_path)

    def run(*command: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.stderr == ""
        return done.returncode, done.stdout

    output = tmp_path / "dev.txt"
    with output.open("w") as log:
        running = subprocess.Popen(
            [sys.executable, "-m", *dev, "--port", str(port), "--metrics-port", str(metrics_port)],
            env=environment,
            stdout=log,
            stderr=log,
        )
    try:
        eventually(lambda: "Ctrl-C stops everything here" in output.read_text() or running.poll(), 120)
        assert run("orders.py") == (0, "committed: True\n"), output.read_text()
        assert run("billing.py") == (0, "b'A1' b'{\"number\": \"A1\"}'\n")
        # A worker that gets no processor for longer than its session lasts joins again.
        doctor = ["-m", "txbridge", "doctor", "--bootstrap-servers", f"127.0.0.1:{port}"]
        eventually(lambda: run(*doctor)[0] == 0, 60)
    finally:
        running.send_signal(signal.SIGINT)
        code = running.wait(120)
    folder = tmp_path / "txbridge" / "kafka"
    assert none_left(folder)
    assert code == 0, output.read_text()
    page = f"http://127.0.0.1:{metrics_port}"
    assert output.read_text().splitlines() == [
        f"Kafka 4.3.1 runs on 127.0.0.1:{port}. Its data are in {folder}",
        "Topics: orders.placed and the internal ones",
        f"The worker serves. Its metrics are on {page}/metrics, its open messages on {page}/status",
        "Run your program in another terminal. Ctrl-C stops everything here; the data are kept",
        f"Ended. The data are kept in {folder}",
    ]

    # The order and the row from which a check would be answered.
    with closing(sqlite3.connect(tmp_path / "orders.sqlite")) as db:
        query = "SELECT number, state FROM orders, txbridge_transactions WHERE id != 'barrier'"
        assert db.execute(query).fetchall() == [("A1", "committed")]
