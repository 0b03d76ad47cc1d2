"""One audit by either engine: gather, see the evidence of all transactions, judge each, report."""

from __future__ import annotations

import marshal
import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from txbridge_audit.cluster.plan import Plan, Progress
from txbridge_audit.engines import tasks
from txbridge_audit.engines.gather import AuditedTopics, AuditIntake, AuditRows, Reading, gather
from txbridge_audit.engines.other_namespaces import other_namespaces
from txbridge_audit.engines.records import refuse_unknown_version
from txbridge_audit.engines.reporting import report_on, with_differences
from txbridge_audit.errors import ElectionError
from txbridge_audit.judge.evidence import Evidence
from txbridge_audit.judge.facts import Facts
from txbridge_audit.judge.strays import labelled
from txbridge_audit.judge.violations import ALTERED, PHANTOM
from txbridge_audit.ledger.rows import phantom_row
from txbridge_audit.protocol.mentions import AsideMention, CopyMention, HalfMention, UnreadableMention, from_row
from txbridge_audit.report.entry import Entry
from txbridge_audit.report.model import AuditReport
from txbridge_audit.report.overview import OverviewSums
from txbridge_audit.report.sums import OddRecords, Sums

#: Number of times in all that an audit is made while leaders change. A rolling restart of three brokers changes each
#: leader twice.
TRIES = 4

_T = TypeVar("_T")


def until_leaders_stay(say: Progress, attempt: Callable[[], _T]) -> _T:
    """Make an audit or a step, and repeat it when a leader changed meanwhile."""
    for _ in range(TRIES - 1):
        try:
            return attempt()
        except ElectionError as error:
            say(f"once more: {error}")
    return attempt()


def audit(source: AuditedTopics, plan: Plan, rows: AuditRows, *, with_ledger: bool, with_overview: bool) -> AuditReport:
    """Make one audit of everything that the topics hold, with a ledger and an overview if they are asked for.

    Raises CouldNotAuditError.
    """
    names = source.names
    reading = gather(source, plan, AuditIntake(names, rows))
    odd, sums, overview = OddRecords(names), Sums(names), OverviewSums()
    facts = _facts_with_evidence(reading, rows, odd)
    source.say("judging")
    entries: list[tuple[str, int, int, Entry]] = []
    strays: list[CopyMention] = []
    ask = partial(tasks.verdicts_on, names, facts, plan.selection, with_overview)
    for what, packed, number in rows.ask_tasks(ask):
        if what == tasks.SUM:
            sums.count_alike(marshal.loads(packed), number)
        elif what == tasks.ENTRY:
            entries.append(pickle.loads(packed))  # noqa: S301 - our own tasks have made it
        elif what == tasks.OVERVIEW:
            overview.add_sums(pickle.loads(packed))  # noqa: S301
        else:
            stray = from_row(marshal.loads(packed))
            assert isinstance(stray, CopyMention)
            strays.append(stray)
    for *_, entry in sorted(entries, key=lambda one: one[:3]):
        sums.entries.list_entry(entry)
    listed = sums.entries.listed
    if ALTERED.name in listed:
        listed[ALTERED.name] = with_differences(source.settings, listed[ALTERED.name])
    found = list(labelled(strays, facts, other_namespaces(source, strays, facts)))
    sums.add_strays(found)
    # After everything is read and judged: by then a deposed leader has learnt of its successor, unless it stays cut off
    # from the controllers.
    source.cluster.refuse_moved({*reading.spans, *facts.before})
    if with_ledger:
        source.say("writing the ledger")
        phantoms = [phantom_row(copy) for copy, kind in found if kind == PHANTOM.name]
        rows.write_ledger(facts, plan.selection, phantoms)
    report = report_on(source, plan, reading, facts, sums, odd, engine=rows.engine)
    return replace(report, overview=overview.overview()) if with_overview else report


def _facts_with_evidence(reading: Reading, rows: AuditRows, odd: OddRecords) -> Facts:
    """The facts with what all transactions prove about each other. Odd records are added to `odd`."""
    evidence = Evidence()
    for what, packed, _ in rows.ask_tasks(tasks.evidence_of):
        if what == tasks.ODD:
            mention = from_row(marshal.loads(packed))
            assert isinstance(mention, HalfMention | UnreadableMention | AsideMention)
            refuse_unknown_version(mention)
            odd.add_record(mention)
        elif what == tasks.ANCHOR:
            evidence.add_anchor(*marshal.loads(packed))
        else:
            partition, identity, half = marshal.loads(packed)
            evidence.unexplained.setdefault((partition, identity), set()).add(half)
    return evidence.add_to(reading.facts, reading.truncated)
