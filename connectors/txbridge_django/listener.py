"""A listener whose local transactions are `transaction.atomic` blocks of one database."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from django.db import DatabaseError, IntegrityError, OperationalError, close_old_connections, connections, transaction

from txbridge import LocalTransactionState, MessageExt, TransactionListener
from txbridge.client.log import report
from txbridge.core.names import short_id
from txbridge.errors import UsageError
from txbridge_django.models import COMMITTED, ROLLED_BACK, Transaction
from txbridge_django.rollback import Rollback

#: The `arg` of a message: the application's function and its argument.
Call = tuple[Callable[[MessageExt, Any], bool | None], Any]

_ANSWERS = {
    COMMITTED: LocalTransactionState.COMMIT_MESSAGE,
    ROLLED_BACK: LocalTransactionState.ROLLBACK_MESSAGE,
}
#: SQLSTATEs as in txbridge_sqlalchemy: a lock or statement time-out, a deadlock, a serialization failure.
_BUSY_STATES = frozenset({"55P03", "57014", "40P01", "40001"})
_BUSY_NAMES = ("SQLITE_BUSY", "SQLITE_LOCKED")


class _DecidedError(Exception):
    """The transaction id has a row already."""


class _LostError(Exception):
    """The database has rolled the transaction back before its COMMIT."""


class DjangoTransactionListener(TransactionListener):
    """Runs local transactions in one of Django's databases, and answers every check from its table.

    The rules are those of txbridge_sqlalchemy.SqlTransactionListener (docs/sqlalchemy.md). The row is written first, in
    the transaction of the function. A check that finds no row writes one that says "rolled back", and only then answers
    rollback.
    """

    def __init__(self, database: str, check_wait: float) -> None:
        self._database = database
        self._check_wait_ms = max(1, round(check_wait * 1000))

    def verify(self) -> None:
        """Raise UsageError if the table is not there."""
        try:
            self._state("")
        except OperationalError as error:
            if "no such table" not in str(error):
                raise
            raise UsageError(_MIGRATE) from None
        except DatabaseError as error:
            raise UsageError(f"{_MIGRATE} ({error})") from None

    def execute_local_transaction(self, message: MessageExt, arg: Call) -> LocalTransactionState:
        function, given = arg
        try:
            return self._run(message, function, given)
        except _DecidedError:
            # A check was faster.
            pass
        except _LostError:
            report(
                logging.WARNING,
                "sql_transaction_was_rolled_back",
                transaction=short_id(message.transaction_id),
                topic=message.topic,
                hint="the function caught an error that ended its transaction: use atomic(), or let it through",
            )
        return self._decided(message)

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        # This thread serves no request, so Django does not close its old connections.
        close_old_connections()
        try:
            return self._decided(message)
        except DatabaseError as error:
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
        finally:
            close_old_connections()

    def _run(
        self, message: MessageExt, function: Callable[[MessageExt, Any], bool | None], given: Any
    ) -> LocalTransactionState:
        rows = Transaction.objects.using(self._database)
        try:
            with transaction.atomic(using=self._database, durable=True):
                # The row comes first: a check waits for it from now on, and SQLite takes its lock where it can wait.
                self._write(message, COMMITTED)
                commits = function(message, given)
                if commits is not None and not isinstance(commits, bool):
                    raise UsageError(
                        "the function of a transactional message returns None or True to commit and False to roll "
                        f"back, not {type(commits).__name__}: rolled back"
                    )
                if commits is False or transaction.get_rollback(using=self._database):
                    raise Rollback  # noqa: TRY301  what atomic() must see
                # After an error that was caught, PostgreSQL answers COMMIT with ROLLBACK and reports no error. SQLite
                # may have ended the transaction by itself.
                if not self._is_there(rows.filter(id=message.transaction_id, state=COMMITTED)):
                    raise _LostError
        except Rollback:
            return LocalTransactionState.ROLLBACK_MESSAGE
        return LocalTransactionState.COMMIT_MESSAGE

    @staticmethod
    def _is_there(rows: Any) -> bool:
        try:
            return bool(rows.exists())
        except DatabaseError as error:
            raise _LostError from error

    def _write(self, message: MessageExt, state: str) -> None:
        row = Transaction(id=message.transaction_id, state=state, created_at=time.time_ns() // 1_000_000)
        try:
            row.save(using=self._database, force_insert=True)
        except IntegrityError as error:
            raise _DecidedError from error

    def _decided(self, message: MessageExt) -> LocalTransactionState:
        """Return the decision in the table. If there is none, write a rollback first."""
        state = self._state(message.transaction_id)
        if state is None:
            try:
                with transaction.atomic(using=self._database, durable=True):
                    self._bound_waits()
                    self._write(message, ROLLED_BACK)
                state = ROLLED_BACK
            except _DecidedError as error:
                state = self._state(message.transaction_id)
                if state is None:
                    raise error.__cause__ or error from None
        return _ANSWERS[state]

    def _state(self, transaction_id: str) -> str | None:
        with transaction.atomic(using=self._database, durable=True):
            self._bound_waits()
            rows = Transaction.objects.using(self._database).filter(id=transaction_id)
            state: str | None = rows.values_list("state", flat=True).first()
            return state

    def _bound_waits(self) -> None:
        connection = connections[self._database]
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute(f"SET LOCAL lock_timeout = {self._check_wait_ms}")
                cursor.execute(f"SET LOCAL statement_timeout = {2 * self._check_wait_ms}")


_MIGRATE = "the table txbridge_transactions cannot be read: run `manage.py migrate`"


def _is_busy(error: DatabaseError) -> bool:
    """Whether the error is a conflict with another transaction, as psycopg, psycopg2 and sqlite3 report it."""
    cause: Any = error.__cause__
    state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    name = getattr(cause, "sqlite_errorname", None) or ""
    return state in _BUSY_STATES or str(name).startswith(_BUSY_NAMES)
