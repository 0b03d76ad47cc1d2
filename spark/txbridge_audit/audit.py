"""`run_audit`: from a running Kafka to a report. The numbered steps are the order of the cuts (see cuts.py)."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own convention)

from txbridge.core.names import Names
from txbridge_audit import (
    collect,
    events,
    facts,
    findings,
    ledger,
    notes,
    overview,
    parquet,
    proof,
    records,
    strays,
    verdicts,
)
from txbridge_audit.cluster import Cluster, partitions_of
from txbridge_audit.cuts import SETTLE_TIMEOUT, Cut, Range, TopicPartition, ranges, settle
from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.events import Frames
from txbridge_audit.facts import Facts, Limits
from txbridge_audit.report import AuditReport, Entry, Tally
from txbridge_audit.selection import Selection
from txbridge_audit.selection import begin as begin_of
from txbridge_audit.session import Progress, spark_session
from txbridge_audit.settings import KafkaSettings, kafka_settings
from txbridge_audit.sources import READ_COMMITTED, READ_UNCOMMITTED, read

#: Half messages at most for which our own Spark starts quickly rather than runs fast. Offsets are good enough to choose
#: by; nothing that is reported rests on them.
_SMALL = 600_000


def run_audit(
    bootstrap_servers: str,
    *,
    namespace: str = "",
    kafka_options: Mapping[str, str] | None = None,
    real_topics: Collection[str] = (),
    spark: SparkSession | None = None,
    selection: Selection | None = None,
    settle_timeout: float = SETTLE_TIMEOUT,
    limits: Limits | None = None,
    ledger_path: str | None = None,
    with_overview: bool = False,
    progress: Progress = lambda _: None,
) -> AuditReport:
    """Audit every transaction that HALF still holds; nothing is written to Kafka.

    `kafka_options` are librdkafka's names (`java.<name>` for Spark's consumer alone). The real topics are those that
    half messages name; `real_topics` adds others in which to look for phantoms. With `spark` that session is used, else
    a local one is started and stopped. `selection` says which transactions, if not all. `settle_timeout` is how many
    seconds each cut waits for open Kafka transactions; what they may hide after that is not judged, and a finding.
    `limits` are the workers' settings that say what is overdue. `ledger_path` is a new folder, or a URI that Spark can
    write to, for the ledger as Parquet. With `with_overview` the report has the summaries that the page shows.
    `progress` is told, in words, what is going on.

    Raises CouldNotAuditError when no verdict can be given; the message says what to do. May be run at any time, beside
    running workers and clients.
    """
    started = time.time()
    settings = kafka_settings(bootstrap_servers, kafka_options)
    cluster = Cluster(settings)
    names = Names(namespace)
    topics = facts.internal_topics(cluster, names)  # before Spark: what is missing should be said at once
    half = partitions_of(names.half, topics[names.half])
    starts, ends = cluster.log_starts(half), cluster.high_watermarks(half)
    small = sum(ends[key] - starts[key] for key in half) < _SMALL
    with spark_session(spark, progress, small=small) as session:
        plan = _Plan(
            now=int(started * 1000),
            limits=limits or Limits(),
            selection=selection or Selection(),
            real_topics=frozenset(real_topics),
            settle_timeout=settle_timeout,
            ledger_path=ledger_path,
            with_overview=with_overview,
        )
        audit = _Audit(session, cluster, settings, names, topics, plan, progress)
        if ledger_path is not None:
            parquet.refuse_existing(session, ledger_path)
        try:
            report = audit.run()
        finally:
            audit.release()
        report = replace(report, started_at=int(started * 1000), seconds=time.time() - started)
        if ledger_path is not None:
            parquet.write_summary(session, report.to_json(), ledger_path)
    return report


@dataclass(frozen=True, slots=True)
class _Plan:
    """What `run_audit` was asked for."""

    #: When the audit began, ms.
    now: int
    limits: Limits
    selection: Selection
    real_topics: frozenset[str]
    settle_timeout: float
    ledger_path: str | None
    with_overview: bool


class _Audit:
    """One run. Holds what the steps share, so that each reads like its line in cuts.py."""

    def __init__(
        self,
        spark: SparkSession,
        cluster: Cluster,
        settings: KafkaSettings,
        names: Names,
        topics: Mapping[str, int],
        plan: _Plan,
        progress: Progress,
    ) -> None:
        self._spark, self._cluster, self._settings, self._names = spark, cluster, settings, names
        self._plan, self._say = plan, progress
        self._partitions = {name: partitions_of(name, count) for name, count in topics.items()}
        self._spans: dict[TopicPartition, Range] = {}
        self._open: dict[TopicPartition, tuple[int, int]] = {}
        self._persisted: list[DataFrame] = []
        #: Real topics that Kafka did not tell of when they were looked for last.
        self._absent: set[str] = set()

    def release(self) -> None:
        for frame in self._persisted:
            frame.unpersist()

    def run(self) -> AuditReport:
        names, cluster, plan = self._names, self._cluster, self._plan
        internal = [key for keys in self._partitions.values() for key in keys]
        starts = cluster.log_starts(internal)

        # Step 1: which real topics there are, from a first look at HALF.
        self._say("reading half messages")
        half_keys = self._partitions[names.half]
        told_in = [*self._partitions[names.end], *self._partitions[names.op]]
        begin = begin_of(cluster, plan.selection, half_keys, told_in, starts)
        first_look = cluster.high_watermarks(half_keys)
        early = self._keep(records.halves(self._read(ranges(begin, first_look), READ_UNCOMMITTED), names))
        named = self._named_topics(early)
        real = self._existing(named)

        # Step 2: the earlier cut of the real topics.
        before = cluster.stable_offsets(real)

        # Step 3: OFFSET, read at once and then to what was added meanwhile. Compaction may remove an entry below the
        # cut because of a newer one above it; by the second reading that newer one is in what we read.
        self._say("reading progress")
        offset_keys = self._partitions[names.offset]
        cut = cluster.stable_offsets(offset_keys)
        read_once = self._keep(self._read(ranges(starts, cut), READ_COMMITTED))
        read_once.count()
        later = cluster.stable_offsets(offset_keys)
        kept = self._keep(read_once.unionByName(self._read(ranges(cut, later), READ_COMMITTED)))
        self._note(ranges(starts, later))
        facts.refuse_unknown_versions(kept.where(F.col("key").cast("string").startswith(f"{names.half}@")))
        progress = facts.progress(kept, names, cluster)

        # Step 4: the check topics. Before discard: a discard that makes a decision late comes before a later check.
        # They keep an hour, so some may vanish while we read: what is not there accuses nobody.
        check_keys = facts.check_partitions(names, cluster)
        check_starts, check = cluster.log_starts(check_keys), cluster.stable_offsets(check_keys)

        # Steps 5 to 8: OP and discard, once every Kafka transaction that had written by now is decided; END; HALF.
        op = self._settle(self._partitions[names.op])
        discard = self._settle(self._partitions[names.discard])
        end = cluster.high_watermarks(self._partitions[names.end])
        half = cluster.high_watermarks(half_keys)
        facts.check_ends(names, progress, end, half)

        # Step 9: the real topics again, those named meanwhile included.
        added = records.halves(self._read(ranges(first_look, half), READ_UNCOMMITTED), names)
        self._note(ranges(begin, half))
        real = self._existing(named | self._named_topics(added))
        after = self._settle(real)
        real_starts = cluster.log_starts(real)

        # Step 10: everything is fixed; read the rest and join.
        self._say("reading decisions, outcomes and real topics")
        discards = self._keep(records.discards(self._read_noted(starts, discard.ends, READ_COMMITTED)))
        # Counted before it is joined: then Spark knows how small it is, and spares the others a shuffle.
        set_aside = discards.where("malformed").count()
        raw_op = self._read_noted(begin, op.ends, READ_COMMITTED)
        frames = Frames(
            halves=early.unionByName(added),
            end_records=records.end_records(self._read_noted(begin, end, READ_UNCOMMITTED)),
            outcomes=records.outcomes(raw_op),
            parked=records.parked(kept, names),
            discards=discards,
            copies=records.copies(self._read_noted(real_starts, after.ends, READ_COMMITTED)),
            checks=records.checks(self._read_noted(check_starts, check, READ_COMMITTED, may_vanish=True)),
        )
        surroundings = Facts(
            partitions=facts.partition_facts(names, cluster, self._partitions, starts, progress, op, begin),
            topics=facts.topic_facts(cluster, real, real_starts, after),
            before=before,
            now=plan.now,
            limits=plan.limits,
        )
        rows = self._keep(ledger.build(self._spark, names, frames, surroundings))
        truncated = [key for key, start in real_starts.items() if start > 0]
        judged = findings.find(verdicts.judge(proof.add(self._spark, rows, truncated))).where(plan.selection.takes())
        counted = collect.counts(judged)

        told = overview.overview(judged) if plan.with_overview else None
        if plan.ledger_path is not None:
            self._say("writing the ledger")
            parquet.write(names, judged, frames, plan.ledger_path)

        # Step 11: what is wrong or odd, with its records. Reads the same ranges again, but only when there is any.
        self._say("collecting evidence")
        entries = collect.listed(names, judged, counted)
        kinds = dict(counted.kinds)
        if counted.strays:
            unmatched = strays.candidates(events.copies_before(self._spark, frames.copies, before), rows)
            found, more = collect.strays(self._keep(self._labelled(unmatched, starts, begin)))
            kinds, entries = kinds | found, entries + more
        if counted.malformed or set_aside:
            odd = findings.malformed(frames.halves, frames.end_records, discards, names.half, names.end)
            found, more = collect.malformed(names, self._keep(odd))
            kinds, entries = kinds | found, entries + more
        if counted.bad_ops:
            facts.refuse_unknown_versions(raw_op)  # not before: each is an OP record that can not be read
            kinds[findings.UNREADABLE_OP] = counted.bad_ops
            entries += collect.unreadable(names, frames.outcomes)
        gone = notes.range_gone(names, surroundings)
        if gone:
            kinds[findings.HALF_RANGE_GONE] = len(gone)
            entries += gone
        lacking = notes.missing_rights(surroundings, cluster.hidden(self._absent))
        if lacking:
            kinds[findings.RIGHT_MISSING] = len(lacking)
            entries += lacking
        if self._open:
            kinds[findings.OPEN_TRANSACTION] = len(self._open)
            entries += notes.open_transactions(self._open, self._partitions)
        return replace(self._report(counted, kinds, entries, before), overview=told)

    def _report(
        self,
        counted: collect.Counts,
        kinds: Mapping[str, int],
        entries: Sequence[Entry],
        before: Mapping[TopicPartition, int],
    ) -> AuditReport:
        wrong = {kind: kinds.get(kind, 0) or counted.fates.get(kind, 0) for kind in collect.VIOLATIONS}
        return AuditReport(
            namespace=self._names.namespace,
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
            cuts=self._cuts(before),
            selection=self._plan.selection,
            started_at=0,
            seconds=0.0,
        )

    # Reading

    def _read(self, spans: Mapping[TopicPartition, Range], isolation: str) -> DataFrame:
        return read(self._spark, self._settings, spans, isolation)

    def _read_noted(
        self,
        starts: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        isolation: str,
        *,
        may_vanish: bool = False,
    ) -> DataFrame:
        spans = ranges(starts, ends)
        self._note(spans)
        return read(self._spark, self._settings, spans, isolation, may_vanish=may_vanish)

    def _note(self, spans: Mapping[TopicPartition, Range]) -> None:
        self._spans.update(spans)

    def _keep(self, frame: DataFrame) -> DataFrame:
        """Persist what several jobs use, until `release`."""
        self._persisted.append(frame.persist())
        return frame

    def _named_topics(self, halves: DataFrame) -> set[str]:
        rows = halves.where(F.col("fault").isNull()).select("real_topic").distinct().collect()
        return {row.real_topic for row in rows} | self._plan.real_topics

    def _existing(self, topics: Collection[str]) -> list[TopicPartition]:
        """Partitions of the real topics that exist; to deliver to one that does not, the worker waits."""
        counts = self._cluster.partition_counts()
        chosen = self._plan.selection.topics
        unknown = sorted(chosen - set(topics) - set(counts))
        if unknown:
            raise CouldNotAuditError(f"no topic {', '.join(unknown)}, and no half message names it: check --only-topic")
        topics = set(topics) & chosen if chosen else topics
        self._absent = set(topics) - set(counts)
        return [key for topic in sorted(topics) if topic in counts for key in partitions_of(topic, counts[topic])]

    def _settle(self, partitions: Sequence[TopicPartition]) -> Cut:
        cut = settle(self._cluster, partitions, timeout=self._plan.settle_timeout)
        self._open |= {key: (cut.ends[key], target) for key, target in cut.unsettled.items()}
        return cut

    # Phantoms and the rest of the report

    def _labelled(
        self, unmatched: DataFrame, starts: Mapping[TopicPartition, int], begin: Mapping[TopicPartition, int]
    ) -> DataFrame:
        own = self._partitions[self._names.half]
        log_starts, read_from = ({number: of[topic, number] for topic, number in own} for of in (starts, begin))
        return strays.label(self._spark, unmatched, log_starts, read_from, self._other_namespaces())

    def _other_namespaces(self) -> strays.OtherNamespaces | None:
        base = Names().half
        counts = self._cluster.partition_counts()
        topics = [name for name in counts if name == base or name.endswith(f".{base}")]
        keys = [key for name in topics if name != self._names.half for key in partitions_of(name, counts[name])]
        if not keys:
            return None
        starts, ends = self._cluster.log_starts(keys), self._cluster.high_watermarks(keys)
        raw = self._read(ranges(starts, ends), READ_UNCOMMITTED)
        edges: dict[int, int] = {}
        for (_, partition), start in starts.items():
            edges[partition] = max(start, edges.get(partition, 0))
        return strays.OtherNamespaces(records.halves(raw, self._names), edges)

    def _cuts(self, before: Mapping[TopicPartition, int]) -> dict[str, dict[str, dict[str, int]]]:
        cuts: dict[str, dict[str, dict[str, int]]] = {}
        for (topic, partition), span in sorted(self._spans.items()):
            offsets = {"start": span.start, "end": span.end}
            if (topic, partition) in before:
                offsets["before"] = before[topic, partition]
            cuts.setdefault(topic, {})[str(partition)] = offsets
        return cuts
