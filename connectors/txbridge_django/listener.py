"""A listener whose local transactions are `transaction.atomic` blocks of one database."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from django.db import DatabaseError, IntegrityError, OperationalError, close_old_connections, connections, transaction

from txbridge import LocalTransactionState, MessageExt, Rollback
from txbridge.client.answers import Stage
from txbridge.client.barrier import (
    BARRIER_ROW,
    COMMITTED,
    NEVER_PURGED,
    PURGED_ROW,
    ROLLED_BACK,
    creation_time,
    is_in_transaction,
    new_barrier_id,
    refuse_purged,
)
from txbridge.client.barrier_listener import BarrierListener, LostTransactionError, RowDecidesError
from txbridge.client.forwarding import Forwarding
from txbridge.client.listener import Opened
from txbridge.core.check_policy import DEFAULT_PATIENCE_S
from txbridge.errors import UsageError
from txbridge_django.conf import refuse_autocommit_off
from txbridge_django.models import Transaction
from txbridge_django.outbox import add


class DjangoTransactionListener(BarrierListener):
    """Runs local transactions in one of Django's databases, and answers every check from its table.

    The rules are those of txbridge_sqlalchemy.SqlTransactionListener (docs/sqlalchemy.md). The row is written first, in
    the transaction of the function. A check that finds no row, although the message is older than `patience` (s),
    writes one that says "rolled back", and only then answers rollback.
    """

    def __init__(
        self, database: str, check_wait: float, patience: float = DEFAULT_PATIENCE_S, *, has_kafka: bool = True
    ) -> None:
        super().__init__(patience)
        self.forwarding = None if has_kafka else Forwarding()
        self._database = database
        self._check_wait_ms = max(1, round(check_wait * 1000))

    def verify(self) -> None:
        """Read the identity of the table, or give it one.

        Raises UsageError if the table is not there, or if it has no transactions.
        """
        connection = connections[self._database]
        was_open = connection.connection is not None
        probe = f"probe {secrets.token_hex(8)}"
        try:
            with suppress(Rollback), self._open_transaction():
                self._bound_waits()
                self._write_row(probe, ROLLED_BACK, None)
                raise Rollback
            stays, _ = self._all_rows().filter(id=probe).delete()
            if stays:
                raise UsageError(_NO_TRANSACTIONS)
            self._barrier.id = self._state_or_new(BARRIER_ROW, new_barrier_id(), NEVER_PURGED)
        except OperationalError as error:
            if "no such table" not in str(error):
                raise
            raise UsageError(_MIGRATE) from None
        except DatabaseError as error:
            raise UsageError(f"{_MIGRATE} ({error})") from None
        finally:
            if not was_open:
                # A server that loads wsgi.py before it forks would share this connection among its web processes.
                connection.close()

    def _verify_once(self) -> None:
        """Do nothing: the producer of a process verifies the table before it starts."""

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        # This thread serves no request, so Django does not close its old connections. It may be that of a TestCase.
        close = (lambda: None) if connections[self._database].in_atomic_block else close_old_connections
        close()
        try:
            return super().check_local_transaction(message)
        finally:
            close()

    @contextmanager
    def _open_row(self, message: MessageExt) -> Iterator[Opened]:
        connection, course = connections[self._database], message.course
        try:
            with self._open_transaction():
                earlier_error = connection.rollback_exc
                xid = self._write_row(message.transaction_id, COMMITTED, message.born_timestamp)
                if course.once is not None:
                    self._write_row(course.once, message.transaction_id[:16], message.born_timestamp)
                course.stage = Stage.OPEN
                opened = Opened[Any](message, (), None if self.forwarding is None else list(message.messages))
                try:
                    with connection.execute_wrapper(_refuse_after_the_end):
                        yield opened
                        if opened.added and not connection.needs_rollback:
                            add(*opened.added)
                finally:
                    if connection.closed_in_transaction or not is_in_transaction(connection.connection):
                        course.stage = Stage.ENDED
                self._require_committable(message, xid, earlier_error)
                course.stage = Stage.COMMITTING
        except (DatabaseError, LostTransactionError) as error:
            # COMMIT was not sent, or it has failed, unless Django has closed a connection that did not answer it. Or
            # the error is that of a hook after COMMIT.
            is_answered = isinstance(error, LostTransactionError) or connection.connection is not None
            if course.stage is Stage.COMMITTING and is_answered:
                course.stage = Stage.ENDED
            raise

    @contextmanager
    def _open_transaction(self) -> Iterator[None]:
        """A transaction that is committed at the end. Raises LostTransactionError if COMMIT was not sent."""
        connection = connections[self._database]
        refuse_autocommit_off(self._database)
        was_in_a_test_case = connection.in_atomic_block
        try:
            with transaction.atomic(using=self._database, durable=True):
                yield
        finally:
            is_open = connection.in_atomic_block and not was_in_a_test_case
            if is_open:
                # Closing is the only way out: the blocks that would end the transaction are gone.
                connection.close()
                del connections[self._database]
        if is_open:
            raise LostTransactionError(
                "the body has entered an atomic() that it has not left: use it in a with statement"
            )

    def _all_rows(self) -> Any:
        return Transaction.objects.using(self._database)

    def _require_committable(self, message: MessageExt, xid: int | None, earlier_error: Exception | None) -> None:
        """Raise LostTransactionError if COMMIT would not commit the row, and Rollback if the function wants it so."""
        connection = connections[self._database]
        if connection.needs_rollback:
            # Django's ORM marks the transaction for a rollback when one of its statements fails.
            if connection.rollback_exc is not earlier_error:
                raise LostTransactionError(_CAUGHT)
            raise Rollback
        # After an error that was caught, PostgreSQL answers COMMIT with ROLLBACK and reports no error. SQLite may have
        # ended the transaction by itself.
        if message.course.stage is Stage.ENDED or not self._is_committable(message.transaction_id, xid):
            raise LostTransactionError(_CAUGHT)

    def _is_committable(self, transaction_id: str, xid: int | None) -> bool:
        try:
            if xid is None:
                return self._ask(_FIND, (transaction_id, COMMITTED)) is not None
            # As in txbridge_sqlalchemy: reading the row would conflict with other rows at the level SERIALIZABLE.
            return bool(self._ask("SELECT txid_current()") == xid)
        except DatabaseError:
            return False

    def _write_row(self, row_id: str, state: str, born: int | None) -> int | None:
        """Insert the row. Returns PostgreSQL's id of the transaction, None on other databases."""
        has_xid = connections[self._database].vendor == "postgresql"
        try:
            found = self._ask(_INSERT_FOR_XID if has_xid else _INSERT, (row_id, state, creation_time(born)))
        except IntegrityError as error:
            raise RowDecidesError from error
        return None if found is None else int(found)

    def _ask(self, statement: str, values: tuple[object, ...] = ()) -> Any:
        """Execute a statement; the first value of its first row, or None. Models take four times as long for it."""
        with connections[self._database].cursor() as cursor:
            cursor.execute(statement, values)
            row = cursor.fetchone() if cursor.description else None
        return None if row is None else row[0]

    def _write_state(self, row_id: str, state: str, born: int | None) -> None:
        with self._open_transaction():
            self._bound_waits()
            self._write_row(row_id, state, born)
            refuse_purged(born, self._rows_by_id(PURGED_ROW).get(PURGED_ROW))

    def _read_states(self, *ids: str) -> dict[str, str]:
        with self._open_transaction():
            self._bound_waits()
            return self._rows_by_id(*ids)

    def _read_ids(self, least: str, greatest: str) -> list[str]:
        return list(self._all_rows().filter(id__range=(least, greatest)).values_list("id", flat=True))

    def _rows_by_id(self, *ids: str) -> dict[str, str]:
        return dict(self._all_rows().filter(id__in=ids).values_list("id", "state"))

    def _bound_waits(self) -> None:
        if connections[self._database].vendor == "postgresql":
            self._ask(f"SET LOCAL lock_timeout = {self._check_wait_ms}")
            self._ask(f"SET LOCAL statement_timeout = {2 * self._check_wait_ms}")


def _refuse_after_the_end(execute: Callable[..., Any], sql: Any, params: Any, many: Any, context: Any) -> Any:
    """Execute nothing after the end of the transaction: on SQLite, or with another COMMIT, it would be committed."""
    if is_in_transaction(context["connection"].connection) is False:
        raise transaction.TransactionManagementError(
            "an error or a statement has ended the transaction of the message: nothing more can be executed in it"
        )
    return execute(sql, params, many, context)


_INSERT = "INSERT INTO txbridge_transactions (id, state, created_at) VALUES (%s, %s, %s)"
_INSERT_FOR_XID = f"{_INSERT} RETURNING txid_current()"
_FIND = "SELECT 1 FROM txbridge_transactions WHERE id = %s AND state = %s"
_CAUGHT = "the body caught an error that ended its transaction: use atomic() around it, or let it through"
_NO_TRANSACTIONS = (
    "a row of txbridge_transactions was still there after a rollback: the table does not support transactions "
    "(MyISAM). Convert it and the application's tables to InnoDB"
)
_MIGRATE = "the table txbridge_transactions cannot be read: run `manage.py migrate`"
