"""`txbridge relay` with the settings of a new installation. It needs no worker."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy import create_engine
from txbridge_sqlalchemy import create_outbox

from tests.bench.outbox.relays import NoRelay, Relay, Settings
from tests.bench.outbox.shop import Shop
from tests.support import http
from tests.support.command_line import PROGRAM
from tests.support.harness import eventually
from tests.support.relays import make_progress
from txbridge.embedded.ports import HOST, free_port

#: Two busy cores need seconds to start Python. SIGTERM ends a relay after its batch, and Kafka's answers.
_START_S, _STOP_S = 60.0, 60.0


class RelayProgram(NoRelay):
    """The process of `txbridge relay`."""

    def __init__(self, shop: Shop, namespace: str) -> None:
        self._port = free_port()
        where = ("--bootstrap-servers", shop.servers, "--namespace", namespace)
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


@contextmanager
def relay(shop: Shop, _: Settings) -> Iterator[Relay]:
    """Give `txbridge relay`; its tables and the topic of its progress are there."""
    engine = create_engine(shop.url)
    create_outbox(engine)
    engine.dispose()
    namespace = f"bench.{shop.topic}"
    make_progress(shop.servers, namespace)
    program = RelayProgram(shop, namespace)
    try:
        yield program
    finally:
        program.stop()
