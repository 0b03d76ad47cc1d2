"""`txbridge audit`: the PySpark audit (package txbridge_audit) behind typer options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from txbridge.cli.options import BootstrapServers, Config, Format, Namespace, OutputFormat, settings_of
from txbridge.errors import EnvironmentProblemError
from txbridge.extras import needs
from txbridge.subject import about


def audit(
    bootstrap_servers: BootstrapServers = None,
    namespace: Namespace = None,
    output: OutputFormat = Format.TABLE,
    kafka: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="A Kafka option by librdkafka's name; java.KEY goes to Spark alone."),
    ] = None,
    config: Config = None,
    real_topic: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC", help="Look for phantoms here too, besides the topics that half messages name."),
    ] = None,
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the JSON report here as well.")] = None,
    ledger: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Write one row per transaction here, as Parquet; a new folder or URI."),
    ] = None,
    continued: Annotated[
        bool,
        typer.Option("--continue", help="Go on from where the audit of --ledger stopped, or begin one to go on from."),
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Continue the audit of --ledger until Ctrl-C or SIGTERM ends it.")
    ] = False,
    interval: Annotated[float, typer.Option(metavar="SECONDS", min=0.0, help="Between two steps of --follow.")] = 2.0,
    violations_topic: Annotated[
        str | None,
        typer.Option(
            metavar="TOPIC",
            help="Where --follow writes new violations: TRANS_AUDIT_VIOLATIONS_TOPIC of the namespace unless given, "
            "nowhere if empty.",
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Only transactions prepared at or after this (ISO 8601, UTC)."),
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Only transactions prepared before this.")] = None,
    only_topic: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC", help="Only transactions of this real topic; may be repeated."),
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the report as one HTML page here.")] = None,
    prometheus: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the counts here, for the textfile collector of Prometheus."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Findings are errors, too.")] = False,
    transaction_check_max: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="As the workers are told, if file and environment do not say."),
    ] = None,
    transaction_max_age: Annotated[
        int | None, typer.Option(metavar="MS", min=1, help="As the workers are told, likewise.")
    ] = None,
) -> None:
    """Say from the topics alone what became of every transaction.

    Exit code 0: clean. 1: violations; with --strict findings, too. 2: could not audit.
    """
    # Only here: Spark is an extra, and no other command should pay for its import.
    with needs("audit", "the audit runs on PySpark"):
        from txbridge_audit import job  # noqa: PLC0415
        from txbridge_audit.errors import CouldNotAuditError  # noqa: PLC0415
        from txbridge_audit.read.given import kafka_options, limits_of  # noqa: PLC0415
        from txbridge_audit.read.selection import selection_of  # noqa: PLC0415
    settings = settings_of(bootstrap_servers, namespace, config, kafka)
    with about(settings), needs("audit", "the page of an audit has plots"):
        try:
            options = job.Options(
                settings.bootstrap_servers,
                settings.namespace,
                output.value,
                kafka_options(settings),
                real_topic or [],
                report,
                ledger,
                strict,
                html,
                prometheus,
                selection_of(since, until, only_topic or []),
                limits_of(settings, transaction_check_max, transaction_max_age),
                continued,
                follow,
                interval,
                violations_topic,
            )
            code = job.run(options)
        except CouldNotAuditError as error:
            raise EnvironmentProblemError(str(error)) from error
    raise typer.Exit(code)
