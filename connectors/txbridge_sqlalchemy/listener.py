"""A listener whose local transactions are transactions of one SQL database."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from typing import Any, TypeVar, overload

from sqlalchemy import Connection, Engine, delete, select
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session, sessionmaker

from txbridge import LocalTransactionState, MessageExt, TransactionListener
from txbridge.client.log import report
from txbridge.core.names import short_id
from txbridge.errors import UsageError
from txbridge_sqlalchemy.table import COMMITTED, ROLLED_BACK, transactions
from txbridge_sqlalchemy.work import LostTransactionError, ask, begin, refuse_two_databases

_S = TypeVar("_S", bound=Session)

_ANSWERS = {
    COMMITTED: LocalTransactionState.COMMIT_MESSAGE,
    ROLLED_BACK: LocalTransactionState.ROLLBACK_MESSAGE,
}

#: SQLSTATEs that say that somebody else is busy with the row: a lock or statement time-out, a deadlock, a serialization
#: failure. Of SQLite the names of its error codes.
_BUSY_STATES = frozenset({"55P03", "57014", "40P01", "40001"})
_BUSY_NAMES = ("SQLITE_BUSY", "SQLITE_LOCKED")


class Rollback(Exception):  # noqa: N818  it is a decision, not an error
    """Raised by the application's function to roll its transaction back, and with it the message."""


class _DecidedError(Exception):
    """The transaction id has a row already."""


