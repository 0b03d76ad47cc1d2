"""`run_audit`: from a running Kafka to a report. The numbered steps are the order of the cuts (see cuts.py)."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own convention)

from txbridge.core.names import Names
from txbridge_audit import collect, findings, ledger, proof, records, strays, verdicts
from txbridge_audit.cluster import Cluster, partitions_of
from txbridge_audit.cuts import SETTLE_TIMEOUT, Cut, Range, TopicPartition, ranges, settle
from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.ledger import Facts, Frames, PartitionFacts, TopicFacts
from txbridge_audit.report import AuditReport, Entry, Place, Tally
from txbridge_audit.session import Progress, spark_session
from txbridge_audit.settings import KafkaSettings, kafka_settings
from txbridge_audit.sources import READ_COMMITTED, READ_UNCOMMITTED, read

#: What the clocks of two brokers may differ, ms. Used in one place, where retention has removed a beginning of END, OP
#: or discard: records born this long after the oldest one left there are taken to have lost none of their traces.
CLOCK_MARGIN_MS = 3_600_000
_FOREVER = 2**62
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
    settle_timeout: float = SETTLE_TIMEOUT,
    progress: Progress = lambda _: None,
) -> AuditReport:
    """Audit every transaction that HALF still holds; nothing is written anywhere.

    `kafka_options` are librdkafka's names (`java.<name>` for Spark's consumer alone). The real topics are those that
    half messages name; `real_topics` adds others in which to look for phantoms. With `spark` that session is used, else
    a local one is started and stopped. `settle_timeout` is how many seconds each cut waits for open Kafka transactions;
    what they may hide after that is not judged, and a finding. `progress` is told, in words, what is going on.

    Raises CouldNotAuditError when no verdict can be given; the message says what to do. May be run at any time, beside
    running workers and clients.
    """
    started = time.time()
    settings = kafka_settings(bootstrap_servers, kafka_options)
    cluster = Cluster(settings)
    names = Names(namespace)
    topics = _internal_topics(cluster, names)  # before Spark: what is missing should be said at once
    half = partitions_of(names.half, topics[names.half])
    starts, ends = cluster.log_starts(half), cluster.high_watermarks(half)
    small = sum(ends[key] - starts[key] for key in half) < _SMALL
    with spark_session(spark, progress, small=small) as session:
        audit = _Audit(session, cluster, settings, names, topics, frozenset(real_topics), settle_timeout, progress)
        try:
            report = audit.run()
        finally:
            audit.release()
    return replace(report, started_at=int(started * 1000), seconds=time.time() - started)


def _internal_topics(cluster: Cluster, names: Names) -> dict[str, int]:
    counts = cluster.partition_counts()
    wanted = (names.half, names.end, names.op, names.offset, names.discard)
    missing = [name for name in wanted if name not in counts]
    if missing:
        raise CouldNotAuditError(
            f"no topic {', '.join(missing)}: check --namespace, run `txbridge topics apply`, "
            "or give the audit's user the right to describe it",
        )
    number = {counts[name] for name in wanted[:4]}
    if len(number) > 1:
        raise CouldNotAuditError(
            "HALF, END, OP and OFFSET must have the same number of partitions, but have "
            + ", ".join(f"{name} {counts[name]}" for name in wanted[:4]),
        )
    return {name: counts[name] for name in wanted}


@dataclass(slots=True)
class _Progress:
    applied_to: int | None = None
    low: int | None = None


class _Audit:
    """One run. Holds what the steps share, so that each reads like its line in cuts.py."""

    def __init__(
        self,
        spark: SparkSession,
        cluster: Cluster,
        settings: KafkaSettings,
        names: Names,
        topics: Mapping[str, int],
        real_topics: frozenset[str],
        settle_timeout: float,
        progress: Progress,
    ) -> None:
        self._spark, self._cluster, self._settings, self._names = spark, cluster, settings, names
        self._wanted, self._settle_timeout, self._say = real_topics, settle_timeout, progress
        self._partitions = {name: partitions_of(name, count) for name, count in topics.items()}
        self._spans: dict[TopicPartition, Range] = {}
        self._open: dict[TopicPartition, tuple[int, int]] = {}
        self._persisted: list[DataFrame] = []

    def release(self) -> None:
        for frame in self._persisted:
            frame.unpersist()

    def run(self) -> AuditReport:
        names, cluster = self._names, self._cluster
        internal = [key for keys in self._partitions.values() for key in keys]
        starts = cluster.log_starts(internal)

        # Step 1: which real topics there are, from a first look at HALF.
        self._say("reading half messages")
        half_keys = self._partitions[names.half]
        first_look = cluster.high_watermarks(half_keys)
        early = self._keep(records.halves(self._read(ranges(starts, first_look), READ_UNCOMMITTED), names))
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
        progress = self._progress(kept)

        # Steps 4 to 7: OP and discard, once every Kafka transaction that had written by now is decided; END; HALF.
        op = self._settle(self._partitions[names.op])
        discard = self._settle(self._partitions[names.discard])
        end = cluster.high_watermarks(self._partitions[names.end])
        half = cluster.high_watermarks(half_keys)
        self._check(progress, end, half)

        # Step 8: the real topics again, those named meanwhile included.
        added = records.halves(self._read(ranges(first_look, half), READ_UNCOMMITTED), names)
        self._note(ranges(starts, half))
        real = self._existing(named | self._named_topics(added))
        after = self._settle(real)
        real_starts = cluster.log_starts(real)

        # Step 9: everything is fixed; read the rest and join.
        self._say("reading decisions, outcomes and real topics")
        discards = self._keep(records.discards(self._read_noted(starts, discard.ends, READ_COMMITTED)))
        # Counted before it is joined: then Spark knows how small it is, and spares the others a shuffle.
        set_aside = discards.where("malformed").count()
        frames = Frames(
            halves=early.unionByName(added),
            end_records=records.end_records(self._read_noted(starts, end, READ_UNCOMMITTED)),
            outcomes=records.outcomes(self._read_noted(starts, op.ends, READ_COMMITTED)),
            parked=records.parked(kept, names),
            discards=discards,
            copies=records.copies(self._read_noted(real_starts, after.ends, READ_COMMITTED)),
        )
        facts = Facts(
            partitions=self._partition_facts(starts, progress, op),
            topics=self._topic_facts(real, real_starts, after),
            before=before,
        )
        rows = self._keep(ledger.build(self._spark, names, frames, facts))
        truncated = [key for key, start in real_starts.items() if start > 0]
        judged = findings.find(verdicts.judge(proof.add(self._spark, rows, truncated)))
        counted = collect.counts(judged)

        # Step 10: what is wrong or odd, with its records. Reads the same ranges again, but only when there is any.
        self._say("collecting evidence")
        entries = collect.listed(names, judged, counted)
        kinds = dict(counted.findings)
        if counted.strays:
            unmatched = strays.candidates(ledger.copies_before(self._spark, frames.copies, before), rows)
            found, more = collect.strays(self._keep(self._labelled(unmatched, starts)))
            kinds, entries = kinds | found, entries + more
        if counted.malformed or set_aside:
            odd = findings.malformed(frames.halves, frames.end_records, discards, names.half, names.end)
            found, more = collect.malformed(names, self._keep(odd))
            kinds, entries = kinds | found, entries + more
        if counted.bad_ops:
            kinds[findings.UNREADABLE_OP] = counted.bad_ops
            entries += collect.unreadable(names, frames.outcomes)
        if self._open:
            kinds[findings.OPEN_TRANSACTION] = len(self._open)
            entries += self._open_transactions()
        return self._report(counted, kinds, entries, before)

    def _report(
        self,
        counted: collect.Counts,
        kinds: Mapping[str, int],
        entries: Sequence[Entry],
        before: Mapping[TopicPartition, int],
    ) -> AuditReport:
        wrong = {kind: kinds.get(kind, 0) or counted.fates.get(kind, 0) for kind in verdicts.VIOLATIONS}
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
    ) -> DataFrame:
        spans = ranges(starts, ends)
        self._note(spans)
        return self._read(spans, isolation)

    def _note(self, spans: Mapping[TopicPartition, Range]) -> None:
        self._spans.update(spans)

    def _keep(self, frame: DataFrame) -> DataFrame:
        """Persist what several jobs use, until `release`."""
        self._persisted.append(frame.persist())
        return frame

    def _named_topics(self, halves: DataFrame) -> set[str]:
        rows = halves.where(F.col("fault").isNull()).select("real_topic").distinct().collect()
        return {row.real_topic for row in rows} | self._wanted

    def _existing(self, topics: Collection[str]) -> list[TopicPartition]:
        """Partitions of the real topics that exist; to deliver to one that does not, the worker waits."""
        counts = self._cluster.partition_counts()
        return [key for topic in sorted(topics) if topic in counts for key in partitions_of(topic, counts[topic])]

    def _settle(self, partitions: Sequence[TopicPartition]) -> Cut:
        cut = settle(self._cluster, partitions, timeout=self._settle_timeout)
        self._open |= {key: (cut.ends[key], target) for key, target in cut.unsettled.items()}
        return cut

    # Facts

    def _progress(self, offsets: DataFrame) -> dict[int, _Progress]:
        rows = records.progress(offsets, self._names).collect()
        for row in rows:
            self._check_ids(row.topics or {})
        return {row.partition: _Progress(row.applied_to, row.low) for row in rows}

    def _check_ids(self, stored: Mapping[str, str]) -> None:
        """The worker notes the ids of the topics it works on: other ids mean other offsets, and no verdict."""
        internal = {
            "half": self._names.half,
            "end": self._names.end,
            "op": self._names.op,
            "offset": self._names.offset,
        }
        known = {short: name for short, name in internal.items() if short in stored}
        ids = self._cluster.topic_ids(known.values()) if known else {}
        changed = [name for short, name in known.items() if ids[name] != stored[short]]
        if changed:
            raise CouldNotAuditError(
                f"{', '.join(changed)} was deleted and created again since the worker wrote its progress: the offsets "
                "in the other internal topics mean nothing any more; use a new namespace",
            )

    def _check(
        self,
        progress: Mapping[int, _Progress],
        end: Mapping[TopicPartition, int],
        half: Mapping[TopicPartition, int],
    ) -> None:
        """END and HALF were cut after OFFSET: they can not end below what the progress has seen."""
        for partition, seen in progress.items():
            for topic, ends, position in (
                (self._names.end, end, seen.applied_to),
                (self._names.half, half, seen.low),
            ):
                if position is not None and position > ends.get((topic, partition), 0):
                    raise CouldNotAuditError(
                        f"{topic}/{partition} ends at {ends.get((topic, partition), 0)}, below the worker's progress "
                        f"({position}): its records were lost or the topic was created again; no verdict is possible",
                    )

    def _partition_facts(
        self,
        starts: Mapping[TopicPartition, int],
        progress: Mapping[int, _Progress],
        op: Cut,
    ) -> list[PartitionFacts]:
        names = self._names
        shortened = [
            key for name in (names.end, names.op, names.discard) for key in self._partitions[name] if starts[key] > 0
        ]
        oldest = self._cluster.first_timestamps(shortened)

        def known_since(keys: Collection[TopicPartition]) -> int:
            """ms; see PartitionFacts. Append times, so a record born later than the oldest one left is whole."""
            edges = [oldest[key] for key in keys if key in oldest]
            # A partition that retention has emptied tells nothing about anybody.
            return max((_FOREVER if edge is None else edge + CLOCK_MARGIN_MS for edge in edges), default=-1)

        return [
            PartitionFacts(
                partition=partition,
                half_start=starts[topic, partition],
                applied_to=progress.get(partition, _Progress()).applied_to,
                low=progress.get(partition, _Progress()).low,
                known_since=known_since(
                    [(names.end, partition), (names.op, partition), *self._partitions[names.discard]],
                ),
                op_settled=(names.op, partition) not in op.unsettled,
            )
            for topic, partition in self._partitions[names.half]
        ]

    def _topic_facts(
        self,
        real: Collection[TopicPartition],
        starts: Mapping[TopicPartition, int],
        after: Cut,
    ) -> list[TopicFacts]:
        topics = {topic for topic, _ in real}
        policies = self._cluster.cleanup_policies(topics)
        truncated = {topic for (topic, _), start in starts.items() if start > 0}
        unsettled = {topic for topic, _ in after.unsettled}
        return [
            TopicFacts(
                topic=topic,
                compacted="compact" in (policies[topic] or "compact"),  # unknown: nothing may be concluded
                truncated=topic in truncated,
                settled=topic not in unsettled,
            )
            for topic in sorted(topics)
        ]

    # Phantoms and the rest of the report

    def _labelled(self, unmatched: DataFrame, starts: Mapping[TopicPartition, int]) -> DataFrame:
        own = {partition: starts[topic, partition] for topic, partition in self._partitions[self._names.half]}
        return strays.label(self._spark, unmatched, own, self._other_namespaces())

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

    def _open_transactions(self) -> list[Entry]:
        return [
            Entry(
                findings.OPEN_TRANSACTION,
                f"{findings.SAYS[findings.OPEN_TRANSACTION]}: {topic}/{partition} from {stable} to {target}",
                real_topic=None if topic in self._partitions else topic,
                evidence=(Place("open", topic, partition, stable),),
            )
            for (topic, partition), (stable, target) in sorted(self._open.items())
        ]

    def _cuts(self, before: Mapping[TopicPartition, int]) -> dict[str, dict[str, dict[str, int]]]:
        cuts: dict[str, dict[str, dict[str, int]]] = {}
        for (topic, partition), span in sorted(self._spans.items()):
            offsets = {"start": span.start, "end": span.end}
            if (topic, partition) in before:
                offsets["before"] = before[topic, partition]
            cuts.setdefault(topic, {})[str(partition)] = offsets
        return cuts
