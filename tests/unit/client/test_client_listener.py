"""Results and exceptions of the listener, and their handling."""

from __future__ import annotations

import logging

import pytest

from txbridge import LocalTransactionState, Message, MessageExt, TransactionListener
from txbridge.client.listener import check, execute
from txbridge.core.decision_record import Decision

MESSAGE = MessageExt.for_execution(Message("orders", b"v"), "0123456789ABCDEF" * 2, 0, 1, 2)


class Listener(TransactionListener):
    """A listener with a given answer. An exception is raised."""

    def __init__(self, answer):
        self.answer = answer
        self.given = []

    def execute_local_transaction(self, message, arg):
        self.given.append((message, arg))
        return self._answered()

    def check_local_transaction(self, message):
        self.given.append((message,))
        return self._answered()

    def _answered(self):
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


class BrokenError(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def test_rocketmqs_numbers_and_both_spellings():
    assert LocalTransactionState.COMMIT_MESSAGE.value == 8
    assert LocalTransactionState.ROLLBACK_MESSAGE.value == 12
    assert LocalTransactionState.UNKNOW.value == 0
    assert LocalTransactionState.UNKNOWN is LocalTransactionState.UNKNOW
    assert [state.name for state in LocalTransactionState] == ["COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"]


@pytest.mark.parametrize(
    ("answer", "decision"),
    [
        (LocalTransactionState.COMMIT_MESSAGE, Decision.COMMIT),
        (LocalTransactionState.ROLLBACK_MESSAGE, Decision.ROLLBACK),
        (LocalTransactionState.UNKNOWN, Decision.UNKNOWN),
        (None, Decision.UNKNOWN),
    ],
)
def test_answers(answer, decision, caplog):
    for call in (lambda listener: execute(listener, MESSAGE, "arg"), lambda listener: check(listener, MESSAGE)):
        outcome = call(Listener(answer))
        assert outcome.decision is decision
        assert outcome.remark is None
        assert outcome.exception is None
    assert not caplog.records


def test_message_and_argument_are_passed_on():
    listener = Listener(None)
    execute(listener, MESSAGE, "arg")
    check(listener, MESSAGE)
    assert listener.given == [(MESSAGE, "arg"), (MESSAGE,)]


def test_exception_of_the_local_transaction_is_unknown_with_rocketmqs_remark(caplog):
    error = ValueError("no such account, 50 % off")
    outcome = execute(Listener(error), MESSAGE, None)
    assert outcome.state is LocalTransactionState.UNKNOW
    assert outcome.remark == "executeLocalTransactionBranch exception: ValueError: no such account, 50 % off"
    assert outcome.exception is error
    [record] = caplog.records
    assert record.name == "txbridge.client"
    assert record.levelno == logging.WARNING
    assert record.event == "local_transaction_raised"
    assert record.fields == {"transaction": "01234567", "topic": "orders"}
    assert record.exc_info[1] is error


def test_exception_of_a_check_is_unknown_with_rocketmqs_remark(caplog):
    outcome = check(Listener(KeyError("row")), MESSAGE)
    assert outcome.state is LocalTransactionState.UNKNOW
    assert outcome.remark == "checkLocalTransactionState Exception: KeyError: 'row'"
    assert [record.event for record in caplog.records] == ["check_local_transaction_raised"]


@pytest.mark.parametrize(("answer", "kind"), [(True, "bool"), ("COMMIT_MESSAGE", "str"), (8, "int"), (object, "type")])
def test_anything_else_is_unknown_and_said_aloud(answer, kind, caplog):
    outcome = execute(Listener(answer), MESSAGE, None)
    assert outcome.state is LocalTransactionState.UNKNOW
    assert outcome.remark == (
        f"execute_local_transaction returned {kind}, not a LocalTransactionState: counted as unknown"
    )
    assert outcome.exception is None
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "0123456789ABCDEF" not in caplog.text


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1)])
def test_what_is_no_exception_gets_out(error):
    with pytest.raises(type(error)):
        execute(Listener(error), MESSAGE, None)
    with pytest.raises(type(error)):
        check(Listener(error), MESSAGE)


def test_exception_without_text_and_endless_text(caplog):
    assert execute(Listener(BrokenError()), MESSAGE, None).remark == (
        "executeLocalTransactionBranch exception: BrokenError: (its text cannot be had)"
    )
    long = execute(Listener(ValueError("x" * 1_000_000)), MESSAGE, None)
    assert len(long.remark) == 2_048
    assert isinstance(long.exception, ValueError)
