"""Ctrl-C at every point of start, send, submit, flush and close: no thread hangs, and no thread is left running."""

from __future__ import annotations

import itertools
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import partial

import pytest

from tests.support.client_fakes import working_kafka
from tests.support.interrupts import Interrupted, OrdinaryError, Run, stack_of, wait_until
from tests.support.listeners import Commits
from tests.support.own_threads import threads_of_ours
from txbridge import Message, PrepareError, TransactionProducer
from txbridge.client import runtime
from txbridge.client.prepare import half_writer

MESSAGE = Message("t", b"v")
SETTINGS = {"bootstrap.servers": "127.0.0.1:1", "message.timeout.ms": 30_000}
#: Only a thread that hangs takes so long.
HANGS_S = 20.0


@pytest.fixture
def kafka(monkeypatch):
    # Idle threads check at this interval whether to end, and a test starts and ends hundreds of threads.
    monkeypatch.setattr(half_writer, "_POLL_S", 0.002)
    return working_kafka(monkeypatch)


def every_point(kafka, scenario, step=1):
    """Interrupt a scenario at every point and return the number of points.

    A scenario is a generator. It prepares, and yields the function to interrupt and the function that must end
    afterwards.
    """
    for number in itertools.count(0, step):
        kafka.forget()
        steps = scenario()
        what, after = next(steps)
        run = Run(number, what, after)
        place = run.interrupter.place or "no point"
        stack = run.hangs(HANGS_S)
        place = run.interrupter.place or "no point"
        assert not stack, f"interrupted at {place} (point {number}) it hangs in\n{stack}"
        assert run.error is None, f"interrupted at {place} (point {number}): {run.error!r}"
        assert wait_until(lambda: not threads_of_ours(), HANGS_S), (
            f"interrupted at {place} (point {number}), {threads_of_ours()} run:\n"
            + "".join(stack_of(thread) for thread in threads_of_ours())
        )
        assert kafka.left_open() == [], f"interrupted at {place} (point {number})"
        next(steps, None)
        if not run.interrupter.place:
            return number
    raise AssertionError


def test_start(kafka):
    def scenario():
        producer = TransactionProducer("orders", Commits(), SETTINGS)
        yield producer.start, producer.close

    assert every_point(kafka, scenario) > 100


def test_start_inside_a_request_of_confluent_kafka(kafka, monkeypatch):
    """Its C code runs the signal's handler and ignores that it has raised. Python makes a SystemError of that."""

    def request(*_, **__):
        raise SystemError(
            "<built-in method describe_topics> returned a result with an exception set"
        ) from Interrupted()

    monkeypatch.setattr(runtime, "check_layout", request)
    producer = TransactionProducer("orders", Commits(), SETTINGS)
    with pytest.raises(Interrupted):
        producer.start()
    producer.close()


def test_sends_one_after_the_other(kafka):
    def scenario():
        producer = TransactionProducer("orders", Commits(), SETTINGS).start()

        def send():
            for _ in range(2):
                producer.send_message_in_transaction(MESSAGE)

        yield send, producer.close

    assert every_point(kafka, scenario) > 300


def test_an_ordinary_exception_reaches_who_is_interrupted_wherever_it_waits(kafka):
    """A signal's handler may raise one. It counts as the listener's exception only in the listener's own code."""
    swallowed, places = [], []
    for number in itertools.count():
        kafka.forget()
        producer = TransactionProducer("orders", Commits(), SETTINGS).start()
        producer.send_message_in_transaction(MESSAGE)
        run = Run(number, partial(producer.send_message_in_transaction, MESSAGE), producer.close, OrdinaryError)
        assert not run.hangs(HANGS_S)
        assert run.error is None
        place = run.interrupter.place
        if not place:
            break
        places.append(place)
        if not run.reached and not place.startswith("listener.py"):
            swallowed.append(place)
    assert swallowed == []
    assert len(places) > 50


def test_submits_and_a_flush(kafka):
    def scenario():
        producer = TransactionProducer("orders", Commits(), SETTINGS).start()
        futures = []

        def submit():
            futures.append(producer.submit_message_in_transaction(MESSAGE))
            futures.append(producer.submit_message_in_transaction(MESSAGE))
            producer.flush()

        def end():
            assert producer.flush(HANGS_S) == 0
            producer.close()
            for future in futures:
                with suppress(PrepareError, CancelledError):
                    future.result(HANGS_S)

        yield submit, end

    assert every_point(kafka, scenario) > 300


@pytest.mark.parametrize("timeout", [None, 5.0])
def test_close_and_once_more(kafka, timeout):
    def scenario():
        producer = TransactionProducer("orders", Commits(), SETTINGS).start()
        producer.send_message_in_transaction(MESSAGE)
        producer.submit_message_in_transaction(MESSAGE)
        yield lambda: producer.close(timeout), producer.close

    assert every_point(kafka, scenario) > 100
