"""Results and exceptions of the listener, and their handling."""

from __future__ import annotations

import logging

import pytest

from tests.support.listeners import COMMIT, ROLLBACK, UNKNOWN, Answers
from txbridge import LocalTransactionState, Message, MessageExt
from txbridge.client.listener import check_failed, execute
from txbridge.core.decision_record import Decision

MESSAGE = MessageExt.for_execution(Message("orders", b"v"), "0123456789ABCDEF" * 2, 0, 1, 2)


class BrokenError(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def check(listener):
    return execute(listener.check_local_transaction, MESSAGE, failed=check_failed)


def ask_both(answer):
    """Outcomes of the local transaction and of the check."""
    listener = Answers(lambda *_: answer, lambda _: answer)
    outcomes = execute(listener.execute_local_transaction, MESSAGE, "arg"), check(listener)
    assert (listener.executed, listener.checked) == ([(MESSAGE, "arg")], [MESSAGE])
    return outcomes


def test_rocketmqs_numbers_and_both_spellings():
    assert [(state.name, state.value) for state in LocalTransactionState] == [
        ("COMMIT_MESSAGE", 8),
        ("ROLLBACK_MESSAGE", 12),
        ("UNKNOWN", 0),
    ]
    assert LocalTransactionState.UNKNOW is LocalTransactionState.UNKNOWN
    assert [str(state) for state in LocalTransactionState] == [repr(state) for state in LocalTransactionState]
    assert f"{COMMIT} {UNKNOWN!r}" == "LocalTransactionState.COMMIT_MESSAGE LocalTransactionState.UNKNOWN"


@pytest.mark.parametrize(
    ("answer", "decision"),
    [
        *((COMMIT, Decision.COMMIT), (ROLLBACK, Decision.ROLLBACK), (UNKNOWN, Decision.UNKNOWN)),
        *((True, Decision.COMMIT), (False, Decision.ROLLBACK), (None, Decision.UNKNOWN)),
    ],
)
def test_answers(answer, decision, caplog):
    for outcome in ask_both(answer):
        assert (outcome.decision, outcome.remark, outcome.exception) == (decision, None, None)
    assert not caplog.records


@pytest.mark.parametrize(("answer", "kind"), [("COMMIT_MESSAGE", "str"), (1, "int"), (0, "int"), (object, "type")])
def test_anything_else_is_unknown_and_said_aloud(answer, kind, caplog):
    for outcome, method in zip(ask_both(answer), ("execute_local", "check_local"), strict=True):
        remark = f"{method}_transaction returned {kind}, no Boolean and no LocalTransactionState: counted as unknown"
        assert (outcome.state, outcome.remark, str(outcome.exception)) == (UNKNOWN, remark, remark)
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2
    assert "0123456789ABCDEF" not in caplog.text


def test_an_exception_is_unknown_with_rocketmqs_remark(caplog):
    error = ValueError("no such account, 50 % off")
    executed, checked = (execute(Answers(error).execute_local_transaction, MESSAGE, None), check(Answers(check=error)))
    assert [(outcome.state, outcome.exception) for outcome in (executed, checked)] == [(UNKNOWN, error)] * 2
    assert executed.remark == "executeLocalTransactionBranch exception: ValueError: no such account, 50 % off"
    assert checked.remark == "checkLocalTransactionState Exception: ValueError: no such account, 50 % off"
    assert [(record.name, record.levelno, record.event, record.fields) for record in caplog.records] == [
        (
            "txbridge.client",
            logging.WARNING,
            "local_transaction_raised",
            {"transaction": "01234567", "topic": "orders"},
        ),
        (
            "txbridge.client",
            logging.WARNING,
            "check_local_transaction_raised",
            {"transaction": "01234567", "topic": "orders"},
        ),
    ]
    assert caplog.records[0].exc_info[1] is error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1)])
def test_what_is_no_exception_gets_out(error):
    with pytest.raises(type(error)):
        execute(Answers(error).execute_local_transaction, MESSAGE, None)
    with pytest.raises(type(error)):
        check(Answers(check=error))


def test_exception_without_text_and_endless_text():
    assert execute(Answers(BrokenError()).execute_local_transaction, MESSAGE, None).remark == (
        "executeLocalTransactionBranch exception: BrokenError: (its text cannot be had)"
    )
    assert len(execute(Answers(ValueError("x" * 1_000_000)).execute_local_transaction, MESSAGE, None).remark) == 2_048
