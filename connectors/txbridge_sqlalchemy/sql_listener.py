"""A listener whose local transactions are transactions of one SQL database."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias, TypedDict, TypeVar, Unpack, overload

from sqlalchemy import Connection, Engine, bindparam, select
from sqlalchemy.orm import Session, sessionmaker

from txbridge import Bridge, MessageExt
from txbridge.client.answers import G, Stage
from txbridge.client.barrier import (
    BARRIER_ROW,
    COMMITTED,
    NEVER_PURGED,
    PURGED_ROW,
    ROLLED_BACK,
    new_barrier_id,
    refuse_purged,
)
from txbridge.client.barrier_listener import BarrierListener, LostTransactionError
from txbridge.client.listener import Opened, require_arguments, require_plain
from txbridge.client.options import ProducerOptions
from txbridge.core.check_policy import DEFAULT_PATIENCE_S
from txbridge.errors import UsageError
from txbridge_sqlalchemy.forwarding import Known, SqlForwarding, StoreInsteadError
from txbridge_sqlalchemy.outbox import Outbox
from txbridge_sqlalchemy.row import ask
from txbridge_sqlalchemy.table import row_of, transactions
from txbridge_sqlalchemy.work import Opener, begin, opener, probe, probe_id

_S = TypeVar("_S", bound=Session)
_T = TypeVar("_T")
_STATES = select(transactions.c.id, transactions.c.state).where(transactions.c.id.in_(bindparam("ids", expanding=True)))


#: Seconds that a check waits for a lock: long enough for a transaction that is about to end, and three times that is
#: still below the session time-out of a client.
DEFAULT_CHECK_WAIT_S = 3.0
#: A function of a listener: called with the connection or session, the message and the argument of the send.
SqlFunction: TypeAlias = Callable[[_T, MessageExt, Any], bool | None]


#: Properties of librdkafka; None without Kafka.
Settings: TypeAlias = Mapping[str, Any] | None


class SqlOptions(TypedDict, total=False):
    """Options of listeners and bridges of SQL, as SqlTransactionListener describes them."""

    check_wait: float
    patience: float
    outbox: Outbox | None


class BridgeOptions(SqlOptions, ProducerOptions, total=False):
    """Options of a SqlBridge: those of its listener, and those of a Bridge."""


class SqlTransactionListener(BarrierListener[G]):
    """Runs local transactions in one SQL database, and answers every check from it.

    The application's function and a row with the transaction's id are committed together, so a check only has to look
    for the row. Where there is none, a check first writes one that says "rolled back", unless the message is young.
    From then on a transaction that is paused in some process cannot commit. docs/sqlalchemy.md has the details.

    Thread-safe. All processes of the producer group must use the same database, its primary, not a replica. A check
    of a message whose sender uses another database is answered "unknown", and logged as an error.

    Args:
        database: an Engine, or a sessionmaker that is bound to exactly one.
        execute: called as `execute(connection, message, arg)`, with a Session instead of the connection when a
            sessionmaker was given. It must leave commit and rollback to the listener, and let errors of the database
            through unless a savepoint contains them. It returns None or True to commit. It returns False or raises
            `Rollback(reason)` to roll back. Another exception rolls both back, too. Announcements need none.

    Keyword Args:
        check_wait (float): seconds that a check waits for the lock of a transaction that still runs, before it answers
            "unknown". It works on PostgreSQL only. Elsewhere the database's own lock time-out applies (SQLite:
            `timeout` of the connection, 5 s).
        patience (float): age in seconds of a message from which on a check that finds no row may roll it back. Before
            that the sender may still wait for a connection or a lock. It must be longer than `pool_timeout` (30 s) and
            the lock time-outs together. Checks must go on for longer (docs/sqlalchemy.md).
        outbox (Outbox): where messages are stored while Kafka is away, in the transaction of the function. A
            `txbridge relay` of the same producer group sends them (docs/outbox.md).

    """

    @overload
    def __init__(
        self: SqlTransactionListener[Connection],
        database: Engine,
        execute: SqlFunction[Connection] | None = ...,
        **options: Unpack[SqlOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: SqlTransactionListener[_S],
        database: sessionmaker[_S],
        execute: SqlFunction[_S] | None = ...,
        **options: Unpack[SqlOptions],
    ) -> None: ...

    def __init__(self, database: Any, execute: SqlFunction[Any] | None = None, **options: Unpack[SqlOptions]) -> None:
        check_wait, outbox = options.get("check_wait", DEFAULT_CHECK_WAIT_S), options.get("outbox")
        super().__init__(options.get("patience", DEFAULT_PATIENCE_S), execute)
        if check_wait <= 0:
            raise UsageError(f"check_wait must be positive, not {check_wait}")
        self._opener = self._make_opener(database)
        if execute is not None:
            require_plain(execute, "an AsyncSqlTransactionListener takes it")
            require_arguments(execute, "connection", "message", "arg")
        self._wait_ms = max(1, round(check_wait * 1000))
        self.forwarding: SqlForwarding | None = None if outbox is None else SqlForwarding(outbox, self._wait_for)

    _make_opener: Callable[[Any], Opener] = staticmethod(opener)

    def verify(self) -> None:
        """Make sure that the table exists and that a rollback works.

        The listener does it before the first transaction or check. Call it at start to learn of mistakes earlier: a
        UsageError for AUTOCOMMIT, a table without transactions, READ UNCOMMITTED, and an outbox that this database
        cannot serve; SQLAlchemyError for a missing table, and if the database does not answer.
        """
        level = probe(self._opener, row_of(probe_id(), ROLLED_BACK, None), self._isolation_level)
        if level == "READ UNCOMMITTED":
            raise UsageError(
                "the isolation level is READ UNCOMMITTED: a check could see a transaction that is rolled back later. "
                "Give the listener an engine with READ COMMITTED or more"
            )
        if self.forwarding is not None:
            with begin(self._opener, transactions) as work:
                self.forwarding.verify(work.connection)
        self._barrier.id = self._state_or_new(BARRIER_ROW, new_barrier_id(), NEVER_PURGED)

    @contextmanager
    def open_transaction(self, message: MessageExt) -> Iterator[Opened[G]]:
        with ExitStack() as stack:
            try:
                opened = stack.enter_context(super().open_transaction(message))
            except StoreInsteadError:
                opened = stack.enter_context(super().open_transaction(message.without_half()))
            yield opened

    @contextmanager
    def _open_row(self, message: MessageExt) -> Iterator[Opened[G]]:
        known = Known() if self.forwarding is None else self.forwarding.known
        with begin(self._opener, transactions, message.course) as work:
            rows = [row_of(message.transaction_id, COMMITTED, message.born_timestamp)]
            if message.course.once is not None:
                # After the row for checks: it waits for another transaction with the key. Both go with one purge.
                rows.append(row_of(message.course.once, message.transaction_id[:16], message.born_timestamp))
            work.write_row(*rows)
            if self.forwarding is not None and message.has_half:
                self.forwarding.require_direct(work.connection, message, known)
            opened = Opened[G](message, (work.given,), None if self.forwarding is None else [])
            message.course.stage = Stage.OPEN
            yield opened
            # From here on, handlers of events may end it, too.
            message.course.stage = Stage.ENDED
            if work.is_over():
                raise LostTransactionError(_ENDED)
            if self.forwarding is not None:
                # Last: of two transactions that wait for each other's locks, the later one gets the later row.
                self.forwarding.store_messages(work.connection, opened)

    def _wait_for(self, ends: Collection[Future[None]], seconds: float) -> None:
        wait(ends, seconds)

    def _write_state(self, row_id: str, state: str, born: int | None) -> None:
        with begin(self._opener, transactions) as work:
            self._set_time_limits(work.connection)
            work.write_row(row_of(row_id, state, born))
            refuse_purged(born, _read_rows(work.connection, PURGED_ROW).get(PURGED_ROW))

    def _read_states(self, *ids: str) -> dict[str, str]:
        with begin(self._opener, transactions) as work:
            self._set_time_limits(work.connection)
            return _read_rows(work.connection, *ids)

    def _read_ids(self, least: str, greatest: str) -> list[str]:
        ids = select(transactions.c.id).where(transactions.c.id.between(least, greatest))
        with begin(self._opener, transactions) as work:
            self._set_time_limits(work.connection)
            return list(ask(work.connection, ids).scalars())

    def _isolation_level(self, connection: Connection) -> str | None:
        """The isolation level; None if the dialect does not report it."""
        self._set_time_limits(connection)
        try:
            return connection.get_isolation_level()
        except NotImplementedError:
            return None

    def _set_time_limits(self, connection: Connection) -> None:
        """Limit the waits of the current transaction."""
        if connection.dialect.name == "postgresql":
            # An insert waits for an open transaction that has inserted the same id, and every statement waits for a
            # migration of the table. Without a bound these would block the checks. LOCAL: until the transaction ends.
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = {self._wait_ms}")
            connection.exec_driver_sql(f"SET LOCAL statement_timeout = {2 * self._wait_ms}")


class SqlBridge(Bridge[G]):
    """A Bridge whose announcements are transactions of one SQL database: `tx.session` or `tx.connection`.

    A row with the transaction's id is committed with what the block does, and answers the checks. So leave COMMIT and
    ROLLBACK to it. SqlTransactionListener has the rules, and the options `check_wait`, `patience` and `outbox`.

    Args:
        group: The producer group, as in Bridge.
        database: an Engine, or a sessionmaker that is bound to exactly one.
        settings: Properties of librdkafka, as in Bridge. None: no Kafka is needed here. Every message becomes a row of
            the `outbox`, in the same transaction, and `txbridge relay` sends it. With both, the outbox stores messages
            while Kafka is away.

    """

    @overload
    def __init__(
        self: SqlBridge[Connection],
        group: str,
        database: Engine,
        settings: Settings = ...,
        **options: Unpack[BridgeOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: SqlBridge[_S],
        group: str,
        database: sessionmaker[_S],
        settings: Settings = ...,
        **options: Unpack[BridgeOptions],
    ) -> None: ...

    def __init__(self, group: str, database: Any, settings: Settings = None, **options: Any) -> None:
        super().__init__(group, SqlTransactionListener(database, **split_options(options)), settings, **options)


def split_options(options: dict[str, Any]) -> dict[str, Any]:
    """Take those of the listener out of a bridge's options."""
    return {name: options.pop(name) for name in SqlOptions.__annotations__ if name in options}


_ENDED = "the body has ended its transaction, or caught an error that ended it: leave COMMIT and ROLLBACK to txbridge"


def _read_rows(connection: Connection, *ids: str) -> dict[str, str]:
    return {row.id: row.state for row in ask(connection, _STATES, {"ids": ids})}
