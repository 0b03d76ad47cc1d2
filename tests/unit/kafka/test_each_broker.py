"""Brokers that stop answering while a connection is being opened: no connection and no time is lost to them."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import struct
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest

from tests.unit.kafka.test_aiokafka_security import CERTIFICATE, KEY
from txbridge.kafka import each_broker
from txbridge.kafka.proven_end import LATEST

LIMIT_S = 0.1
API_VERSIONS, METADATA = 18, 3


class SilentBroker:
    """A broker that answers this many requests, and then none. It accepts no connection if the number is negative."""

    def __init__(self, answers: int, tls: ssl.SSLContext | None, stack: ExitStack) -> None:
        self._left, self._tls, self._stack = answers, tls, stack
        # A queue of one that is full: the next connection has to wait.
        self._listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0 if answers < 0 else 50))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        if answers >= 0:
            # In daemon threads: what they wait for ends with the sockets.
            threading.Thread(target=self._accept, daemon=True).start()
        else:
            stack.enter_context(socket.create_connection(self._listener.getsockname()))

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client = self._stack.enter_context(self._listener.accept()[0])
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError, struct.error):
            if self._tls is not None:
                client = self._stack.enter_context(self._tls.wrap_socket(client, server_side=True))
            while True:
                (length,) = struct.unpack(">i", client.recv(4))
                key, _, correlation = struct.unpack(">hhi", client.recv(length)[:8])
                if self._left:
                    self._left -= 1
                    answer = struct.pack(">i", correlation) + self._answer_to(key)
                    client.sendall(struct.pack(">i", len(answer)) + answer)

    def _answer_to(self, key: int) -> bytes:
        if key == API_VERSIONS:
            return struct.pack(">hi6h", 0, 2, API_VERSIONS, 0, 0, METADATA, 0, 1)
        host, port = self.address.split(":")
        broker = struct.pack(">ih", 1, len(host)) + host.encode() + struct.pack(">ih", int(port), -1)
        return struct.pack(">i", 1) + broker + struct.pack(">ii", 1, 0)


@pytest.fixture
def stack(monkeypatch: pytest.MonkeyPatch) -> Iterator[ExitStack]:
    monkeypatch.setattr(each_broker, "_ANSWER_S", LIMIT_S)
    with ExitStack() as stack:
        yield stack


@contextmanager
def nothing_left_open() -> Iterator[None]:
    """Python warns about each connection that the collector has to close."""
    gc.collect()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield
        gc.collect()
    assert [str(one.message) for one in found] == []


def server_tls(folder: Path) -> ssl.SSLContext:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for name, text in (("certificate", CERTIFICATE), ("key", KEY)):
        (folder / name).write_text(text)
    tls.load_cert_chain(folder / "certificate", folder / "key")
    return tls


@pytest.mark.parametrize("answers", [-1, 0, 1, 2], ids=["accepts none", "silent", "greeting", "metadata"])
@pytest.mark.parametrize("protocol", ["plaintext", "ssl"])
def test_no_connection_is_left_to_the_collector(stack: ExitStack, tmp_path: Path, answers: int, protocol: str) -> None:
    broker = SilentBroker(answers, server_tls(tmp_path) if protocol == "ssl" else None, stack)
    kafka = {"bootstrap.servers": broker.address, "security.protocol": protocol, "ssl.ca.pem": CERTIFICATE}
    with nothing_left_open():
        began = time.monotonic()
        with closing(each_broker.KeptConnections(kafka)) as brokers:
            assert list(brokers.views_of("orders", 0)) == []
            assert brokers.offsets_of(1, "orders", [0], LATEST) is None
        seconds = time.monotonic() - began
    # A broker with TLS that does not answer the end of the connection would take half a minute.
    assert seconds < 15


@pytest.mark.parametrize("in_background", [False, True], ids=["of a request", "of a task, at the end"])
def test_a_connection_whose_opening_is_cancelled_at_its_last_step_ends_with_the_others(
    stack: ExitStack, tmp_path: Path, in_background: bool
) -> None:
    address = SilentBroker(0, server_tls(tmp_path), stack).address
    host, port = address.split(":")
    tls = ssl.create_default_context(cadata=CERTIFICATE)
    tls.check_hostname = False

    async def cancel_at_the_last_step() -> None:
        class Cancelling(asyncio.Protocol):
            def connection_made(self, _: asyncio.BaseTransport) -> None:
                opening.cancel()

        loop = asyncio.get_running_loop()
        opening = loop.create_task(loop.create_connection(Cancelling, host, int(port), ssl=tls))
        await asyncio.wait([opening], timeout=10)
        assert opening.cancelled()

    async def cancel_while_others_end() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        await cancel_at_the_last_step()

    async def begin() -> None:
        if in_background:
            background.append(asyncio.ensure_future(cancel_while_others_end()))
            await asyncio.sleep(0)
        else:
            await cancel_at_the_last_step()

    background: list[asyncio.Future[None]] = []
    with nothing_left_open(), closing(each_broker.KeptConnections({"bootstrap.servers": address})) as brokers:
        asyncio.run_coroutine_threadsafe(begin(), brokers._loop).result(20)
