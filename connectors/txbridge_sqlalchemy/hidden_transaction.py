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

from txbridge.client.barrier import is_in_transaction
from txbridge.client.base.log import report
from txbridge.errors import UsageError

#: In the pool's memory of a connection: it has been handed out before.
_USED = "txbridge_used"
_AUTOCOMMIT = (
    "the connection commits every statement by itself (AUTOCOMMIT), so nothing can be rolled back. Give an engine "
    "without it. If you set autocommit by the driver, set it back before the connection returns to its pool"
)


def refuse_autocommit(connection: Connection) -> None:
    """Raise UsageError if the next statement would be committed by itself.

    Before a row is written: it would stay, and decide. A pool may have one such connection among others.
    """
    pooled = connection.connection
    given: Any = pooled.dbapi_connection
    is_on = getattr(given, "autocommit", None) is True
    if hasattr(given, "get_autocommit"):
        # MySQL's drivers, whose `autocommit` is a method that sets it.
        is_on = given.get_autocommit()
    elif connection.dialect.name == "sqlite":
        is_on = is_on or given.isolation_level is None
    # The application may have begun a transaction by itself.
    if is_on and not is_in_transaction(pooled.driver_connection):
        raise UsageError(_AUTOCOMMIT)


def outlives_commit(connection: Connection) -> bool:
    """Whether the connection is still in a transaction. Asked after COMMIT: then nothing is committed."""
    # Elsewhere COMMIT commits whatever is open, and the next transaction may begin with it.
    if connection.closed or connection.invalidated or connection.dialect.name != "postgresql":
        return False
    return bool(is_in_transaction(connection.connection.driver_connection))


def guard_pool(connection: Connection) -> None:
    """Have the pool of this connection close connections in a transaction, instead of handing them out.

    Without it the state after COMMIT is noticed all the same, but costs the send its transaction. Raises UsageError for
    a pool that may give one connection to several users: one would commit half of another's work.
    """
    if connection.dialect.name == "sqlite":
        # In memory its users share one, and with `autocommit=False` there always is a transaction.
        return
    pool = connection.engine.pool
    if isinstance(pool, QueuePool):
        # First, before hooks of the application begin a transaction. Called again, this changes nothing.
        event.listen(connection.engine, "checkout", _refuse_in_transaction, insert=True)
    elif not isinstance(pool, NullPool):
        raise UsageError(
            f"the engine's pool, a {type(pool).__name__}, may give one connection to several users, and then one "
            "commits half of another's work: leave `poolclass` out, or give a QueuePool or a NullPool"
        )


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
