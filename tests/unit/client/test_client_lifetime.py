"""Start and end of producers: at once, in the middle of each other, after a fork, on loops that are gone."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import threading
import types
from pathlib import Path

import pytest

from tests.support.cancel_at import CancelledAt
from tests.support.client_fakes import LAYOUT, FakeRuntime, working_kafka
from tests.support.interrupts import wait_until
from tests.support.listeners import COMMIT, Answers, AsyncCommits
from tests.support.own_threads import names_of_ours
from txbridge import AsyncTransactionProducer, KafkaUnreachableError, Message, TransactionProducer, UsageError
from txbridge.client import runtime as runtime_module

MESSAGE = Message("t", b"v")
SETTINGS = {"bootstrap.servers": "127.0.0.1:1"}
LONG_S = 20.0


@pytest.fixture
def kafka(monkeypatch):
    return working_kafka(monkeypatch)


@pytest.fixture
def slow(kafka, monkeypatch):
    """The look at the topics lasts until the test ends it, or until its time limit."""
    seen = types.SimpleNamespace(begun=threading.Event(), go_on=threading.Event())

    def check_layout(cluster, *_, **__):
        seen.begun.set()
        while not seen.go_on.wait(0.005):
            cluster.bounds.wait_for(0)
        return LAYOUT

    monkeypatch.setattr(runtime_module, "check_layout", check_layout)
    return seen


def kinds_of_errors(*calls):
    """Run each function in a thread of its own. Returns a function that waits for all and returns their exceptions."""
    errors = [None] * len(calls)

    def run(number, call):
        try:
            call()
        except BaseException as error:
            errors[number] = error

    threads = [threading.Thread(target=run, args=one, daemon=True) for one in enumerate(calls)]
    for thread in threads:
        thread.start()

    def wait():
        for thread in threads:
            thread.join(LONG_S)
            assert not thread.is_alive(), "it hangs"
        return errors

    return wait


def test_close_during_the_start_that_the_first_send_makes(kafka, slow):
    producer = TransactionProducer("orders", Answers(), SETTINGS)
    sends = [lambda: producer.send_message_in_transaction(MESSAGE) for _ in range(4)]
    sends_end = kinds_of_errors(*sends)
    assert slow.begun.wait(LONG_S)
    # Nothing lets the start go on: close() ends it.
    close_ends = kinds_of_errors(producer.close)
    assert close_ends() == [None]
    assert [str(error) for error in sends_end()] == ["this client is closed; create a new one"] * 4
    assert (names_of_ours(), kafka.left_open()) == ([], [])


class _LateLock:
    """A lock that is acquired only when the test allows it. Conditions checked before may not hold any more."""

    def __init__(self):
        self._lock = threading.RLock()
        self.is_wanted, self.go_on = threading.Event(), threading.Event()
        self.asked = []

    def acquire(self, blocking=True, timeout=-1):
        return self._lock.acquire(blocking, timeout)

    def release(self):
        self._lock.release()

    def __enter__(self):
        self.asked.append(threading.current_thread())
        self.is_wanted.set()
        assert self.go_on.wait(LONG_S)
        self._lock.acquire()

    def __exit__(self, *_):
        self._lock.release()


def test_callers_wait_for_one_attempt_together(kafka, slow, monkeypatch):
    attempts = []

    def unreachable(*_, **__):
        attempts.append(threading.current_thread())
        slow.begun.set()
        assert slow.go_on.wait(LONG_S)
        raise KafkaUnreachableError("nobody answers")

    monkeypatch.setattr(runtime_module, "start", unreachable)
    producer = TransactionProducer("orders", Answers(), SETTINGS)
    lock = producer._lifetime._lock = _LateLock()
    lock.go_on.set()
    starts_end = kinds_of_errors(*[producer.start] * 6)
    assert wait_until(lambda: len(lock.asked) == 6, LONG_S)
    slow.go_on.set()
    assert [str(error) for error in starts_end()] == ["nobody answers"] * 6
    assert len(attempts) == 1


def test_a_send_that_comes_a_moment_before_close_does_not_start_it_afterwards(kafka):
    producer = TransactionProducer("orders", Answers(), SETTINGS)
    lock = producer._lifetime._lock = _LateLock()
    send_ends = kinds_of_errors(lambda: producer.send_message_in_transaction(MESSAGE))
    assert lock.is_wanted.wait(LONG_S)
    producer.close()
    lock.go_on.set()
    [error] = send_ends()
    assert isinstance(error, UsageError)
    assert (names_of_ours(), kafka.left_open()) == ([], [])


def test_two_closes_at_once_and_one_that_has_no_time(kafka):
    running, go_on = threading.Event(), threading.Event()
    producer = TransactionProducer(
        "orders", Answers(lambda *_: running.set() or (go_on.wait(LONG_S) and COMMIT)), SETTINGS
    )
    # Each call finds what the first one has started: nothing else is left open.
    assert kinds_of_errors(*[producer.start] * 4)() == [None] * 4
    send_ends = kinds_of_errors(lambda: producer.send_message_in_transaction(MESSAGE))
    assert running.wait(LONG_S)
    closes_end = kinds_of_errors(producer.close, producer.close)
    assert kinds_of_errors(lambda: producer.close(0.05))() == [None]
    go_on.set()
    assert closes_end() == [None, None]
    assert send_ends() == [None]
    assert (names_of_ours(), kafka.left_open()) == ([], [])


def test_close_and_flush_in_our_own_threads_are_refused(kafka):
    told = []

    def ask(what):
        def callback(_):
            try:
                what()
            except UsageError as error:
                told.append(str(error))

        return callback

    with TransactionProducer("orders", Answers(), SETTINGS) as producer:
        for wire in kafka.wires:
            wire.automatic = wire.is_half
        result = producer.send_message_in_transaction(MESSAGE)
        result.end.add_done_callback(ask(producer.close))
        result.end.add_done_callback(ask(producer.flush))
        for wire in kafka.wires:
            wire.automatic = True
            wire.acknowledge()
        result.wait(LONG_S)
        assert wait_until(lambda: len(told) == 2, LONG_S)
    assert [text[:7] for text in told] == ["close()", "flush()"]
    assert all("whose thread it would have to wait for" in text for text in told)


FORKED = """
import faulthandler, gc, os, signal, sys, threading
sys.path.insert(0, {root!r})
from txbridge import *
from txbridge.client import runtime
from tests.support.own_threads import names_of_ours
from tests.support.client_fakes import LAYOUT, FakeAdmin
from tests.support.listeners import Commits as Listener
runtime.check_layout = lambda *_, **__: LAYOUT
runtime.ensure_check_topic = lambda *_, **__: None
runtime.AdminClient = FakeAdmin

