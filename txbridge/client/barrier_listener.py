"""The steps of a listener with a barrier table. Those for SQLAlchemy and Django add how their database is asked."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from txbridge.client.barrier import (
    ANSWERS,
    BARRIER_ROW,
    ROLLED_BACK,
    Barrier,
    PurgedError,
    Rollback,
    is_busy,
    report_busy,
    report_lost,
    report_purged,
)
from txbridge.client.listener import LocalTransactionState, SendStatus, TransactionListener
from txbridge.client.message import MessageExt
from txbridge.errors import UsageError


class RowDecidesError(Exception):
    """Only the table has the outcome: the row was there already, or the function has ended the transaction itself."""


class LostTransactionError(Exception):
    """The transaction that wrote the row is over, or cannot be committed. The open part is rolled back."""


class BarrierListener(TransactionListener):
    """Runs local transactions that write a row of a barrier table, and answers every check from the table."""

    def __init__(self, patience: float) -> None:
        self._barrier = Barrier(patience)

    @abstractmethod
    def verify(self) -> None:
        """Make sure that the table is there and that a rollback works, and set the identity of the table."""

    @abstractmethod
    def _run(self, message: MessageExt, arg: Any) -> bool:
        """Write the row and run the function, in one transaction; whether it is committed.

        Raises RowDecidesError and LostTransactionError. The row comes first, so that a check waits from then on until
        it is committed or rolled back. If it came last, a check could roll back a running transaction. SQLite locks the
        database for the row, where it can wait, and not halfway, where it could not.
        """

    @abstractmethod
    def _read_states(self, *ids: str) -> dict[str, str]:
        """The states in the table by id. An id without a row is left out. Waits no longer than a check may."""

    @abstractmethod
    def _write_state(self, row_id: str, state: str, born: int | None) -> None:
        """Write a row. Raises RowDecidesError, from the database's own error, if it is there.

        Raises PurgedError if it may have been there (`refuse_purged`). The mark is read after the row is written, in
        the same transaction: client/barrier_purge.py.
        """

    def barrier_id(self) -> str | None:
        """Identity of the table, which half messages carry. Read once, and made where the table has none."""
        if self._barrier.id is None:
            self.verify()
        return self._barrier.id

    def execute_local_transaction(self, message: MessageExt, arg: Any) -> LocalTransactionState | SendStatus:
        """Run the application's function and write the transaction's row, all or nothing.

        Exceptions of the function, except Rollback, and of the database are raised after the rollback. Then the client
        counts the transaction as unknown, and a check finds its outcome, also when a commit was not answered.
        """
        self._verify_once()
        try:
            if self._run(message, arg):
                if message.has_half or self.forwarding is None:
                    return LocalTransactionState.COMMIT_MESSAGE
                self.forwarding.count_stored()
                return SendStatus.STORED
            # The rollback was too late if the function has sent COMMIT as text, or a statement that commits.
            answer = ANSWERS[self._read_states(message.transaction_id).get(message.transaction_id, ROLLED_BACK)]
        except RowDecidesError:
            # A check was faster, or the application has called this method twice with one message. Or the function has
            # ended the transaction by itself.
            answer = self._decision_of(message)
        except LostTransactionError as error:
            report_lost(message, error)
            answer = self._decision_of(message)
        except BaseException:
            self._barrier.note_failed(message.transaction_id)
            raise
        if answer is LocalTransactionState.COMMIT_MESSAGE and not message.has_half:
            raise UsageError(
                "the function has committed by itself, before the message was added to the outbox: it is not sent. "
                "Leave COMMIT to txbridge"
            )
        return answer

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        """Look the transaction up. If it is not found, make sure that it cannot be committed later.

        The answer is "unknown" while the transaction still runs in some process, while it may still begin (`patience`),
        if the sender uses another database, and if a purge may have deleted the row. If the database cannot be asked,
        its exception is raised. The client logs it and counts it as unknown, too.
        """
        try:
            self._verify_once()
            found = self._read_states(message.transaction_id, BARRIER_ROW)
            answer = self._barrier.answer(message, found.get(message.transaction_id), found.get(BARRIER_ROW))
            return self._decision_of(message) if answer is None else answer
        except Exception as error:
            # Both libraries raise errors of their own from the driver's.
            if not is_busy(error.__cause__):
                raise
            report_busy(message)
            return LocalTransactionState.UNKNOW

    def _verify_once(self) -> None:
        """Verify the table before the first transaction or check."""
        self.barrier_id()

    def _decision_of(self, message: MessageExt) -> LocalTransactionState:
        """Return the decision in the table. If there is none, write a rollback first, unless a purge was there."""
        try:
            return ANSWERS[self._state_or_new(message.transaction_id, ROLLED_BACK, message.born_timestamp)]
        except PurgedError:
            report_purged(message)
            return LocalTransactionState.UNKNOW

    def _state_or_new(self, row_id: str, new: str, born: int | None) -> str:
        """Return the state of a row. If there is none, write it with this state."""
        # Usually the row is there, and reading needs no lock.
        found = self._read_states(row_id)
        if not found:
            # Of two inserts of one id, one fails on the primary key, at any isolation level.
            try:
                self._write_state(row_id, new, born)
            except RowDecidesError as error:
                # Read in a new transaction, whose snapshot has the row that the insert collided with.
                found = self._read_states(row_id)
                if not found:
                    raise error.__cause__ or error from None
        return found.get(row_id, new)


def wants_commit(function: Callable[..., bool | None], *args: Any) -> bool:
    """Call the application's function; whether it wants to commit. Raises UsageError if it has returned no decision."""
    try:
        commits = function(*args)
    except Rollback:
        return False
    if commits is not None and not isinstance(commits, bool):
        raise UsageError(
            "the function of a transactional message returns None or True to commit and False to roll back, "
            f"not {type(commits).__name__}: rolled back"
        )
    return commits is not False
