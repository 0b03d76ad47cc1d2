"""The relay's side of an outbox: which rows come next, who sends them, and that they are deleted exactly once."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, cast

from sqlalchemy import (
    Connection,
    CursorResult,
    Engine,
    Executable,
    Result,
    bindparam,
    func,
    insert,
    inspect,
    select,
    update,
)
from sqlalchemy.exc import DBAPIError, IntegrityError

from txbridge.client.message import now_ms
from txbridge.errors import UsageError
from txbridge_sqlalchemy.outbox_dialects import LOWEST, GateStatements, dialect_of
from txbridge_sqlalchemy.outbox_gate import OutboxGate
from txbridge_sqlalchemy.outbox_messages import OutboxRow, ms_of, row_reader
from txbridge_sqlalchemy.outbox_statements import OutboxStatements, outbox_statements
from txbridge_sqlalchemy.outbox_table import OUR_OUTBOX, OutboxTable
from txbridge_sqlalchemy.relay_sessions import limit_silence
from txbridge_sqlalchemy.row import ask

#: Seconds after which a row that could not be sent is looked at again: somebody may have repaired it. Its body is
#: read, and its reason logged, no more often than that.
_SKIPPED_FOR_S = 60.0
#: Seconds after which all rows are looked at again, also those before a place that should be the first one: somebody
#: may have set the sequence back, or drawn an id long before the INSERT. A hundred thousand dead rows take 20 ms.
_ALL_AGAIN_S = 5.0
#: Most rows of a lane that are skipped at a time, which a statement can name in every database. One more stops the
#: lane: then it is not some rows that are wrong but the mapping, or the application that writes them.
MOST_SKIPPED = 10_000

#: A number beside those of lanes. Its lock is held by a relay that has no lane.
_WAITING = -1
#: The number of no lane.
_NO_LANE = -2


class LaneState(NamedTuple):
    """The last transaction in which rows of a lane were sent, and deleted."""

    transaction_id: str
    half_partition: int
    half_offset: int


class WaitingRows(NamedTuple):
    """The rows that wait in an outbox."""

    rows: int
    #: Age of the oldest one in seconds, by the clock of this machine; None without a row or a column with its time, NaN
    #: for a time that cannot be read.
    oldest: float | None


class _LaneRead(NamedTuple):
    """The last read of a lane."""

    #: Up to which place; None if there was none.
    bound: Any = None
    #: The number of rows that it found.
    found: int = 0
    #: The place before which the lane has no row, and gets none any more.
    first: Any = LOWEST
    #: Monotonic time (s) from which this is not believed any more.
    until: float = 0.0


class OutboxRows:
    """The rows of one outbox for one relay. All methods belong to one thread, except `delete_batch` and
    `count_waiting`.

    It has a session of its own at the database, with the locks of its lanes. When the session is lost, so are the
    lanes, at once for all other relays. Then a method raises the error of the database (`connection_invalidated`),
    `held` is empty, and the next `take_lanes` opens another session. The locks only save work: `delete_batch` decides
    which relay's batch counts.

    Args:
        engine: of the primary of the database. Its pool must have a connection beside this one. A pooler between the
            two (PgBouncer) must keep a session on one connection.
        table: the outbox.
        lanes: how many lanes share the work: the partitions of HALF. On SQLite there is one.

    Attributes:
        lanes: the number of lanes that are in use. Lane n belongs to partition n of HALF.
        held: the lanes of this relay.

    Raises:
        UsageError: no relay can work with this database or table.

    """

    def __init__(self, engine: Engine, table: OutboxTable = OUR_OUTBOX, lanes: int = 1) -> None:
        self._engine = engine
        self._dialect = dialect_of(engine.dialect)
        self.lanes = lanes if self._dialect.has_locks else 1
        self.held: set[int] = set()
        self._session: Connection | None = None
        self._has_lanes = False
        self._is_waiting = False
        self._table = table
        self._read_row = row_reader(table)
        self._statements: OutboxStatements | None = None
        self._lanes = _LaneStatements(table, self._dialect)
        self._gate = OutboxGate()
        self._last_reads: dict[int, _LaneRead] = {}
        self._skipped: dict[int, dict[Any, float]] = {lane: {} for lane in range(self.lanes)}

    def verify(self) -> None:
        """Make sure that this user sees and may delete all rows, by statements that change nothing.

        Raises:
            UsageError: a column is missing, or the table is a view.
            sqlalchemy.exc.SQLAlchemyError: a table or a right is missing, or row-level security hides rows. Or the
                server takes no writes, or does not answer.

        """
        lane = next(iter(self._skipped))
        self._ask(self._made_statements().rows, self._values(lane, 1, 1)).all()
        self._pass_gate(lane, _LaneRead(), 1)
        self._ask(self._lanes.state, {"lane": lane}).all()
        if not self._dialect.has_locks:
            return
        with self._own_session() as session:
            if self._table.name in inspect(session).get_view_names(self._table.schema):
                raise UsageError(f"{self._table.name} is a view, which may hide rows, and who writes: give its table")
            _hits(session, self._lanes.advance, {"of_lane": _NO_LANE, "old": "", **LaneState("", 0, 0)._asdict()})
            _hits(session, self._made_statements().delete, self._dialect.list_parameters([None]))

    def take_lanes(self, wanted: int) -> set[int]:
        """Take up to so many more lanes that no other relay holds, and return those. Waits for nobody."""
        if not self._has_lanes:
            self._make_lanes()
        free = [lane for lane in range(self.lanes) if lane not in self.held]
        # Several relays that start together do not all begin with the same lane.
        random.shuffle(free)
        taken: set[int] = set()
        for lane in free:
            if len(taken) >= wanted:
                break
            if self._ask(self._lanes.lock, {"lane": lane}).scalar():
                taken.add(lane)
                self.held.add(lane)
        self._ask_others()
        return taken

    def is_lane_wanted(self) -> bool:
        """Whether another relay has no lane, and waits for one. For a relay that holds lanes."""
        if not self._ask(self._lanes.lock, {"lane": _WAITING}).scalar():
            return True
        self._ask(self._lanes.unlock, {"lane": _WAITING}).all()
        return False

    def _ask_others(self) -> None:
        """Show by a lock that this relay has no lane, as long as that is so."""
        if not self.held and not self._is_waiting:
            self._is_waiting = bool(self._ask(self._lanes.lock, {"lane": _WAITING}).scalar())
        elif self.held and self._is_waiting:
            self._is_waiting = False
            self._ask(self._lanes.unlock, {"lane": _WAITING}).all()

    def _make_lanes(self) -> None:
        """Write the rows of lanes that have none yet."""
        there = set(self._ask(self._lanes.all).scalars())
        for lane in {*range(self.lanes), _WAITING} - there:
            with suppress(IntegrityError):  # another relay was faster
                self._ask(self._lanes.insert, {"lane": lane})
        self._has_lanes = True

    def give_lanes_back(self, lanes: Iterable[int]) -> None:
        """Let other relays take these lanes. No batch of them may be on its way."""
        for lane in set(lanes) & self.held:
            self.held.discard(lane)
            self._ask(self._lanes.unlock, {"lane": lane}).all()

    def read_rows(self, lane: int, limit: int = 1_000, most_bytes: int = 2**20) -> list[OutboxRow]:
        """The next rows of a lane, in the order in which they are to be delivered.

        At most `limit` rows, whose keys, values and headers have at most `most_bytes` together; but at least one row,
        however large. A row with a reason is not returned again for a minute; see `skip_rows`.

        Raises UsageError if so many rows cannot be sent that the lane stands still.
        """
        skipped = self._skipped_now(lane)
        statements = self._made_statements()
        last = self._last_reads.get(lane, _LaneRead())
        if last.until < (now := time.monotonic()):
            last = _LaneRead(until=now + _ALL_AGAIN_S)
        if not self._pass_gate(lane, last, limit):
            return []
        if len(skipped) > MOST_SKIPPED:
            raise UsageError(
                f"more than {MOST_SKIPPED} rows of lane {lane} cannot be sent: correct the description of the "
                "table or the application that writes them, then repair or delete these rows"
            )
        values = self._values(lane, limit, most_bytes) | {"skipped": list(skipped), "first": last.first}
        found = self._ask(statements.rows, values).all()
        rows = [self._read_row(row) for row in found]
        bound = self._gate.bound
        self._last_reads[lane] = _LaneRead(bound, len(rows), found[0][-1] if found else bound, last.until)
        self.skip_rows(lane, [row.id for row in rows if row.message is None])
        return rows

    @property
    def has_gate(self) -> bool:
        """Whether rows wait only for transactions that have written to the outbox (outbox_gate.py)."""
        return self._made_statements().gate is not None

    @property
    def is_gate_closed(self) -> bool:
        """Whether the newest rows wait for transactions that could still add one before them."""
        return self._gate.is_closed

    def _pass_gate(self, lane: int, last: _LaneRead, limit: int) -> bool:
        """Whether rows of this lane could be read."""
        statements = self._made_statements()
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
            self._last_reads[lane] = last._replace(bound=None, found=0)
            return False
        # A condition of the application may also depend on the time.
        may_change = self._table.where is not None or not (self._gate.is_closed or statements.is_drawn)
        return bool(last.found or bound != last.bound or may_change)

    def _look_at_gate(self, gate: GateStatements, *, is_drawn: bool) -> None:
        bound = self._gate.bound
        found: Sequence[Any] | None = self._ask(gate.look, {"bound": LOWEST if bound is None else bound}).first()
        if found is None and is_drawn:
            # Up to the bound no row comes any more: it stands for the newest one. A look without a bound has passed all
            # dead rows by, and is the last of its kind.
            found = self._ask(gate.drawn).first() if bound is None else (bound, ())
        self._gate.note_look(*(found or (None, ())))

    def skip_rows(self, lane: int, ids: Collection[Any]) -> None:
        """Leave these rows out for a minute: they cannot be sent, and must not make the others wait."""
        until = time.monotonic() + _SKIPPED_FOR_S
        self._skipped[lane].update(dict.fromkeys(ids, until))

    def _skipped_now(self, lane: int) -> dict[Any, float]:
        skipped = self._skipped[lane]
        if skipped and next(iter(skipped.values())) < time.monotonic():
            # All of them: their reasons belong together in a report.
            skipped.clear()
            self._last_reads.pop(lane, None)
        return skipped

    def lane_state(self, lane: int) -> LaneState | None:
        """The last batch of a lane; None if there was none."""
        found = self._ask(self._lanes.state, {"lane": lane}).mappings().first()
        if found is None:  # somebody has deleted it
            self._make_lanes()
        return None if found is None or found["transaction_id"] is None else LaneState(**found)

    def delete_batch(
        self, connection: Connection, lane: int, old: LaneState | None, new: LaneState, ids: Sequence[Any]
    ) -> bool:
        """Delete the rows of a batch and note it as the last one of its lane, in the transaction of this connection.

        Returns False if another relay has sent a batch of this lane since `old` was read, or if one of the rows is not
        there any more. Then the transaction must be rolled back.
        """
        values = {"of_lane": lane, "old": "" if old is None else old.transaction_id, **new._asdict()}
        # First: a relay that comes too late waits here for the other one, and deletes nothing.
        if _hits(connection, self._lanes.advance, values) != 1:
            return False
        parameters = self._dialect.list_parameters(list(ids))
        return _hits(connection, self._made_statements().delete, parameters) == len(ids)

    def count_waiting(self) -> WaitingRows:
        """How many rows there are, and how old the oldest is. It reads the whole table."""
        # Not in the relay's own session, which the database ends when a slow count is followed by a long pause.
        with self._engine.connect() as connection:
            rows, since = tuple(ask(connection, self._made_statements().waiting).one())
        if since is None:
            return WaitingRows(rows, None)
        ms = ms_of(since)
        return WaitingRows(rows, max(0.0, (now_ms() - ms) / 1000) if isinstance(ms, int) else math.nan)

    def close(self) -> None:
        """Give all lanes back, and end the session."""
        with suppress(DBAPIError):  # the locks end with the session, if later
            self.give_lanes_back(self.held)
        self._drop_session()

    def _drop_session(self) -> None:
        self.held.clear()
        self._last_reads.clear()
        # Another server may have other transactions of the same names.
        self._gate = OutboxGate()
        self._is_waiting = False
        if self._session is not None:
            session, self._session = self._session, None
            # Its connection must not be used again, with the locks that it may have.
            session.invalidate()
            session.close()

    def _values(self, lane: int, limit: int, most_bytes: int) -> dict[str, Any]:
        values = {"limit": limit, "most_bytes": most_bytes, "bound": self._gate.bound, "skipped": (), "first": LOWEST}
        return values | {"lane": lane} if self.lanes > 1 else values

    def _made_statements(self) -> OutboxStatements:
        if self._statements is None:
            with self._own_session() as session:
                self._statements = outbox_statements(self._table, session, self._dialect, self.lanes)
        return self._statements

    def _ask(self, statement: Executable, values: dict[str, Any] | None = None) -> Result[Any]:
        """Execute a statement in the session of this relay, each in a transaction of its own."""
        with self._own_session() as session:
            return ask(session, statement, values)

    @contextmanager
    def _own_session(self) -> Iterator[Connection]:
        if self._session is None:
            # AUTOCOMMIT: an open transaction would see no new rows, and keep PostgreSQL from cleaning up.
            self._session = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            limit_silence(self._session)
        try:
            yield self._session
        except DBAPIError as error:
            if error.connection_invalidated:
                self._drop_session()
            raise


def _hits(connection: Connection, statement: Executable, values: dict[str, Any] | list[dict[str, Any]]) -> int:
    return cast(CursorResult[Any], ask(connection, statement, values)).rowcount


class _LaneStatements:
    def __init__(self, table: OutboxTable, dialect: Any) -> None:
        lanes = table.lanes
        lane = lanes.c.lane == bindparam("lane")
        self.all = select(lanes.c.lane)
        self.insert = insert(lanes)
        self.state = select(lanes.c.transaction_id, lanes.c.half_partition, lanes.c.half_offset).where(lane)
        self.advance = (
            update(lanes)
            .where(lanes.c.lane == bindparam("of_lane"), func.coalesce(lanes.c.transaction_id, "") == bindparam("old"))
            .values({name: bindparam(name) for name in LaneState._fields})
        )
        self.lock = dialect.try_lock(lanes)
        self.unlock = dialect.unlock(lanes)
