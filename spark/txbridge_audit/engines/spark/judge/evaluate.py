"""The verdicts on the rows of a ledger, their sums, and the report of them with its evidence."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession

from txbridge.core.names import Names
from txbridge_audit.cluster.differences import Coordinates, differences
from txbridge_audit.cluster.kafka_admin import partitions_of
from txbridge_audit.engines.spark.judge import (
    fates,
    findings,
    loss_evidence,
    mentions,
    notes,
    orphans,
    reach,
    summary,
    violations,
)
from txbridge_audit.engines.spark.judge.loss_evidence import Anchor
from txbridge_audit.engines.spark.judge.summary import Counts, Listed
from txbridge_audit.engines.spark.read import context, decode
from txbridge_audit.engines.spark.read.frame_cache import FrameCache
from txbridge_audit.engines.spark.read.frames import Frames
from txbridge_audit.engines.spark.read.gather import Gathered
from txbridge_audit.engines.spark.read.kafka_source import READ_COMMITTED, READ_UNCOMMITTED, AuditSource
from txbridge_audit.judge.selection import AuditSelection
from txbridge_audit.report.entry import Entry, Tally
from txbridge_audit.report.model import AuditReport

#: Altered records that are read once more to name the differences. Each costs some milliseconds. They tend to be alike.
_EXPLAINED = 50


@dataclass(frozen=True, slots=True)
class Judgement:
    """The result of judging the rows of one ledger."""

    counted: Counts
    #: Violations and findings of the ledger's rows.
    listed: Sequence[Listed]
    #: Visible records without a half message: the number of each kind, and the first ones.
    strays: Mapping[str, int]
    stray_entries: Sequence[Entry]
    #: Findings that no row has: unreadable records, open Kafka transactions, ranges that are gone, missing rights.
    others: Mapping[str, int]
    other_entries: Sequence[Entry]

    def report(self, names: Names, gathered: Gathered, selection: AuditSelection) -> AuditReport:
        """The report of these rows alone, with 0 for `started_at` and `seconds`."""
        return report_of(
            names,
            gathered,
            selection,
            self.counted,
            dict(self.counted.kinds) | dict(self.strays) | dict(self.others),
            [*(one.entry for one in self.listed), *self.stray_entries, *self.other_entries],
        )


def with_verdicts(spark: SparkSession, gathered: Gathered, rows: DataFrame, known: Collection[Anchor]) -> DataFrame:
    """The judged ledger: its rows (persisted) with fate, violations and findings. Lazy."""
    with_proof = loss_evidence.add(spark, rows, gathered.truncated, known)
    return findings.find(fates.assign(with_proof))


#: Visible records without a half message: the number of each kind, and the first ones.
Strays = tuple[Mapping[str, int], Sequence[Entry]]


def strays(source: AuditSource, gathered: Gathered, frames: Frames, rows: DataFrame) -> Strays:
    """Visible records without a half message in `rows`, the ledger."""
    copies = mentions.copies_before(source.spark, frames.copies, gathered.facts.before)
    return summary.strays(source.names, _labelled(source, gathered, orphans.candidates(copies, rows)))


def sum_up(
    source: AuditSource,
    cache: FrameCache,
    gathered: Gathered,
    frames: Frames,
    chosen: DataFrame,
    find_strays: Callable[[], Strays],
) -> Judgement:
    """Count and list violations and findings. `chosen` are the rows of the judged ledger that are audited.

    `find_strays` (`strays`) is called only if there are any. Raises CouldNotAuditError when OP holds records of another
    version.
    """
    names = source.names
    counted = summary.counts(chosen)
    source.say("collecting evidence")
    listed = summary.listed(names, chosen, counted)
    listed = _with_differences(source, listed)
    found, stray_entries = find_strays() if counted.strays else ({}, [])
    others: dict[str, int] = {}
    entries: list[Entry] = []
    if counted.malformed or not frames.discards.where("malformed").isEmpty():
        odd = findings.malformed(frames.halves, frames.bad_ends, frames.discards, names.half, names.end)
        others, entries = summary.malformed(names, cache.keep(odd))
    if counted.bad_ops:
        context.refuse_unknown_versions(gathered.raw_op)  # only here: such a record cannot be read
        others = others | {findings.UNREADABLE_OP: counted.bad_ops}
        entries += summary.unreadable(names, frames.outcomes)
    gone = notes.range_gone(names, gathered.facts)
    hidden = notes.open_transactions(gathered.hidden, source.partitions)
    lacking = notes.missing_rights(gathered.facts)
    for kind, told in (
        (findings.HALF_RANGE_GONE, gone),
        (findings.RIGHT_MISSING, lacking),
        (findings.OPEN_TRANSACTION, hidden),
    ):
        if told:
            others = others | {kind: len(told)}
            entries += told
    return Judgement(counted, listed, found, stray_entries, others, entries)


def report_of(
    names: Names,
    gathered: Gathered,
    selection: AuditSelection,
    counted: Counts,
    kinds: Mapping[str, int],
    entries: Sequence[Entry],
) -> AuditReport:
    """The report, with 0 for `started_at` and `seconds`."""
    wrong = {kind: kinds.get(kind, 0) or counted.fates.get(kind, 0) for kind in summary.VIOLATIONS}
    told = reach.with_records(counted.reach, kinds.get(findings.HALF_GONE, 0), gathered.facts)
    blind = notes.blind(told, notes.emptied(names, gathered.starts, gathered.spans))
    kinds, entries = dict(kinds) | ({findings.BLIND: len(blind)} if blind else {}), [*entries, *blind]
    return AuditReport(
        namespace=names.namespace,
        transactions=counted.transactions,
        fates=counted.fates,
        pending_states=counted.pending_states,
        violations=Tally(wrong, tuple(entry for entry in entries if entry.kind in wrong)),
        findings=Tally(
            {kind: count for kind, count in kinds.items() if kind not in wrong},
            tuple(entry for entry in entries if entry.kind not in wrong),
        ),
        delivered_more_than_once=counted.delivered_more_than_once,
        rolled_back_but_visible=counted.rolled_back_but_visible,
        answered_by_check=counted.answered_by_check,
        unjudged=reach.by_rule(told),
        cuts=_cuts(gathered),
        selection=selection,
        started_at=0,
        seconds=0.0,
    )


def _labelled(source: AuditSource, gathered: Gathered, unmatched: DataFrame) -> DataFrame:
    starts = {fact.partition: fact.log_start for fact in gathered.facts.partitions}
    read_from = {fact.partition: fact.half_start for fact in gathered.facts.partitions}
    return orphans.label(source.spark, unmatched, starts, read_from, _other_namespaces(source))


def _with_differences(source: AuditSource, listed: Sequence[Listed]) -> list[Listed]:
    """The entries, the first of kind ALTERED with the differences."""
    pairs: dict[int, tuple[Coordinates, Coordinates]] = {}
    for number, one in enumerate(listed):
        if one.entry.kind != violations.ALTERED or len(pairs) == _EXPLAINED:
            continue
        by_role = {at.role: (at.topic, at.partition, at.offset) for at in one.entry.evidence}
        # With several copies it is unknown which one was altered.
        if "half" in by_role and sum(at.role == "copy" for at in one.entry.evidence) == 1:
            pairs[number] = by_role["half"], by_role["copy"]
    told = dict(zip(pairs, differences(source.settings, list(pairs.values())), strict=True))

    def explained(number: int, one: Listed) -> Listed:
        if not told.get(number):
            return one
        says = f"not that of the half message in a visible copy: {told[number]}"
        return replace(one, entry=replace(one.entry, says=says))

    return [explained(number, one) for number, one in enumerate(listed)]


def _other_namespaces(source: AuditSource) -> orphans.OtherNamespaces | None:
    base = Names().half
    counts = source.cluster.partition_counts()
    topics = [name for name in counts if name == base or name.endswith(f".{base}")]
    others = {name: Names(name.removesuffix(base).removesuffix(".")) for name in topics if name != source.names.half}
    keys = [key for name in others for key in partitions_of(name, counts[name])]
    if not keys:
        return None
    starts, ends = source.cluster.log_starts(keys), source.cluster.high_watermarks(keys)
    # Their ENDs are needed only where half messages are gone.
    end_of = {key: (others[key[0]].end, key[1]) for key in keys if starts[key] > 0}
    there = [key for key in end_of.values() if key[1] < counts.get(key[0], 0)]
    end_starts, end_ends = source.cluster.log_starts(there), source.cluster.stable_offsets(there)
    edges: dict[int, int] = {}
    for key, end in end_of.items():
        if end_starts.get(end, 1) > 0:
            edges[key[1]] = max(starts[key], edges.get(key[1], 0))
    records = decode.decision_records(source.read(end_starts, end_ends, READ_COMMITTED))
    return orphans.OtherNamespaces(
        decode.halves(source.read(starts, ends, READ_UNCOMMITTED)), decode.entries(records), edges
    )


def _cuts(gathered: Gathered) -> dict[str, dict[str, dict[str, int]]]:
    cuts: dict[str, dict[str, dict[str, int]]] = {}
    for (topic, partition), span in sorted(gathered.spans.items()):
        offsets = {"start": span.start, "end": span.end}
        if (topic, partition) in gathered.facts.before:
            offsets["before"] = gathered.facts.before[topic, partition]
        cuts.setdefault(topic, {})[str(partition)] = offsets
    return cuts
