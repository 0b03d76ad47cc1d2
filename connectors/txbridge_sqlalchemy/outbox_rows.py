"""The relay's reading of an outbox: which rows come next."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, Executable, Result, inspect
from sqlalchemy.exc import DBAPIError

from txbridge.client.message import now_ms
from txbridge.errors import UsageError
from txbridge_sqlalchemy.outbox_dialects import LOWEST, GateStatements, dialect_of
from txbridge_sqlalchemy.outbox_messages import OutboxRow, ms_of, row_reader
from txbridge_sqlalchemy.outbox_statements import OutboxStatements, outbox_statements
from txbridge_sqlalchemy.outbox_table import OUR_OUTBOX, OutboxTable
from txbridge_sqlalchemy.relay_blocks import Blocks
from txbridge_sqlalchemy.relay_course import OutboxGate
from txbridge_sqlalchemy.relay_sessions import fix_plans, limit_silence
from txbridge_sqlalchemy.row import ask

#: Seconds after which all rows are looked at again, also those before a place that should be the first one: somebody
#: may have set the sequence back, or drawn an id long before the INSERT. A hundred thousand dead rows take 20 ms.
_ALL_AGAIN_S = 5.0
_RARELY = 20
#: Longest time (s) for which rows are read beyond those that are being sent. Meanwhile no row that is due is seen.
_BEYOND_S = 1.0
#: Seconds between two looks for rows that are due.
_DUE_EVERY_S = 0.25
_NO_LIMIT = 2**62


class WaitingRows(NamedTuple):
    """The rows that wait in an outbox."""

    rows: int
    #: Age of the oldest one in seconds, by the clock of this machine; None without a row or a column with its time, NaN
    #: for a time that cannot be read.
    oldest: float | None


class _LastRead(NamedTuple):
    """The last read from the first row on."""

    #: Up to which place; None if there was none.
    bound: Any = None
    #: The number of rows that it found.
    found: int = 0
    #: The place before which there is no row, and comes none any more.
    first: Any = LOWEST
    #: Monotonic time (s) from which this is not believed any more.
    until: float = 0.0


class OutboxRows:
    """The rows of one outbox for one relay. All methods belong to one thread at a time, except `count_waiting`.

    It has a session of its own at the database, with the relay's lock. When the session is lost, so is the lock. Then a
    method raises the error of the database (`connection_invalidated`), and `has_lock` is false. The lock only saves
    work: which relay's batch counts is decided by the table of the state, and by Kafka.

    Args:
        engine: of the primary of the database. Its pool must have a connection beside this one. A pooler between the
            two (PgBouncer) must keep a session on one connection.
        table: the outbox.

    Attributes:
        has_lock: whether this relay has the lock of the outbox.
        blocks: what is left out because it cannot be sent.
        identity: the identity of the outbox, of which the ids of messages depend.

    Raises:
        UsageError: no relay can work with this database or table.

    """

    def __init__(self, engine: Engine, table: OutboxTable = OUR_OUTBOX) -> None:
        self._engine = engine
        self.dialect = dialect_of(engine.dialect)
        self.table = table
        self.blocks = Blocks()
        self.has_lock = False
        self.identity = ""
        self._session: Connection | None = None
        self._session_id: Any = None
        self._read_row = row_reader(table, "")
        self._statements: OutboxStatements | None = None
        self._compiled: dict[Any, Any] = {}
        self._gate = OutboxGate()
        self._last = _LastRead()
        #: The place behind the rows that were read, if more may follow up to the bound, and until when to read there.
        self._beyond: int | None = None
        self._beyond_until = 0.0
        self._due_at = 0.0
        self._was_due = False

    def verify(self) -> None:
        """Make sure that this user sees all rows, by statements that change nothing.

        Raises:
            UsageError: a column is missing, or the table is a view.
            sqlalchemy.exc.SQLAlchemyError: a table or a right is missing, or row-level security hides rows. Or the
                server does not answer.

        """
        with self._own_session() as session:
            if self.table.name in inspect(session).get_view_names(self.table.schema):
                raise UsageError(f"{self.table.name} is a view, which may hide rows, and who writes: give its table")
        self.ask(self.statements.rows, self._values(1, 1)).all()
        self._pass_gate(_LastRead(), 1)

    def try_lock(self) -> bool:
        """Take the lock of the outbox, unless another relay has it, and return whether this one has it."""
        if not self.has_lock:
            self._session_id = self.ask(self.dialect.session_id()).scalar()
            self.has_lock = bool(self.ask(self.dialect.try_lock(self.table.state)).scalar())
        return self.has_lock

    def require_session(self) -> None:
        """Raise UsageError if a pooler has exchanged the session, and the lock stays with another one."""
        if self.ask(self.dialect.session_id()).scalar() != self._session_id:
            self.close()
            raise UsageError(
                "a pooler between the relay and the database has exchanged its session, which has the lock of the "
                "outbox: give the relay the database's own address, or pool_mode = session"
            )

    def name_outbox(self, identity: str) -> None:
        """Take the identity of the outbox."""
        self.identity, self._read_row = identity, row_reader(self.table, identity)

    def read_rows(self, limit: int = 1_000, most_bytes: int = 2**20) -> list[OutboxRow]:
        """The next rows from the first one on, in the order in which they are to be delivered; without blocked ones.

        At most `limit` rows, whose keys, values and headers have at most `most_bytes` together; but at least one row,
        however large. Rows that are due come by themselves, and first.
        """
        self._beyond = None
        if not self._was_due and (due := self._read_due(limit, most_bytes)):
            # The others have their turn after each batch of these.
            self._was_due = True
            return due
        self._was_due = False
        now = time.monotonic()
        last = self._last if self._last.until >= now else _LastRead(until=now + _ALL_AGAIN_S)
        if not self._pass_gate(last, limit):
            return []
        rows = self._read_from(last.first, limit, most_bytes)
        if last.first == LOWEST:
            # It has passed all dead rows, and those with a time: not more often than it is worth.
            last = last._replace(until=max(last.until, now + _RARELY * (time.monotonic() - now)))
        bound = self._gate.bound
        self._last = _LastRead(bound, len(rows), rows[0].place if rows and not self.blocks else last.first, last.until)
        if not rows and not self.blocks:
            self._last = self._last._replace(first=bound)
        self._beyond_until = now + _BEYOND_S
        self._note_beyond(rows)
        return rows

    @property
    def can_read_beyond(self) -> bool:
        """Whether more rows may follow those that were read, and can be read while these are being sent."""
        return self._beyond is not None and time.monotonic() < self._beyond_until

    def read_beyond(self, limit: int = 1_000, most_bytes: int = 2**20) -> list[OutboxRow]:
        """The rows behind those that were read last."""
        assert self._beyond is not None
        rows = self._read_from(self._beyond, limit, most_bytes)
        self._last = self._last._replace(found=len(rows))
        self._note_beyond(rows)
        return rows

    def _note_beyond(self, rows: list[OutboxRow]) -> None:
        # Only where no lower place comes later.
        is_more = rows and self.statements.is_drawn and rows[-1].place < self._gate.bound
        self._beyond = rows[-1].place + 1 if is_more else None

    def _read(self, plain: Executable, beside: Executable, values: dict[str, Any]) -> list[OutboxRow]:
        found = self.ask(beside, values).all() if self.blocks else self.ask_often(plain, values)
        return [self._read_row(row) for row in found]

    def _read_from(self, first: Any, limit: int, most_bytes: int) -> list[OutboxRow]:
        values = self._values(limit, most_bytes) | {"first": first}
        return self._read(self.statements.rows, self.statements.rows_beside, values)

    def _read_due(self, limit: int, most_bytes: int) -> list[OutboxRow]:
        statements = self.statements
        if statements.due is None or statements.due_beside is None or time.monotonic() < self._due_at:
            return []
        values = self._values(limit, most_bytes) | {"now": statements.time_value(now_ms())}
        rows = self._read(statements.due, statements.due_beside, values)
        if len(rows) < limit:
            self._due_at = time.monotonic() + _DUE_EVERY_S
        return rows

    def read_again(self, names: Collection[int | str]) -> list[OutboxRow]:
        """Those of the rows with these names that are still to be sent."""
        values = self._values(_NO_LIMIT, _NO_LIMIT) | {"ids": list(names)}
        return [self._read_row(row) for row in self.ask(self.statements.again, values).all()]

    @property
    def has_gate(self) -> bool:
        """Whether rows wait only for transactions that have written to the outbox (relay_course.py)."""
        return self.statements.gate is not None

    @property
    def is_gate_closed(self) -> bool:
        """Whether the newest rows wait for transactions that could still add one before them."""
        return self._gate.is_closed

    def _pass_gate(self, last: _LastRead, limit: int) -> bool:
        """Whether rows could be read."""
        statements = self.statements
        if statements.gate is None:
            return True
        # A backlog needs no other bound.
        if self._gate.bound is None or last.found < limit:
            self._look_at_gate(statements.gate, is_drawn=statements.is_drawn)
        bound = self._gate.bound
        if bound is None:
            return False
        if last.found and self._gate.is_closed:
            # Most transactions end soon, and then more rows can be read at once.
            self._last = last._replace(bound=None, found=0)
            return False
        # A condition of the application may also depend on the time.
        may_change = self.table.where is not None or not (self._gate.is_closed or statements.is_drawn)
        return bool(last.found or bound != last.bound or may_change)

    def _look_at_gate(self, gate: GateStatements, *, is_drawn: bool) -> None:
        bound = self._gate.bound
        looked = self.ask_often(gate.look, {"bound": LOWEST if bound is None else bound})
        found: Sequence[Any] | None = looked[0] if looked else None
        if found is None and is_drawn:
            # Up to the bound no row comes any more: it stands for the newest one. A look without a bound has passed all
            # dead rows by, and is the last of its kind.
            found = self.ask(gate.drawn).first() if bound is None else (bound, ())
        self._gate.note_look(*(found or (None, ())))

    def forget_reads(self) -> None:
        """Read from the first row on next: a block was lifted, or a batch was not sent."""
        self._last, self._beyond = _LastRead(), None

    def count_waiting(self) -> WaitingRows:
        """How many rows there are, and how old the oldest is. It reads the whole table."""
        # Not in the relay's own session, which the database ends when a slow count is followed by a long pause.
        with self._engine.connect() as connection:
            rows, since = tuple(ask(connection, self.statements.waiting).one())
        if since is None:
            return WaitingRows(rows, None)
        ms = ms_of(since)
        return WaitingRows(rows, max(0.0, (now_ms() - ms) / 1000) if isinstance(ms, int) else math.nan)

    def close(self) -> None:
        """End the session, and with it the lock."""
        self.has_lock = False
        self.forget_reads()
        # Another server may have other transactions of the same names.
        self._gate = OutboxGate()
        if self._session is not None:
            session, self._session = self._session, None
            # Its connection must not be used again, with the lock that it may have.
            session.invalidate()
            session.close()

    def _values(self, limit: int, most_bytes: int) -> dict[str, Any]:
        values = {"limit": limit, "most_bytes": most_bytes, "bound": self._gate.bound, "first": LOWEST}
        if self.blocks:
            excluded = self.blocks.excluded
            values |= {**excluded._asdict(), **self.dialect.pair_parameters(excluded.keys)}
        return values

    @property
    def statements(self) -> OutboxStatements:
        """The statements for this outbox. Raises as `verify`."""
        if self._statements is None:
            with self._own_session() as session:
                self._statements = outbox_statements(self.table, session, self.dialect)
        return self._statements

    def ask(self, statement: Executable, values: dict[str, Any] | None = None) -> Result[Any]:
        """Execute a statement in the session of this relay, each in a transaction of its own."""
        with self._own_session() as session:
            return ask(session, statement, values)

    def ask_often(self, statement: Any, values: dict[str, Any]) -> Sequence[Any]:
        """The rows of `ask` for a statement without lists, on psycopg by the driver itself.

        At 20 batches a second a statement costs a third of the processor time so. An error comes from `ask`, which
        executes it once more.
        """
        if (self._engine.dialect.name, self._engine.dialect.driver) != ("postgresql", "psycopg"):
            return self.ask(statement, values).all()
        compiled = self._compiled.get(statement)
        if compiled is None:
            compiled = self._compiled[statement] = statement.compile(dialect=self._engine.dialect)
        text = str(compiled)
        with self._own_session() as session:
            with suppress(self._engine.dialect.loaded_dbapi.Error):
                cursor = session.connection.cursor()
                cursor.execute(text, {**compiled.params, **values})
                found: Sequence[Any] = cursor.fetchall()
                return found
            return ask(session, statement, values).all()

    @contextmanager
    def _own_session(self) -> Iterator[Connection]:
        if self._session is None:
            # AUTOCOMMIT: an open transaction would see no new rows, and keep PostgreSQL from cleaning up.
            self._session = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            limit_silence(self._session)
            fix_plans(self._session)
        try:
            yield self._session
        except DBAPIError as error:
            if error.connection_invalidated:
                self.close()
            raise