producer = TransactionProducer("orders", Listener(), {{"bootstrap.servers": "127.0.0.1:1", "log_level": 0}}).start()
future = producer.submit_message_in_transaction(Message("t", b"v"))
if os.fork() == 0:
    signal.alarm(15)
    def refused(call):
        try: call()
        except UsageError: return
        raise AssertionError(call)
    {child}
    sys.exit(0)
status = os.wait()[1]
producer.close(0)
print("status", status)
"""


@pytest.mark.parametrize(
    "child",
    [
        "producer.close()",
        "producer.close(1)",
        "producer.__exit__(None, None, None)",
        "refused(producer.flush)",
        "refused(future.result)",
        "refused(lambda: producer.send_message_in_transaction(Message('t', b'v')))",
        "del producer, future; gc.collect()",
    ],
)
def test_a_forked_child(child):
    end_of_fork(child)


def test_a_forked_child_collects_no_admin_client_of_the_parent():
    """The parent has left one to the garbage collector, which runs when the child has threads of its own."""
    end_of_fork(
        "two = TransactionProducer('o', Listener(), {'bootstrap.servers': '127.0.0.1:1'}).start(); gc.collect(); "
        "two.close(0)",
        "runtime.AdminClient = FakeAdmin",
        """
gc.disable()
def check_layout(cluster, *_, **__):
    left = [cluster.admin]
    left.append(left)
    return LAYOUT
