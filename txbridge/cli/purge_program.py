"""The purge of txbridge's tables in one database."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlalchemy import Engine, inspect
from txbridge_sqlalchemy.inbox_table import inbox
from txbridge_sqlalchemy.row import CREATE_IT
from txbridge_sqlalchemy.table import OutcomeTable, SqlPurgedTable

from txbridge.cli.database import asking, make_engine
from txbridge.errors import LocalProblemError
from txbridge.text import iso_time


def run(database_url: str, ages: dict[str, timedelta], batch: int, *, dry_run: bool) -> list[dict[str, Any]]:
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
