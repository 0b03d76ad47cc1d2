"""The demo's worker processes and its independent reader."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from confluent_kafka import Consumer

from txbridge.config.sources import without_options
from txbridge.errors import EnvironmentProblemError

#: Python, Faust, the join and the take-over need 3 s on an idle machine, and several times that on a busy one.
_SERVING_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 20.0
#: Shorter times than RocketMQ's 6 s and 30 s, so that checks happen within the few minutes of the run.
_TIMES = ("--transaction-timeout=3000", "--transaction-check-interval=10000")


class DemoWorker:
    """A `txbridge worker` process with its log in a file."""

    def __init__(self, number: int, bootstrap_servers: str, folder: Path) -> None:
        self.number = number
        self.log_file = folder / f"worker-{number}.log"
        with self.log_file.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "txbridge.cli.main", "worker"),
                    *(f"--bootstrap-servers={bootstrap_servers}", "--log-format=json", *_TIMES),
                ],
                stdout=log,
                stderr=log,
                env={**without_options(os.environ), "PYTHONUNBUFFERED": "1"},
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_assigned(self) -> None:
        """Wait until the worker is a member of the group. Raises EnvironmentProblemError with the log's last line."""
        deadline = time.monotonic() + _SERVING_TIMEOUT_S
        while "partitions_assigned" not in self.log_file.read_text():
            if self._process.poll() is not None or time.monotonic() > deadline:
                last = (self.log_file.read_text().strip().splitlines() or ["nothing"])[-1]
                raise EnvironmentProblemError(f"worker {self.number} did not start; the end of {self.log_file}: {last}")
            time.sleep(0.1)

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Send SIGTERM and wait; a worker that does not end is killed."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill()


class CountingReader(threading.Thread):
    """Thread that reads the real topic as any consumer does (read_committed), and counts copies by transaction id."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        super().__init__(name="demo-reader", daemon=True)
        self.copies: Counter[bytes] = Counter()
        self.last_seen = time.monotonic()
        self._stopping = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "log_level": 0,  # the terminal is ours
                "group.id": "flights-demo-reader",
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
            }
        )
        self._consumer.subscribe([topic])

    @property
    def delivered(self) -> int:
        """Number of different transactions seen."""
        return len(self.copies)

    def run(self) -> None:
        while not self._stopping.is_set():
            for message in self._consumer.consume(2_000, 0.1):
                if message.error() is None:
                    identity = dict(message.headers() or ())["UNIQ_KEY"]
                    assert isinstance(identity, bytes)
                    self.copies[identity] += 1
                    self.last_seen = time.monotonic()
        self._consumer.close()

    def stop(self) -> None:
        self._stopping.set()
        self.join(_STOP_TIMEOUT_S)
