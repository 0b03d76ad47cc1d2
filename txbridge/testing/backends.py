"""Backends that run the Kafka and the workers of a test, behind one interface, and workers to observe and kill."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from txbridge.config.sources import CONFIG_FILE_VARIABLE
from txbridge.config.worker import OPTIONS
from txbridge.deadline import Deadline
from txbridge.embedded import EmbeddedKafka

#: Seconds. Python and Faust need 3 s to start and a take-over less than one; two cores that are busy with other tests
#: make it ten times as long. After a kill the session time-out of the dead worker comes on top.
SERVING_TIMEOUT_S = 60.0
#: Seconds. A worker ends 1 s after SIGTERM, and after its own limit of 15 s when Kafka does not answer; the rest is for
#: busy machines.
_STOP_TIMEOUT_S = 120.0
_POLL_S = 0.05
#: Number of characters of a log that an error shows: the last few events.
_SHOWN = 3_000

_TAKEN_OVER = re.compile(rb'"partition": (\d+), "seconds"')


def eventually(what: Callable[[], Any], timeout: float = 30.0, message: str | Callable[[], str] = "") -> Any:
    """Wait until `what` returns something true, and return it; AssertionError with the message after `timeout` s."""
    deadline = Deadline(timeout)
    while True:
        result = what()
        if result:
            return result
        if deadline.is_over:
            raise AssertionError((message if isinstance(message, str) else message()) or f"not true in {timeout} s")
        time.sleep(_POLL_S)


class RunningWorker(ABC):
    """A worker of a test, in a process or a container. Its log is JSON, one event a line (docs/logs.md)."""

    @property
    @abstractmethod
    def log(self) -> str:
        """Everything that it has logged."""

    def log_from(self, position: int) -> bytes:
        """What it has logged from this byte on."""
        return self.log.encode()[position:]

    @property
    @abstractmethod
    def returncode(self) -> int | None:
        """The exit code; None while it runs."""

    @abstractmethod
    def kill(self) -> None:
        """Send SIGKILL: it leaves the group by its session time-out, without cleanup. Return when it has ended."""

    @abstractmethod
    def stop(self) -> int:
        """Send SIGTERM and return the exit code. Does nothing to a worker that has ended."""

    @abstractmethod
    def shift_clock(self, milliseconds: int) -> None:
        """Set its clock ahead of the true time by this much; 0 is the true time."""

    def events(self, name: str) -> list[dict[str, Any]]:
        """Everything that it has logged under this event name, oldest first."""
        lines = [json.loads(line) for line in self.log.splitlines() if line.startswith("{") and line.endswith("}")]
        return [line for line in lines if line["event"] == name]

    def wait_logged(self, text: str, timeout: float = 30.0) -> None:
        """Wait until this text is in its log; AssertionError after `timeout` seconds, or when it ends before."""
        wanted = text.encode()
        self._eventually_logged(lambda new: wanted in new, timeout, f"{text!r} was not logged in {timeout} s")
        assert text in self.log, f"the worker ended and did not log {text!r}:\n{self.log[-_SHOWN:]}"

    def wait_serving(self, partitions: int, timeout: float = SERVING_TIMEOUT_S) -> None:
        """Wait until it has taken over this many partitions since it was started; AssertionError otherwise."""
        taken_over: set[bytes] = set()

        def enough(new: bytes) -> bool:
            taken_over.update(_TAKEN_OVER.findall(new))
            return len(taken_over) >= partitions

        message = f"the worker did not take over {partitions} partitions in {timeout} s"
        self._eventually_logged(enough, timeout, message)
        assert self.returncode is None, f"the worker ended:\n{self.log[-_SHOWN:]}"

    def _eventually_logged(self, found: Callable[[bytes], bool], timeout: float, message: str) -> None:
        """Wait until `found` returns true for the part of the log that is new, or until the worker has ended.

        An unfinished line is new again, together with its rest.
        """
        position = 0

        def look() -> bool:
            nonlocal position
            new = self.log_from(position)
            position += new.rfind(b"\n") + 1
            return found(new) or self.returncode is not None

        eventually(look, timeout, lambda: f"{message}:\n{self.log[-_SHOWN:]}")


class WorkerProcess(RunningWorker):
    """A worker in a process of its own, its log in a file."""

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str], clock: Path | None = None
    ) -> None:
        """Start it. `environment` is added to ours; `clock` is the file that a `txbridge.testing.worker` reads."""
        self.log_file = log
        self._clock = clock
        with log.open("ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, **environment})

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    def log_from(self, position: int) -> bytes:
        with self.log_file.open("rb") as log:
            log.seek(position)
            return log.read()

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    def wait_dead(self, timeout: float = 30.0) -> int:
        """Wait until it has ended, at most `timeout` seconds, and return its exit code. Raises TimeoutExpired."""
        return self._process.wait(timeout)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """Send SIGSTOP: it keeps its connections and does nothing."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Send SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        if self._process.poll() is None:
            # A paused process does not react to SIGTERM.
            self.resume()
            self._process.terminate()
        try:
            return self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def shift_clock(self, milliseconds: int) -> None:
        assert self._clock is not None, "this worker has no clock that a test can shift"
        # In one step: the worker must not read half a number.
        new = self._clock.with_suffix(".new")
        new.write_text(str(milliseconds))
        new.replace(self._clock)


