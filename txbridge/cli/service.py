"""The commands that serve until a signal ends them (the front door has a module of its own), and their frame."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from txbridge.cli.options import (
    ClusterOptions,
    Config,
    DatabaseUrl,
    MetricsHost,
    MetricsPort,
    OutboxName,
    require_database,
    spread,
)
from txbridge.config.sources import load_settings
from txbridge.config.worker import OPTIONS, Option, WorkerSettings
from txbridge.core.check_policy import DEFAULT_PATIENCE_S
from txbridge.errors import UsageError, needs
from txbridge.interrupts import end_at_hangup
from txbridge.subject import about

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


def worker_command() -> Callable[..., None]:
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
