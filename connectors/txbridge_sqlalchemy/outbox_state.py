"""The state of an outbox's relay in its database: who works, and which batch was the last one."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, cast

from sqlalchemy import (
    Connection,
    CursorResult,
    Engine,
    Executable,
    and_,
    bindparam,
    case,
    func,
    insert,
    inspect,
    literal,
    select,
    update,
)
from sqlalchemy.exc import DataError, IntegrityError

from txbridge.core.outbox_progress import hash_of
from txbridge.errors import UsageError
from txbridge.failpoints import fault_point
from txbridge.kafka.errors import OutdatedError
from txbridge_sqlalchemy.outbox_messages import OutboxRow
from txbridge_sqlalchemy.outbox_rows import OutboxRows
from txbridge_sqlalchemy.row import ask

#: Attempts to delete the rows of a batch while the application changes them.
_TRIES = 5


class StateRow(NamedTuple):
    """The row of the table of the state."""

    identity: str
    #: The relay that has worked last; None if it has ended, and all that it has sent is deleted.
    owner: str | None
    #: The last batch whose rows are deleted.
    batch: int
    #: From where the progress names the batches behind it: the topic's id in Kafka, partition and offset.
    topic_id: str | None
    partition: int | None
    position: int | None


class _ChangedRowsError(Exception):
    """Rows of a batch are not as they were when they were read."""


class OutboxState:
    """The state of one outbox. All methods belong to one thread at a time."""

    def __init__(self, engine: Engine, rows: OutboxRows) -> None:
        self._engine = engine
        self._rows = rows
        self._table = state = rows.table.state
        self._read = select(*(state.c[name] for name in StateRow._fields)).where(state.c.id == 1)
        new: dict[str, Any] = {
            name: bindparam(f"new_{name}") for name in ("owner", "topic_id", "partition", "position")
        }
        owner = func.coalesce(state.c.owner, "") == bindparam("old_owner")
        # With the batch: a position belongs to one, and the database may have come back with another meanwhile.
        is_old = (state.c.id == 1, owner, state.c.batch == bindparam("old_batch"))
        self._take = update(state).where(*is_old).values(new)
        self._leave = update(state).where(state.c.id == 1, owner).values(owner=None)
        advanced: dict[str, Any] = {"batch": bindparam("new_batch"), "position": bindparam("new_position")}
        self._advance = update(state).where(*is_old).values(advanced)
        self._at_once: Executable | None = None

    def verify(self) -> None:
        """Make sure that this user may do what a relay does, by statements that change nothing.

        Raises sqlalchemy.exc.SQLAlchemyError if a table or a right is missing, or the server takes no writes.
        """
        values = {"old_owner": "-", "old_batch": -1, "new_batch": -1, "new_position": None}
        with self._engine.begin() as connection:
            _hits(connection, self._advance, values)
            ask(connection, self._rows.statements.delete, self._rows.dialect.list_parameters([None]))

    def read_state(self) -> StateRow:
        """The state; a new outbox gets an identity. Raises UsageError, sqlalchemy.exc.SQLAlchemyError."""
        with self._engine.connect() as connection:
            found = ask(connection, self._read).first()
            if found is None:
                self._refuse_lanes(connection)
        if found is None:
            new = {"id": 1, "identity": secrets.token_hex(8), "batch": 0}
            # Another relay may be faster.
            with suppress(IntegrityError), self._engine.begin() as connection:
                ask(connection, insert(self._table), new)
            return self.read_state()
        return StateRow(*tuple(found))

    def _refuse_lanes(self, connection: Connection) -> None:
        """Raise UsageError for the tables of an older relay that may have rows on their way."""
        lanes = f"{self._rows.table.name}_lanes"
        if inspect(connection).has_table(lanes, self._rows.table.schema):
            raise UsageError(
                f"there is a table {lanes}, of a relay before this release, whose last batches may be on their way: "
                "start that relay once more, end it by SIGTERM, and drop the table (docs/relay.md)"
            )

    def take_outbox(self, before: StateRow, owner: str, place: tuple[str, int, int]) -> None:
        """Become the owner in the place of the one before. `place`: topic id, partition, and offset of the progress.

        Raises OutdatedError if another relay was faster, sqlalchemy.exc.SQLAlchemyError.
        """
        topic_id, partition, position = place
        values = {
            "old_owner": before.owner or "",
            "old_batch": before.batch,
            "new_owner": owner,
            "new_topic_id": topic_id,
            "new_partition": partition,
            "new_position": position,
        }
        with self._engine.begin() as connection:
            if _hits(connection, self._take, values) != 1:
                raise OutdatedError("another relay has taken the outbox")

    def note_position(self, owner: str, batch: int, position: int) -> None:
        """Note from where the progress names later batches. Raises OutdatedError, sqlalchemy.exc.SQLAlchemyError."""
        self._confirm_once(owner, batch, batch, position, [])

    def leave_outbox(self, owner: str) -> None:
        """Note that this owner has ended, and deleted all that it has sent. Raises sqlalchemy.exc.SQLAlchemyError."""
        with self._engine.begin() as connection:
            _hits(connection, self._leave, {"old_owner": owner})

    def confirm_batch(self, owner: str, batch: int, position: int, sent: Sequence[OutboxRow]) -> None:
        """Delete, or mark, the rows of a batch, and note it as the last one, in one transaction.

        Of a row that is not as it was, another one with its id stays. Raises OutdatedError if another relay has the
        outbox, UsageError if rows stay that should go, sqlalchemy.exc.SQLAlchemyError.
        """
        fault_point("relay.confirming")
        if sent and self._confirm_at_once(owner, batch, position, sent):
            return
        rows = sent
        for _ in range(_TRIES):
            try:
                self._confirm_once(owner, batch - 1, batch, position, rows)
            except _ChangedRowsError:
                rows = self._same_rows({row.name: hash_of(row.message_id) for row in sent})
            else:
                return
        raise UsageError(f"the rows of batch {batch} change while they are deleted: look who changes sent rows")

    def _confirm_at_once(self, owner: str, batch: int, position: int, rows: Sequence[OutboxRow]) -> bool:
        """Confirm the batch by one statement, which fails as a whole unless all is as it should be. Returns whether.

        It takes half the processor time of a transaction with two: a third of that of a batch with one row.
        """
        if not self._rows.dialect.has_changing_ctes or self._rows.statements.witnesses is not None:
            return False
        if self._at_once is None:
            advanced = self._advance.returning(literal(1)).cte("advanced")
            delete: Any = self._rows.statements.delete
            gone = delete.where(select(advanced).exists()).cte("gone")
            is_good = and_(func.count() == bindparam("number"), func.sum(gone.c[0]) == bindparam("witnesses"))
            # Dividing by zero is an error, which takes all of it back.
            self._at_once = select(literal(1) / case((is_good, 1), else_=0)).select_from(gone)
        values = {"old_owner": owner, "old_batch": batch - 1, "new_batch": batch, "new_position": position}
        values |= {"ids": [row.id for row in rows], "number": len(rows), "witnesses": sum(row.witness for row in rows)}
        try:
            self._rows.ask_often(self._at_once, values)
        except DataError:
            return False
        fault_point("relay.confirmed")
        return True

    def confirm_named(self, owner: str, batch: int, position: int, named: Mapping[int | str, str]) -> int:
        """As `confirm`, for rows that the progress names by id and hash. Returns how many of them were still there."""
        rows = self._same_rows(named)
        self.confirm_batch(owner, batch, position, rows)
        return len(rows)

    def _same_rows(self, named: Mapping[int | str, str]) -> list[OutboxRow]:
        return [row for row in self._rows.read_again(named) if named[row.name] == hash_of(row.message_id)]

    def _confirm_once(self, owner: str, old: int, new: int, position: int, rows: Sequence[OutboxRow]) -> None:
        statements, ids = self._rows.statements, [row.id for row in rows]
        values = {"old_owner": owner, "old_batch": old, "new_batch": new, "new_position": position}
        with self._engine.begin() as connection:
            # First: a relay that comes too late waits here for the other one, and deletes nothing.
            if _hits(connection, self._advance, values) != 1:
                raise OutdatedError("another relay has the outbox, or the database has lost what was written last")
            if not ids:
                return
            if statements.witnesses is None:
                witnesses = ask(connection, statements.delete, {"ids": ids}).scalars().all()
                hits = len(witnesses)
            else:
                witnesses = ask(connection, statements.witnesses, {"ids": ids}).scalars().all()
                hits = _hits(connection, statements.delete, self._rows.dialect.list_parameters(ids))
            if len(witnesses) != len(rows) or sum(witnesses) != sum(row.witness for row in rows):
                if ask(connection, statements.left, {"ids": ids}).first() is not None:
                    raise UsageError(
                        f"rows of {self._rows.table.name} that were sent cannot be deleted, such as {ids[0]}: look for "
                        "a trigger, row-level security, or an id that is not unique. They are not sent again"
                    )
                raise _ChangedRowsError
            if hits != len(rows):
                raise _ChangedRowsError
        fault_point("relay.confirmed")


def _hits(connection: Connection, statement: Executable, values: dict[str, Any] | list[dict[str, Any]]) -> int:
    return cast(CursorResult[Any], ask(connection, statement, values)).rowcount
