"""The run of `txbridge audit`: audit or follow, print the report, write the files."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.text import Text
from txbridge_audit.audit import AuditEngine, follow, run_audit
from txbridge_audit.cluster.plan import past_audit, selection_of
from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.judge.facts import AuditLimits, AuditSelection
from txbridge_audit.ledger.place import continued_folder
from txbridge_audit.report.acceptances import accept, csv_of, read_acceptances
from txbridge_audit.report.model import AuditReport, AuditStep
from txbridge_audit.report.terminal import print_report

from txbridge.cli.audit_options import AuditOptions
from txbridge.cli.options import Format
from txbridge.cli.terminal import console
from txbridge.config.worker import WorkerSettings
from txbridge.core.names import Names
from txbridge.errors import EnvironmentProblemError
from txbridge.interrupts import hand_over, if_interrupted
from txbridge.text import one_line


def run(options: AuditOptions, settings: WorkerSettings) -> int:
    """Audit, print to stdout (progress to stderr), return the exit code: 0 clean, 1 violations (strict: findings, too).

    Raises EnvironmentProblemError when there is no verdict.
    """
    try:
        return _run(options, settings)
    except CouldNotAuditError as error:
        raise EnvironmentProblemError(str(error)) from error


def _run(options: AuditOptions, settings: WorkerSettings) -> int:
    selection = selection_of(options.since, options.until, options.only_topic or ())
    files = {"report": options.report, "html": options.html, "csv": options.csv, "prometheus": options.prometheus}
    for name, path in files.items():
        if path is not None and not path.absolute().parent.is_dir():
            raise CouldNotAuditError(f"the folder of --{name} {path} does not exist")
    if options.violations_topic is not None and not options.follow:
        raise CouldNotAuditError("--violations-topic needs --follow: without it, the report lists all violations")
    if options.accept is not None and options.follow:
        raise CouldNotAuditError(
            "--follow raises each violation once, so there is nothing to accept: leave --accept out, and give it to "
            "the audits that you schedule"
        )
    if options.accept and options.csv and options.accept.resolve() == options.csv.resolve():
        # It would lose the acceptances that match nothing in this audit, which may be about some topics only.
        raise CouldNotAuditError(f"--csv would write over {options.accept}, the file of --accept: name another file")
    acceptances = () if options.accept is None else read_acceptances(*_text("accept", options.accept))
    if options.at is not None and (given := [name for name, value in _fixed(options).items() if value]):
        raise CouldNotAuditError(f"--at makes an audit again as it was: leave {', '.join(given)} out")
    at = None if options.at is None else past_audit(*_text("at", options.at))
    notes = console(stderr=True)
    # spark-submit merges our stderr into its stdout, where only the report may be.
    quiet = options.output is Format.JSON and "PYSPARK_GATEWAY_PORT" in os.environ
    # A spinner on a terminal, plain lines in a log.
    with notes.status("connecting") as status, if_interrupted(status.stop), if_interrupted(_kill_spark):

        def progress(text: str) -> None:
            status.update(Text(text))
            if not notes.is_terminal and not quiet:
                notes.print(text)

        if options.follow:
            report = _follow(options, settings, selection, progress, None if quiet else notes)
        else:
            report = run_audit(
                settings.bootstrap_servers,
                namespace=settings.namespace,
                kafka_options=kafka_options(settings),
                real_topics=options.real_topic or (),
                selection=selection,
                limits=limits_of(settings, options.transaction_check_max, options.transaction_max_age),
                engine=_engine(options),
                memory=options.memory,
                ledger_path=options.ledger,
                continued=options.continued,
                with_overview=options.html is not None,
                at=at,
                progress=progress,
            )
    report = accept(report, acceptances, report.read_at)
    for stale in report.stale_acceptances:
        if not quiet:
            notes.print(
                one_line(f"--accept: no violation {stale} in this audit; take its line out if it is old"),
                soft_wrap=True,
            )
    _write_files(options, report)
    if options.output is Format.JSON:
        sys.stdout.write(report.to_json() + "\n")
    else:
        print_report(report, console())
    return report.strict_exit_code if options.strict else report.exit_code


def _text(option: str, file: Path) -> tuple[str, str]:
    """The text of a file, and its name for errors."""
    try:
        return file.read_text(encoding="utf-8-sig"), str(file)
    except (OSError, UnicodeDecodeError) as error:
        raise CouldNotAuditError(f"--{option} {file} cannot be read ({error}): give a text file in UTF-8") from error


def _fixed(options: AuditOptions) -> dict[str, object]:
    """The options whose values the report of --at states."""
    return {
        "--since": options.since,
        "--until": options.until,
        "--only-topic": options.only_topic,
        "--real-topic": options.real_topic,
        "--transaction-check-max": options.transaction_check_max,
        "--transaction-max-age": options.transaction_max_age,
        "--continue": options.continued,
        "--follow": options.follow,
    }


def _follow(
    options: AuditOptions,
    settings: WorkerSettings,
    selection: AuditSelection,
    progress: Callable[[str], None],
    notes: Console | None,
) -> AuditReport:
    """Audit step by step until SIGINT or SIGTERM. A new violation is a line on stderr; each step rewrites the files."""
    by_spark, with_overview = _engine(options) is AuditEngine.SPARK, options.html is not None
    continued_folder(selection, options.ledger, by_spark=by_spark, with_overview=with_overview)
    stop = threading.Event()

    def on_ready() -> None:
        hand_over(lambda *_: stop.set())

    def on_step(step: AuditStep) -> None:
        _write_files(options, step.report)
        if notes is None:
            return
        for entry in step.alarms:
            place = entry.evidence[0]
            where = f"{place.role} {place.topic}/{place.partition}@{place.offset}"
            # Its id comes from a record that somebody else has written.
            notes.print(one_line(f"{entry.kind} {entry.transaction or '-'} {entry.real_topic or '-'} {where}"))

    topic = Names(settings.namespace).violations if options.violations_topic is None else options.violations_topic
    return follow(
        settings.bootstrap_servers,
        str(options.ledger),
        stop=stop,
        violations_topic=topic or None,
        interval=options.interval,
        namespace=settings.namespace,
        kafka_options=kafka_options(settings),
        real_topics=options.real_topic or (),
        engine=_engine(options),
        limits=limits_of(settings, options.transaction_check_max, options.transaction_max_age),
        # The texts repeat every few seconds, with each step: print each one once.
        progress=_once(progress),
        on_ready=on_ready,
        on_step=on_step,
    )


def kafka_options(settings: WorkerSettings) -> dict[str, str]:
    """The Kafka properties as text."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in settings.kafka.items()
    }


