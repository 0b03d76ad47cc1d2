"""The steps of a listener with a barrier table. Those for SQLAlchemy and Django add how their database is asked."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from txbridge.client.answers import G, LocalTransactionState, Rollback, RolledBackByCheck, Stage, Stored
from txbridge.client.barrier import ANSWERS, BARRIER_ROW, COMMITTED, ROLLED_BACK, Barrier, PurgedError, is_busy
from txbridge.client.base.log import report
from txbridge.client.errors import AlreadyDoneError
from txbridge.client.listener import Opened, TransactionListener
from txbridge.client.message import MessageExt
from txbridge.errors import UsageError


class RowDecidesError(Exception):
    """Only the table has the outcome, because the row was there already."""


class LostTransactionError(Exception):
    """The transaction that wrote the row is over, or cannot be committed. The open part is rolled back."""


class BarrierListener(TransactionListener[G]):
    """Runs local transactions that write a row of a barrier table, and answers every check from the table."""

    def __init__(self, patience: float, function: Callable[..., Any] | None = None) -> None:
        self._barrier = Barrier(patience)
        self._function = function

    @abstractmethod
    def verify(self) -> None:
        """Make sure that the table is there and that a rollback works, and set the identity of the table."""

    @abstractmethod
    def _open_row(self, message: MessageExt) -> AbstractContextManager[Opened[G]]:
        """Write the row, and commit it with what the block does; roll both back on an exception.

        Keeps the stage of `message.course`: OPEN when the block begins, and so on.

        Raises RowDecidesError and LostTransactionError. The row comes first, so that a check waits from then on until
        it is committed or rolled back. If it came last, a check could roll back a running transaction. SQLite locks the
        database for the row, where it can wait, and not halfway, where it could not.
        """

    @abstractmethod
    def _read_states(self, *ids: str) -> dict[str, str]:
        """The states in the table by id. An id without a row is left out. Waits no longer than a check may."""

    @abstractmethod
    def _read_ids(self, least: str, greatest: str) -> list[str]:
        """The ids in the table within these bounds, as `_read_states` reads."""

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

    def refuse_repeat(self, row_id: str) -> None:
        self._verify_once()
        if half := self._read_states(row_id).get(row_id):
            raise AlreadyDoneError(next(iter(self._read_ids(f"{half:0<32}", f"{half:F<32}")), half))

    def execute_local_transaction(self, message: MessageExt, arg: Any) -> LocalTransactionState | Stored:
        """Run the application's function and write the transaction's row, all or nothing.

        Exceptions of the function and of the database are raised after the rollback. The client rolls the message
        back, too, with the exception as `local_exception`; RolledBackByCheck if a check was first. Only if COMMIT was
        not answered, or the function has committed by itself, it counts as unknown, and a check finds the outcome.
        """
        if self._function is None:
            raise UsageError("the listener has no function for its local transactions: give it one, or announce")
        try:
            with self.open_transaction(message) as opened:
                require_commit(self._function(*opened.given, opened.message, arg))
        except (RowDecidesError, LostTransactionError, Rollback):
            if message.course.stage is not Stage.COMMITTED:
                raise
            return LocalTransactionState.COMMIT_MESSAGE
        return LocalTransactionState.COMMIT_MESSAGE if opened.message.has_half else Stored()

    @contextmanager
    def open_transaction(self, message: MessageExt) -> Iterator[Opened[G]]:
        """Write the transaction's row with what the block does, all or nothing.

        What goes wrong is raised, and the stage of `message.course` says what is certain: ROLLED_BACK, or COMMITTED if
        it was too late to roll back, because the block has sent COMMIT as text, or a statement that commits.
        """
        course = message.course
        course.stage = Stage.BEFORE
        try:
            self._verify_once()
            with self._open_row(message) as opened:
                yield opened
        except RowDecidesError:
            self._find_repeat(message)
            # A check was faster, or the application has called this method twice with one message.
            if (decision := self._decision_of(message)) is not LocalTransactionState.ROLLBACK_MESSAGE:
                course.stage = Stage.COMMITTED if decision is LocalTransactionState.COMMIT_MESSAGE else course.stage
                raise
            report(
                logging.WARNING,
                "check_was_first",
                **message.log_fields,
                next="rolled back, without effect; the sender may send it again",
            )
            raise RolledBackByCheck(
                "a check was first and has rolled the transaction back, without effect: send it again"
            ) from None
        except BaseException as error:
            if is_busy(error.__cause__):
                # At some isolation levels the end of the first one is a conflict.
                self._find_repeat(message)
            self._barrier.note_failed(message.transaction_id)
            if self._is_committed(message, error) and not message.has_half:
                raise UsageError(
                    "the function has committed by itself, before the message was added to the outbox: it is not sent. "
                    "Leave COMMIT to txbridge"
                ) from error
            if isinstance(error, LostTransactionError) and course.stage is Stage.ROLLED_BACK:
                report(logging.WARNING, "sql_transaction_was_rolled_back", **message.log_fields, hint=str(error))
            raise
        if not message.has_half and self.forwarding is not None:
            self.forwarding.count_stored()

    def _find_repeat(self, message: MessageExt) -> None:
        """Raise AlreadyDoneError if the rows were not written because the key was committed before."""
        course = message.course
        if course.once is not None and course.stage is Stage.BEFORE:
            try:
                self.refuse_repeat(course.once)
            except AlreadyDoneError as error:
                if error.transaction_id == message.transaction_id:
                    return  # the application has called this method twice with one message
                self._barrier.note_failed(message.transaction_id)
                course.stage = Stage.ROLLED_BACK
                raise

    def _is_committed(self, message: MessageExt, error: BaseException) -> bool:
        """Whether the table says that a transaction which has failed is committed. Notes if it is rolled back."""
        course, state = message.course, ROLLED_BACK
        if course.stage is Stage.COMMITTING:
            return False
        if course.stage is not Stage.BEFORE and isinstance(error, Exception):
            # The server has no transaction of this connection any more, or none that will be committed.
            try:
                state = self._read_states(message.transaction_id).get(message.transaction_id, ROLLED_BACK)
            except Exception:
                if course.stage is Stage.ENDED:
                    raise
        elif course.stage is Stage.ENDED:
            # Interrupted: this must not wait for a connection.
            return False
        course.stage = Stage.COMMITTED if state == COMMITTED else Stage.ROLLED_BACK
        return state == COMMITTED

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
            report(logging.INFO, "sql_transaction_still_runs", **message.log_fields)
            return LocalTransactionState.UNKNOWN

    def _verify_once(self) -> None:
        """Verify the table before the first transaction or check."""
        self.barrier_id()

    def _decision_of(self, message: MessageExt) -> LocalTransactionState:
        """Return the decision in the table. If there is none, write a rollback first, unless a purge was there."""
        try:
            return ANSWERS[self._state_or_new(message.transaction_id, ROLLED_BACK, message.born_timestamp)]
        except PurgedError:
            report(
                logging.ERROR,
                "check_after_purge",
                **message.log_fields,
                next="answered unknown; it stays undecided",
                hint="a purge of txbridge_transactions has deleted rows of messages as old as this one: look for the "
                "data of the transaction, and decide by hand (txbridge resolve)",
            )
            return LocalTransactionState.UNKNOWN

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


def require_commit(returned: object) -> None:
    """Raise Rollback for False, and UsageError for no decision: the function has returned this."""
    if returned is False:
        raise Rollback
    if returned is not None and returned is not True:
        raise UsageError(
            "the function of a transactional message returns None or True to commit and False to roll back, not "
            f"{type(returned).__name__}: rolled back"
        )
