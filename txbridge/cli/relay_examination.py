"""Examination of an outbox and its relays for `txbridge doctor --relay`, by what stands in the database.

Two looks, some seconds apart, tell what stands still from what has just come.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from sqlalchemy import Connection, Text, bindparam, func, select, text
from txbridge_sqlalchemy.outbox_dialects import dialect_of
from txbridge_sqlalchemy.outbox_messages import OutboxRow
from txbridge_sqlalchemy.outbox_rows import OutboxRows, WaitingRows
from txbridge_sqlalchemy.relay_sessions import limit_transactions

from txbridge.cli.database import asking, make_engine
from txbridge.cli.relay_program import table_of
from txbridge.client.message import MessageLimits
from txbridge.doctor.finding import Check, Finding, ok, problem, unknown, warning
from txbridge.errors import DatabaseUnreachableError, LocalProblemError, UsageError
from txbridge.kafka.admin import FoundTopic
from txbridge.text import counted, duration
from txbridge.topics.spec import HALF_ROOM

#: Seconds between the two looks. A relay reads a lane at least four times a second, and its batches take less than one.
_LOOK_AGAIN_S = 3.0
#: Age (s) from which a transaction that holds rows up is a problem. A shorter one may be a long report of the
#: application.
_LONG_S = 60.0
#: Looks of the examination at rows that wait for transactions, and the pause (s) between two: of an application at work
#: there is always one, and each is over within that second.
_GATE_LOOKS = 10
_GATE_PAUSE_S = 0.1
#: The transactions of PostgreSQL that have written, to the outbox if it is given, the oldest first: rows that were
#: written since one began wait for its end. One that writes has no xid before it has found a row to delete. Of another
#: user's process everybody sees all but the state and the age.
_OPEN = text(
    "WITH writers AS (SELECT DISTINCT pid, virtualtransaction FROM pg_locks WHERE mode = 'RowExclusiveLock'"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    " AND CAST(:outbox AS regclass) IN (relation, pg_partition_root(relation)))"
    " SELECT number, who, EXTRACT(epoch FROM clock_timestamp() - began) FROM ("
    " SELECT coalesce(virtualtransaction, CAST(backend_xid AS text)) AS number, age(backend_xid) AS age,"
    " xact_start AS began,"
    " concat('process ', pid, ' (', concat_ws(', ', datname, usename, NULLIF(application_name, ''), state), ')') AS who"
    " FROM pg_stat_activity LEFT JOIN writers USING (pid)"
    " WHERE CASE WHEN :outbox IS NULL THEN backend_xid IS NOT NULL ELSE virtualtransaction IS NOT NULL END"
    " UNION ALL SELECT CAST(transaction AS text), age(transaction), prepared, concat('the prepared transaction ', gid)"
    " FROM pg_prepared_xacts WHERE :outbox IS NULL OR transaction IN (SELECT transactionid FROM pg_locks"
    " JOIN writers USING (virtualtransaction))) AS running ORDER BY age DESC NULLS LAST"
).bindparams(bindparam("outbox", type_=Text))


class _OpenTransaction(NamedTuple):
    #: No later transaction has it.
    number: str
    who: str
    #: How long it has been open; None if this user may not see it.
    seconds: float | None


class _Look(NamedTuple):
    """What an outbox shows at a moment."""

    waiting: WaitingRows
    #: The row that is sent next; None if there is none, or none that can be read yet.
    next_row: OutboxRow | None
    #: Lanes that no relay holds.
    free_lanes: frozenset[int]
    #: The oldest first.
    open_ones: list[_OpenTransaction]


class OutboxExamination:
    """Examines an outbox in its database. It changes nothing, but takes the lock of each free lane for a moment.

    Raises UsageError for an address or a name that cannot be used, LocalProblemError if the driver is missing.
    """

    def __init__(self, database_url: str, table_name: str) -> None:
        self._table = table_of(table_name)
        self._engine = make_engine(database_url, 2)
        limit_transactions(self._engine)
        # One lane, whose lock is not taken, has all rows.
        self._rows = OutboxRows(self._engine, self._table)
        self._dialect = dialect_of(self._engine.dialect)
        self._lanes = 0
        self._limits: MessageLimits | None = None
        #: Rows that cannot be sent, of those that were read. They stay at the front, and the others pass them.
        self._refused: dict[Any, str] = {}

    def list_findings(self, half: FoundTopic | None, longest_delay: int) -> Iterator[Finding]:
        """Yield the findings. `half` is HALF, if it can be seen, and `longest_delay` the option `timer_max_delay`."""
        if half is not None:
            self._lanes = half.partitions
            # A relay sets no immunity time.
            self._limits = MessageLimits(int(half.config["max.message.bytes"]) - HALF_ROOM, 0, longest_delay)
        try:
            with asking(self._engine, "the outbox in {} cannot be used"):
                self._rows.verify()
                first = now = self._look()
                if first.free_lanes or first.waiting.rows > len(self._refused):
                    time.sleep(_LOOK_AGAIN_S)
                    now = self._look()
        except (UsageError, LocalProblemError) as error:
            found = unknown if isinstance(error, DatabaseUnreachableError) else problem
            yield found(
                Check.RELAY, str(error), "give the relays' --database-url and --table, or repair what the text names"
            )
        else:
            yield from self._about_lanes(first.free_lanes & now.free_lanes)
            yield from self._about_refused()
            yield self._about_rows(first, now)
        finally:
            self._rows.close()
            self._engine.dispose()

    def _look(self) -> _Look:
        next_row = None
        for row in self._read_rows():
            reason = row.reason_against(self._limits)
            if reason is None:
                next_row = next_row or row
            else:
                self._refused[row.id] = reason
        self._rows.skip_rows(0, self._refused)
        with self._engine.connect() as connection:
            is_postgres = connection.dialect.name == "postgresql"
            quote = connection.dialect.identifier_preparer.quote
            name = ".".join(quote(part) for part in (self._table.schema, self._table.name) if part)
            outbox = {"outbox": name if self._rows.has_gate else None}
            open_ones = connection.execute(_OPEN, outbox).all() if is_postgres else []
            return _Look(
                self._rows.count_waiting(),
                next_row,
                self._list_free_lanes(connection),
                [_OpenTransaction(*one) for one in open_ones],
            )

    def _read_rows(self) -> list[OutboxRow]:
        """The next rows. None of them waits for a transaction that is soon over."""
        for _ in range(_GATE_LOOKS):
            rows = self._rows.read_rows(0)
            if rows or not self._rows.is_gate_closed:
                break
            time.sleep(_GATE_PAUSE_S)
        return rows

    def _list_free_lanes(self, connection: Connection) -> frozenset[int]:
        if not self._dialect.has_locks:
            return frozenset()
        lanes, free = self._table.lanes, set()
        if not self._lanes:
            self._lanes = connection.execute(select(func.count()).where(lanes.c.lane >= 0)).scalar_one()
        for lane in range(self._lanes):
            is_free = connection.execute(self._dialect.try_lock(lanes), {"lane": lane}).scalar()
            if is_free:
                connection.execute(self._dialect.unlock(lanes), {"lane": lane})
            # None: no relay has ever made this lane.
            if is_free or is_free is None:
                free.add(lane)
        return frozenset(free)

    def _about_lanes(self, free: frozenset[int]) -> Iterator[Finding]:
        name = self._table.name
        if not self._dialect.has_locks:
            return
        if len(free) == self._lanes:
            yield problem(
                Check.RELAY,
                f"no relay works on {name} (nobody holds a lane): its rows are not sent",
                "start `txbridge relay`, or look why it cannot reach this database",
            )
        elif free:
            yield problem(
                Check.RELAY,
                f"nobody holds the lanes {', '.join(map(str, sorted(free)))} of {self._lanes} of {name}",
                "look at the relays' logs; if HALF has more partitions than at their start, restart them",
            )
        else:
            yield ok(Check.RELAY, f"relays hold {counted(self._lanes, 'lane')} of {name}, which are all")

    def _about_refused(self) -> Iterator[Finding]:
        if self._refused:
            row_id, reason = next(iter(self._refused.items()))
            yield warning(
                Check.RELAY,
                f"rows of {self._table.name} that cannot be sent: {len(self._refused):,}, such as {row_id}: {reason}",
                "repair or delete them; the others do not wait, and relays look at these again every minute",
            )

    def _about_rows(self, first: _Look, now: _Look) -> Finding:
        (count, oldest), name = now.waiting, self._table.name
        if count <= len(self._refused):
            return ok(Check.RELAY, f"no {'other ' if count else ''}row waits in {name}")
        age = "" if oldest is None or math.isnan(oldest) else f", the oldest for {duration(int(oldest * 1000))}"
        text = f"rows that wait in {name}: {count:,}{age}"
        if first.next_row is not None and now.next_row is not None and first.next_row.id == now.next_row.id:
            return problem(
                Check.RELAY,
                f"{text}; row {now.next_row.id} was not sent within {_LOOK_AGAIN_S:.0f}s",
                "`/readyz` and the logs of the relays say why (relay_lane_waits)",
            )
        before = {one.number for one in first.open_ones}
        holding = next((one for one in now.open_ones if one.number in before), None)
        both_none = first.next_row is None and now.next_row is None and first.waiting.rows > len(self._refused)
        if both_none and holding is not None:
            seconds = holding.seconds
            since = "" if seconds is None else f", open for {duration(int(seconds * 1000))}"
            where = " to it" if self._rows.has_gate else ""
            found = warning if seconds is not None and seconds < _LONG_S else problem
            return found(
                Check.RELAY,
                f"{text}; none can be sent before a transaction ends that has written{where}: {holding.who}{since}",
                "let it end, or end it (pg_terminate_backend, ROLLBACK PREPARED); docs/outbox.md says why they wait",
            )
        return ok(Check.RELAY, f"{text}; they are sent")
