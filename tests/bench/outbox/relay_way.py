"""`txbridge relay` with the worker beside it, both with the settings of a new installation."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy import create_engine
from txbridge_sqlalchemy import create_outbox, create_table

from tests.bench.outbox.relays import NoRelay, Relay, Settings, Worker
from tests.bench.outbox.shop import Shop
from tests.support import http
from tests.support.command_line import PROGRAM
from tests.support.harness import Bridge, eventually
from txbridge.embedded.ports import HOST, free_port

#: Two busy cores need seconds to start Python. SIGTERM ends a relay after its batch, and Kafka's answers.
_START_S, _STOP_S = 60.0, 60.0


class RelayProgram(NoRelay):
    """The process of `txbridge relay`."""

    def __init__(self, shop: Shop, bridge: Bridge) -> None:
        self._port = free_port()
        where = ("--bootstrap-servers", shop.servers, "--namespace", bridge.namespace)
        self._command = (*PROGRAM, "relay", *where, "--metrics-port", str(self._port))
        self._environment = {**os.environ, "TXBRIDGE_DATABASE_URL": shop.url, "TXBRIDGE_LOG_LEVEL": "ERROR"}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pids(self) -> Sequence[int]:  # type: ignore[override]
        return [] if self._process is None else [self._process.pid]

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, env=self._environment)
        address = f"http://{HOST}:{self._port}/readyz"
        eventually(lambda: http.ask_if_there(address).status == 200, _START_S, "txbridge relay is not ready")

    def stop(self) -> None:
        assert self._end(signal.SIGTERM) in {0, None}

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> int | None:
        process, self._process = self._process, None
        if process is None:
            return None
        process.send_signal(number)
        return process.wait(_STOP_S)


class RelayAndWorker(NoRelay):
    """The relay is what is stopped and killed: the worker's own restarts are in txbridge's row of the table."""

    def __init__(self, program: RelayProgram, worker: Worker) -> None:
        self._program, self._worker = program, worker

    @property
    def parts(self) -> Sequence[Relay]:
        return self._program, self._worker

    @property
    def pids(self) -> Sequence[int]:  # type: ignore[override]
        return [*self._program.pids, *self._worker.pids]

    def start(self) -> None:
        if not self._worker.pids:
            self._worker.start()
        self._program.start()

    def stop(self) -> None:
        self._program.stop()

    def kill(self) -> None:
        self._program.kill()

    def transactions(self) -> float:
        return self._worker.transactions()


@contextmanager
def relay(shop: Shop, settings: Settings) -> Iterator[Relay]:
    """Give `txbridge relay` and its worker; the tables are there."""
    engine = create_engine(shop.url)
    create_table(engine)
    create_outbox(engine)
    engine.dispose()
    with Bridge(shop.servers, "bench outbox", partitions=settings.partitions) as bridge:
        program = RelayProgram(shop, bridge)
        try:
            yield RelayAndWorker(program, Worker(bridge, settings))
        finally:
            program.stop()
