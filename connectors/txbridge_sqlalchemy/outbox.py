"""Writes messages into an outbox, in the transactions of the application."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, func, insert, select
from sqlalchemy.orm import Session

from txbridge import Message
from txbridge.client.message import now_ms
from txbridge.client.outbox_values import check_for_outbox, encode_headers
from txbridge.errors import UsageError
from txbridge_sqlalchemy.outbox_table import outbox
from txbridge_sqlalchemy.work import AUTOCOMMIT

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

# Inline: the new id is not asked for, which saves PostgreSQL's RETURNING and its row.
_INSERT = insert(outbox).inline()
#: Channel of PostgreSQL's NOTIFY.
CHANNEL = outbox.name
_NOTIFY = select(func.pg_notify(CHANNEL, ""))


class Outbox:
    """Adds messages to `txbridge_outbox`, from which `txbridge relay` sends them after the commit.

    Thread-safe, and without a connection of its own: one object serves a process. Kafka is not asked, and may be away.

    Args:
        notify: wake the relay at each commit on PostgreSQL, by NOTIFY. Messages become visible some 20 ms sooner at the
            median. Commits with a NOTIFY follow one another, which halves the rate of a busy database.

    """

    def __init__(self, *, notify: bool = False) -> None:
        self._notify = notify

    def add(self, given: Connection | Session, *messages: Message) -> None:
        """Write the messages as rows, in their order, in the current transaction of this connection or session.

        They are sent if and only if it is committed, each as a message of its own: `deliver_at` and `delay` hold for
        each by itself. docs/outbox.md has the order in which they are delivered.

        Raises:
            UsageError: no relay could send one of the messages, or the connection commits every statement by itself
                (AUTOCOMMIT), so that the row would not depend on the transaction. No row was written.
            sqlalchemy.exc.SQLAlchemyError: the table is missing, or the database does not answer.

        """
        rows = [_row_of(message) for message in messages]
        connection = given.connection(bind_arguments={"clause": outbox}) if isinstance(given, Session) else given
        if not isinstance(connection, Connection):
            raise UsageError(
                f"a Connection or a Session is needed, not {type(given).__name__} (`async_add` takes an "
                "AsyncConnection or an AsyncSession)"
            )
        if not rows:
            return
        if getattr(connection.connection.dbapi_connection, "autocommit", None) is True:
            raise UsageError(AUTOCOMMIT)
        connection.execute(_INSERT, rows if len(rows) > 1 else rows[0])
        if self._notify and connection.dialect.name == "postgresql":
            connection.execute(_NOTIFY)

    async def async_add(self, given: AsyncConnection | AsyncSession, *messages: Message) -> None:
        """`add` for an AsyncConnection or an AsyncSession."""
        if not hasattr(given, "run_sync"):
            raise UsageError(f"an AsyncConnection or an AsyncSession is needed, not {type(given).__name__}")
        await given.run_sync(self.add, *messages)


def _row_of(message: Message) -> dict[str, Any]:
    check_for_outbox(message)
    return {
        "topic": message.topic,
        "key": message.key,
        "value": message.value,
        "headers": encode_headers(message.headers),
        "partition": message.partition,
        "timestamp": message.timestamp,
        "deliver_at": message.deliver_at,
        "created_at": now_ms(),
    }
