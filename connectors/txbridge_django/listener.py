"""A listener whose local transactions are `transaction.atomic` blocks of one database."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from django.db import DatabaseError, IntegrityError, OperationalError, close_old_connections, connections, transaction

from txbridge import LocalTransactionState, MessageExt, TransactionListener
from txbridge.client.barrier import (
    ANSWERS,
    BARRIER_ROW,
    COMMITTED,
    NEVER_PURGED,
    ROLLED_BACK,
    Barrier,
    new_barrier_id,
)
from txbridge.client.log import report
from txbridge.core.check_policy import DEFAULT_PATIENCE_S
from txbridge.core.names import short_id
from txbridge.errors import UsageError
from txbridge_django.models import Transaction
from txbridge_django.rollback import Rollback

#: The `arg` of a message: the application's function and its argument.
Call = tuple[Callable[[MessageExt, Any], bool | None], Any]

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
    the transaction of the function. A check that finds no row, although the message is older than `patience` (s),
    writes one that says "rolled back", and only then answers rollback.
    """

    def __init__(self, database: str, check_wait: float, patience: float = DEFAULT_PATIENCE_S) -> None:
        self._database = database
        self._check_wait_ms = max(1, round(check_wait * 1000))
        self._barrier = Barrier(patience)

    def verify(self) -> None:
        """Read the identity of the table, or give it one. Raises UsageError if the table is not there."""
        try:
            self._barrier.id = self._state_or_new(BARRIER_ROW, new_barrier_id())
        except OperationalError as error:
            if "no such table" not in str(error):
                raise
            raise UsageError(_MIGRATE) from None
        except DatabaseError as error:
            raise UsageError(f"{_MIGRATE} ({error})") from None

    def barrier_id(self) -> str | None:
        """Identity of the table, which half messages carry."""
        if self._barrier.id is None:
            self.verify()
        return self._barrier.id

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
        except BaseException:
            self._barrier.note_failed(message.transaction_id)
            raise
        return self._decided(message)

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        # This thread serves no request, so Django does not close its old connections.
        close_old_connections()
        try:
            found = self._states(message.transaction_id, BARRIER_ROW)
            answer = self._barrier.answer(message, found.get(message.transaction_id), found.get(BARRIER_ROW))
            return self._decided(message) if answer is None else answer
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
                self._write(message.transaction_id, COMMITTED)
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

    def _write(self, row_id: str, state: str) -> None:
        created_at = NEVER_PURGED if row_id == BARRIER_ROW else time.time_ns() // 1_000_000
        row = Transaction(id=row_id, state=state, created_at=created_at)
        try:
            row.save(using=self._database, force_insert=True)
        except IntegrityError as error:
            raise _DecidedError from error

    def _decided(self, message: MessageExt) -> LocalTransactionState:
        """Return the decision in the table. If there is none, write a rollback first."""
        return ANSWERS[self._state_or_new(message.transaction_id, ROLLED_BACK)]

    def _state_or_new(self, row_id: str, new: str) -> str:
        """Return the state of a row. If there is none, write it with this state."""
        found = self._states(row_id)
        if not found:
            try:
                with transaction.atomic(using=self._database, durable=True):
                    self._bound_waits()
                    self._write(row_id, new)
            except _DecidedError as error:
                found = self._states(row_id)
                if not found:
                    raise error.__cause__ or error from None
        return found.get(row_id, new)

    def _states(self, *ids: str) -> dict[str, str]:
        """The states in the table by id. An id without a row is left out."""
        with transaction.atomic(using=self._database, durable=True):
            self._bound_waits()
            rows = Transaction.objects.using(self._database).filter(id__in=ids)
            return dict(rows.values_list("id", "state"))

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
