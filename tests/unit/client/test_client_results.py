"""Results of sends in all APIs: who has decided, why, and the value; and functions for single sends."""

from __future__ import annotations

import asyncio
import threading
from unittest.mock import patch

import pytest

from tests.support.apis import APIS
from tests.support.client_fakes import FakeRuntime
from tests.support.listeners import Answers, AsyncCommits
from txbridge import (
    AsyncTransactionProducer,
    Committed,
    DecidedBy,
    LocalTransactionState,
    Message,
    MessageExt,
    Rollback,
    TransactionListener,
    TransactionProducer,
    UsageError,
)
from txbridge.client.answers import RolledBackByCheck, Stage
from txbridge.client.listener import check_failed, execute

MESSAGE = Message("t", b"v")
SETTINGS = {"bootstrap.servers": "127.0.0.1:1"}
COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState


class SoldOut(Rollback):
    """A refusal of the application's own."""


@pytest.fixture
def runtime(monkeypatch):
    made = FakeRuntime()
    monkeypatch.setattr("txbridge.client.runtime.start", lambda *_: made)
    write = made.write_half

    def write_and_acknowledge(*given):
        write(*given)
        threading.Thread(target=made.acknowledge).start()

    made.write_half = write_and_acknowledge
    return made


@pytest.fixture(params=APIS)
def make(request):
    made = []

    def make(listener):
        made.append(request.param("orders", listener, SETTINGS))
        return made[-1]

    yield make
    for one in made:
        one.close()
        one.end_loop()


def seen(result):
    return result.local_transaction_state, result.decided_by, result.reason, result.value


OUTCOMES = [
    (COMMIT, (COMMIT, DecidedBy.FUNCTION, None, None), None),
    (Committed(7), (COMMIT, DecidedBy.FUNCTION, None, 7), None),
    (ROLLBACK, (ROLLBACK, DecidedBy.FUNCTION, None, None), None),
    (Rollback(), (ROLLBACK, DecidedBy.FUNCTION, None, None), None),
    (SoldOut("no bolts"), (ROLLBACK, DecidedBy.FUNCTION, "no bolts", None), "no bolts"),
    (RolledBackByCheck("late"), (ROLLBACK, DecidedBy.CHECK, "late", None), "late"),
    (None, (UNKNOWN, DecidedBy.NOBODY, None, None), None),
    (UNKNOWN, (UNKNOWN, DecidedBy.NOBODY, None, None), None),
    (
        ValueError("5 bolts"),
        (UNKNOWN, DecidedBy.NOBODY, "5 bolts", None),
        "executeLocalTransactionBranch exception: ValueError: 5 bolts",
    ),
    # Of a listener that knows the outcome.
    (
        KeyError("bolt"),
        (ROLLBACK, DecidedBy.ERROR, "'bolt'", None),
        "executeLocalTransactionBranch exception: KeyError: 'bolt'",
    ),
]


@pytest.mark.parametrize("is_given", [False, True], ids=["listener", "execute"])
def test_each_outcome_can_be_told_apart(make, runtime, is_given):
    """The reason of a rollback goes to the worker, as that of an exception does."""
    listener, given = Answers(), Answers()
    called, other = (given, listener) if is_given else (listener, given)
    options = {"execute": given.execute_local_transaction} if is_given else {}
    with make(listener) as producer:
        for answer, expected, remark in OUTCOMES:
            called.execute = lambda message, _, answer=answer: _given(answer, message)
            result = producer.send(MESSAGE, "arg", **options)
            assert seen(result) == expected
            assert result.local_exception is (answer if isinstance(answer, Exception) else None)
            assert runtime.ends[-1].entry.remark == remark
    assert ([arg for _, arg in called.executed], other.executed) == (["arg"] * len(OUTCOMES), [])


def _given(answer, message):
    if isinstance(answer, KeyError):
        message.course.stage = Stage.ROLLED_BACK
    if isinstance(answer, Exception):
        raise answer
    return answer


def test_a_listener_that_needs_a_function_gets_one_before_anything_is_sent(make, runtime):
    class NoFunction(Answers):
        needs_function = True

    listener = NoFunction()
    producer = make(listener)
    if hasattr(producer, "api"):
        producer.api._listener.needs_function = True
    with producer:
        with pytest.raises(UsageError, match="give the send one, as in execute=place_order"):
            producer.send(MESSAGE)
        with pytest.raises(UsageError, match="a function is needed, not str"):
            producer.send(MESSAGE, execute="place_order")
        assert (runtime.written, listener.executed) == ([], [])
        assert producer.send(MESSAGE, execute=lambda *_: Committed("A1")).value == "A1"


async def place(message, number):
    await asyncio.sleep(0)
    return Committed(number)


def test_a_function_for_other_arguments_is_refused_before_anything_is_sent(make, runtime):
    with make(Answers()) as producer:
        for function in (lambda connection, message, arg: None, lambda message: None):
            with pytest.raises(UsageError, match=r"<lambda> cannot be called with \(message, arg\)"):
                producer.send(MESSAGE, execute=function)
        assert runtime.written == []
        for function in (
            lambda *_: COMMIT,
            lambda message, arg, more=1: COMMIT,
            Answers().execute_local_transaction,
            patch("os.sep")(lambda message, arg, more: COMMIT),
        ):
            assert producer.send(MESSAGE, execute=function).local_transaction_state is COMMIT


def test_a_coroutine_function_is_refused_where_nothing_awaits_it(runtime):
    with TransactionProducer("orders", Answers(), SETTINGS) as producer:
        for method in (producer.send_message_in_transaction, producer.submit_message_in_transaction):
            with pytest.raises(UsageError, match="a coroutine function"):
                method(MESSAGE, 7, execute=place)
        with pytest.raises(UsageError, match="a coroutine function"):
            producer.send_messages_in_transaction([MESSAGE], 7, execute=place)
    assert runtime.written == []


async def test_asyncio_takes_coroutine_functions_and_plain_ones(runtime):
    threads = []

    def in_a_thread(message, number):
        threads.append(threading.current_thread())
        return Committed(number + 1)

    async with AsyncTransactionProducer("orders", AsyncCommits(), SETTINGS) as producer:
        assert (await producer.send_message_in_transaction(MESSAGE, 7, execute=place)).value == 7
        assert (await producer.send_messages_in_transaction([MESSAGE], 7, execute=in_a_thread)).value == 8
        assert threads != [threading.main_thread()]
    async with AsyncTransactionProducer("orders", Answers(), SETTINGS) as producer:
        with pytest.raises(UsageError, match="a coroutine function"):
            await producer.send_message_in_transaction(MESSAGE, 7, execute=place)


async def test_asyncio_calls_the_method_that_the_listener_has_at_the_time(runtime, monkeypatch):
    """A test may replace it, as with the other APIs."""
    listener: TransactionListener = Answers()
    async with AsyncTransactionProducer("orders", listener, SETTINGS) as producer:
        monkeypatch.setattr(listener, "execute_local_transaction", lambda *_: UNKNOWN)
        assert (await producer.send_message_in_transaction(MESSAGE)).local_transaction_state is UNKNOWN


def test_a_check_may_roll_back_with_a_reason():
    asked = MessageExt.for_execution(MESSAGE, "0123456789ABCDEF" * 2, 0, 1, 2)
    outcome = execute(Answers(check=Rollback("sold out")).check_local_transaction, asked, failed=check_failed)
    assert (outcome.state, outcome.remark) == (ROLLBACK, "sold out")
