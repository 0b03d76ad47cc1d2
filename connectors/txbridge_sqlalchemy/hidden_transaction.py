"""Transactions of which only the driver knows, and which turn each COMMIT into a RELEASE SAVEPOINT.

asyncpg leaves one when a task is cancelled while a hook of the application, with a cursor of the driver, begins the
transaction: SQLAlchemy takes the connection back as one that has none. The next COMMIT succeeds and commits nothing.
The drivers keep what the server has said last about the connection, so this needs no statement.
"""

from __future__ import annotations

import logging
from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.pool import NullPool, QueuePool

from txbridge.client.base.log import report

#: In the pool's memory of a connection: it has been handed out before.
_USED = "txbridge_used"
#: psycopg and psycopg2: in a transaction, or in one that has failed.
_IN_TRANSACTION = (2, 3)


def is_in_transaction(driver: Any) -> bool | None:
    """Whether a driver's connection is in a transaction, as the server has last said.

    asyncpg, psycopg, psycopg2, sqlite3 and aiosqlite report it. None for a driver that does not.
    """
    # psycopg. Its `info` says the same, but is made anew each time, which takes ten times as long.
    if (libpq := getattr(driver, "pgconn", None)) is not None:
        return libpq.transaction_status in _IN_TRANSACTION
    if hasattr(driver, "is_in_transaction"):
        return bool(driver.is_in_transaction())
    if hasattr(driver, "in_transaction"):
        return bool(driver.in_transaction)
    status = getattr(getattr(driver, "info", None), "transaction_status", None)
    return None if status is None else status in _IN_TRANSACTION


def outlives_commit(connection: Connection) -> bool:
    """Whether the connection is still in a transaction. Asked after COMMIT: then nothing is committed."""
    # Other pools share a connection, and another user's transaction may have begun.
    has_one_user = isinstance(connection.engine.pool, QueuePool | NullPool)
    if connection.closed or connection.invalidated or not has_one_user:
        return False
    return bool(is_in_transaction(connection.connection.driver_connection))


def guard_pool(connection: Connection) -> None:
    """Have the pool of this connection close connections in a transaction, instead of handing them out.

    Without it the state after COMMIT is noticed all the same, but costs the send its transaction.
    """
    if isinstance(connection.engine.pool, QueuePool):
        # First, before hooks of the application begin a transaction. Called again, this changes nothing.
        event.listen(connection.engine, "checkout", _refuse_in_transaction, insert=True)


def _refuse_in_transaction(_: Any, record: Any, __: Any) -> None:
    # A hook for new connections may leave a transaction open, in which the first user's work takes place.
    used = record.info.get(_USED, False)
    record.info[_USED] = True
    if used and is_in_transaction(record.driver_connection):
        report(
            logging.WARNING,
            "sql_connection_was_in_transaction",
            hint="a task was cancelled in a hook that uses a cursor of the driver; the connection is replaced",
        )
        raise DisconnectionError("the connection is in a transaction that its last user has left open")
