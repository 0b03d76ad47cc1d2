"""The audit as a program, for `spark-submit job.py ...` and `python -m txbridge_audit.job ...`.

spark-submit gives this file alone, not the package around it, and puts its folder first on the path, where our module
names would hide other people's; both are put right before anything else is imported.
"""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:
    _HERE = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != _HERE]
    sys.path.insert(0, str(_HERE.parent))

import argparse
import logging
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console

from txbridge.cli.main import with_output
from txbridge.config.sources import load_settings
from txbridge.errors import UsageError
from txbridge.subject import Subject
from txbridge_audit.audit import refuse_to_continue, run_audit
from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.incremental.follow import INTERVAL
from txbridge_audit.incremental.follow import follow as follow_ledger
from txbridge_audit.incremental.steps import Step
from txbridge_audit.incremental.violations_topic import default_topic
from txbridge_audit.read.context import Limits
from txbridge_audit.read.given import kafka_options, limits_of
from txbridge_audit.read.selection import Selection, selection_of
from txbridge_audit.report.model import AuditReport
from txbridge_audit.report.terminal import print_report

COULD_NOT_AUDIT = 2
FORMATS = ("table", "json")


@dataclass(frozen=True, slots=True)
class Options:
    """What one run is told."""

    bootstrap_servers: str
    namespace: str = ""
    output: str = "table"
    kafka_options: Mapping[str, str] = field(default_factory=dict)
    real_topics: Sequence[str] = ()
    report: Path | None = None
    ledger: str | None = None
    strict: bool = False
    html: Path | None = None
    prometheus: Path | None = None
    selection: Selection = field(default_factory=Selection)
    limits: Limits = field(default_factory=Limits)
    #: Go on from where the ledger's last audit stopped.
    continued: bool = False
    #: Go on until a signal ends it; seconds between two steps, and where new violations go (empty: nowhere else).
    follow: bool = False
    interval: float = INTERVAL
    violations_topic: str | None = None


def run(options: Options) -> int:
    """Audit, print to stdout (progress to stderr), return the exit code: 0 clean, 1 violations (strict: findings, too).

    Raises CouldNotAuditError.
    """
    files = {"report": options.report, "html": options.html, "prometheus": options.prometheus}
    for name, path in files.items():
        if path is not None and not path.absolute().parent.is_dir():
            raise CouldNotAuditError(f"the folder of --{name} {path} does not exist")
    if options.violations_topic is not None and not options.follow:
        raise CouldNotAuditError("--violations-topic belongs to --follow: else the report has them all")
    notes = _console(stderr=True)
    # spark-submit merges our stderr into its stdout, where only the report may be.
    quiet = options.output == "json" and "PYSPARK_GATEWAY_PORT" in os.environ
    # A spinner where somebody watches, plain lines in a log.
    with notes.status("connecting") as status:

        def progress(text: str) -> None:
            status.update(text)
            if not notes.is_terminal and not quiet:
                notes.print(text, highlight=False)

        if options.follow:
            report = _follow(options, progress, None if quiet else notes)
        else:
            report = run_audit(
                options.bootstrap_servers,
                namespace=options.namespace,
                kafka_options=options.kafka_options,
                real_topics=options.real_topics,
                selection=options.selection,
                limits=options.limits,
                ledger_path=options.ledger,
                continued=options.continued,
                with_overview=options.html is not None,
                progress=progress,
            )
    _write_files(options, report)
    if options.output == "json":
        sys.stdout.write(report.to_json() + "\n")
    else:
        print_report(report, _console())
    return report.strict_exit_code if options.strict else report.exit_code


def _console(*, stderr: bool = False) -> Console:
    """With NO_COLOR nothing but text is written: rich itself would go on with bold and dim."""
    return Console(stderr=stderr, color_system=None if os.environ.get("NO_COLOR") else "auto")


def _follow(options: Options, progress: Callable[[str], None], notes: Console | None) -> AuditReport:
    """Audit what comes until SIGINT or SIGTERM; each new violation is a line on stderr, the files follow each step."""
    refuse_to_continue(options.selection, options.ledger, with_overview=options.html is not None)
    stop = threading.Event()

    def on_ready() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())

    def on_step(step: Step) -> None:
        _write_files(options, step.report)
        if notes is None:
            return
        for alarm in step.alarms:
            entry, place = alarm.entry, alarm.entry.evidence[0]
            where = f"{place.role} {place.topic}/{place.partition}@{place.offset}"
            notes.print(f"{entry.kind} {entry.transaction or '-'} {entry.real_topic or '-'} {where}", highlight=False)

    topic = default_topic(options.namespace) if options.violations_topic is None else options.violations_topic
    return follow_ledger(
        options.bootstrap_servers,
        str(options.ledger),
        stop=stop,
        violations_topic=topic or None,
        interval=options.interval,
        namespace=options.namespace,
        kafka_options=options.kafka_options,
        real_topics=options.real_topics,
        limits=options.limits,
        # What a step does is worth telling once, not every few seconds.
        progress=_once(progress),
        on_ready=on_ready,
        on_step=on_step,
    )


