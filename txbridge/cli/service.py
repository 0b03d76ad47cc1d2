"""The commands that serve until a signal ends them (the front door has a module of its own), and `purge`."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from txbridge.cli.options import (
    ClusterOptions,
    Config,
    DatabaseUrl,
    Format,
    MetricsHost,
    MetricsPort,
    OutboxName,
    OutputFormat,
    require_database,
    spread,
)
from txbridge.client.barrier_purge import LEAST_AGE, PURGE_AFTER, PURGE_BATCH
from txbridge.config.sources import load_settings
from txbridge.config.worker import OPTIONS, Option, WorkerSettings
from txbridge.core.check_policy import DEFAULT_PATIENCE_S
from txbridge.errors import UsageError, needs
from txbridge.interrupts import end_at_hangup
from txbridge.subject import about
from txbridge.text import counted, parse_age

_OLDER = f"{PURGE_AFTER.days}d"
#: Placeholders of values in the help, by the name of an option, or else by its unit.
_METAVARS = {
    "bootstrap_servers": "HOST:PORT,...",
    "namespace": "PREFIX",
    "app_id": "GROUP",
    "metrics_host": "ADDRESS",
    "kafka": "NAME=VALUE",
}
_UNITS = {"": "N", "ms": "MS", "s": "S", "bytes": "BYTES"}


def serve(settings: WorkerSettings, run: Callable[[], object]) -> None:
    """Configure the log, and run. SIGHUP ends the command as SIGTERM does, and errors name the cluster."""
    # Only here: it needs structlog, of the extras whose programs run here.
    from txbridge import log  # noqa: PLC0415

    end_at_hangup()
    log.configure(settings.log_format, settings.log_level)
    with about(settings):
        run()


def _parameter(option: Option) -> inspect.Parameter:
    """A flag whose value is text. `load_settings` validates it, as it does values from file and environment."""
    default = f" (default {option.default})" if option.default else ""
    is_list = option.name == "kafka"
    flag = typer.Option(
        None,
        option.flag,
        help="A librdkafka property; may be repeated." if is_list else f"{option.help}{default}",
        metavar=_METAVARS.get(option.name) or "|".join(option.choices) or _UNITS[option.unit],
        autocompletion=(lambda: list(option.choices)) if option.choices else None,
        show_default=False,
    )
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=flag,
        annotation=list[str] | None if is_list else str | None,
    )


def _worker_command() -> Callable[..., None]:
    """`txbridge worker` with a parameter for each of the worker's options, so that both always agree."""

    def worker(*, config: Path | None = None, **flags: Any) -> None:
        """Run a worker. It serves its share of the half partitions: it delivers, checks and discards.

        Ctrl-C, SIGTERM and SIGHUP (not under nohup) stop it: it finishes its Kafka transactions and leaves its group.
        Exit code 0: stopped by a signal; 130: interrupted before it served; 1: it hung, see the log; 2: it cannot run.
        """
        # Faust takes seconds to import: --help and a mistyped option do without it.
        with needs("worker", "a worker runs on Faust"):
            from txbridge.worker.app import run  # noqa: PLC0415

        settings = load_settings(flags, config)
        serve(settings, lambda: run(settings))

    config_parameter = inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Config)
    parameters = [config_parameter, *map(_parameter, OPTIONS)]
    worker.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    worker.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return worker


worker = _worker_command()


@spread
def relay(
    *,
    cluster: ClusterOptions,
    database_url: DatabaseUrl = None,
    table: OutboxName = "txbridge_outbox",
    ddl: Annotated[
        bool, typer.Option("--ddl", help="Print the statements that create what this database needs, and end.")
    ] = False,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = None,
) -> None:
    """Send the rows of an outbox table as messages, each once and in order.

    Any number of relays may run; one works, and the others stand by. Ctrl-C, SIGTERM and SIGHUP (not under nohup) stop
    it after the batch in hand. Exit code 0: stopped by a signal; 2: it cannot run.
    """
    url = require_database(database_url, "the outbox")
    # Only here: other commands need no database.
    with needs("answer-checks", "relay reads a database by SQLAlchemy"):
        from txbridge.cli import service_program  # noqa: PLC0415
    if ddl:
        typer.echo(service_program.ddl_for(url, table), nl=False)
        return
    settings = cluster.load_settings(metrics_port=metrics_port, metrics_host=metrics_host)
    serve(settings, lambda: service_program.run_relay(url, table, settings))


@spread
def answer_checks(
    *,
    cluster: ClusterOptions,
    group: Annotated[
        list[str] | None, typer.Option(metavar="GROUP", help="The producer group; may be repeated.")
    ] = None,
    database_url: DatabaseUrl = None,
    patience: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="Age from which a message without a row is rolled back. Use the value of the application's "
            "listener: at that age no sender may still be waiting for a connection or a lock.",
        ),
    ] = DEFAULT_PATIENCE_S,
    threads: Annotated[
        int, typer.Option(metavar="N", min=1, help="Checks of a group that are looked up at the same time.")
    ] = 4,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = None,
) -> None:
    """Answer the checks of producer groups from their table txbridge_transactions, without the application.

    Ctrl-C, SIGTERM and SIGHUP (not under nohup) stop it. Exit code 0: stopped by a signal; 2: it cannot run.
    """
    if not group:
        raise UsageError("--group is missing: name a producer group whose checks this process answers")
    url = require_database(database_url, "the table txbridge_transactions")
    # Only here: other commands need no database.
    with needs("answer-checks", "answer-checks reads a database by SQLAlchemy"):
        from txbridge.cli import service_program  # noqa: PLC0415
    settings = cluster.load_settings(metrics_port=metrics_port, metrics_host=metrics_host)
    serve(
        settings,
        lambda: service_program.run_answer_checks(list(dict.fromkeys(group)), url, patience, threads, settings),
    )


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
