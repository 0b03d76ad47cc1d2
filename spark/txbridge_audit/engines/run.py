"""One audit by either engine: gather, see the evidence of all transactions, judge each, report."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import TypeVar

from txbridge.core import names as headers
from txbridge_audit.cluster.cuts import Range
from txbridge_audit.cluster.kafka_config import KafkaSettings
from txbridge_audit.cluster.plan import Plan, Progress
from txbridge_audit.cluster.reader import read
from txbridge_audit.engines import tasks
from txbridge_audit.engines.gather import AuditedTopics, AuditIntake, AuditRows, Reading, gather
from txbridge_audit.engines.other_namespaces import other_namespaces
from txbridge_audit.errors import CouldNotAuditError, ElectionError
from txbridge_audit.judge import findings, table
from txbridge_audit.judge.evidence import Evidence
from txbridge_audit.judge.facts import TopicPartition
from txbridge_audit.judge.fates import PENDING_STATES
from txbridge_audit.judge.findings import BLIND
from txbridge_audit.judge.lacking import HALF_GONE, SAYS
from txbridge_audit.judge.relays import STATES
from txbridge_audit.judge.strays import labelled
from txbridge_audit.judge.violations import ALTERED, PHANTOM
from txbridge_audit.ledger.rows import phantom_row
from txbridge_audit.protocol.record import KafkaRecord, RecordHeaders, number_of, records_of
from txbridge_audit.report.entries import Entry, missing_rights, open_transactions, out_of_turn, ranges_gone
from txbridge_audit.report.model import AuditReport
from txbridge_audit.report.sums import (
    BY_CHECK,
    DELIVERED_BEFORE,
    DOUBLED,
    LEFT_OUT,
    ROLLED_BACK_BUT_VISIBLE,
    OddRecords,
    Sums,
)

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
    evidence, odd, sums = Evidence(), OddRecords(names), Sums(names)
    for proofs, found in rows.ask_tasks(tasks.evidence_of):
        evidence += proofs
        for mention in found:
            odd.add_record(mention)
    facts = evidence.add_to(reading.facts, reading.truncated)
    reading = replace(reading, facts=facts)
    source.say("judging")
    for part in rows.ask_tasks(partial(tasks.verdicts_on, names, facts, plan.selection, with_overview)):
        sums += part
    strays = list(labelled(sums.strays, facts, other_namespaces(source, sums.strays, facts)))
    sums.add_strays(strays)
    # After everything is read and judged: by then a deposed leader has learnt of its successor, unless it stays cut off
    # from the controllers.
    source.cluster.refuse_moved({*reading.spans, *facts.before})
    if with_ledger:
        source.say("writing the ledger")
        phantoms = [phantom_row(copy) for copy, kind in strays if kind == PHANTOM.name]
        rows.write_ledger(facts, plan.selection, phantoms)
    report = report_on(source, plan, reading, sums, odd, engine=rows.engine)
    listed = with_differences(source.settings, report.violations.listed)
    report = replace(report, violations=replace(report.violations, listed=tuple(listed)))
    return replace(report, overview=sums.overview.overview()) if with_overview else report


def report_on(
    source: AuditedTopics, plan: Plan, reading: Reading, sums: Sums, odd: OddRecords, *, engine: str
) -> AuditReport:
    """The report. `sums` are complete, strays included; they are used up."""
    names, facts = source.names, reading.facts
    sums.add_entries(odd.make_entries())
    sums.add_entries(ranges_gone(names, facts))
    sums.add_entries(out_of_turn(names, facts))
    sums.add_entries(missing_rights(facts))
    stayed = [(key, reading.spans[key].end, target) for key, target in reading.hidden.items()]
    sums.add_entries(open_transactions({*names.internal, names.outbox}, stayed))
    sums.add_records(facts)
    ends = {key: span.end for key, span in reading.spans.items() if key[0] == names.half and span.end > 0}
    emptied = ends if all(reading.starts[key] >= end for key, end in ends.items()) else {}
    if emptied:
        # No rule could judge one of them.
        sums.counts.update({("unjudged", kind, HALF_GONE): sum(emptied.values()) for kind in table.VIOLATIONS})
    sums.add_entries(_blind(sums, emptied))
    if left_out := sums.counts[LEFT_OUT]:
        sums.add_entries([Entry(findings.LEFT_OUT.name, f"{left_out:,} {findings.LEFT_OUT.means}")])
    fates = sums.by_name("fate", table.FATES)
    return AuditReport(
        namespace=names.namespace,
        transactions=sum(fates.values()),
        fates=fates,
        pending_states=sums.by_name("pending", PENDING_STATES),
        violations=sums.tally(table.VIOLATIONS, with_zeros=True),
        findings=sums.tally(table.FINDINGS),
        rows=sums.by_name("row", STATES),
        delivered_more_than_once=sums.counts[DOUBLED],
        rolled_back_but_visible=sums.counts[ROLLED_BACK_BUT_VISIBLE],
        answered_by_check=sums.counts[BY_CHECK],
        delivered_before_given_up=sums.counts[DELIVERED_BEFORE],
        unjudged=sums.unjudged_by_kind(),
        cuts=_cuts(reading, facts.before),
        selection=plan.selection,
        limits=plan.limits,
        started_at=plan.now,
        read_at=plan.read_at,
        seconds=time.time() - plan.read_at / 1000,
        topic_ids=reading.topic_ids,
        continued=reading.continued,
        lost_since={f"{topic}/{partition}": number for (topic, partition), number in reading.lost.items()},
        bootstrap_servers=source.settings.bootstrap_servers,
        cluster_id=source.cluster.cluster_id,
        version=version("txbridge"),
        engine=engine,
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


def _cuts(reading: Reading, before: Mapping[TopicPartition, int]) -> dict[str, dict[str, dict[str, int]]]:
    found: dict[str, dict[str, dict[str, int]]] = {}
    for key, span in sorted(reading.spans.items()):
        offsets = {"start": span.start, "end": span.end, "before": before.get(key), "target": reading.hidden.get(key)}
        found.setdefault(key[0], {})[str(key[1])] = {name: at for name, at in offsets.items() if at is not None}
    return found


#: Altered records that are read once more to name the differences. Each costs some milliseconds. They tend to be alike.
EXPLAINED = 50


def with_differences(settings: KafkaSettings, entries: Sequence[Entry]) -> list[Entry]:
    """The entries, the first of kind ALTERED with the differences, as far as their records can still be read."""
    found = list(entries)
    altered = [number for number, entry in enumerate(entries) if entry.kind == ALTERED.name]
    for number in altered[:EXPLAINED]:
        entry = entries[number]
        places = [at for at in entry.evidence if at.role in {"half", "copy"}]
        # With several copies it is unknown which one was altered.
        if [at.role for at in places] != ["half", "copy"]:
            continue
        spans = {(at.topic, at.partition): Range(at.offset, at.offset + 1) for at in places}
        try:
            batches = read(settings, spans, committed=False, may_vanish=True)
            records = {one.topic: one for one in records_of(batches)}
        except CouldNotAuditError:
            # The report has less detail, but is right. Each further record could cost a time-out, too.
            break
        if len(records) == 2 and (told := ", ".join(differing(*(records[at.topic] for at in places)))):
            found[number] = replace(entry, says=f"not that of the half message in a visible copy: {told}")
    return found


def differing(half: KafkaRecord, copy: KafkaRecord) -> Iterable[str]:
    """The parts that differ: key, value, headers by name, or the order of the headers, and the timestamp."""
    texts = half.texts()
    if texts.get(headers.MESSAGES) is not None:
        yield "one of its messages"
        return
    if half.key != copy.key:
        yield "key"
    if half.value != copy.value:
        yield "value"
    given = [header for header in half.headers if not headers.is_reserved_header(header[0])]
    there = list(copy.headers)
    for name in (headers.UNIQ_KEY, headers.HALF_COORDINATES):
        # The last one of each name is the worker's.
        last = max((place for place, header in enumerate(there) if header[0] == name), default=None)
        if last is not None:
            del there[last]
    changed = sorted({name for name, _ in given + there if _values_of(name, given) != _values_of(name, there)})
    yield from (f"header {name}" for name in changed)
    if not changed and given != there:
        yield "order of headers"
    born = number_of(texts.get(headers.BORN_TIMESTAMP)) or half.timestamp
    # An append time is not the writer's.
    if copy.is_dated and copy.timestamp != born:
        yield "timestamp"


def _values_of(name: str, headers: RecordHeaders) -> list[bytes | None]:
    return [value for other, value in headers if other == name]
