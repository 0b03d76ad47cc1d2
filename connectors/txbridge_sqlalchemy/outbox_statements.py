"""The statements that read an outbox."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Connection,
    Enum,
    Executable,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    String,
    Table,
    Text,
    bindparam,
    case,
    cast,
    false,
    func,
    literal_column,
    null,
    or_,
    select,
    true,
)
from sqlalchemy.exc import NoSuchTableError

from txbridge.errors import UsageError
from txbridge_sqlalchemy.outbox_dialects import GateStatements, OutboxDialect
from txbridge_sqlalchemy.outbox_table import OutboxTable
from txbridge_sqlalchemy.row import ask


@dataclass(frozen=True, slots=True)
class OutboxStatements:
    """Statements for one outbox."""

    #: The next rows, at most `:limit` with `:most_bytes`; of `:lane`, if there are several lanes. Their columns are id,
    #: value, key, headers, timestamp, partition and deliver_at, those of the topic and of further headers, and the
    #: row's place in the order. Rows with the ids in the list `:skipped` are left out.
    rows: Executable
    #: With a gate the rows are those up to `:bound`.
    gate: GateStatements | None
    #: Whether no lower place comes later. Then the rows are those from `:first` on, and looks are above `:bound`.
    is_drawn: bool
    #: The number of rows, and the time of the oldest.
    waiting: Executable
    #: Delete the rows with the ids in the list `:ids`.
    delete: Executable


def outbox_statements(
    described: OutboxTable, connection: Connection, dialect: OutboxDialect, lanes: int
) -> OutboxStatements:
    """The statements for this outbox. Raises UsageError if the table is not as described."""
    table = described.rows if described.is_ours else _reflect(described, connection)
    row_id = table.c[described.id]
    are_sent = [] if described.where is None else [literal_column(f"({described.where})", Boolean)]
    order = _order(described, table, dialect)
    gate = dialect.gate(order[0], described.lanes) if isinstance(order[0], Column) else None
    is_readable = dialect.readable() if gate is None else [order[0] <= bindparam("bound", type_=order[0].type)]
    # A condition of the application may hold for a row later than for the next one.
    is_drawn = gate is not None and described.where is None and ask(connection, gate.drawn).first() is not None
    if gate is not None and is_drawn:
        is_readable.append(order[0] >= bindparam("first", type_=BigInteger()))
        gate = gate._replace(look=gate.look.where(order[0] > bindparam("bound", type_=BigInteger())))
    conditions = [*is_readable, *are_sent, row_id.not_in(bindparam("skipped", expanding=True))]
    if lanes > 1:
        # Rows without a key are spread by their id.
        keys = [row_id] if described.key is None else [table.c[described.key], row_id]
        hashed = func.coalesce(*map(dialect.hash_of, keys))
        is_of_lane = hashed % literal_column(str(lanes), BigInteger) == bindparam("lane")
        # PostgreSQL takes a CASE for true of every other row, and a comparison for true of one in 200. Then it would
        # rather sort all rows than follow the index: 630 instead of 5 ms for a batch out of 400,000 rows.
        conditions.append(case((is_of_lane, true()), else_=false()))
    since = null() if described.created_at is None else dialect.time_of(func.min(table.c[described.created_at]))
    return OutboxStatements(
        _rows(described, table, dialect, order, conditions),
        gate,
        is_drawn,
        select(func.count(), since).select_from(table).where(*are_sent),
        # A row that the application has marked as sent since it was read is not deleted, and so not sent.
        dialect.delete_rows(table, row_id).where(*are_sent),
    )


def _rows(
    described: OutboxTable,
    table: Table,
    dialect: OutboxDialect,
    order: list[ColumnElement[Any]],
    conditions: list[ColumnElement[bool]],
) -> Executable:
    """Select the next rows. The database cuts them off by their bytes: a thousand rows may hold a gigabyte."""
    bodies = (described.value, described.key, described.headers)
    parts = [_as_text_or_bytes(table, name) for name in bodies]
    numbers = [
        null() if name is None else dialect.time_of(table.c[name])
        for name in (described.timestamp, described.partition, described.deliver_at)
    ]
    texts = [_as_text_or_bytes(table, name) for name in (*described.topic_columns, *described.header_columns.values())]
    sizes = [func.coalesce(dialect.size_of(_as_text_or_bytes(table, name)), 0) for name in bodies if name]
    columns = [column.label(f"c{n}") for n, column in enumerate([table.c[described.id], *parts, *numbers, *texts])]
    keys = [key.label(f"k{n}") for n, key in enumerate(order)]
    one = (
        select(*columns, *keys, reduce(add, sizes).label("size"))
        .where(*conditions)
        .order_by(*order)
        .limit(bindparam("limit"))
        .subquery("next_ones")
    )
    sorting = [one.c[key.name] for key in keys]
    summed = select(one, func.sum(one.c.size).over(order_by=sorting, rows=(None, 0)).label("bytes")).subquery("summed")
    return (
        select(*(summed.c[column.name] for column in columns), summed.c[keys[0].name])
        .where(or_(summed.c.bytes <= bindparam("most_bytes"), summed.c.bytes == summed.c.size))
        .order_by(*(summed.c[key.name] for key in keys))
    )


def _order(described: OutboxTable, table: Table, dialect: OutboxDialect) -> list[ColumnElement[Any]]:
    """What rows are sorted by, ascending. The last one differs from row to row."""
    row_id = table.c[described.id]
    if described.order not in {None, described.id}:
        return [table.c[described.order], row_id]
    if described.order == described.id or isinstance(row_id.type, Integer | Numeric):
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
        *(described.deliver_at, described.created_at, described.order),
        *(*described.topic_columns, *described.header_columns.values()),
    ]
    missing = sorted({name for name in named if name is not None and name not in table.c})
    if missing:
        raise UsageError(
            f"the table {described.name} has no column {', '.join(missing)}. Its columns are "
            f"{', '.join(table.c.keys())}"
        )
    return table
