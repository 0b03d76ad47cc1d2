"""The report of an audit, by either engine, with what is known about the audit itself."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version

from txbridge.core import names
from txbridge_audit.cluster.cuts import Range
from txbridge_audit.cluster.kafka_config import KafkaSettings
from txbridge_audit.cluster.plan import Plan
from txbridge_audit.cluster.reader import read
from txbridge_audit.engines.gather import AuditedTopics, Reading
from txbridge_audit.engines.records import records_of
from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.judge import findings, table
from txbridge_audit.judge.facts import Facts, TopicPartition
from txbridge_audit.judge.fates import PENDING_STATES
from txbridge_audit.judge.findings import BLIND
from txbridge_audit.judge.lacking import HALF_GONE, SAYS
from txbridge_audit.judge.relays import STATES
from txbridge_audit.judge.violations import ALTERED
from txbridge_audit.protocol.record import KafkaRecord, RecordHeaders, number_of
from txbridge_audit.report.entries import missing_rights, open_transactions, out_of_turn, ranges_gone
from txbridge_audit.report.entry import Entry, Tally
from txbridge_audit.report.model import AuditReport
from txbridge_audit.report.sums import (
    BY_CHECK,
    DELIVERED_BEFORE,
    DOUBLED,
    LEFT_OUT,
    ROLLED_BACK_BUT_VISIBLE,
    Entries,
    OddRecords,
    Sums,
)

#: Altered records that are read once more to name the differences. Each costs some milliseconds. They tend to be alike.
EXPLAINED = 50


def with_differences(settings: KafkaSettings, entries: Sequence[Entry]) -> list[Entry]:
    """The entries, the first of kind ALTERED with the differences, as far as their records can still be read."""
    found = list(entries)
    for number, entry in enumerate(entries[:EXPLAINED]):
        places = [at for at in entry.evidence if at.role in {"half", "copy"}]
        # With several copies it is unknown which one was altered.
        if entry.kind != ALTERED.name or [at.role for at in places] != ["half", "copy"]:
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


def report_on(
    source: AuditedTopics, plan: Plan, reading: Reading, facts: Facts, sums: Sums, odd: OddRecords, *, engine: str
) -> AuditReport:
    """The report. `sums` are complete, strays included; they are used up."""
    names, found = source.names, sums.entries
    found.add_all(odd.make_entries())
    found.add_all(ranges_gone(names, facts))
    found.add_all(out_of_turn(names, facts))
    found.add_all(missing_rights(facts))
    stayed = [(key, reading.spans[key].end, target) for key, target in reading.hidden.items()]
    found.add_all(open_transactions({*names.internal, names.outbox}, stayed))
    sums.add_records(facts)
    ends = {key: span.end for key, span in reading.spans.items() if key[0] == names.half and span.end > 0}
    emptied = ends if all(reading.starts[key] >= end for key, end in ends.items()) else {}
    if emptied:
        # No rule could judge one of them.
        sums.counts.update({("unjudged", kind, HALF_GONE): sum(emptied.values()) for kind in table.VIOLATIONS})
    found.add_all(_blind(sums, emptied))
    if left_out := sums.counts[LEFT_OUT]:
        found.add_all([Entry(findings.LEFT_OUT.name, f"{left_out:,} {findings.LEFT_OUT.means}")])
    fates = sums.by_name("fate", table.FATES)
    return AuditReport(
        namespace=names.namespace,
        transactions=sum(fates.values()),
        fates=fates,
        pending_states=sums.by_name("pending", PENDING_STATES),
        violations=_tally(found, table.VIOLATIONS, with_zeros=True),
        findings=_tally(found, table.FINDINGS),
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


def _tally(found: Entries, kinds: Collection[str], *, with_zeros: bool = False) -> Tally:
    by_kind = {kind: found.by_kind[kind] for kind in kinds if with_zeros or found.by_kind[kind]}
    return Tally(by_kind, tuple(entry for kind in kinds for entry in found.listed.get(kind, ())))


def _cuts(reading: Reading, before: Mapping[TopicPartition, int]) -> dict[str, dict[str, dict[str, int]]]:
    found: dict[str, dict[str, dict[str, int]]] = {}
    for key, span in sorted(reading.spans.items()):
        offsets = {"start": span.start, "end": span.end}
        if key in before:
            offsets["before"] = before[key]
        if key in reading.hidden:
            offsets["target"] = reading.hidden[key]
        found.setdefault(key[0], {})[str(key[1])] = offsets
    return found


def differing(half: KafkaRecord, copy: KafkaRecord) -> Iterable[str]:
    """The parts that differ: key, value, headers by name, or the order of the headers, and the timestamp."""
    texts = half.texts()
    if texts.get(names.MESSAGES) is not None:
        yield "one of its messages"
        return
    if half.key != copy.key:
        yield "key"
    if half.value != copy.value:
        yield "value"
    given = [header for header in half.headers if not names.is_reserved_header(header[0])]
    there = list(copy.headers)
    for name in (names.UNIQ_KEY, names.HALF_COORDINATES):
        # The last one of each name is the worker's.
        last = max((place for place, header in enumerate(there) if header[0] == name), default=None)
        if last is not None:
            del there[last]
    changed = sorted({name for name, _ in given + there if _values_of(name, given) != _values_of(name, there)})
    yield from (f"header {name}" for name in changed)
    if not changed and given != there:
        yield "order of headers"
    born = number_of(texts.get(names.BORN_TIMESTAMP)) or half.timestamp
    # An append time is not the writer's.
    if copy.is_dated and copy.timestamp != born:
        yield "timestamp"


def _values_of(name: str, headers: RecordHeaders) -> list[bytes | None]:
    return [value for other, value in headers if other == name]
