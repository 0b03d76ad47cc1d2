"""The options of `txbridge relay`. relay_program.py does the work."""

from __future__ import annotations

from typing import Annotated

import typer

from txbridge.cli.options import (
    ClusterOptions,
    DatabaseUrl,
    MetricsHost,
    MetricsPort,
    OutboxName,
    require_database,
    spread,
)
from txbridge.core.check_policy import DEFAULT_PATIENCE_S
from txbridge.extras import needs
from txbridge.interrupts import end_at_hangup
from txbridge.subject import about

#: Producer group of the relays of a namespace, unless they say otherwise.
DEFAULT_GROUP = "relay"


@spread
def relay(
    *,
    cluster: ClusterOptions,
    database_url: DatabaseUrl = None,
    table: OutboxName = "txbridge_outbox",
    ddl: Annotated[
        bool, typer.Option("--ddl", help="Print the statements that create what this database needs, and end.")
    ] = False,
    group: Annotated[
        str,
        typer.Option(
            metavar="GROUP", help="Producer group of the relays. Those of each database have one of their own."
        ),
    ] = DEFAULT_GROUP,
    patience: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="Age from which the half message of a relay that has died is rolled back. Its rows do not wait for "
            "that. It must be longer than the lock time-outs of the database.",
        ),
    ] = DEFAULT_PATIENCE_S,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = None,
) -> None:
    """Send the rows of an outbox table as messages, each once and in order.

    Any number of relays may run; they share the work. Ctrl-C, SIGTERM and SIGHUP (not under nohup) stop it after the
    batch in hand. Exit code 0: stopped by a signal; 2: it cannot run.
    """
    end_at_hangup()
    url = require_database(database_url, "the outbox")
    # Only here: other commands need no database.
    with needs("answer-checks", "relay reads a database by SQLAlchemy"):
        from txbridge import log  # noqa: PLC0415
        from txbridge.cli import relay_program  # noqa: PLC0415
    if ddl:
        typer.echo(relay_program.ddl_for(url, table), nl=False)
        return
    settings = cluster.load_settings(metrics_port=metrics_port, metrics_host=metrics_host)
    log.configure(settings.log_format, settings.log_level)
    with about(settings):
        relay_program.run(group, url, table, patience, settings)
