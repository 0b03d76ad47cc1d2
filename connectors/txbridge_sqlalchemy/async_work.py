"""Database transactions for async_listener.py and async_inbox.py: those of work.py, on an event loop.

When a task is cancelled, SQLAlchemy rolls back. If a statement was running, it throws the connection away, so that no
other task gets it with an open transaction. Only the outcome of a cancelled COMMIT is unknown; the table has it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from sqlalchemy import Engine, Table
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    AsyncSessionTransaction,
    AsyncTransaction,
    async_sessionmaker,
)

from txbridge.errors import UsageError
from txbridge_sqlalchemy.hidden_transaction import outlives_commit
from txbridge_sqlalchemy.work import (
    BIND_IT,
    TWO_PHASE,
    Work,
    end_what_is_left,
    refuse_hidden_transaction,
    refuse_two_databases,
)

AsyncDatabase = AsyncEngine | async_sessionmaker[Any]


class AsyncWork:
    """A database transaction that has begun; see Work."""

    def __init__(
        self,
        given: AsyncConnection | AsyncSession,
        connection: AsyncConnection,
        transaction: AsyncTransaction | AsyncSessionTransaction,
        table: Table,
    ) -> None:
        sync_given = given.sync_session if isinstance(given, AsyncSession) else given.sync_connection
        assert sync_given is not None
        assert connection.sync_connection is not None
        self.given = given
        self.connection = connection
        self.transaction = transaction
        #: Its events on the connection run in SQLAlchemy's greenlet, so they guard the COMMIT as they do in threads.
        self.sync = Work(sync_given, connection.sync_connection, transaction.sync_transaction, table)


def checked_async_database(database: AsyncDatabase, other: str) -> AsyncDatabase:
    """Return the database. Raises UsageError if its transactions are not all of one database.

    `other` is the class for synchronous databases, with its article, for the error.
    """
    if not isinstance(database, AsyncEngine | async_sessionmaker):
        raise UsageError(
            f"database must be an AsyncEngine or an async_sessionmaker, not {type(database).__name__} "
            f"({other} takes an Engine or a sessionmaker)"
        )
    if isinstance(database, async_sessionmaker):
        refuse_two_databases(database.kw, AsyncConnection)
    return database


@asynccontextmanager
async def begin_async(database: AsyncDatabase, table: Table) -> AsyncIterator[AsyncWork]:
    """See `begin` in work.py."""
    if isinstance(database, AsyncEngine):
        async with database.connect() as connection:
            async with connection.begin() as transaction, _nothing_left_open(connection, transaction):
                work = AsyncWork(connection, connection, transaction, table)
                yield work
            if outlives_commit(work.sync.connection):
                await connection.run_sync(refuse_hidden_transaction)
        return
    async with database() as session:
        if session.sync_session.twophase:
            raise UsageError(TWO_PHASE)
        bind = session.get_bind(clause=table)
        if not isinstance(bind, Engine):
            raise UsageError(BIND_IT)
        async with AsyncExitStack() as at_last, session.begin() as session_transaction:
            connection = await session.connection(bind_arguments={"bind": bind})
            at_last.push_async_callback(connection.close)
            async with _nothing_left_open(connection, session_transaction):
                yield AsyncWork(session, connection, session_transaction, table)


@asynccontextmanager
async def _nothing_left_open(
    connection: AsyncConnection, transaction: AsyncTransaction | AsyncSessionTransaction
) -> AsyncIterator[None]:
    """See work.py."""
    try:
        yield
    finally:
        if not (transaction.is_active or connection.closed or connection.invalidated):
            await connection.run_sync(end_what_is_left, is_active=False)
