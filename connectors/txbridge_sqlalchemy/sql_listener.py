"""A listener whose local transactions are transactions of one SQL database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session, sessionmaker

from txbridge import LocalTransactionState, MessageExt, TransactionListener
from txbridge.client.barrier import (
    ANSWERS,
    BARRIER_ROW,
    COMMITTED,
    ROLLED_BACK,
    Barrier,
    Rollback,
    is_busy,
    new_barrier_id,
    report_busy,
    report_lost,
)
from txbridge.core.check_policy import DEFAULT_PATIENCE_S
from txbridge_sqlalchemy.decisions import (
    DecidedError,
    Waits,
    refuse_dirty_reads,
    refuse_mistakes,
)
from txbridge_sqlalchemy.probe import probe, probe_id
from txbridge_sqlalchemy.table import row_of, transactions
from txbridge_sqlalchemy.work import LostTransactionError, begin, checked_database

_S = TypeVar("_S", bound=Session)


class SqlTransactionListener(TransactionListener):
    """Runs local transactions in one SQL database, and answers every check from it.

    The application's function and a row with the transaction's id are committed together, so a check only has to look
    for the row. Where there is none, a check first writes one that says "rolled back", unless the message is young.
    From then on a transaction that stands still in some process cannot commit. docs/sqlalchemy.md has the details.

    Thread-safe. All processes of the producer group must use the same database, its primary, not a replica. A check
    of a message whose sender uses another database is answered "unknown", and logged as an error.
    For an AsyncEngine use AsyncSqlTransactionListener.

    Args:
        database: an Engine, or a sessionmaker that is bound to one, and to one only.
        execute: called as `execute(connection, message, arg)`, with a Session instead of the connection when a
            sessionmaker was given. It must leave commit and rollback to the listener, and let errors of the database
            through unless a savepoint contains them. It returns None or True to commit. It returns False or raises
            Rollback to roll back. Another exception rolls the database back, too, but leaves the message undecided
            until it is checked.
        check_wait: seconds that a check waits for the lock of a transaction that still runs, before it answers
            "unknown". It works on PostgreSQL only. Elsewhere the database's own lock time-out applies (SQLite:
            `timeout` of the connection, 5 s).
        patience: age in seconds of a message from which on a check that finds no row may roll it back. Before that it
            answers "unknown", because the sender may still wait for a connection or a lock. So it must be longer than
            `pool_timeout` (30 s) and the lock time-outs of the database together. The worker's checks must go on for
            longer than that (docs/sqlalchemy.md). A lost commit is found at once, whatever this is.

    Raises:
        UsageError: an argument cannot work.

    """

    @overload
    def __init__(
        self,
        database: Engine,
        execute: Callable[[Connection, MessageExt, Any], bool | None],
        *,
        check_wait: float = ...,
        patience: float = ...,
    ) -> None: ...

    @overload
    def __init__(
        self,
        database: sessionmaker[_S],
        execute: Callable[[_S, MessageExt, Any], bool | None],
        *,
        check_wait: float = ...,
        patience: float = ...,
    ) -> None: ...

    def __init__(
        self,
        database: Engine | sessionmaker[Any],
        execute: Callable[[Any, MessageExt, Any], bool | None],
        *,
        check_wait: float = 3.0,
        patience: float = DEFAULT_PATIENCE_S,
    ) -> None:
        self._database = checked_database(database, "an AsyncSqlTransactionListener")
        self._execute = execute
        self._waits = Waits(check_wait)
        self._barrier = Barrier(patience)

    def verify(self) -> None:
        """Make sure that the table is there and that a rollback works.

        The listener does it before the first transaction or check. Call it at start to learn of a mistake earlier.

        Raises:
            UsageError: the connections commit every statement by themselves (AUTOCOMMIT, or a table without
                transactions). Or they read uncommitted rows (READ UNCOMMITTED).
            sqlalchemy.exc.SQLAlchemyError: the table is missing, or the database cannot be asked.

        """
        refuse_dirty_reads(probe(self._database, row_of(probe_id(), ROLLED_BACK), self._waits.isolation_level))
        self._barrier.id = self._state_or_new(BARRIER_ROW, new_barrier_id())

    def barrier_id(self) -> str | None:
        """Identity of the table, which half messages carry. Read once, and made where the table has none."""
        self._verify_once()
        return self._barrier.id

    def execute_local_transaction(self, message: MessageExt, arg: Any) -> LocalTransactionState:
        """Run the application's function and write the transaction's row, all or nothing.

        Exceptions of the function, except Rollback, and of the database are raised after the rollback. Then the client
        counts the transaction as unknown, and a check finds its outcome, also when a commit was not answered.
        """
        self._verify_once()
        try:
            return self._run(message, arg)
        except DecidedError:
            # A check was faster, or the application has called this method twice with one message. Or the function has
            # ended the transaction by itself.
            pass
        except LostTransactionError as error:
            report_lost(message, error)
        except BaseException:
            self._barrier.note_failed(message.transaction_id)
            raise
        return self._decision_of(message)

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        """Look the transaction up. If it is not found, make sure that it cannot be committed later.

        The answer is "unknown" while the transaction still runs in some process, while it may still begin (`patience`),
        and if the sender uses another database. If the database cannot be asked, its exception is raised. The client
        logs it and counts it as unknown, too.
        """
        try:
            self._verify_once()
            found = self._read_states(message.transaction_id, BARRIER_ROW)
            answer = self._barrier.answer(message, found.get(message.transaction_id), found.get(BARRIER_ROW))
            return self._decision_of(message) if answer is None else answer
        except DBAPIError as error:
            if not is_busy(error.orig):
                raise
            report_busy(message)
            return LocalTransactionState.UNKNOW

    def _verify_once(self) -> None:
        if self._barrier.id is None:
            self.verify()

    def _run(self, message: MessageExt, arg: Any) -> LocalTransactionState:
        """Run the function. DecidedError, LostTransactionError: only the table has the outcome."""
        with begin(self._database, transactions) as work:
            # The row comes first, so that a check waits from now on until it is committed or rolled back. If it came
            # last, a check could roll back a running transaction. SQLite locks the database here, where it can wait,
            # and not halfway, where it could not.
            try:
                work.write_row(row_of(message.transaction_id, COMMITTED))
            except IntegrityError as error:
                raise DecidedError from error
            try:
                commits = self._execute(work.given, message, arg)
            except Rollback:
                commits = False
            refuse_mistakes(commits)
            if work.is_over():
                raise DecidedError
            if commits is False:
                work.transaction.rollback()
        if commits is False:
            # The rollback was too late if the function has sent COMMIT past SQLAlchemy, or a statement that commits.
            return ANSWERS[self._read_states(message.transaction_id).get(message.transaction_id, ROLLED_BACK)]
        return LocalTransactionState.COMMIT_MESSAGE

    def _decision_of(self, message: MessageExt) -> LocalTransactionState:
        """Return the decision in the table. If there is none, write a rollback first."""
        return ANSWERS[self._state_or_new(message.transaction_id, ROLLED_BACK)]

    def _state_or_new(self, row_id: str, new: str) -> str:
        """Return the state of a row. If there is none, write it with this state."""
        # Usually the row is there, and reading needs no lock.
        found = self._read_states(row_id)
        if not found:
            # Of two inserts of one id, one fails on the primary key, at any isolation level.
            try:
                with begin(self._database, transactions) as work:
                    self._waits.set_time_limits(work.connection)
                    work.write_row(row_of(row_id, new))
            except IntegrityError:
                # Read in a new transaction, whose snapshot has the row that the insert collided with.
                found = self._read_states(row_id)
                if not found:
                    raise
        return found.get(row_id, new)

    def _read_states(self, *ids: str) -> dict[str, str]:
        with begin(self._database, transactions) as work:
            return self._waits.states_of(work.connection, *ids)