class Backend(ABC):
    """A Kafka, and a way to start workers on it. Use it as a context manager, or call `start` and `stop`."""

    @property
    @abstractmethod
    def bootstrap_servers(self) -> str:
        """The addresses of the brokers, for clients of the test."""

    @abstractmethod
    def start(self) -> Self:
        """Start Kafka and wait until it answers. Raises EnvironmentProblemError when it cannot be started."""

    @abstractmethod
    def stop(self) -> None:
        """End Kafka. Workers must have ended before."""

    @abstractmethod
    def start_worker(self, options: Mapping[str, str]) -> RunningWorker:
        """Start a worker with these options (by their names in docs/configuration.md); it need not serve yet."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class ProcessBackend(Backend):
    """Workers of the installed txbridge as child processes, on a Kafka that already runs."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._servers = bootstrap_servers
        self._folder: Path | None = None
        self._number = itertools.count(1)

    @property
    def bootstrap_servers(self) -> str:
        return self._servers

    def start(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="txbridge-workers-"))
        return self

    def stop(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def start_worker(self, options: Mapping[str, str]) -> RunningWorker:
        assert self._folder is not None, "start the backend first"
        number = next(self._number)
        clock = self._folder / f"worker-{number}.clock"
        return WorkerProcess(
            [sys.executable, "-m", "txbridge.testing.worker", str(clock)],
            self._folder / f"worker-{number}.log",
            environment({**options, "bootstrap_servers": self.bootstrap_servers}),
            clock,
        )


class EmbeddedBackend(ProcessBackend):
    """The embedded Kafka (docs/testing-your-service.md): needs Java 17, and no Docker."""

    def __init__(self) -> None:
        super().__init__("")
        self._kafka = EmbeddedKafka()

    @property
    def bootstrap_servers(self) -> str:
        return self._kafka.bootstrap_servers

    def start(self) -> Self:
        self._kafka.start()
        return super().start()

    def stop(self) -> None:
        super().stop()
        self._kafka.stop()


def environment(options: Mapping[str, str]) -> dict[str, str]:
    """Environment variables that give these options to a worker; its log is JSON, which `RunningWorker` reads.

    The variables of other options are empty, which counts as not given. So the configuration of the service under test
    is not used.
    """
    given = {f"TXBRIDGE_{name.upper()}": value for name, value in {**options, "log_format": "json"}.items()}
    return {CONFIG_FILE_VARIABLE: "", **{option.variable: "" for option in OPTIONS}, **given}
