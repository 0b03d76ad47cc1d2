"""One audit by the local engine: gather, see the evidence of all transactions, judge each, report."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from txbridge_audit.cluster.plan import Plan, Progress
from txbridge_audit.engines.gather import AuditedTopics, Reading, gather, other_namespaces
from txbridge_audit.engines.local.intake import LocalIntake
from txbridge_audit.engines.local.store import MentionStore, store_for
from txbridge_audit.engines.reporting import report_on, with_differences
from txbridge_audit.errors import CouldNotAuditError, ElectionError
from txbridge_audit.judge.evidence import Evidence
from txbridge_audit.judge.verdict import Verdict, judge
from txbridge_audit.judge.violations import ALTERED
from txbridge_audit.ledger.place import claim_folder, write_summary
from txbridge_audit.protocol.mentions import CopyMention
from txbridge_audit.report.model import AuditReport
from txbridge_audit.report.overview import OverviewSums
from txbridge_audit.report.sums import Sums

#: Number of times in all that an audit is made while leaders change. A rolling restart of three brokers changes each
#: leader twice.
TRIES = 4

_T = TypeVar("_T")


class Listener(Protocol):
    """Takes everything that is part of the report. An attempt that fails in the end calls it, too."""

    def take_verdict(self, verdict: Verdict) -> None:
        """Take a verdict."""

    def take_stray(self, copy: CopyMention, kind: str) -> None:
        """Take a visible record without a half message."""


def audit(source: AuditedTopics, plan: Plan, listeners: Sequence[Listener] = ()) -> AuditReport:
    """Make one audit of everything that the topics hold. Raises CouldNotAuditError."""
    records = sum(source.cluster.high_watermarks(source.partitions[source.names.half]).values())
    store = store_for(records * _RECORDS_EACH)
    try:
        intake = LocalIntake(source.settings, source.names, store.add)
        reading = gather(source, plan, intake)
        source.say("judging")
        return _judge(source, plan, store, intake, reading, listeners)
    finally:
        store.close()


#: Records of a transaction: half message, END, OP and a visible copy.
_RECORDS_EACH = 4


def _judge(
    source: AuditedTopics,
    plan: Plan,
    store: MentionStore,
    intake: LocalIntake,
    reading: Reading,
    listeners: Sequence[Listener],
) -> AuditReport:
    evidence = Evidence()
    for transaction in store.transactions():
        evidence.see_transaction(transaction)
    facts = evidence.add_to(reading.facts, reading.truncated)
    sums = Sums(source.names)
    for transaction in store.transactions():
        verdict = judge(transaction, facts)
        if plan.selection.takes(verdict.case.message):
            sums.add_verdict(verdict)
            for listener in listeners:
                listener.take_verdict(verdict)
        else:
            sums.strays += verdict.case.strays
    sums.entries.explain_kind(ALTERED.name, partial(with_differences, source.settings))
    claimed = {(copy.partition, copy.half) for copy in sums.strays if copy.half is not None}
    for copy, kind in sums.add_strays(facts, other_namespaces(source, claimed)):
        for listener in listeners:
            listener.take_stray(copy, kind)
    # After everything is read and judged: by then a deposed leader has learnt of its successor, unless it stays cut off
    # from the controllers.
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
    try:
        if ledger is None:
            return _audit_with_overview(source, plan, with_overview=with_overview)
        with claim_folder(ledger):
            # Only here: it loads the library that writes Parquet.
            from txbridge_audit.ledger.parquet import ParquetLedger  # noqa: PLC0415

            files = ParquetLedger(ledger)
            report = _audit_with_overview(source, plan, files, with_overview=with_overview)
            files.write_rows()
            write_summary(report.to_json(), ledger)
            return report
    except (sqlite3.Error, OSError) as error:
        where = "" if ledger is None else f" of the ledger in {ledger}, or"
        raise CouldNotAuditError(f"files{where} of the audit cannot be written ({error}): check the disk") from error


def _audit_with_overview(source: AuditedTopics, plan: Plan, *listeners: Listener, with_overview: bool) -> AuditReport:
    if not with_overview:
        return audit(source, plan, listeners)
    overview = OverviewSums()
    report = audit(source, plan, [*listeners, overview])
    return replace(report, overview=overview.overview())