class SqlTransactionListener(TransactionListener):
    """Runs local transactions in one SQL database, and answers every check from it.

    The application's function and a row with the transaction's id are committed together, so a check only has to look
    for the row. Where there is none, the check first writes one that says "rolled back": from then on a transaction
    that stands still in some process can not commit any more. docs/sqlalchemy.md tells the rest.

    Thread-safe. All processes of the producer group must use the same database, its primary, not a replica.
    Synchronous: use an Engine, not an AsyncEngine.

    Args:
        database: an Engine, or a sessionmaker that is bound to one, and to one only.
        execute: called as `execute(connection, message, arg)`, with a Session instead of the connection when a
            sessionmaker was given. It must leave commit and rollback to the listener, and let errors of the database
            through unless a savepoint contains them. It returns None or True to
            commit; it returns False or raises Rollback to roll back. Another exception rolls the database back, too,
            but leaves the message undecided until it is checked.
        check_wait: seconds that a check waits for the lock of a transaction that still runs, before it answers
            "unknown". Heeded by PostgreSQL; another database's own lock time-out applies there (SQLite: `timeout` of
            the connection, 5 s).

    """

    @overload
    def __init__(
        self,
        database: Engine,
        execute: Callable[[Connection, MessageExt, Any], bool | None],
        *,
        check_wait: float = ...,
    ) -> None: ...

    @overload
    def __init__(
        self,
        database: sessionmaker[_S],
        execute: Callable[[_S, MessageExt, Any], bool | None],
        *,
        check_wait: float = ...,
    ) -> None: ...

    def __init__(
        self,
        database: Engine | sessionmaker[Any],
        execute: Callable[[Any, MessageExt, Any], bool | None],
        *,
        check_wait: float = 3.0,
    ) -> None:
        if not isinstance(database, Engine | sessionmaker):
            raise UsageError(f"database must be an Engine or a sessionmaker, not {type(database).__name__}")
        if isinstance(database, sessionmaker):
            refuse_two_databases(database)
        if check_wait <= 0:
            raise UsageError(f"check_wait must be positive, not {check_wait}")
        self._database = database
        self._execute = execute
        self._check_wait_ms = max(1, round(check_wait * 1000))
        self._verified = False

    def verify(self) -> None:
        """Make sure that the table is there and that the database's transactions keep their word.

        Done by itself before the first transaction or check; call it at start to learn of a mistake earlier.

        Raises:
            UsageError: the connections commit every statement by themselves (AUTOCOMMIT, or a table without
                transactions), or read what others have not committed (READ UNCOMMITTED).
            sqlalchemy.exc.SQLAlchemyError: the table is missing, or the database can not be asked.

        """
        probe = f"probe {secrets.token_hex(8)}"
        with begin(self._database) as work:
            self._bound_waits(work.connection)
            work.write(probe, ROLLED_BACK)
            try:
                level = work.connection.get_isolation_level()
            except NotImplementedError:  # a dialect that can not tell
                level = None
            work.transaction.rollback()
        if self._state(probe) is not None:
            with begin(self._database) as work:
                ask(work.connection, delete(transactions).where(transactions.c.id == probe))
            raise UsageError(
                "a row of txbridge_transactions was there after a rollback: the connections commit every statement by "
                "themselves (AUTOCOMMIT), or the table knows no transactions. Give the listener an engine whose "
                "transactions can be rolled back",
            )
        if level == "READ UNCOMMITTED":
            raise UsageError(
                "the isolation level is READ UNCOMMITTED: a check could see a transaction that is rolled back later. "
                "Give the listener an engine with READ COMMITTED or more",
            )
        self._verified = True

    def execute_local_transaction(self, message: MessageExt, arg: Any) -> LocalTransactionState:
        """Run the application's function and write the transaction's row, all or nothing.

        What the function raises, except Rollback, and what the database raises gets out after the rollback, so that
        the client counts the transaction as unknown: a check will find out, also when a commit was not answered.
        """
        self._verify_once()
        try:
            answer = self._run(message, arg)
        except _DecidedError:
            # A check was faster, or the application has called this method twice with one message.
            answer = None
        except LostTransactionError:
            report(
                logging.WARNING,
                "sql_transaction_was_rolled_back",
                transaction=short_id(message.transaction_id),
                topic=message.topic,
                hint="the function caught an error that ended its transaction: use begin_nested(), or let it through",
            )
            answer = None
        if answer is not None:
            return answer
        return self._decided(message)

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        """Look the transaction up; where it is not found, make sure that it can not be committed later.

        "Unknown" when the transaction still runs in some process. It raises what the database raises when it can not
        be asked, which the client counts as unknown, too, and logs.
        """
        try:
            self._verify_once()
            return self._decided(message)
        except DBAPIError as error:
            if not _is_busy(error):
                raise
            report(
                logging.INFO,
                "sql_transaction_still_runs",
                transaction=short_id(message.transaction_id),
                topic=message.topic,
                check_times=message.check_times,
            )
            return LocalTransactionState.UNKNOW

    def _verify_once(self) -> None:
        if not self._verified:
            self.verify()

    def _run(self, message: MessageExt, arg: Any) -> LocalTransactionState | None:
        """None when the function has ended the database's transaction by itself: then only the table knows."""
        with begin(self._database) as work:
            # First of all. A check that comes now waits for this row's fate; written last, the row would let a check
            # roll back what runs. And SQLite locks the database here, not halfway, where it could not wait.
            try:
                work.write(message.transaction_id, COMMITTED)
            except IntegrityError as error:
                raise _DecidedError from error
            try:
                commits = self._execute(work.given, message, arg)
            except Rollback:
                commits = False
            if commits is not None and not isinstance(commits, bool):
                raise UsageError(
                    "the function of a SqlTransactionListener returns None or True to commit and False to roll back, "
                    f"not {type(commits).__name__}: rolled back",
                )
            if not work.transaction.is_active:
                return None
            if commits is False:
                work.transaction.rollback()
        if commits is False:
            # Too late if the function has sent COMMIT past SQLAlchemy, or a statement that commits.
            return _ANSWERS[self._state(message.transaction_id) or ROLLED_BACK]
        return LocalTransactionState.COMMIT_MESSAGE

    def _decided(self, message: MessageExt) -> LocalTransactionState:
        """What the table says; from now on at least "rolled back"."""
        # Mostly it is there, and reading needs no lock.
        state = self._state(message.transaction_id)
        if state is None:
            # Of two inserts of one id, one fails on the primary key, at any isolation level.
            try:
                with begin(self._database) as work:
                    self._bound_waits(work.connection)
                    work.write(message.transaction_id, ROLLED_BACK)
                state = ROLLED_BACK
            except IntegrityError:
                # In a transaction of its own, whose snapshot has what the insert collided with.
                state = self._state(message.transaction_id)
                if state is None:
                    raise
        return _ANSWERS[state]

    def _state(self, transaction_id: str) -> str | None:
        with begin(self._database) as work:
            self._bound_waits(work.connection)
            query = select(transactions.c.state).where(transactions.c.id == transaction_id)
            return ask(work.connection, query).scalar_one_or_none()

    def _bound_waits(self, connection: Connection) -> None:
        if connection.dialect.name == "postgresql":
            # An insert waits for a transaction that has inserted the same id and has not ended, and everything waits
            # for a migration of the table. Without a bound they would block the thread of the checks as long. LOCAL:
            # until the commit.
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = {self._check_wait_ms}")
            connection.exec_driver_sql(f"SET LOCAL statement_timeout = {2 * self._check_wait_ms}")


def _is_busy(error: DBAPIError) -> bool:
    """Whether the database works, but somebody else has the lock; psycopg, psycopg2 and sqlite3 tell."""
    cause: Any = error.orig
    state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    name = getattr(cause, "sqlite_errorname", None) or ""
    return state in _BUSY_STATES or str(name).startswith(_BUSY_NAMES)
