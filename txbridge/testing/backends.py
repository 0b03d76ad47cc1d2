"""Backends that run the Kafka and the workers of a test, behind one interface."""

from __future__ import annotations

import itertools
import shutil
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from txbridge.config.sources import CONFIG_FILE_VARIABLE
from txbridge.config.worker import OPTIONS
from txbridge.embedded import EmbeddedKafka
from txbridge.testing.workers import RunningWorker, WorkerProcess


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