def limits_of(settings: WorkerSettings, check_max: int | None, max_age: int | None) -> AuditLimits:
    """The limits from the workers' settings, or from the audit's own flags where they are given.

    The flags are not validated together with the settings, because they may be those of another time.
    """
    return AuditLimits(check_max or settings.transaction_check_max, max_age or settings.transaction_max_age)


def _engine(options: AuditOptions) -> AuditEngine | None:
    return None if options.engine is None else AuditEngine(options.engine.value)


def _kill_spark() -> None:
    """End Spark, if an audit has loaded it."""
    session = sys.modules.get("txbridge_audit.engines.spark.spark_session")
    if session is not None:
        session.kill_session()


def _once(progress: Callable[[str], None]) -> Callable[[str], None]:
    told: set[str] = set()

    def tell(text: str) -> None:
        if text not in told:
            told.add(text)
            progress(text)

    return tell


def _write_files(options: AuditOptions, report: AuditReport) -> None:
    try:
        _write(options, report)
    except OSError as error:
        raise CouldNotAuditError(f"the report cannot be written: {error}") from error


def _write(options: AuditOptions, report: AuditReport) -> None:
    if options.report is not None:
        options.report.write_text(report.to_json() + "\n", encoding="utf-8")
    if options.csv is not None:
        options.csv.write_text(csv_of(report), encoding="utf-8", newline="")
    if options.html is None and options.prometheus is None:
        return
    # Only here: few audits need the library for its template.
    from txbridge_audit.report import html  # noqa: PLC0415

    if options.html is not None and report.overview is not None:
        options.html.write_text(html.html(report, report.overview), encoding="utf-8")
    if options.prometheus is not None:
        html.write_prometheus(report, options.prometheus)
