"""Threads of the asyncio client: flushes, waits for room and close do not hold up one another."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.support.client_fakes import FakeRuntime, until
from tests.support.listeners import AsyncCommits
from txbridge import AsyncTransactionProducer, Message

MESSAGE = Message("t", b"v")
#: Seconds after which a call counts as hanging.
LONG_S = 20.0


class FullRuntime(FakeRuntime):
    """Each half message goes to another writer, and none of them has room. Waits last until the test ends them."""

    def __init__(self):
        super().__init__()
        self.go_on = threading.Event()
        self.waits = []

    def for_caller(self, running):
        return FullWriter(self)

    def _wait_for_ends(self, timeout):
        if timeout:
            self.waits.append("ends")
            self.go_on.wait()
        return self.room


class FullWriter:
    """A writer without room."""

    def __init__(self, runtime):
        self._runtime = runtime

    def wait_for_room(self, timeout):
        self._runtime.waits.append(self)
        self._runtime.go_on.wait()

    def write_half(self, *_):
        raise BufferError("full")


@pytest.fixture
def started(monkeypatch):
    """Return a started producer on a fake runtime."""

    async def start(runtime):
        monkeypatch.setattr("txbridge.client.start.start", lambda *_: runtime)
        return await AsyncTransactionProducer("orders", AsyncCommits(), {"bootstrap.servers": "127.0.0.1:1"}).start()

    return start


async def test_flushes_have_two_threads_and_a_further_one_only_the_rest_of_its_time(started):
    go_on, timeouts = threading.Event(), []

    def flush(timeout):
        timeouts.append(timeout)
        if timeout is None:
            go_on.wait()
        return 3 if timeout == 0 else 0

    runtime = FakeRuntime()
    runtime.flush = flush
    producer = await started(runtime)
    others = [asyncio.ensure_future(producer.flush()) for _ in range(2)]
    try:
        await until(lambda: timeouts == [None, None])
        assert await asyncio.wait_for(producer.flush(0.01), LONG_S) == 3
        later = asyncio.ensure_future(producer.flush(600))
        await asyncio.sleep(0.05)
        # As many as a thread each, and more, do not hold up close().
        await asyncio.wait_for(producer.close(0.1), LONG_S)
    finally:
        go_on.set()
    assert await asyncio.gather(*others, later) == [0, 0, 0]
    assert timeouts[:3] == [None, None, 0]
    assert 0 < timeouts[3] < 600


async def test_every_kind_of_wait_for_room_and_close_have_a_thread(started):
    runtime = FullRuntime()
    producer = await started(runtime)
    # A client has six writers at most.
    sends = [asyncio.ensure_future(producer.send_message_in_transaction(MESSAGE)) for _ in range(6)]
    try:
        await until(lambda: len(runtime.waits) == 6)
        runtime.room = False
        sends.append(asyncio.ensure_future(producer.send_message_in_transaction(MESSAGE)))
        await until(lambda: runtime.waits[-1] == "ends")
        await asyncio.wait_for(producer.close(0.01), LONG_S)
        assert runtime.closed
    finally:
        runtime.go_on.set()
    await asyncio.gather(*sends, return_exceptions=True)
