"""Writes messages into an outbox, in the transactions of the application."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, delete, func, insert, select
from sqlalchemy.orm import Session

from txbridge import Message
from txbridge.client.outbox_values import row_of_message
from txbridge.errors import UsageError
from txbridge_sqlalchemy.hidden_transaction import refuse_autocommit
from txbridge_sqlalchemy.outbox_table import OUR_OUTBOX, OutboxTable
from txbridge_sqlalchemy.row import ask

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession


class Outbox:
    """Adds messages to an outbox table, from which `txbridge relay` sends them after the commit.

    Thread-safe, and without a connection of its own: one object serves a process. Kafka is not asked, and may be away.

    Args:
        table: The table, if it is not `txbridge_outbox`.
        notify: Wake the relay at each commit on PostgreSQL, by NOTIFY. Messages become visible some 20 ms sooner at the
            median. Commits with a NOTIFY follow one another, which halves the rate of a busy database.

    """

    def __init__(self, table: OutboxTable = OUR_OUTBOX, *, notify: bool = False) -> None:
        if not table.is_ours:
            raise UsageError(
                f"an Outbox writes to a table with the columns of {OUR_OUTBOX.name}. Of another one, such as "
                f"{table.name}, the application writes the rows itself"
            )
        self.table = table
        self._table = table.rows
        # Inline: the new id is not asked for, which saves PostgreSQL's RETURNING and its row.
        self._insert = insert(self._table).inline()
        self._notify = select(func.pg_notify(table.name, "")) if notify else None

    def add(self, given: Connection | Session, *messages: Message) -> None:
        """Write the messages as rows, in their order, in the current transaction of this connection or session.

        They are sent if and only if it is committed, each as a message of its own: `deliver_at` and `delay` hold for
        each by itself. docs/outbox.md has the order in which they are delivered.

        Raises:
            UsageError: no relay could send one of the messages, or the connection commits every statement by itself
                (AUTOCOMMIT), so that the row would not depend on the transaction. No row was written.
            sqlalchemy.exc.SQLAlchemyError: the table is missing, or the database does not answer.

        """
        rows = [row_of_message(message) for message in messages]
        connection = given.connection(bind_arguments={"clause": self._table}) if isinstance(given, Session) else given
        if not isinstance(connection, Connection):
            raise UsageError(
                f"a Connection or a Session is needed, not {type(given).__name__} (`async_add` takes an "
                "AsyncConnection or an AsyncSession)"
            )
        if rows:
            self.write_rows(connection, rows)

    def write_rows(self, connection: Connection, rows: list[dict[str, object]]) -> None:
        """Insert the rows of messages. Raises as `add`."""
        refuse_autocommit(connection)
        ask(connection, self._insert, rows if len(rows) > 1 else rows[0])
        if self._notify is not None and connection.dialect.name == "postgresql":
            connection.execute(self._notify)

    def take_rows(self, engine: Engine) -> Sequence[Mapping[Any, Any]]:
        """Take the committed rows out of the table, in their order: `MemoryBridge.relay` delivers them in tests."""
        with engine.begin() as connection:
            rows = connection.execute(select(self._table).order_by(self._table.c.id)).mappings().all()
            connection.execute(delete(self._table).where(self._table.c.id.in_([row["id"] for row in rows])))
        return rows

    async def async_add(self, given: AsyncConnection | AsyncSession, *messages: Message) -> None:
        """`add` for an AsyncConnection or an AsyncSession."""
        if not hasattr(given, "run_sync"):
            raise UsageError(f"an AsyncConnection or an AsyncSession is needed, not {type(given).__name__}")
        await given.run_sync(self.add, *messages)
