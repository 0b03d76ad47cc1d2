"""One audit by the local engine: gather, see the evidence of all transactions, judge each, report."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from txbridge_audit.cluster.plan import Plan, Progress
from txbridge_audit.engines.gather import AuditedTopics, gather
from txbridge_audit.engines.local.intake import LocalIntake, MentionStore
from txbridge_audit.engines.reporting import complete_sums, report_on
from txbridge_audit.errors import CouldNotAuditError, ElectionError
from txbridge_audit.judge.evidence import Evidence
from txbridge_audit.judge.verdict import judge
from txbridge_audit.ledger.place import claim_folder, write_summary
from txbridge_audit.report.model import AuditReport
from txbridge_audit.report.overview import OverviewSums
from txbridge_audit.report.sums import Sums

if TYPE_CHECKING:  # it loads the library that writes Parquet
    from txbridge_audit.ledger.parquet import ParquetLedger

#: Number of times in all that an audit is made while leaders change. A rolling restart of three brokers changes each
#: leader twice.
TRIES = 4

_T = TypeVar("_T")


def audit(
    source: AuditedTopics, plan: Plan, ledger: ParquetLedger | None = None, overview: OverviewSums | None = None
) -> AuditReport:
    """Make one audit of everything that the topics hold. Raises CouldNotAuditError.

    Ledger and overview take what is part of the report. They do so in an attempt that fails in the end, too.
    """
    with closing(MentionStore()) as store:
        intake = LocalIntake(source.settings, source.names, store.add)
        reading = gather(source, plan, intake)
        source.say("judging")
        evidence = Evidence()
        for transaction in store.transactions():
            evidence.see_transaction(transaction)
        facts = evidence.add_to(reading.facts, reading.truncated)
        sums = Sums(source.names)
        for transaction in store.transactions():
            verdict = judge(transaction, facts)
            if plan.selection.takes(verdict.case.message):
                sums.add_verdict(verdict)
                if ledger is not None:
                    ledger.take_verdict(verdict)
                if overview is not None:
                    overview.take_verdict(verdict)
            else:
                sums.strays += verdict.case.strays
        for copy, kind in complete_sums(source, facts, sums):
            if ledger is not None:
                ledger.take_stray(copy, kind)
        # After everything is read and judged: by then a deposed leader has learnt of its successor, unless it stays cut
        # off from the controllers.
        source.cluster.refuse_moved({*reading.spans, *facts.before})
        return report_on(source, plan, reading, facts, sums, intake.odd, engine="local")


def until_leaders_stay(say: Progress, attempt: Callable[[], _T]) -> _T:
    """Make an audit or a step, and repeat it when a leader changed meanwhile."""
    for _ in range(TRIES - 1):
        try:
            return attempt()
        except ElectionError as error:
            say(f"once more: {error}")
    return attempt()


def audit_in_full(source: AuditedTopics, plan: Plan, *, ledger: Path | None, with_overview: bool) -> AuditReport:
    """`audit`, with a ledger in a new folder, and with the summaries that the page shows, if they are asked for."""
    overview = OverviewSums() if with_overview else None
    try:
        if ledger is None:
            report = audit(source, plan, overview=overview)
        else:
            with claim_folder(ledger):
                # Only here: it loads the library that writes Parquet.
                from txbridge_audit.ledger.parquet import ParquetLedger  # noqa: PLC0415

                files = ParquetLedger(ledger)
                report = audit(source, plan, files, overview)
                files.write_rows()
                write_summary(report.to_json(), ledger)
    except (sqlite3.Error, OSError) as error:
        where = "" if ledger is None else f" of the ledger in {ledger}, or"
        raise CouldNotAuditError(f"files{where} of the audit cannot be written ({error}): check the disk") from error
    return report if overview is None else replace(report, overview=overview.overview())
