"""The options of `txbridge answer-checks`. answer_checks_program.py does the work."""

from __future__ import annotations

from typing import Annotated

import typer

from txbridge.cli.options import ClusterOptions, DatabaseUrl, MetricsHost, MetricsPort, require_database, spread
from txbridge.cli.service import serve
from txbridge.core.check_policy import DEFAULT_PATIENCE_S
from txbridge.errors import UsageError
from txbridge.extras import needs


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
        from txbridge.cli import answer_checks_program  # noqa: PLC0415
    settings = cluster.load_settings(metrics_port=metrics_port, metrics_host=metrics_host)
    serve(settings, lambda: answer_checks_program.run(list(dict.fromkeys(group)), url, patience, threads, settings))
