"""The database that a command is given by its URL, and the purge of txbridge's tables in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from sqlalchemy import Engine, create_engine, inspect, select
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from txbridge_sqlalchemy.inbox_table import inbox
from txbridge_sqlalchemy.row import CREATE_IT, first_line
from txbridge_sqlalchemy.table import OutcomeTable, SqlPurgedTable

from txbridge.errors import DatabaseUnreachableError, LocalProblemError, UsageError
from txbridge.text import iso_time

_EXAMPLE = "it is written like postgresql+psycopg://user:password@host/database or sqlite:////path/to/file"


def make_engine(url: str, size: int) -> Engine:
    """An engine with so many connections. Raises UsageError and LocalProblemError."""
    try:
        # Without the ping, a check would fail on a connection that the database has closed meanwhile.
        engine = create_engine(url, pool_pre_ping=True, pool_size=size, max_overflow=2)
    except ModuleNotFoundError as error:
        raise LocalProblemError(f"the database's driver is not installed: {error.name}") from None
    except (ArgumentError, TypeError, ValueError) as error:
        # The error's text is left out: it could show the password.
        raise UsageError(f"--database-url cannot be used ({type(error).__name__}): {_EXAMPLE}") from None
    if engine.dialect.is_async:
        raise UsageError(f"--database-url names {engine.dialect.driver}, an asynchronous driver: {_EXAMPLE}")
    if engine.url.password and "@" in f"{engine.url.host}{engine.url.database}":
        # The rest of the password would be a part of the host, which errors name.
        raise UsageError("--database-url has more than one @: write those of user and password as %40")
    return engine


@contextmanager
def asking(engine: Engine, problem: str) -> Iterator[None]:
    """Raise DatabaseUnreachableError for an error of a database that gives no connection, or LocalProblemError.

    `problem` says what cannot be done, with braces for the database.
    """
    try:
        yield
    except SQLAlchemyError as error:
        # A connection that broke may be the only one: a database that restarts answers the next one.
        is_broken = isinstance(error, DBAPIError) and error.connection_invalidated
        kind = LocalProblemError if not is_broken and _answers(engine) else DatabaseUnreachableError
        raise kind(f"{problem.format(engine.url.render_as_string())}: {first_line(error)}") from None


def _answers(engine: Engine) -> bool:
    try:
        with engine.connect() as connection:
            connection.execute(select(1))
    except SQLAlchemyError:
        return False
    return True


def purge_tables(database_url: str, ages: dict[str, timedelta], batch: int, *, dry_run: bool) -> list[dict[str, Any]]:
    """Purge the tables, each with its age; what was done, a dict for each.

    Raises UsageError, and LocalProblemError for the database.
    """
    engine = make_engine(database_url, 1)
    try:
        with asking(engine, "run it again, as what was deleted is no longer needed: {} could not be purged"):
            return [
                {
                    "table": table.table.name,
                    "before": iso_time(table.time_before(ages[table.table.name])),
                    "rows": table.purge_rows(ages[table.table.name], batch, dry_run=dry_run),
                }
                for table in _tables(engine, ages)
            ]
    finally:
        engine.dispose()


def _tables(engine: Engine, ages: dict[str, timedelta]) -> list[SqlPurgedTable]:
    """The tables that are there. Raises LocalProblemError if one is not, though there is an age for it."""
    there = inspect(engine)
    tables = [one for one in (OutcomeTable(engine), SqlPurgedTable(engine, inbox)) if one.table.name in ages]
    found = [one for one in tables if there.has_table(one.table.name)]
    missing = [one.table.name for one in tables if one not in found]
    # A consumer has the inbox alone, and nobody has named the other table.
    if not found or inbox.name in missing:
        raise LocalProblemError(f"{engine.url.render_as_string()} has no table {missing[-1]}: {CREATE_IT}")
    return found
