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
from txbridge.cli.service import serve
from txbridge.extras import needs


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
        from txbridge.cli import relay_program  # noqa: PLC0415
    if ddl:
        typer.echo(relay_program.ddl_for(url, table), nl=False)
        return
    settings = cluster.load_settings(metrics_port=metrics_port, metrics_host=metrics_host)
    serve(settings, lambda: relay_program.run(url, table, settings))
