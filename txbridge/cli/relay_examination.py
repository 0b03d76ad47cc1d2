"""Examination of an outbox and its relays for `txbridge doctor --relay`, by what stands in the database.

Two looks, some seconds apart, tell what stands still from what has just come.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from sqlalchemy import Text, bindparam, select, text
from txbridge_sqlalchemy.batch_writer import BatchWriter, RowRefusal
from txbridge_sqlalchemy.outbox_messages import OutboxRow
from txbridge_sqlalchemy.outbox_rows import OutboxRows, WaitingRows
from txbridge_sqlalchemy.outbox_state import OutboxState
from txbridge_sqlalchemy.relay_blocks import Blocks
from txbridge_sqlalchemy.relay_sessions import limit_transactions

from txbridge.cli.database import asking, make_engine
from txbridge.cli.service_program import table_of
from txbridge.core.names import Names
from txbridge.doctor.finding import Check, Finding, ok, problem, unknown, warning
from txbridge.errors import DatabaseUnreachableError, LocalProblemError, UsageError
from txbridge.kafka.errors import UnansweredError
from txbridge.text import counted, duration

#: Seconds between the two looks. A relay reads its outbox at least four times a second, and its batches take less than
#: one.
_LOOK_AGAIN_S = 3.0
#: Age (s) from which a transaction that holds rows up is a problem. A shorter one may be a long report of the
#: application.
_LONG_S = 60.0
#: Looks of the examination at rows that wait for transactions, and the pause (s) between two: of an application at work
#: there is always one, and each is over within that second. So many thousand rows that cannot be sent are passed.
_GATE_LOOKS = 10
_GATE_PAUSE_S = 0.1
#: Rows that cannot be sent which are shown.
_SHOWN = 5
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
    #: Whether a relay has the lock of the outbox, where the database has such locks.
    is_locked: bool
    #: The relay that has taken the outbox over, unless it has ended.
    owner: str | None
    #: The oldest first.
    open_ones: list[_OpenTransaction]


class OutboxExamination:
    """Examines an outbox in its database. It changes nothing, but takes the lock of a free outbox for a moment.

    Raises UsageError for an address or a name that cannot be used, LocalProblemError if the driver is missing.
    """

    def __init__(self, database_url: str, table_name: str) -> None:
        self._table = table_of(table_name)
        self._engine = make_engine(database_url, 2)
        limit_transactions(self._engine)
        self._rows = OutboxRows(self._engine, self._table)

    def list_findings(self, kafka: Mapping[str, Any], namespace: str) -> Iterator[Finding]:
        """Yield the findings. Rows are judged by what Kafka says about their topics, if it can be reached."""
        writer = BatchWriter(kafka, Names(namespace))
        try:
            with asking(self._engine, "the outbox in {} cannot be used"):
                self._rows.verify()
                OutboxState(self._engine, self._rows).verify()
                first = now = self._look_at_relay(writer)
                if not first.is_locked or first.owner is None or first.waiting.rows:
                    time.sleep(_LOOK_AGAIN_S)
                    now = self._look_at_relay(writer)
        except (UsageError, LocalProblemError) as error:
            found = unknown if isinstance(error, DatabaseUnreachableError) else problem
            yield found(
                Check.RELAY, str(error), "give the relays' --database-url and --table, or repair what the text names"
            )
        else:
            yield from self._about_relay(first, now)
            yield from self._about_blocked()
            yield self._about_rows(first, now)
        finally:
            self._rows.close()
            self._engine.dispose()

    def _look_at_relay(self, writer: BatchWriter) -> _Look:
        next_row, state = self._find_next_row(writer), self._table.state
        # Not by the session of the rows, which would keep the lock.
        other = OutboxRows(self._engine, self._table)
        is_free = other.try_lock()
        other.close()
        with self._engine.connect() as connection:
            is_postgres = connection.dialect.name == "postgresql"
            quote = connection.dialect.identifier_preparer.quote
            name = ".".join(quote(part) for part in (self._table.schema, self._table.name) if part)
            outbox = {"outbox": name if self._rows.has_gate else None}
            open_ones = connection.execute(_OPEN, outbox).all() if is_postgres else []
            # Without a row no relay has ever worked here, and there is no lock to be taken.
            owners = connection.execute(select(state.c.owner)).scalars().all()
            return _Look(
                self._rows.count_waiting(),
                next_row,
                bool(owners) and not is_free,
                next(iter(owners), None),
                [_OpenTransaction(*one) for one in open_ones],
            )

    def _find_next_row(self, writer: BatchWriter) -> OutboxRow | None:
        """The first row that can be sent, and waits for no transaction that is soon over. The others are blocked."""
        self._rows.blocks = blocks = Blocks()
        self._rows.forget_reads()
        for _ in range(_GATE_LOOKS):
            rows = self._rows.read_rows()
            try:
                refusals = writer.list_refusals(rows)
            except UnansweredError:
                # The findings about Kafka say so. A row may also be one that no relay could read.
                refusals = {row.id: RowRefusal(str(row.reason)) for row in rows if row.message is None}
            for row in rows:
                if (refusal := refusals.get(row.id)) and blocks.without_blocked([row]):
                    blocks.block_row(row, refusal.reason, 0.0, whole_topic=refusal.whole_topic)
            if can_be_sent := blocks.without_blocked(rows):
                return can_be_sent[0]
            if rows:
                self._rows.forget_reads()
            elif self._rows.is_gate_closed:
                time.sleep(_GATE_PAUSE_S)
            else:
                break
        return None

    def _about_relay(self, first: _Look, now: _Look) -> Iterator[Finding]:
        name = self._table.name
        if not self._rows.dialect.has_locks:
            return
        if not first.is_locked and not now.is_locked:
            yield problem(
                Check.RELAY,
                f"no relay works on {name} (nobody has its lock): its rows are not sent",
                "start `txbridge relay`, or look why it cannot reach this database",
            )
        elif first.owner is None and now.owner is None:
            yield problem(
                Check.RELAY,
                f"a relay has the lock of {name}, and has not taken it over: its rows are not sent",
                "`/readyz` and the log of that relay say why",
            )
        else:
            yield ok(Check.RELAY, f"a relay works on {name}")

    def _about_blocked(self) -> Iterator[Finding]:
        if heads := list(self._rows.blocks):
            shown = [f"{head.row.name} ({head.reason})" for head in heads[:_SHOWN]]
            more = ", ..." if len(heads) > _SHOWN else ""
            yield warning(
                Check.RELAY,
                f"{counted(len(heads), 'row')} of {self._table.name} cannot be sent, and later rows of the same topic "
                f"or key wait for them: {', '.join(shown)}{more}",
                "repair the topic, or repair or delete the row; the others do not wait, and relays try it every minute",
            )

    def _about_rows(self, first: _Look, now: _Look) -> Finding:
        (count, oldest), name = now.waiting, self._table.name
        if not count:
            return ok(Check.RELAY, f"no row waits in {name}")
        age = "" if oldest is None or math.isnan(oldest) else f", the oldest for {duration(int(oldest * 1000))}"
        text = f"rows that wait in {name}: {count:,}{age}"
        if first.next_row is not None and now.next_row is not None and first.next_row.id == now.next_row.id:
            return problem(
                Check.RELAY,
                f"{text}; row {now.next_row.name} was not sent within {_LOOK_AGAIN_S:.0f}s",
                "`/readyz` and the logs of the relays say why",
            )
        before = {one.number for one in first.open_ones}
        holding = next((one for one in now.open_ones if one.number in before), None)
        is_held_up = self._rows.is_gate_closed or not (self._rows.has_gate or self._rows.blocks)
        if first.next_row is None and now.next_row is None and is_held_up and holding is not None:
            seconds = holding.seconds
            since = "" if seconds is None else f", open for {duration(int(seconds * 1000))}"
            where = " to it" if self._rows.has_gate else ""
            found = warning if seconds is not None and seconds < _LONG_S else problem
            return found(
                Check.RELAY,
                f"{text}; none can be sent before a transaction ends that has written{where}: {holding.who}{since}",
                "let it end, or end it (pg_terminate_backend, ROLLBACK PREPARED); docs/outbox.md says why they wait",
            )
        if now.next_row is None:
            return ok(Check.RELAY, f"{text}; none of them can be sent now, or is due")
        return ok(Check.RELAY, f"{text}; they are sent")