runtime.check_layout = check_layout""",
    )


def test_a_producer_made_before_a_fork_may_start_in_the_child():
    made = "TWO = TransactionProducer('o', Listener(), {'bootstrap.servers': '127.0.0.1:1'})"
    end_of_fork("TWO.start(); TWO.close(0)", "if os.fork()", f"{made}\nif os.fork()")


def end_of_fork(child, old="", new=""):
    """Run the program, changed, and require that its child ends well."""
    script = FORKED.format(root=str(Path(__file__).parents[3]), child=child)
    script = script.replace(old, new) if old else script
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert "status 0" in ended.stdout, ended.stdout + ended.stderr


async def test_an_asyncio_producer_is_closed_while_it_starts(kafka, slow):
    producer = AsyncTransactionProducer("orders", Answers(), SETTINGS)
    send = asyncio.ensure_future(producer.send_message_in_transaction(MESSAGE))
    await asyncio.get_running_loop().run_in_executor(None, slow.begun.wait, LONG_S)
    async with asyncio.timeout(LONG_S):
        await asyncio.gather(producer.close(), producer.close())
        with pytest.raises(UsageError, match="closed"):
            await send
    assert wait_until(lambda: not [name for name in names_of_ours() if "async" not in name], LONG_S)
    assert kafka.left_open() == []


def test_a_loop_that_ends_while_it_starts_leaves_no_member_behind(kafka, slow, monkeypatch):
    over = threading.Event()
    start = runtime_module.start

    def watched(*arguments):
        try:
            return start(*arguments)
        finally:
            over.set()

    async def main():
        producer = AsyncTransactionProducer("orders", Answers(), SETTINGS)
        send = asyncio.ensure_future(producer.send_message_in_transaction(MESSAGE))
        await asyncio.get_running_loop().run_in_executor(None, slow.begun.wait, LONG_S)
        send.cancel()

    monkeypatch.setattr("txbridge.client.runtime.start", watched)
    asyncio.run(main())
    slow.go_on.set()
    assert over.wait(LONG_S)
    assert wait_until(lambda: not [name for name in names_of_ours() if "async" not in name], LONG_S)
    assert kafka.left_open() == []


async def driven(awaitable):
    return await awaitable


class Waits(AsyncCommits):
    async def execute_local_transaction(self, message, arg):
        await asyncio.sleep(0)
        return COMMIT


@pytest.mark.parametrize("is_plain", [False, True])
def test_cancelled_at_every_await_nothing_is_left_to_wait_for(monkeypatch, is_plain):
    def once(number):
        runtime = FakeRuntime()
        monkeypatch.setattr("txbridge.client.runtime.start", lambda *_: runtime)

        async def main():
            producer = AsyncTransactionProducer("orders", Answers() if is_plain else Waits(), SETTINGS)

            async def scenario():
                await producer.start()
                result = await producer.send_message_in_transaction(MESSAGE)
                await result.wait(LONG_S)
                await producer.flush()
                await producer.close()

            async def acknowledges():
                while True:
                    runtime.acknowledge()
                    for end in runtime.ends:
                        if not end.as_future().done():
                            end.settle_with()
                    await asyncio.sleep(0.001)

            kafka = asyncio.ensure_future(acknowledges())
            cancelled = CancelledAt(scenario(), number, "before")
            task = asyncio.ensure_future(driven(cancelled))
            async with asyncio.timeout(LONG_S):
                await asyncio.wait([task])
                await producer.close()
            kafka.cancel()
            assert runtime.running == set(), number
            assert producer._turns.number == 0, number
            was_there = cancelled.awaits > number
            assert runtime.closed or not was_there or producer._lifetime.runtime is None, number
            return was_there

        return asyncio.run(main())

    for number in itertools.count():
        if not once(number):
            break
    assert number > 4
