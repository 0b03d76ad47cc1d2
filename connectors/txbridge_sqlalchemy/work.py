"""One database transaction of txbridge, and the proof that its COMMIT commits txbridge's row.

A database may have rolled a transaction back before COMMIT is sent, and COMMIT does not always report that. PostgreSQL
answers it with ROLLBACK, and no error, after any error outside a savepoint. SQLite's `OR ROLLBACK` and a deadlock on
MySQL end the transaction, and the next statement begins another one. So the last statement before each COMMIT checks
that the row can still be committed. A COMMIT that fails after that raises an error. After a COMMIT that succeeds, the
driver must not be in a transaction any more (hidden_transaction.py).
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, PoolProxiedConnection, RootTransaction, Table, event
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session, SessionTransaction, sessionmaker

from txbridge.client.answers import Course, Stage
from txbridge.client.barrier import is_in_transaction
from txbridge.client.barrier_listener import LostTransactionError, RowDecidesError
from txbridge.errors import UsageError
from txbridge_sqlalchemy.hidden_transaction import guard_pool, outlives_commit, refuse_autocommit
from txbridge_sqlalchemy.row import Row

_T = TypeVar("_T")

#: The source of the transactions of a listener or an inbox.
Database = Engine | sessionmaker[Any]
#: Opens a connection, or a session whose transaction has begun: what the application's function gets, and the plain one
#: in it.
Opener = Callable[[], AbstractContextManager[tuple[Any, Connection | Session]]]

BIND_IT = (
    "the sessionmaker is bound to a Connection, whose transactions may be parts of another one: bind it to an Engine"
)
TWO_PHASE = "the sessions use two-phase commit (twophase=True), whose outcome can stay open for days: leave it out"


OVER = (
    "the transaction has ended while the body ran, by COMMIT or ROLLBACK as text or by an error that was caught: "
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
        course: what is known of a local transaction, whose function runs in it.

    """

    def __init__(
        self, given: Any, connection: Connection, transaction: RootTransaction | SessionTransaction, table: Table
    ) -> None:
        self.given = given
        self.connection = connection
        self.transaction = transaction
        self._table = table
        self.course = Course()
        self._pooled = connection.connection
        self._row: Row | None = None
        #: PostgreSQL's id of the transaction with the row.
        self._xid: int | None = None
        self._second = False
        self._is_committed = False

    def write_row(self, row: Row, *more: Row) -> None:
        """Insert the rows; from now on COMMIT is sent only if it commits the first one.

        Raises RowDecidesError if one is there already. Raises UsageError as refuse_autocommit.
        """
        refuse_autocommit(self.connection)
        try:
            if self.connection.dialect.name == "postgresql":
                self._xid = row.insert_for_xid(self.connection)
            else:
                row.insert_row(self.connection)
            for one in more:
                one.insert_row(self.connection)
        except IntegrityError as error:
            raise RowDecidesError from error
        self._row = row

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
                "message; everything was rolled back"
            )

    def after_begin(self, connection: Connection) -> None:
        """Refuse a second connection of the session. A savepoint begins on the same one."""
        if connection is not self.connection:
            self._second = True
            self.refuse_second_database()

    def before_statement(self) -> None:
        """Execute nothing after the end of the transaction: asyncpg, and SQLite with an own BEGIN, would commit it."""
        if self._row is not None and is_in_transaction(self._pooled.driver_connection) is False:
            raise LostTransactionError(OVER)

    def commit(self, send: Callable[[PoolProxiedConnection], None]) -> None:
        """Send COMMIT if it commits the row. After all flushes and events, so nothing comes between check and COMMIT.

        Raises LostTransactionError if nothing is committed. Any later COMMIT is that of a pool, and has nothing left.
        """
        if not self._is_committed and (self._second or not self._has_row()):
            # SQLAlchemy considers the transaction ended after an error of COMMIT, and would not send ROLLBACK itself.
            self.connection.dialect.do_rollback(self._pooled)
            self.refuse_second_database()
            raise LostTransactionError(
                "the database has rolled the transaction back before its COMMIT: an error that ended it was caught. "
                "Put the statement that may fail into a savepoint (begin_nested), or let the error through"
            )
        dialect = self.connection.dialect
        self.course.stage = Stage.COMMITTING
        try:
            send(self._pooled)
        except dialect.loaded_dbapi.Error as error:
            if not dialect.is_disconnect(error, self._pooled, None):
                # The database has answered that it does not commit, as for a deferred constraint.
                self.course.stage = Stage.OPEN
            raise
        self.course.stage = Stage.ENDED
        self._is_committed = True
        if outlives_commit(self.connection):
            # Closing the connection ends the transaction.
            self.connection.invalidate()
            raise LostTransactionError(HIDDEN)

    def _has_row(self) -> bool:
        """Whether the transaction can still commit the row. True if there is none."""
        if self._row is None:
            return True
        dialect = self.connection.dialect
        try:
            # The database's transaction id shows whether this is still the same transaction, and the query fails if the
            # transaction has failed. Reading the row instead would conflict with other rows at the isolation level
            # SERIALIZABLE.
            return self._row.is_there(self.connection) if self._xid is None else self._read_xid() == self._xid
        except DBAPIError as error:
            if error.connection_invalidated:
                raise
        except dialect.loaded_dbapi.Error as error:
            # SQLAlchemy makes its own error of this one.
            if dialect.is_disconnect(error, self._pooled, None):
                raise
        return False

    def _read_xid(self) -> int:
        # By a cursor of the driver: SQLAlchemy takes twice as long for it, 29 instead of 14 us.
        cursor = self._pooled.cursor()
        try:
            cursor.execute("SELECT txid_current()")
            ((found,),) = cursor.fetchall()
        finally:
            cursor.close()
        return int(found)

    def note_failure(self) -> None:
        """Note whether the function may have ended the transaction by itself, before what is open is rolled back."""
        # A connection that is lost before COMMIT was sent is rolled back by the server.
        is_open = self.connection.invalidated or is_in_transaction(self._pooled.driver_connection)
        if self.course.stage is Stage.OPEN and not is_open:
            self.course.stage = Stage.ENDED

    def roll_back_rest(self) -> None:
        """Roll back the rest of a transaction that the function has ended by itself.

        After a COMMIT that failed, SQLite's transaction is still open. SQLAlchemy would return the connection to the
        pool like that, and its next user would commit these rows with other ones.
        """
        # SQLAlchemy rolls back what is active in its eyes, and a connection that is not used any more.
        if not (self.transaction.is_active or self.connection.closed or self.connection.invalidated):
            self.connection.dialect.do_rollback(self._pooled)


