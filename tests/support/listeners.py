"""Listeners that many tests need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from txbridge import AsyncTransactionListener, LocalTransactionState, MessageExt, Rollback, TransactionListener
from txbridge.client.barrier_listener import LostTransactionError

COMMIT, ROLLBACK = LocalTransactionState.COMMIT_MESSAGE, LocalTransactionState.ROLLBACK_MESSAGE
UNKNOWN = LocalTransactionState.UNKNOWN


def answer_of(run: Callable[..., Any], *arguments: Any) -> Any:
    """What a local transaction answers, where its reason does not matter: Rollback and a lost one are ROLLBACK."""
    try:
        return run(*arguments)
    except (Rollback, LostTransactionError):
        return ROLLBACK


class Answers(TransactionListener):
    """Gives the answers that it was made with, and keeps its arguments. Exceptions are raised, and functions called.

    Without an answer for the local transaction, the argument of the send is the answer.
    """

    def __init__(self, execute: Any = COMMIT, check: Any = COMMIT) -> None:
        self.execute, self.check = execute, check
        self.executed: list[tuple[MessageExt, Any]] = []
        self.checked: list[MessageExt] = []

    def execute_local_transaction(self, message: MessageExt, arg: Any) -> LocalTransactionState:
        self.executed.append((message, arg))
        return arg if self.execute is None else _given(self.execute, message, arg)

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        self.checked.append(message)
        return _given(self.check, message)


def _given(answer: Any, *arguments: Any) -> Any:
    if isinstance(answer, BaseException):
        raise answer
    return answer(*arguments) if callable(answer) else answer


class Commits(TransactionListener):
    """Commits every transaction, and keeps nothing."""

    def execute_local_transaction(self, message: object, arg: object) -> LocalTransactionState:
        return COMMIT

    def check_local_transaction(self, message: object) -> LocalTransactionState:
        return COMMIT


class AsyncCommits(AsyncTransactionListener):
    """The same for the asyncio API."""

    async def execute_local_transaction(self, message: object, arg: object) -> LocalTransactionState:
        return COMMIT

    async def check_local_transaction(self, message: object) -> LocalTransactionState:
        return COMMIT
