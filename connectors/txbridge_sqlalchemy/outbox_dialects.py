"""The parts of an outbox's statements that each database says its own way: order of rows, and the relay's lock."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Date,
    DateTime,
    Executable,
    Integer,
    Select,
    Table,
    Text,
    bindparam,
    case,
    cast,
    column,
    func,
    literal_column,
    select,
    text,
    tuple_,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Dialect
from sqlalchemy.types import NullType

from txbridge.errors import UsageError
from txbridge_sqlalchemy.outbox_table import OutboxTable

#: Above the keys that applications choose for advisory locks of their own: the letters "tx".
_LOCK_SPACE = 0x7478 << 48
#: Below every id that a sequence draws.
LOWEST = -(2**63)


class GateStatements(NamedTuple):
    """What a gate (relay_course.py) asks about a table whose rows have the order of one column."""

    #: The highest value of the column, and who writes to the table. No row if the table is empty.
    look: Select[Any]
    #: The same with the last value of the sequence from which each INSERT draws the column, null if this user may not
    #: read it. No row if the values may come in another order than that of the INSERTs.
    drawn: Executable


class OutboxDialect(ABC):
    """The parts of a relay's statements that differ from database to database, as standard SQL says them."""

    #: Whether a session can have a lock that ends with it.
    has_locks = True
    #: Whether DELETE can return values of the deleted rows.
    has_returning = True
    #: Whether one statement can change several tables.
    has_changing_ctes = False

    def gate(self, _place: Column[Any], _state: Table) -> GateStatements | None:
        """The statements of a gate for the column that gives the order. None if the database cannot say it."""
        return None

    def readable(self) -> list[ColumnElement[bool]]:
        """Conditions without a gate: rows that no running transaction could precede, as far as the database knows."""
        return []

    def witness_of(self, _described: OutboxTable, _table: Table) -> ColumnElement[int]:
        """A number that another row with the same id does not have, as far as the table says it; else 0."""
        column = None if _described.created_at is None else _table.c[_described.created_at]
        is_number = column is not None and isinstance(column.type, Integer)
        return column if column is not None and is_number else literal_column("0", BigInteger)

    def size_of(self, column: ColumnElement[Any]) -> ColumnElement[int]:
        """Bytes of a value of this column."""
        return func.octet_length(column)

    def time_of(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """A column as it is, or a time in ms where the driver cannot read every one."""
        return column

    def insertion_order(self, described: OutboxTable) -> list[ColumnElement[Any]]:
        """What rows are sorted by whose ids do not grow, ascending. Raises UsageError if the database cannot tell."""
        raise UsageError(
            f"the column {described.id} of {described.name} is no number, so it does not say in which order the rows "
            "were written: give `order` a column that does, with another value for each row, such as BIGINT "
            "AUTO_INCREMENT"
        )

    @abstractmethod
    def try_lock(self, state: Table) -> Executable:
        """Take the relay's lock for this session if no other one has it; 1 or true if this one has it now."""

    @abstractmethod
    def session_id(self) -> Executable:
        """The number of this session, which a pooler may exchange for another one."""

    def is_listed(self, row_id: ColumnElement[Any]) -> ColumnElement[bool]:
        """Whether an id is in the list `:ids`."""
        return row_id.in_(bindparam("ids", expanding=True))

    def is_pair_listed(self, topic: ColumnElement[Any], key: ColumnElement[Any]) -> ColumnElement[bool]:
        """Whether topic and key are a pair of `pair_parameters`."""
        return tuple_(topic, key).in_(bindparam("pairs", expanding=True))

    def pair_parameters(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return {"pairs": pairs}

    def list_parameters(self, ids: list[Any]) -> dict[str, Any] | list[dict[str, Any]]:
        """The parameters of a statement with `is_listed` that changes rows. A list of them executes it for each."""
        return {"ids": ids}


def dialect_of(dialect: Dialect) -> OutboxDialect:
    """The parts for this database. Raises UsageError for one that an outbox does not know."""
    if dialect.name not in _DIALECTS:
        raise UsageError(
            f"a relay works with PostgreSQL, MySQL, MariaDB and SQLite, not with {dialect.name}: it has to know how "
            "this database orders its rows"
        )
    return _DIALECTS[dialect.name]


# A relay's transaction writes to the table of its state before it deletes the rows of a batch, and adds none. An INSERT
# into a partition, or a table that inherits, may lock only that one.
_WRITERS = """
    ARRAY(
        SELECT virtualtransaction FROM pg_locks
        WHERE mode = 'RowExclusiveLock' AND granted
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        GROUP BY virtualtransaction
        HAVING bool_or(
            relation IN (
                WITH RECURSIVE tree AS (
                    SELECT CAST(CAST(:rows AS regclass) AS oid) AS one
                    UNION SELECT inhrelid FROM tree JOIN pg_inherits ON inhparent = one
                )
                SELECT one FROM tree
            )
        )
            AND NOT bool_or(relation = CAST(:state AS regclass))
    )
"""
# A session draws the values of a CACHE ahead, and the application those of a sequence that belongs to no column.
_DRAWN = text(
    "SELECT CASE WHEN has_sequence_privilege(seqrelid, 'USAGE, SELECT')"
    " THEN coalesce(pg_sequence_last_value(seqrelid), seqstart - 1) END AS last_value FROM pg_sequence"
    " WHERE seqrelid = CAST(pg_get_serial_sequence(:rows, :place) AS regclass) AND seqcache = 1 AND seqincrement > 0"
)
# In subqueries, which PostgreSQL evaluates once, and not for each row.
_NOT_RUNNING: ColumnElement[bool] = literal_column(
    "NOT (age(xmin) <= (SELECT age(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS xid)))"
    " AND age(xmin) > (SELECT age(CAST(pg_snapshot_xmax(pg_current_snapshot()) AS xid))))",
    Boolean,
)


class _Postgres(OutboxDialect):
    """Reads rows up to a gate, in the order of a column that grows."""

    has_changing_ctes = True

    def gate(self, place: Column[Any], state: Table) -> GateStatements | None:
        if place.nullable:  # no bound would hold for null
            return None
        name_of = postgresql.dialect().identifier_preparer.format_table  # type: ignore[no-untyped-call]
        rows = name_of(place.table)
        writers = text(_WRITERS).bindparams(rows=rows, state=name_of(state))
        # As a CTE, which is read before the locks.
        drawn = _DRAWN.bindparams(rows=rows, place=place.name).columns(column("last_value")).cte("drawn")
        # Not max(), which some types lack.
        return GateStatements(
            select(place, writers).order_by(place.desc()).limit(1), select(drawn.c.last_value, writers)
        )

    def readable(self) -> list[ColumnElement[bool]]:
        """A row waits until every transaction has ended that was running when the row's own one began to write.

        xmin is the row's transaction, and a subtransaction's number is higher than that of its parent. `age` compares
        numbers that wrap around. A row that is older than half their range seems to come from the future, where no
        visible row can be: so only the numbers in between are left out.
        """
        return [_NOT_RUNNING]

    def insertion_order(self, _: OutboxTable) -> list[ColumnElement[Any]]:
        """By transaction, in the order in which they began to write; in each by its statements and the rows' places."""
        columns = ("-CAST(age(xmin) AS bigint)", "CAST(CAST(cmin AS text) AS bigint)", "ctid")
        return [literal_column(column) for column in columns]

    def time_of(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        if not isinstance(column.type, Date | DateTime):
            return column
        # Python knows neither infinity, here -1, which no message takes, nor years after 9999.
        ms = cast(func.round(func.date_part("epoch", column) * 1000), BigInteger)
        return case((column.is_(None), None), (func.isfinite(column), ms), else_=-1)

    def witness_of(self, _described: OutboxTable, _table: Table) -> ColumnElement[int]:
        # The row's transaction.
        return cast(cast(literal_column("xmin"), postgresql.TEXT), BigInteger)

    def try_lock(self, state: Table) -> Executable:
        # The number of the table tells apart tables of one name in several schemas.
        key = literal_column(str(_LOCK_SPACE), BigInteger) + cast(literal_column("tableoid"), BigInteger)
        return select(func.pg_try_advisory_lock(key)).select_from(state)

    def session_id(self) -> Executable:
        return select(func.pg_backend_pid())

    def is_listed(self, row_id: ColumnElement[Any]) -> ColumnElement[bool]:
        if isinstance(row_id.type, NullType):
            # A type that SQLAlchemy does not know: it cannot name the array's.
            return super().is_listed(row_id)
        # One array instead of a parameter for each row, which would take longer to make than all the rest.
        return row_id == func.any(bindparam("ids", type_=postgresql.ARRAY(row_id.type)))

    def is_pair_listed(self, topic: ColumnElement[Any], key: ColumnElement[Any]) -> ColumnElement[bool]:
        # PostgreSQL nests a list of pairs as deeply as it is long, and has no stack for 10,000.
        topics = bindparam("pair_topics", type_=postgresql.ARRAY(Text()))
        keys = bindparam("pair_keys", type_=postgresql.ARRAY(key.type))
        return tuple_(topic, key).in_(select(func.unnest(topics), func.unnest(keys)))

    def pair_parameters(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return {"pair_topics": [topic for topic, _ in pairs], "pair_keys": [key for _, key in pairs]}


class _MySql(OutboxDialect):
    """Named locks of the server, whose names have at most 64 characters."""

    has_returning = False

    def try_lock(self, state: Table) -> Executable:
        # Locks belong to the server, tables to a database.
        database = func.database() if state.schema is None else state.schema
        return select(func.get_lock(func.concat("txbridge:", func.md5(func.concat(database, ".", state.name))), 0))

    def session_id(self) -> Executable:
        return select(func.connection_id())

    def is_listed(self, row_id: ColumnElement[Any]) -> ColumnElement[bool]:
        """Whether it is one id.

        InnoDB locks each row that a DELETE reads. Of many ids it reads the whole table, also with FORCE INDEX, and so
        waits for every open transaction that has added rows.
        """
        return row_id == bindparam("ids")

    def list_parameters(self, ids: list[Any]) -> dict[str, Any] | list[dict[str, Any]]:
        return [{"ids": one} for one in ids]


class _SqLite(OutboxDialect):
    """No lock: writers follow one another, and two relays only get into each other's way."""

    has_locks = False

    def size_of(self, column: ColumnElement[Any]) -> ColumnElement[int]:
        # The text of a foreign table counts in characters, which is near enough.
        return func.length(column)

    def insertion_order(self, _: OutboxTable) -> list[ColumnElement[Any]]:
        return [literal_column("rowid")]

    def try_lock(self, state: Table) -> Executable:
        return select(literal_column("1")).select_from(state)

    def session_id(self) -> Executable:
        return select(literal_column("1"))


_DIALECTS: dict[str, OutboxDialect] = {
    "postgresql": _Postgres(),
    "mysql": _MySql(),
    "mariadb": _MySql(),
    "sqlite": _SqLite(),
}