#: The transactions under way, by the pool's connection and by the session. What belongs to none of them is left alone.
_UNDER_WAY: dict[PoolProxiedConnection | Connection | Session, Work] = {}
_GUARDING = threading.Lock()


def _guard(engine: Engine) -> None:
    """Have COMMITs and statements of this engine pass by their transaction in `_UNDER_WAY`.

    Once for an engine and those made of it: to register events for each transaction took a third of the processor time
    of a send. The dialect sends COMMIT after the events of engines, where a handler that comes later can still end the
    transaction. Events of engines also cost each connection twice as much as all that is done here.
    """
    dialect = engine.dialect
    if getattr(dialect.do_commit, "func", None) is _commit:
        return
    with _GUARDING:
        if getattr(dialect.do_commit, "func", None) is not _commit:
            for name in ("do_execute", "do_executemany", "do_execute_no_params"):
                event.listen(engine, name, _before_statement)
            dialect.do_commit = partial(_commit, dialect.do_commit)  # type: ignore[method-assign]


def _commit(send: Callable[[PoolProxiedConnection], None], pooled: PoolProxiedConnection) -> None:
    if work := _UNDER_WAY.get(pooled):
        work.commit(send)
    else:
        send(pooled)


def _before_statement(*given: Any) -> None:
    # The last argument is the context of the statement.
    if work := _UNDER_WAY.get(given[-1].root_connection.connection):
        work.before_statement()


@event.listens_for(Session, "after_begin")
def _after_begin(session: Session, _transaction: SessionTransaction, connection: Connection) -> None:
    if work := _UNDER_WAY.get(session):
        work.after_begin(connection)


def opener(database: Database) -> Opener:
    """Open connections or sessions of the database. Raises UsageError if transactions are not all of one database."""
    if not isinstance(database, Engine | sessionmaker):
        raise UsageError(
            f"database must be an Engine or a sessionmaker, not {type(database).__name__} "
            "(the class whose name begins with Async takes an AsyncEngine or an async_sessionmaker)"
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
            "give a sessionmaker with one engine"
        )
    if bound.get("twophase"):
        raise UsageError(TWO_PHASE)


@contextmanager
def begin(open_one: Opener, table: Table, course: Course | None = None) -> Iterator[Work]:
    """A transaction for a row of this table: committed at the end of the block, rolled back on an exception.

    Raises LostTransactionError instead of a COMMIT that would not commit the row of `Work.write_row`.
    """
    with open_one() as (given, plain):
        connection, transaction = _begun(plain, table) if isinstance(plain, Session) else (plain, plain.begin())
        _guard(connection.engine)
        work = Work(given, connection, transaction, table)
        work.course = course or work.course
        keys = (connection.connection, plain)
        _UNDER_WAY.update(dict.fromkeys(keys, work))
        try:
            with transaction:
                try:
                    yield work
                except BaseException:
                    work.note_failure()
                    raise
                finally:
                    work.roll_back_rest()
        finally:
            for key in keys:
                _UNDER_WAY.pop(key, None)
            if isinstance(plain, Session):
                # A session that cannot roll its savepoints back, because the database has lost them, would keep its
                # connection and so its locks.
                connection.close()


def _begun(session: Session, table: Table) -> tuple[Connection, SessionTransaction]:
    """The connection and the transaction of a session, for this table."""
    # A subclass of Session can set two-phase commit and the bind by itself.
    if session.twophase:
        raise UsageError(TWO_PHASE)
    bind = session.get_bind(clause=table)
    if not isinstance(bind, Engine):
        raise UsageError(BIND_IT)
    transaction = session.get_transaction()
    assert transaction is not None
    return session.connection(bind_arguments={"bind": bind}), transaction


def probe_id() -> str:
    """A unique id for the row of a probe."""
    return f"probe {secrets.token_hex(8)}"


def probe(open_one: Opener, row: Row, look: Callable[[Connection], _T]) -> _T:
    """Before the first transaction that matters, write the row and roll it back.

    Returns the result of `look` in that transaction. Raises UsageError if the row stays.
    """
    with begin(open_one, row.table) as work:
        guard_pool(work.connection)
        seen = look(work.connection)
        work.write_row(row)
        work.transaction.rollback()
    with begin(open_one, row.table) as work:
        stays = row.is_there(work.connection)
        if stays:
            row.delete_row(work.connection)
    if stays:
        raise UsageError(
            f"a row of {row.table.name} was still there after a rollback: the connections commit every statement by "
            "themselves (AUTOCOMMIT), or the table does not support transactions. Give an engine whose transactions "
            "can be rolled back"
        )
    return seen
