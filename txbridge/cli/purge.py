"""The options of `txbridge purge`. database.py does the work."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from typing import Annotated, Any

import typer

from txbridge.cli.options import DatabaseUrl, Format, OutputFormat, require_database
from txbridge.client.barrier_purge import LEAST_AGE, PURGE_AFTER, PURGE_BATCH
from txbridge.errors import UsageError, needs
from txbridge.text import counted, parse_age

_OLDER = f"{PURGE_AFTER.days}d"


def purge(
    *,
    database_url: DatabaseUrl = None,
    older_than: Annotated[
        str,
        typer.Option(
            metavar="AGE",
            help="Age of the messages whose rows of txbridge_transactions are deleted, 1h at least: 12h, 8d. It counts "
            "from the newest row. A check that finds no row any more rolls nothing back: the message waits for a "
            "person. After 8d that is only one that is resumed so late, from a quiet half topic.",
        ),
    ] = _OLDER,
    inbox_older_than: Annotated[
        str | None,
        typer.Option(
            metavar="AGE",
            help="Delete rows of txbridge_inbox as old as this, too. It must be longer than the retention of the real "
            "topics: a record that is read again without its row has its effect again.",
        ),
    ] = None,
    batch: Annotated[int, typer.Option(metavar="N", min=1, help="Rows of one database transaction.")] = PURGE_BATCH,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count the rows.")] = False,
    output_format: OutputFormat = Format.TABLE,
) -> None:
    """Delete the rows that txbridge's tables need no more. Safe at any time, and any number may run at once.

    A database with txbridge_inbox alone is purged of that. Ctrl-C leaves whole batches deleted. Exit code 0: done; 2:
    it cannot run, or could not finish.
    """
    url = require_database(database_url, "the table txbridge_transactions")
    ages = {"txbridge_transactions": _age_of(older_than, "--older-than")}
    if ages["txbridge_transactions"] < LEAST_AGE:
        raise UsageError(f"--older-than must be 1h at least, not {older_than}: checks still ask for younger rows")
    if inbox_older_than is not None:
        ages["txbridge_inbox"] = _age_of(inbox_older_than, "--inbox-older-than")
    # Only here: other commands need no database.
    with needs("sqlalchemy", "purge reads a database by SQLAlchemy"):
        from txbridge.cli import database  # noqa: PLC0415
    report = database.purge_tables(url, ages, batch, dry_run=dry_run)
    if output_format is Format.JSON:
        sys.stdout.write(json.dumps({"dry_run": dry_run, "tables": report}, indent=2) + "\n")
    else:
        for table in report:
            typer.echo(_line(table, dry_run=dry_run))


def _age_of(text: str, option: str) -> timedelta:
    age = timedelta(milliseconds=parse_age(text, option))
    if not age:
        raise UsageError(f"{option} must be longer than {text}: rows that are needed would be deleted")
    return age


def _line(table: dict[str, Any], *, dry_run: bool) -> str:
    done = "would be deleted" if dry_run else "deleted"
    return f"{table['table']}: {counted(table['rows'], 'row')} {done}, older than {table['before']}"
