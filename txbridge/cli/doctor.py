"""`txbridge doctor`: findings about a namespace, each one line with its remedy."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer
from rich.text import Text

from txbridge.cli.options import ClusterOptions, DatabaseUrl, Format, OutboxName, OutputFormat, require_database, spread
from txbridge.cli.rocketmq import DoorPlace
from txbridge.cli.terminal import console, print_json
from txbridge.doctor.cluster_view import Questions
from txbridge.doctor.finding import Check, Level, Report, unknown
from txbridge.doctor.run import examine
from txbridge.errors import EnvironmentProblemError, needs
from txbridge.kafka.acl import Role
from txbridge.subject import Subject
from txbridge.text import plain

#: Exit codes: nothing to do; something to do; not everything could be examined.
EXIT_HEALTHY, EXIT_FOUND, EXIT_INCOMPLETE = 0, 1, 2

_STYLE = {
    Level.OK: "green",
    Level.NOTE: "cyan",
    Level.WARNING: "yellow",
    Level.PROBLEM: "bold red",
    Level.UNKNOWN: "magenta",
}
#: Largest number of characters of a finding. It stays one line, however long a text of the cluster in it is.
_LONGEST = 1_000


@spread
def doctor(
    cluster: ClusterOptions,
    app_id: Annotated[
        str | None, typer.Option(metavar="GROUP", help="The workers' consumer group, unless it has the default name.")
    ] = None,
    role: Annotated[
        Role | None,
        typer.Option(
            help="The role whose rights this user should have. Default: worker; client with --door, relay with --relay."
        ),
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(metavar="GROUP", help="Check the rights on this producer group; may be repeated."),
    ] = None,
    real_topic: Annotated[
        list[str] | None, typer.Option(metavar="TOPIC", help="Check the rights on this real topic; may be repeated.")
    ] = None,
    door: Annotated[
        bool, typer.Option("--door", help="Also examine the front door for RocketMQ clients; give its options.")
    ] = False,
    *,
    place: DoorPlace,
    relay: Annotated[
        bool, typer.Option("--relay", help="Also examine an outbox and its relays; give --database-url and --table.")
    ] = False,
    database_url: DatabaseUrl = None,
    table: OutboxName = "txbridge_outbox",
    output_format: OutputFormat = Format.TABLE,
) -> None:
    """Examine cluster, topics, rights, workers, producers, transactions, front door and outbox. Changes nothing.

    Exit code 0: nothing to do; 1: warnings or problems; 2: not everything could be examined.
    """
    settings = cluster.load_settings(app_id=app_id)
    if relay:
        url = require_database(database_url, "the outbox")
        with needs("answer-checks", "an outbox is examined by SQLAlchemy"):
            from txbridge.cli.relay_examination import OutboxExamination  # noqa: PLC0415
        outbox = OutboxExamination(url, table)
    subject = Subject(settings.namespace, settings.bootstrap_servers)
    try:
        whose = role or (Role.RELAY if relay else Role.CLIENT if door else Role.WORKER)
        creates = door and place.auto_create_topics > 0
        has_relay = relay or whose is Role.RELAY
        questions = Questions(whose, tuple(group or ()), tuple(real_topic or ()), door, creates, has_relay)
        with needs("worker", "a worker's way to get tokens is examined by aiokafka"):
            report = examine(settings, questions)
    except EnvironmentProblemError as error:
        do = "correct --bootstrap-servers and --kafka, or repair what the text names"
        report = Report(subject, [unknown(Check.CONNECTION, str(error), do)])
    if door:
        with needs("rocketmq", "what a front door is made of"):
            from txbridge_rocketmq.examination import examine_door  # noqa: PLC0415

        report = replace(report, findings=[*report.findings, *examine_door(place, real_topic or ())])
    if relay:
        more = outbox.list_findings(settings.librdkafka, settings.namespace)
        report = replace(report, findings=[*report.findings, *more])
    if output_format is Format.JSON:
        findings = [one.as_record() for one in report.findings]
        print_json(report.subject, {"healthy": report.healthy, "complete": report.complete, "findings": findings})
    else:
        _print(report)
    raise typer.Exit(exit_code(report))


def exit_code(report: Report) -> int:
    """The exit code. An incomplete examination outweighs all findings: the part that was not examined may be worse."""
    if not report.complete:
        return EXIT_INCOMPLETE
    return EXIT_HEALTHY if report.healthy else EXIT_FOUND


def _print(report: Report) -> None:
    screen = console(soft_wrap=True)
    screen.print(str(report.subject))
    for one in report.findings:
        line = Text(f"{one.level.value:8}", style=_STYLE[one.level])
        line.append(f" {one.check.value:12} ", style="default")
        # Text, not markup: names and errors come from outside.
        line.append(plain(one.text, _LONGEST), style="default")
        if one.do:
            line.append(f" -> {plain(one.do, _LONGEST)}", style="default")
        screen.print(line)
