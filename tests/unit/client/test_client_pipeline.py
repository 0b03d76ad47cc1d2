"""Many transactions in flight from one thread, without Kafka."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import CancelledError, Executor, ThreadPoolExecutor

import pytest

from tests.support.client_fakes import FakeRuntime
from tests.support.listeners import COMMIT, Answers
from txbridge import Message, PrepareError, TransactionProducer, UsageError
from txbridge.client.flow.attempts import InFlight

MESSAGE = Message("t", b"v")


class Counting(ThreadPoolExecutor):
    """One thread, and the number of its jobs."""

    jobs = 0

    def __init__(self):
        super().__init__(1)

    def submit(self, *arguments):
        self.jobs += 1
        return super().submit(*arguments)


@pytest.fixture
def runtime():
    return FakeRuntime()


@pytest.fixture
def made(monkeypatch, runtime):
    """A factory of producers on the fake runtime."""
    monkeypatch.setattr("txbridge.client.runtime.start", lambda *_: runtime)

    def make(listener, *limits, **options):
        producer = TransactionProducer("orders", listener, {"bootstrap.servers": "127.0.0.1:1"}, **options)
        producer._pipeline._in_flight = InFlight(*limits)
        return producer

    return make


def test_local_transactions_run_in_order_once_prepared_and_share_a_job(made, runtime):
    listener = Answers()
    with Counting() as executor, made(listener) as producer:
        producer._pipeline._executor = executor
        futures = [producer.submit_message_in_transaction(MESSAGE, number) for number in range(50)]
        assert listener.executed == []
        assert not any(future.done() for future in futures)
        blocker = threading.Event()
        executor.submit(blocker.wait, 10)
        runtime.acknowledge()
        blocker.set()
        results = [future.result(120) for future in futures]
        assert executor.jobs == 2
    assert [arg for _, arg in listener.executed] == list(range(50))
    assert [result.transaction_id for result in results] == [end.entry.transaction_id for end in runtime.ends]
    assert {result.local_transaction_state for result in results} == {COMMIT}
    assert runtime.running == set()


def test_a_prepare_error_is_in_the_future(made, runtime):
    listener, failure = Answers(), PrepareError("not acknowledged")
    with made(listener) as producer:
        future = producer.submit_message_in_transaction(MESSAGE)
        [(_, transaction_id, _)] = runtime.written
        runtime.acknowledge(failure)
        assert future.exception(10) is failure
        assert producer.flush() == 0
    assert runtime.given_up == [transaction_id]
    assert listener.executed == []


def test_no_room_for_ends_is_a_prepare_error_in_the_future(made, runtime):
    runtime.room = False
    with made(Answers()) as producer:
        future = producer.submit_message_in_transaction(MESSAGE)
        assert "too many decisions wait" in str(future.exception(0))
    assert (runtime.written, runtime.running, len(runtime.given_up)) == ([], set(), 1)


def test_interrupted_while_it_is_handed_over(made, runtime):
    runtime.refusals.append(KeyboardInterrupt())
    with made(Answers(), 1) as producer:
        with pytest.raises(KeyboardInterrupt):
            producer.submit_message_in_transaction(MESSAGE)
        assert (runtime.running, len(runtime.given_up)) == (set(), 1)
        # The place is free again.
        future = producer.submit_message_in_transaction(MESSAGE)
        runtime.acknowledge()
        future.result(120)


def test_interrupt_of_the_listener_is_in_the_future_and_the_thread_goes_on(made, runtime):
    answers = iter([SystemExit(3), None])

    def answer(*_):
        if error := next(answers):
            raise error
        return COMMIT

    with made(Answers(answer)) as producer:
        first, second = (producer.submit_message_in_transaction(MESSAGE) for _ in range(2))
        first.add_done_callback(lambda done: sys.exit(done.exception()))
        runtime.acknowledge()
        assert isinstance(first.exception(10), SystemExit)
        assert second.result(120).local_transaction_state is COMMIT
    assert runtime.decisions() == ["UNKNOWN", "COMMIT"]


def test_cancelled_before_its_local_transaction_it_is_given_up(made, runtime):
    listener = Answers()
    with made(listener) as producer:
        future = producer.submit_message_in_transaction(MESSAGE)
        [(_, transaction_id, _)] = runtime.written
        assert future.cancel()
        runtime.acknowledge()
        assert producer.flush() == 0
    with pytest.raises(CancelledError):
        future.result(0)
    assert (runtime.given_up, runtime.running, listener.executed, runtime.ends) == ([transaction_id], set(), [], [])


@pytest.mark.parametrize("limits", [(4,), (100, 400)], ids=["number", "bytes"])
def test_too_many_wait_until_half_of_them_are_through(made, runtime, limits):
    message, more = Message("orders", b"", headers={"trace": b"x" * 85}), []
    with made(Answers(), *limits) as producer:
        futures = [producer.submit_message_in_transaction(message) for _ in range(4)]
        thread = threading.Thread(target=lambda: more.append(producer.submit_message_in_transaction(message)))
        thread.start()
        thread.join(0.1)
        assert thread.is_alive()
        runtime.acknowledge()
        thread.join(120)
        assert all(future.result(120) for future in futures)
        runtime.acknowledge()
        more[0].result(120)


def test_close_wakes_who_waits_for_room(made, runtime):
    producer = made(Answers(), 1)
    producer.submit_message_in_transaction(MESSAGE)
    errors = []

    def submit():
        with pytest.raises(UsageError) as refused:
            producer.submit_message_in_transaction(MESSAGE)
        errors.append(str(refused.value))

    thread = threading.Thread(target=submit)
    thread.start()
    thread.join(0.05)
    producer.close(0.05)
    thread.join(120)
    assert errors == ["this client is closed; create a new one"]


def test_a_listener_and_a_callback_may_submit_although_it_is_full(made, runtime):
    inner = []

    def nested(message, arg):
        if arg == "outer":
            inner.append(producer.submit_message_in_transaction(MESSAGE))
        return COMMIT

    with made(Answers(nested), 1) as producer:
        outer = producer.submit_message_in_transaction(MESSAGE, "outer")
        outer.add_done_callback(lambda _: inner.append(producer.submit_message_in_transaction(MESSAGE)))
        runtime.acknowledge()
        outer.result(120)
        runtime.wait_written(2)
        runtime.acknowledge()
        assert [future.result(120).local_transaction_state for future in inner] == [COMMIT] * 2


def test_flush_and_close_by_a_submitted_transaction_are_refused(made, runtime):
    complaints = []

    def waits(*_):
        for wait in (producer.flush, producer.close):
            with pytest.raises(UsageError, match="for which it would have to wait") as caught:
                wait()
            complaints.append(str(caught.value))
        return COMMIT

    with made(Answers(waits)) as producer:
        future = producer.submit_message_in_transaction(MESSAGE)
        runtime.acknowledge()
        future.result(120)
    assert [complaint[:8] for complaint in complaints] == ["flush() ", "close() "]


def test_flush_waits_for_what_was_submitted_before(made, runtime):
    go_on = threading.Event()
    with made(Answers(lambda *_: go_on.wait(30) and COMMIT)) as producer:
        futures = [producer.submit_message_in_transaction(MESSAGE) for _ in range(3)]
        runtime.acknowledge()
        assert producer.flush(0.02) == 3
        go_on.set()
        # Decided, but not acknowledged, which is the fake's flush().
        assert producer.flush() == 3
        assert all(future.done() for future in futures)
        for end in runtime.ends:
            end.settle_with()
        assert producer.flush() == 0


def test_close_in_time_gives_up_what_has_no_local_transaction(made, runtime):
    running, go_on = threading.Event(), threading.Event()
    listener = Answers(lambda *_: running.set() or (go_on.wait(30) and COMMIT))
    producer = made(listener)
    runs, waits = (producer.submit_message_in_transaction(MESSAGE) for _ in range(2))
    runtime.acknowledge()
    assert running.wait(120)
    unacknowledged = producer.submit_message_in_transaction(MESSAGE)
    producer.close(0.05)
    for future in (waits, unacknowledged):
        assert isinstance(future.exception(0), PrepareError)
    assert not runs.done()
    go_on.set()
    assert runs.result(120).local_transaction_state is COMMIT
    assert len(listener.executed) == 1
    assert len(runtime.given_up) == 2


def test_an_executor_that_refuses(made, runtime, caplog):
    class Full(Executor):
        def submit(self, *_):
            raise RuntimeError("full")

    with made(Answers()) as producer:
        producer._pipeline._executor = Full()
        future = producer.submit_message_in_transaction(MESSAGE)
        runtime.acknowledge()
        assert "because no thread took it" in str(future.exception(0))
    assert len(runtime.given_up) == 1
    assert "local_transactions_not_run" in caplog.text
