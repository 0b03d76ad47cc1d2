"""One database transaction of txbridge, and the proof that its COMMIT commits txbridge's row.

A database may have rolled a transaction back before COMMIT is sent, and COMMIT does not always report that. PostgreSQL
answers it with ROLLBACK, and no error, after any error outside a savepoint. SQLite's `OR ROLLBACK` and a deadlock on
MySQL end the transaction, and the next statement begins another one. So the last statement before each COMMIT checks
that the row can still be committed. A COMMIT that fails after that raises an error. After a COMMIT that succeeds, the
driver must not be in a transaction any more (hidden_transaction.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, RootTransaction, Table, event, func, select
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session, SessionTransaction, sessionmaker

from txbridge.client.barrier_listener import LostTransactionError, RowDecidesError
from txbridge.errors import UsageError
from txbridge_sqlalchemy.hidden_transaction import is_in_transaction, outlives_commit
from txbridge_sqlalchemy.row import Row

#: The source of the transactions of a listener or an inbox.
Database = Engine | sessionmaker[Any]
#: Opens a connection, or a session whose transaction has begun: what the application's function gets, and the plain one
#: in it.
Opener = Callable[[], AbstractContextManager[tuple[Any, Connection | Session]]]

_XID = select(func.txid_current())

BIND_IT = (
    "the sessionmaker is bound to a Connection, whose transactions may be parts of another one: bind it to an Engine"
)
TWO_PHASE = "the sessions use two-phase commit (twophase=True), whose outcome can stay open for days: leave it out"


AUTOCOMMIT = (
    "the connection commits every statement by itself (AUTOCOMMIT), so nothing can be rolled back. Give an engine "
    "without it. If you set autocommit by the driver, set it back before the connection returns to its pool"
)
OVER = (
    "the transaction has ended while the function ran, by COMMIT or ROLLBACK as text or by an error that was caught: "
    "nothing more can be executed in it. Leave both to txbridge, and put a statement that may fail into a savepoint "
    "(begin_nested), or let the error through"
)
HIDDEN = (
    "COMMIT has committed nothing: it ended a savepoint of a transaction that a cancelled task had left on the "
    "connection. The connection is closed. Have hooks that use a cursor of the driver execute SQL by the connection"
)


class Work:
    """A database transaction that has begun.

    Attributes:
        given: the connection or session that the application's function gets.
        connection: the connection on which the row is written.
        transaction: SQLAlchemy's object that commits or rolls back.

    """

    def __init__(
        self,
        given: Any,
        connection: Connection,
        transaction: RootTransaction | SessionTransaction,
        table: Table,
        session: Session | None = None,
    ) -> None:
        self.given = given
        self.connection = connection
        self.transaction = transaction
        self._table = table
        self._is_ours: Callable[[], bool] = lambda: True
        self._second = False
        # For this connection and this session only: the application's other transactions stay untouched.
        event.listen(connection, "commit", self._before_commit)
        if connection.dialect.name == "sqlite":
            # Outside a transaction SQLite commits when a savepoint is released.
            event.listen(connection, "savepoint", self._before_commit)
        if session is not None:
            event.listen(session, "after_begin", self._after_begin)
            # The session returns its connection to the pool right after this.
            event.listen(session, "after_commit", self._after_commit)

    def write_row(self, row: Row) -> None:
        """Insert the row; from now on COMMIT is sent only if it commits this row.

        Raises RowDecidesError if the row is there already. Raises UsageError if the connection commits every statement
        by itself. A pool may have one such among others, when an application has set it so by the driver.
        """
        if getattr(self.connection.connection.dbapi_connection, "autocommit", None) is True:
            raise UsageError(AUTOCOMMIT)
        try:
            self._is_ours = self._insert_row(row)
        except IntegrityError as error:
            raise RowDecidesError from error
        event.listen(self.connection, "before_cursor_execute", self._before_statement)

    def _insert_row(self, row: Row) -> Callable[[], bool]:
        """Insert the row. Returns the question whether it is still part of the transaction."""
        if self.connection.dialect.name == "postgresql":
            # The database's transaction id shows whether this is still the same transaction, and the query fails if
            # the transaction has failed. Reading the row instead would conflict with other rows at the isolation level
            # SERIALIZABLE.
            xid = row.insert_for_xid(self.connection)
            return lambda: bool(self.connection.execute(_XID).scalar_one() == xid)
        row.insert_row(self.connection)
        return lambda: row.is_there(self.connection)

    def is_over(self) -> bool:
        """Whether the function has ended the transaction by itself. Raises UsageError as refuse_second_database."""
        self.refuse_second_database()
        return not self.transaction.is_active

    def refuse_second_database(self) -> None:
        """Raise UsageError if the session has begun a second transaction elsewhere: the two cannot be atomic."""
        if self._second:
            raise UsageError(
                "the session has used a second database (a second engine or connection): its transaction and that of "
                f"{self._table.name} cannot be committed together. Use one engine for all that belongs to one "
                "message; everything was rolled back",
            )

    def _after_begin(self, _session: Session, _transaction: SessionTransaction, connection: Connection) -> None:
        # A savepoint begins on the same connection.
        if connection is not self.connection:
            self._second = True
            self.refuse_second_database()

    def _after_commit(self, session: Session) -> None:
        # The end of a savepoint is a commit of the session, too.
        if not session.in_nested_transaction():
            _refuse_hidden_transaction(self.connection)

    def _before_statement(self, connection: Connection, *_: Any) -> None:
        """Execute nothing after the end of the transaction: asyncpg, and SQLite with an own BEGIN, would commit it."""
        if is_in_transaction(connection.connection.driver_connection) is False:
            raise LostTransactionError(OVER)

    def _before_commit(self, connection: Connection, _savepoint: str = "") -> None:
        """Stop a COMMIT that would not commit the row. Called last, after all flushes and events of the session."""
        try:
            ours = self._is_ours()
        except DBAPIError as error:
            if error.connection_invalidated:
                raise
            ours = False
        if ours and not self._second:
            return
        # SQLAlchemy considers the transaction ended after an error of COMMIT, and would not send ROLLBACK itself.
        connection.dialect.do_rollback(connection.connection)
        self.refuse_second_database()
        raise LostTransactionError(
            "the database has rolled the transaction back before its COMMIT: an error that ended it was caught. Put "
            "the statement that may fail into a savepoint (begin_nested), or let the error through",
        )


def opener(database: Database, other: str) -> Opener:
    """Open connections or sessions of the database. Raises UsageError if transactions are not all of one database.

    `other` is the class for asynchronous databases, with its article, for the error.
    """
    if not isinstance(database, Engine | sessionmaker):
        raise UsageError(
            f"database must be an Engine or a sessionmaker, not {type(database).__name__} "
            f"({other} takes an AsyncEngine or an async_sessionmaker)"
        )
    if isinstance(database, sessionmaker):
        refuse_two_databases(database.kw, Connection)

    @contextmanager
    def open_plain() -> Iterator[tuple[Any, Connection | Session]]:
        with database.connect() if isinstance(database, Engine) else database() as plain:
            if isinstance(plain, Session):
                plain.begin()
            yield plain, plain

    return open_plain


def refuse_two_databases(bound: Mapping[str, Any], connection: type) -> None:
    """Raise UsageError if sessions with these arguments could not commit all their work in one transaction."""
    binds = [bound.get("bind"), *(bound.get("binds") or {}).values()]
    if any(isinstance(bind, connection) for bind in binds):
        raise UsageError(BIND_IT)
    # Several AsyncEngines may be made around the same engine.
    engines = {id(getattr(bind, "sync_engine", bind)) for bind in binds if bind is not None}
    if len(engines) > 1:
        raise UsageError(
            f"the sessionmaker is bound to {len(engines)} engines, whose transactions cannot be committed together: "
            "give a sessionmaker with one engine",
        )
    if bound.get("twophase"):
        raise UsageError(TWO_PHASE)


@contextmanager
def begin(open_one: Opener, table: Table) -> Iterator[Work]:
    """A transaction for a row of this table: committed at the end of the block, rolled back on an exception.

    Raises LostTransactionError instead of a COMMIT that would not commit the row of `Work.write_row`.
    """
    with open_one() as (given, plain):
        if isinstance(plain, Connection):
            with plain.begin() as transaction, _nothing_left_open(plain, transaction):
                yield Work(given, plain, transaction, table)
            _refuse_hidden_transaction(plain)
            return
        # A subclass of Session can set two-phase commit and the bind by itself.
        if plain.twophase:
            raise UsageError(TWO_PHASE)
        bind = plain.get_bind(clause=table)
        if not isinstance(bind, Engine):
            raise UsageError(BIND_IT)
        session_transaction = plain.get_transaction()
        assert session_transaction is not None
        with ExitStack() as at_last, session_transaction:
            connection = plain.connection(bind_arguments={"bind": bind})
            # A session that cannot roll its savepoints back, because the database has lost them, would keep its
            # connection and so its locks.
            at_last.callback(connection.close)
            with _nothing_left_open(connection, session_transaction):
                yield Work(given, connection, session_transaction, table, plain)


@contextmanager
def _nothing_left_open(connection: Connection, transaction: RootTransaction | SessionTransaction) -> Iterator[None]:
    """Roll back the rest of a transaction that the function has ended by itself.

    After a COMMIT that failed, SQLite's transaction is still open. SQLAlchemy would return the connection to the pool
    like that, and its next user would commit these rows with other ones.
    """
    try:
        yield
    finally:
        # SQLAlchemy rolls back what is active in its eyes, and a connection that is not used any more.
        if not (transaction.is_active or connection.closed or connection.invalidated):
            connection.dialect.do_rollback(connection.connection)


def _refuse_hidden_transaction(connection: Connection) -> None:
    """Raise LostTransactionError if COMMIT has not ended the transaction. Its connection is closed, which does."""
    if outlives_commit(connection):
        connection.invalidate()
        raise LostTransactionError(HIDDEN)
