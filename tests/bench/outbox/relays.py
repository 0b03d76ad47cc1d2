"""Relays, which bring the messages to Kafka: processes that a measurement starts, stops and kills."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from prometheus_client.parser import text_string_to_metric_families

from tests.bench.outbox.shop import Shop
from tests.support import http
from tests.support.harness import Bridge, WorkerProcess
from txbridge.embedded.ports import free_port

#: The settings of a new installation. The harness has shorter ones (ms).
_DEFAULTS = {
    "session_timeout": 6_000,
    "transaction_timeout": 6_000,
    "transaction_check_interval": 30_000,
    "transaction_check_max": 15,
}
#: A script, not a module of this package: people's relays import a driver and a client, no more.
_POLLED = Path(__file__).with_name("polled_relay.py")
#: An empty round of a polled relay (ms).
_POLL_MS = 50
#: Two busy cores need seconds to start Python.
_START_S = 60.0


@dataclass(frozen=True)
class Settings:
    """The options of the bench that concern txbridge."""

    #: Of HALF and END.
    partitions: int = 1
    #: Of worker and client (s). None is their default.
    commit_interval: float | None = None


class Relay(Protocol):
    """A relay of one shop, by whatever processes."""

    #: What the service must be told besides the shop.
    service: Mapping[str, Any]

    @property
    def pids(self) -> Sequence[int]:
        """Its processes, but for their children."""

    @property
    def parts(self) -> Sequence[Relay]:
        """What can be killed by itself; the relay's own process comes first."""

    def start(self) -> None:
        """Start it, and return when it relays."""

    def stop(self) -> None:
        """End it by SIGTERM, and wait."""

    def kill(self) -> None:
        """End it by SIGKILL."""

    def transactions(self) -> float:
        """Number of Kafka transactions since its start; 0 if nobody knows."""


#: Makes the relay of a shop. At the end of the block its processes have ended.
Start = Callable[[Shop, Settings], AbstractContextManager[Relay]]


class NoRelay:
    """For a service that sends by itself, or not at all."""

    service: Mapping[str, Any] = {}
    pids: Sequence[int] = ()

    @property
    def parts(self) -> Sequence[Relay]:
        return [self] if self.pids else []

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def kill(self) -> None: ...

    def transactions(self) -> float:
        return 0


class ProgramRelay(NoRelay):
    """A program that prints a line when it is ready, and ends by SIGTERM."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pids(self) -> Sequence[int]:  # type: ignore[override]
        return [] if self._process is None else [self._process.pid]

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        assert self._process.stdout.readline(), f"{self._command} did not start"

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(_START_S)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None


class Worker(NoRelay):
    """txbridge's worker, with the settings of a new installation."""

    def __init__(self, bridge: Bridge, settings: Settings) -> None:
        self._bridge, self._port = bridge, free_port()
        self._options: dict[str, Any] = {**_DEFAULTS, "metrics_port": self._port}
        self.service = {"namespace": bridge.namespace}
        if settings.commit_interval is not None:
            self._options["commit_interval"] = self.service["commit_interval"] = settings.commit_interval
        self._worker: WorkerProcess | None = None

    @property
    def pids(self) -> Sequence[int]:  # type: ignore[override]
        return [] if self._worker is None else [self._worker.pid]

    def start(self) -> None:
        self._worker = self._bridge.worker(**self._options)

    def stop(self) -> None:
        if self._worker is not None:
            assert self._worker.stop() == 0
            self._worker = None

    def kill(self) -> None:
        assert self._worker is not None
        self._worker.kill()
        self._worker = None

    def transactions(self) -> float:
        families = text_string_to_metric_families(http.ask(f"http://127.0.0.1:{self._port}/metrics").text)
        samples = (sample for family in families for sample in family.samples)
        return next(sample.value for sample in samples if sample.name == "txbridge_commit_seconds_count")


@contextmanager
def none(_: Shop, __: Settings) -> Iterator[Relay]:
    yield NoRelay()


@contextmanager
def worker(shop: Shop, settings: Settings) -> Iterator[Relay]:
    with Bridge(shop.servers, "bench outbox", partitions=settings.partitions) as bridge:
        yield Worker(bridge, settings)


def polled(how: str) -> Start:
    """Give the relay of tests.bench.outbox.polled_relay in one of its forms."""

    @contextmanager
    def start(shop: Shop, _: Settings) -> Iterator[Relay]:
        relay = ProgramRelay([sys.executable, str(_POLLED), shop.conninfo, shop.servers, how, str(_POLL_MS)])
        try:
            yield relay
        finally:
            relay.stop()

    return start
