"""Threads of the asyncio client: flushes, waits for room and close do not hold up one another."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.support.client_fakes import FakeRuntime
from txbridge import AsyncTransactionListener, AsyncTransactionProducer, LocalTransactionState, Message

MESSAGE = Message("t", b"v")
#: Seconds after which a call counts as hanging.
LONG_S = 20.0


class Listener(AsyncTransactionListener):
    async def execute_local_transaction(self, message, arg):
        return LocalTransactionState.COMMIT_MESSAGE

    async def check_local_transaction(self, message):
        raise AssertionError


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
        return await AsyncTransactionProducer("orders", Listener(), {"bootstrap.servers": "127.0.0.1:1"}).start()

    return start


async def until(what):
    async with asyncio.timeout(LONG_S):
        # What is waited for is set by threads, which know no Event of the loop.
        while not what():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_a_flush_with_a_time_out_ends_while_others_wait_without_one(started):
    go_on, waiting = threading.Event(), []

    def flush(timeout):
        if timeout == 0:
            return 3
        waiting.append(timeout)
        go_on.wait()
        return 0

    runtime = FakeRuntime()
    runtime.flush = flush
    producer = await started(runtime)
    others = [asyncio.ensure_future(producer.flush()) for _ in range(2)]
    try:
        await until(lambda: len(waiting) == 2)
        assert await asyncio.wait_for(producer.flush(0.01), LONG_S) == 3
    finally:
        go_on.set()
    assert await asyncio.gather(*others) == [0, 0]
    await producer.close()


async def test_a_flush_that_waited_for_a_thread_has_only_the_rest_of_its_time(started):
    go_on, timeouts = threading.Event(), []

    def flush(timeout):
        timeouts.append(timeout)
        if timeout is None:
            go_on.wait()
        return 0

    runtime = FakeRuntime()
    runtime.flush = flush
    producer = await started(runtime)
    others = [asyncio.ensure_future(producer.flush()) for _ in range(2)]
    await until(lambda: len(timeouts) == 2)
    third = asyncio.ensure_future(producer.flush(600))
    await asyncio.sleep(0.05)
    go_on.set()
    assert await asyncio.gather(*others, third) == [0, 0, 0]
    await producer.close()
    assert timeouts[:2] == [None, None]
    assert 0 < timeouts[2] < 600


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
