"""The options of `txbridge audit`, as fields of one dataclass."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from txbridge.cli.options import Format, OutputFormat


class EngineName(StrEnum):
    """The engines of an audit, as in txbridge_audit/audit.py, which is not imported here."""

    LOCAL = "local"
    SPARK = "spark"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions:
    """The options of one run. Each field is a flag of the command line, declared only here."""

    output: OutputFormat = Format.TABLE
    real_topic: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC", help="Also look for phantoms in this topic, even if no half message names it."),
    ] = None
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the report to this file, as JSON.")
    ] = None
    engine: Annotated[
        EngineName | None,
        typer.Option(
            help="What reads the topics: this process, without Java, or Spark. By default what suits their size. The "
            "verdicts are the same."
        ),
    ] = None
    memory: Annotated[
        int, typer.Option(metavar="MIB", min=1, help="MiB of records in memory before the local engine uses the disk.")
    ] = 256
    ledger: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Write one row per transaction to this new folder or URI.")
    ] = None
    continued: Annotated[
        bool,
        typer.Option(
            "--continue", help="Continue where the audit of --ledger stopped, or start one that can be continued."
        ),
    ] = False
    follow: Annotated[
        bool, typer.Option("--follow", help="Continue the audit of --ledger until Ctrl-C or SIGTERM ends it.")
    ] = False
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.0, help="Pause between two steps of --follow.")
    ] = 0.3
    violations_topic: Annotated[
        str | None,
        typer.Option(
            metavar="TOPIC",
            help="Topic for the new violations of --follow; empty for none. "
            "Default: TRANS_AUDIT_VIOLATIONS_TOPIC of the namespace.",
        ),
    ] = None
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only transactions prepared at or after this (ISO 8601, UTC).")
    ] = None
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Only transactions prepared before this.")] = None
    only_topic: Annotated[
        list[str] | None, typer.Option(metavar="TOPIC", help="Only transactions of this real topic; may be repeated.")
    ] = None
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report to this file, as an HTML page.")
    ] = None
    prometheus: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the counts to this file, for Prometheus' textfile collector."),
    ] = None
    at: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Make the audit of this report (of --report) again, at the same cuts."),
    ] = None
    csv: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the violations and findings to this file, for a spreadsheet."),
    ] = None
    accept: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="CSV file with violations that do not fail the audit: id,who,why,until."),
    ] = None
    strict: Annotated[bool, typer.Option("--strict", help="Findings fail the audit, too.")] = False
    transaction_check_max: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="The workers' value, unless file or environment has it.")
    ] = None
    transaction_max_age: Annotated[
        int | None, typer.Option(metavar="MS", min=1, help="The workers' value, unless file or environment has it.")
    ] = None
