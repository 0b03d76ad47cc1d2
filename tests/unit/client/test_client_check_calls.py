"""Calls of the check method in threads. test_client_async_producer.py has those on a loop."""

from __future__ import annotations

import threading
from concurrent.futures import Executor
from queue import SimpleQueue

from tests.support.listeners import COMMIT, UNKNOWN, Answers
from txbridge import Message, MessageExt
from txbridge.client.base.contained import is_called_by
from txbridge.client.checks.calls import CheckRequest, ThreadChecks

REQUEST = CheckRequest(MessageExt.for_execution(Message("t", b""), "0123456789ABCDEF" * 2, 0, 1, 2), 0)


class Owner:
    """The producer."""


OWNER = Owner()


def ask(pool):
    answers = SimpleQueue()
    pool.ask_application(REQUEST, answers.put)
    return answers.get(timeout=120)


def test_asks_in_a_thread_of_its_own_one_at_a_time():
    threads = []
    listener = Answers(check=lambda _: threads.append((threading.current_thread().name, is_called_by(OWNER))) or COMMIT)
    pool = ThreadChecks(listener, OWNER, 1)
    assert [ask(pool).state for _ in range(3)] == [COMMIT] * 3
    pool.close()
    assert threads == [("txbridge-check-pool_0", True)] * 3


def test_as_many_at_once_as_allowed():
    both = threading.Barrier(2, timeout=10)
    pool = ThreadChecks(Answers(check=lambda _: both.wait() >= 0 and COMMIT), OWNER, 2)
    answers = SimpleQueue()
    for _ in range(2):
        pool.ask_application(REQUEST, answers.put)
    assert {answers.get(timeout=120).state for _ in range(2)} == {COMMIT}
    pool.close()


def test_close_waits_for_what_runs_and_leaves_the_rest():
    running, go_on = threading.Event(), threading.Event()
    pool = ThreadChecks(Answers(check=lambda _: running.set() or (go_on.wait(30) and COMMIT)), OWNER, 1)
    answers = SimpleQueue()
    for _ in range(3):
        pool.ask_application(REQUEST, answers.put)
    assert running.wait(120)
    pool.close(0.01)
    assert answers.empty()
    go_on.set()
    pool.close()
    assert answers.get(timeout=120).state is COMMIT
    pool.ask_application(REQUEST, answers.put)
    # The rest stays in Kafka for another member of the group.
    assert answers.empty()


def test_an_executor_that_refuses_leaves_the_check_to_the_worker(caplog):
    class Full(Executor):
        def submit(self, *_):
            raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    pool = ThreadChecks(Answers(), OWNER, 1)
    pool._executor = Full()
    assert ask(pool) is None
    assert "check_not_asked transaction=01234567" in caplog.text
    pool.close()


def test_system_exit_in_a_check_is_unknown():
    pool = ThreadChecks(Answers(check=SystemExit()), OWNER, 1)
    assert ask(pool).state is UNKNOWN
    pool.close()
