"""Local transactions that tests need in many places."""

from __future__ import annotations

from txbridge import LocalTransactionState, TransactionListener


class Commits(TransactionListener):
    """Commits everything."""

    def execute_local_transaction(self, message: object, arg: object) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE

    def check_local_transaction(self, message: object) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE
