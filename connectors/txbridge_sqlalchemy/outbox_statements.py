"""The statements that read an outbox."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from operator import add
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Connection,
    Date,
    DateTime,
    Enum,
    Executable,
    Integer,
    LargeBinary,
    MetaData,
    Null,
    Numeric,
    String,
    Table,
    Text,
    and_,
    bindparam,
    cast,
    delete,
    func,
    literal,
    literal_column,
    null,
    or_,
    select,
    true,
    tuple_,
    update,
)
from sqlalchemy.exc import NoSuchTableError

from txbridge.client.outbox_values import AFTER
from txbridge.errors import UsageError
from txbridge_sqlalchemy.outbox_dialects import GateStatements, OutboxDialect
from txbridge_sqlalchemy.outbox_table import IN_BRACES, OutboxTable
from txbridge_sqlalchemy.row import ask


@dataclass(frozen=True, slots=True)
class OutboxStatements:
    """Statements for one outbox.

    The columns of rows are the id, value, key, headers, timestamp, partition and deliver_at. Those of the topic and of
    further headers follow. The last ones are the time at which the row was written, the id as text if it is no number,
    the row's place in the order, and its witness.
    """

    #: The next rows, at most `:limit` with `:most_bytes`. Only those without a time of delivery.
    rows: Executable
    #: The same without those whose topic is in `:topics`, whose topic and key are a pair, or whose id is in `:ids`.
    #: With `:stored` also without those that wait for a worker, and all of their keys.
    rows_beside: Executable
    #: Rows whose time of delivery is `:now` or before, by that time; None if rows have none. And beside the same.
    due: Executable | None
    due_beside: Executable | None
    #: The rows with the ids in `:ids`, or their texts.
    again: Executable
    #: A time (ms) as the parameter `:now`.
    time_value: Callable[[int], Any]
    #: Whether ids are numbers. Then they are named as they are, and others by their texts.
    has_numbers: bool
    #: With a gate the rows are those up to `:bound`.
    gate: GateStatements | None
    #: Whether no lower place comes later. Then the rows are those from `:first` on, and looks are above `:bound`.
    is_drawn: bool
    #: The number of rows, and the time of the oldest.
    waiting: Executable
    #: Delete, or mark, the rows of `OutboxDialect.list_parameters`. It returns their witnesses, if that is possible.
    delete: Executable
    #: The witnesses of the rows with these ids, where `delete` does not return them.
    witnesses: Executable | None
    #: The ids of those that are there.
    left: Executable


def outbox_statements(described: OutboxTable, connection: Connection, dialect: OutboxDialect) -> OutboxStatements:
    """The statements for this outbox. Raises UsageError if the table is not as described."""
    table = described.rows if described.is_ours else _reflect(described, connection)
    row_id = table.c[described.id]
    are_sent: list[ColumnElement[bool]] = (
        [] if described.where is None else [literal_column(f"({described.where})", Boolean)]
    )
    if described.mark is not None:
        are_sent.append(table.c[described.mark].is_(None))
    order = _order(described, table, dialect)
    gate = dialect.gate(order[0], described.state) if isinstance(order[0], Column) else None
    are_readable = dialect.readable() if gate is None else [order[0] <= bindparam("bound", type_=order[0].type)]
    # A condition of the application may hold for a row later than for the next one.
    is_drawn = gate is not None and not are_sent and ask(connection, gate.drawn).first() is not None
    if gate is not None and is_drawn:
        are_readable.append(order[0] >= bindparam("first", type_=BigInteger()))
        gate = gate._replace(look=gate.look.where(order[0] > bindparam("bound", type_=BigInteger())))
    rows = _Rows(described, table, dialect, order)
    is_due, now, sorted_due = [], [], order
    if described.deliver_at is not None:
        deliver_at = table.c[described.deliver_at]
        is_due, now = [deliver_at.is_(None)], [deliver_at <= bindparam("now", type_=deliver_at.type)]
        sorted_due = [deliver_at, *order]
    has_numbers = isinstance(row_id.type, Integer)
    named = row_id if has_numbers else cast(row_id, Text)
    ids: Any = bindparam("ids", expanding=True)
    witness = dialect.witness_of(described, table)
    since = null() if described.created_at is None else dialect.time_of(func.min(table.c[described.created_at]))
    remove: Any = delete(table) if described.mark is None else _marking(table, table.c[described.mark])
    remove = remove.where(dialect.is_listed(row_id))
    returns = described.mark is None and dialect.has_returning
    return OutboxStatements(
        rows.select([*are_readable, *is_due, *are_sent], order),
        rows.select([*are_readable, *is_due, *are_sent, *rows.beside()], order),
        rows.select([*now, *are_sent], sorted_due) if now else None,
        rows.select([*now, *are_sent, *rows.beside()], sorted_due) if now else None,
        rows.select([named.in_(ids), *are_sent], order),
        _time_value(None if described.deliver_at is None else table.c[described.deliver_at]),
        has_numbers,
        gate,
        is_drawn,
        select(func.count(), since).select_from(table).where(*are_sent),
        remove.returning(witness) if returns else remove,
        None if returns else select(witness).where(row_id.in_(ids)),
        select(row_id).where(row_id.in_(ids), *are_sent),
    )


def _time_value(column: Column[Any] | None) -> Callable[[int], Any]:
    if column is None or not isinstance(column.type, DateTime):
        return int
    zone = UTC if column.type.timezone else None
    return lambda now: datetime.fromtimestamp(now / 1000, UTC).replace(tzinfo=zone)


def _marking(table: Table, column: Column[Any]) -> Any:
    """Mark rows as sent. Raises UsageError for a column that has no time."""
    if isinstance(column.type, Boolean):
        return update(table).values({column: true()})
    if not isinstance(column.type, Date | DateTime):
        raise UsageError(f"`mark` names the column {column.name}, which is neither a time nor a Boolean")
    return update(table).values({column: func.now()})


class _Rows:
    """Makes the statements that read rows."""

    def __init__(
        self, described: OutboxTable, table: Table, dialect: OutboxDialect, order: list[ColumnElement[Any]]
    ) -> None:
        bodies = (described.value, described.key, described.headers)
        parts = [_as_text_or_bytes(table, name) for name in bodies]
        *numbers, written = [
            null() if name is None else dialect.time_of(table.c[name])
            for name in (described.timestamp, described.partition, described.deliver_at, described.created_at)
        ]
        texts = [
            _as_text_or_bytes(table, name) for name in (*described.topic_columns, *described.header_columns.values())
        ]
        row_id = table.c[described.id]
        id_text = null() if isinstance(row_id.type, Integer) else cast(row_id, Text)
        self._columns = [
            row_id,
            *parts,
            *numbers,
            *texts,
            written,
            id_text,
            order[0],
            dialect.witness_of(described, table),
        ]
        self._size = reduce(
            add, [func.coalesce(dialect.size_of(_as_text_or_bytes(table, name)), 0) for name in bodies if name]
        )
        self._dialect, self._row_id, self._key, self._headers = dialect, row_id, parts[1], parts[2]
        self._topic = _topic(described, table)

    def beside(self) -> list[ColumnElement[bool]]:
        """Conditions that leave out topics, keys of topics, and single rows."""
        # As `row_after` writes them.
        is_stored = func.coalesce(self._headers, "").startswith(f'[["{AFTER}"')
        passes, of_key = ~is_stored, list[ColumnElement[bool]]()
        if not isinstance(self._key, Null):
            of_key = [or_(self._key.is_(None), ~self._dialect.is_pair_listed(self._topic, self._key))]
            keys = select(self._topic, self._key).where(is_stored, self._key.is_not(None)).correlate(None)
            passes = and_(passes, or_(self._key.is_(None), tuple_(self._topic, self._key).not_in(keys)))
        return [
            *of_key,
            or_(bindparam("stored", type_=Integer()) == 0, passes),
            self._topic.not_in(bindparam("topics", expanding=True)),
            self._row_id.not_in(bindparam("ids", expanding=True)),
        ]

    def select(self, conditions: list[ColumnElement[bool]], order: list[ColumnElement[Any]]) -> Executable:
        """Select the next rows. The database cuts them off by their bytes: a thousand rows may hold a gigabyte."""
        columns = [column.label(f"c{n}") for n, column in enumerate(self._columns)]
        keys = [key.label(f"k{n}") for n, key in enumerate(order)]
        one = (
            select(*columns, *keys, self._size.label("size"))
            .where(*conditions)
            .order_by(*order)
            .limit(bindparam("limit"))
            .subquery("next_ones")
        )
        sorting = [one.c[key.name] for key in keys]
        summed = select(one, func.sum(one.c.size).over(order_by=sorting, rows=(None, 0)).label("bytes")).subquery(
            "summed"
        )
        return (
            select(*(summed.c[column.name] for column in columns))
            .where(or_(summed.c.bytes <= bindparam("most_bytes", type_=BigInteger()), summed.c.bytes == summed.c.size))
            .order_by(*(summed.c[key.name] for key in keys))
        )


def _topic(described: OutboxTable, table: Table) -> ColumnElement[str]:
    """The real topic of a row, as the database puts it together."""
    parts = IN_BRACES.split(described.topic)
    # Every other one is the name of a column.
    columns = [
        _as_text_or_bytes(table, part) if n % 2 else literal(part, Text()) for n, part in enumerate(parts) if part
    ]
    return reduce(add, [cast(column, Text) if len(columns) > 1 else column for column in columns])


def _order(described: OutboxTable, table: Table, dialect: OutboxDialect) -> list[ColumnElement[Any]]:
    """What rows are sorted by, ascending. The last one differs from row to row."""
    row_id = table.c[described.id]
    grows = isinstance(row_id.type, Integer | Numeric)
    if described.order not in {None, described.id}:
        # Times repeat, and an id that was drawn at random would shuffle the rows of one time.
        is_number = isinstance(table.c[described.order].type, Integer)
        ties = [row_id] if grows or is_number else dialect.insertion_order(described)
        return [table.c[described.order], *ties]
    if described.order == described.id or grows:
        return [row_id]
    return dialect.insertion_order(described)


def _as_text_or_bytes(table: Table, name: str | None) -> ColumnElement[Any]:
    """A column, as text if it is neither text nor bytes: JSON as the database writes it, a number, a UUID, a time."""
    if name is None:
        return null()
    column: ColumnElement[Any] = table.c[name]
    is_text = isinstance(column.type, String) and not isinstance(column.type, Enum)
    return column if is_text or isinstance(column.type, LargeBinary) else cast(column, Text)


def _reflect(described: OutboxTable, connection: Connection) -> Table:
    try:
        table = Table(described.name, MetaData(), schema=described.schema, autoload_with=connection, resolve_fks=False)
    except NoSuchTableError:
        raise UsageError(f"there is no table {described.name} in this database") from None
    named = [
        *(described.id, described.value, described.key, described.headers, described.partition, described.timestamp),
        *(described.deliver_at, described.created_at, described.order, described.mark),
        *(*described.topic_columns, *described.header_columns.values()),
    ]
    missing = sorted({name for name in named if name is not None and name not in table.c})
    if missing:
        raise UsageError(
            f"the table {described.name} has no column {', '.join(missing)}. Its columns are "
            f"{', '.join(table.c.keys())}"
        )
    return table
