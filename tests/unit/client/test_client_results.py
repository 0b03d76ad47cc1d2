"""Results of sends in all APIs: the decision, and why."""

from __future__ import annotations

import threading

import pytest

from tests.support.apis import APIS
from tests.support.client_fakes import FakeRuntime
from tests.support.listeners import Answers
from txbridge import AsyncTransactionProducer, LocalTransactionState, Message, MessageExt, Rollback, TransactionListener
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


OUTCOMES = [
    (COMMIT, COMMIT, None),
    (ROLLBACK, ROLLBACK, None),
    (Rollback(), ROLLBACK, None),
    (SoldOut("no bolts"), ROLLBACK, "no bolts"),
    (RolledBackByCheck("late"), ROLLBACK, "late"),
    (None, UNKNOWN, None),
    (UNKNOWN, UNKNOWN, None),
    (ValueError("5 bolts"), UNKNOWN, "executeLocalTransactionBranch exception: ValueError: 5 bolts"),
    # Of a listener that knows the outcome.
    (KeyError("bolt"), ROLLBACK, "executeLocalTransactionBranch exception: KeyError: 'bolt'"),
]


def test_each_outcome_can_be_told_apart(make, runtime):
    """The reason of a rollback goes to the worker, as that of an exception does."""
    listener = Answers()
    with make(listener) as producer:
        for answer, state, remark in OUTCOMES:
            listener.execute = lambda message, _, answer=answer: _given(answer, message)
            result = producer.send(MESSAGE, "arg")
            assert result.local_transaction_state is state
            assert result.local_exception is (answer if isinstance(answer, Exception) else None)
            assert runtime.ends[-1].entry.remark == remark
    assert [arg for _, arg in listener.executed] == ["arg"] * len(OUTCOMES)


def _given(answer, message):
    if isinstance(answer, KeyError):
        message.course.stage = Stage.ROLLED_BACK
    if isinstance(answer, Exception):
        raise answer
    return answer


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