def _once(progress: Callable[[str], None]) -> Callable[[str], None]:
    told: set[str] = set()

    def tell(text: str) -> None:
        if text not in told:
            told.add(text)
            progress(text)

    return tell


def _write_files(options: Options, report: AuditReport) -> None:
    try:
        _write(options, report)
    except OSError as error:
        raise CouldNotAuditError(f"the report can not be written: {error}") from error


def _write(options: Options, report: AuditReport) -> None:
    if options.report is not None:
        options.report.write_text(report.to_json() + "\n", encoding="utf-8")
    if options.html is None and options.prometheus is None:
        return
    # The first time it would tell the terminal that it makes a list of fonts.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    # Only here: the plots' library takes a second to load.
    from txbridge_audit.report import html  # noqa: PLC0415

    if options.html is not None and report.overview is not None:
        options.html.write_text(html.html(report, report.overview), encoding="utf-8")
    if options.prometheus is not None:
        html.write_prometheus(report, options.prometheus)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the arguments and audit. Returns the exit code: 0 clean, 1 violations, 2 could not audit."""
    parser = argparse.ArgumentParser(prog="txbridge_audit", description="Audit every transaction from Kafka alone.")
    parser.add_argument("--bootstrap-servers", metavar="HOST:PORT,...", help="or TXBRIDGE_BOOTSTRAP_SERVERS")
    parser.add_argument("--namespace", help="prefix of the internal topics; or TXBRIDGE_NAMESPACE")
    parser.add_argument("--format", choices=FORMATS, default="table", dest="output")
    parser.add_argument("--kafka", action="append", default=[], metavar="KEY=VALUE", help="or TXBRIDGE_KAFKA, as JSON")
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file, the worker's; or TXBRIDGE_CONFIG")
    parser.add_argument("--real-topic", action="append", default=[], metavar="TOPIC", help="look for phantoms here too")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the JSON report here as well")
    parser.add_argument("--ledger", metavar="FOLDER", help="write one row per transaction here, as Parquet")
    parser.add_argument(
        "--continue", action="store_true", dest="continued", help="go on from where the audit of --ledger stopped"
    )
    parser.add_argument("--follow", action="store_true", help="go on until a signal ends it")
    parser.add_argument("--interval", type=float, default=INTERVAL, metavar="SECONDS", help="between two steps")
    parser.add_argument("--violations-topic", metavar="TOPIC", help="where --follow writes new violations")
    parser.add_argument("--since", metavar="TIME", help="only transactions prepared at or after this (ISO 8601)")
    parser.add_argument("--until", metavar="TIME", help="only transactions prepared before this")
    parser.add_argument(
        "--only-topic", action="append", default=[], metavar="TOPIC", help="only those of this real topic"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the report as a page here")
    parser.add_argument("--prometheus", type=Path, metavar="FILE", help="write the counts for Prometheus here")
    parser.add_argument("--strict", action="store_true", help="findings are errors, too")
    parser.add_argument("--transaction-check-max", type=int, metavar="N")
    parser.add_argument("--transaction-max-age", type=int, metavar="MS")
    given = parser.parse_args(arguments)
    flags = {"bootstrap_servers": given.bootstrap_servers, "namespace": given.namespace, "kafka": given.kafka or None}
    try:
        settings = load_settings(flags, given.config)
    except UsageError as error:
        sys.stderr.write(f"error: {error}\n")
        return COULD_NOT_AUDIT
    try:
        options = Options(
            settings.bootstrap_servers,
            settings.namespace,
            given.output,
            kafka_options(settings),
            given.real_topic,
            given.report,
            given.ledger,
            given.strict,
            given.html,
            given.prometheus,
            selection_of(given.since, given.until, given.only_topic),
            limits_of(settings, given.transaction_check_max, given.transaction_max_age),
            given.continued,
            given.follow,
            given.interval,
            given.violations_topic,
        )
        return run(options)
    except CouldNotAuditError as error:
        sys.stderr.write(f"error: {error}\n({Subject(settings.namespace, settings.bootstrap_servers)})\n")
        return COULD_NOT_AUDIT


if __name__ == "__main__":
    sys.exit(with_output(main))  # type: ignore[arg-type]
