"""The report of an audit, from the sums over its verdicts and from what was read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from txbridge.core.names import Names
from txbridge_audit.judge import table
from txbridge_audit.judge.facts import Facts, TopicPartition
from txbridge_audit.judge.fates import PENDING_STATES
from txbridge_audit.judge.findings import BLIND
from txbridge_audit.judge.lacking import SAYS
from txbridge_audit.report import entries
from txbridge_audit.report.entry import Entry, Tally
from txbridge_audit.report.model import AuditReport
from txbridge_audit.report.sums import Entries, OddRecords, Sums


def report_of(
    names: Names,
    sums: Sums,
    odd: OddRecords,
    facts: Facts,
    *,
    starts: Mapping[TopicPartition, int],
    cuts: Mapping[TopicPartition, tuple[int, int]],
    hidden: Mapping[TopicPartition, tuple[int, int]],
    **about: Any,
) -> AuditReport:
    """The report. `sums` are complete, strays included; they are used up.

    `starts` are log starts, `cuts` the first offset and the end of what was read of each partition, and `hidden` the
    partitions that an open Kafka transaction hides. `about` are further fields of the report.
    """
    internal = set(names.internal)
    found = sums.entries
    found.add_all(odd.make_entries())
    found.add_all(entries.ranges_gone(names, facts))
    found.add_all(entries.missing_rights(facts))
    found.add_all(entries.open_transactions(internal, hidden.items()))
    sums.add_records(facts)
    ends = {key: end for key, (_, end) in cuts.items() if key[0] == names.half and end > 0}
    emptied = ends if all(starts[key] >= end for key, end in ends.items()) else {}
    if emptied:
        sums.add_emptied(sum(emptied.values()))
    found.add_all(_blind(sums, emptied))
    return AuditReport(
        namespace=names.namespace,
        transactions=sum(sums.fates.values()),
        fates={fate: sums.fates[fate] for fate in table.FATES},
        pending_states={state: sums.pending_states[state] for state in PENDING_STATES},
        violations=_tally(found, table.VIOLATIONS, with_zeros=True),
        findings=_tally(found, table.FINDINGS),
        delivered_more_than_once=sums.delivered_more_than_once,
        rolled_back_but_visible=sums.rolled_back_but_visible,
        answered_by_check=sums.answered_by_check,
        delivered_before_given_up=sums.delivered_before_given_up,
        unjudged=sums.unjudged_by_kind(),
        cuts=_cuts(cuts, facts.before, hidden),
        **about,
    )


def _blind(sums: Sums, emptied: Collection[TopicPartition]) -> list[Entry]:
    """Findings of rules that judged nothing. If HALF is emptied, one is about all of them."""
    if emptied:
        where = ", ".join(f"{topic}/{partition}" for topic, partition in sorted(emptied))
        return [Entry(BLIND.name, f"no rule could judge anything: retention has left nothing in {where}")]
    return [
        Entry(
            BLIND.name,
            f"{kind} could judge none of {sum(reasons.values()):,}: " + "; ".join(SAYS[reason] for reason in reasons),
        )
        for kind, reasons in sums.blind().items()
    ]


def _tally(found: Entries, kinds: Collection[str], *, with_zeros: bool = False) -> Tally:
    by_kind = {kind: found.by_kind[kind] for kind in kinds if with_zeros or found.by_kind[kind]}
    return Tally(by_kind, tuple(entry for kind in kinds for entry in found.listed.get(kind, ())))


def _cuts(
    cuts: Mapping[TopicPartition, tuple[int, int]],
    before: Mapping[TopicPartition, int],
    hidden: Mapping[TopicPartition, tuple[int, int]],
) -> dict[str, dict[str, dict[str, int]]]:
    found: dict[str, dict[str, dict[str, int]]] = {}
    for key in sorted(cuts):
        topic, partition = key
        start, end = cuts[key]
        offsets = {"start": start, "end": end}
        if key in before:
            offsets["before"] = before[key]
        if key in hidden:
            offsets["target"] = hidden[key][1]
        found.setdefault(topic, {})[str(partition)] = offsets
    return found
