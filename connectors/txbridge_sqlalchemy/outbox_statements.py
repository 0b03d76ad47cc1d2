"""The statements that read an outbox, and the messages made of its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Executable, Table, bindparam, func, literal_column, or_, select

from txbridge import Message
from txbridge.client.outbox_values import check_for_outbox, decode_headers
from txbridge.errors import UsageError
from txbridge_sqlalchemy.outbox_dialects import OutboxDialect
from txbridge_sqlalchemy.outbox_table import OUR_OUTBOX, OutboxTable, outbox

#: Id of a row, its message, and the reason if it has none.
Read = tuple[Any, Message | None, str | None]


@dataclass(frozen=True, slots=True)
class OutboxStatements:
    """Statements for one outbox, and how their rows become messages."""

    table: Table
    id: ColumnElement[Any]
    #: The next rows, at most `:limit` with `:most_bytes`; of `:lane`, if there are several lanes.
    rows: Executable
    #: The same without the ids in the list `:skipped`.
    rows_but_skipped: Executable
    #: The number of rows, and the time of the oldest.
    waiting: Executable
    read: Callable[[Sequence[Any]], Read]


def outbox_statements(table: OutboxTable, dialect: OutboxDialect, lanes: int) -> OutboxStatements:
    """The statements for this outbox."""
    if table != OUR_OUTBOX:
        raise UsageError("only txbridge_outbox can be read")
    row_id = outbox.c.id
    columns = [outbox.c[name] for name in ("id", "topic", "value", "key", "headers", *_NUMBERS)]
    conditions = [] if (readable := dialect.readable()) is None else [readable]
    if lanes > 1:
        # Rows without a key are spread by their id.
        hashed = func.coalesce(dialect.hash_of(outbox.c.key), dialect.hash_of(row_id))
        conditions.append(hashed % literal_column(str(lanes), BigInteger) == bindparam("lane"))
    sizes = [func.coalesce(dialect.size_of(outbox.c[name]), 0) for name in ("value", "key", "headers")]
    size = sizes[0] + sizes[1] + sizes[2]

    def rows(*more: ColumnElement[bool]) -> Executable:
        # The sum is cut off in the database: a thousand rows may hold a gigabyte.
        next_ones = select(*columns, size.label("size")).where(*conditions, *more).order_by(row_id)
        one = next_ones.limit(bindparam("limit")).subquery("next_ones")
        summed = select(one, func.sum(one.c.size).over(order_by=one.c.id).label("bytes")).subquery("summed")
        fits = or_(summed.c.bytes <= bindparam("most_bytes"), summed.c.bytes == summed.c.size)
        return select(*(summed.c[column.name] for column in columns)).where(fits).order_by(summed.c.id)

    return OutboxStatements(
        outbox,
        row_id,
        rows(),
        rows(row_id.not_in(bindparam("skipped", expanding=True))),
        select(func.count(), func.min(outbox.c.created_at)).select_from(outbox),
        _read_ours,
    )


_NUMBERS = ("timestamp", "partition", "deliver_at")


def _read_ours(row: Sequence[Any]) -> Read:
    row_id, topic, value, key, headers, timestamp, partition, deliver_at = row
    try:
        message = Message(
            topic,
            value,
            key,
            () if headers is None else decode_headers(headers),
            timestamp,
            partition,
            None,
            deliver_at,
        )
        check_for_outbox(message)
    except UsageError as error:
        return row_id, None, str(error)
    return row_id, message, None
