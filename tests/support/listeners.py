"""Listeners that many tests need."""

from __future__ import annotations

from txbridge import LocalTransactionState, TransactionListener


class Commits(TransactionListener):
    """Commits every transaction."""

    def execute_local_transaction(self, message: object, arg: object) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE

    def check_local_transaction(self, message: object) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE
