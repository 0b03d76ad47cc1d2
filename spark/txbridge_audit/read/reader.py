"""From Kafka to typed rows and facts: the cuts in their order (cuts.py), and what lies below them.

With a state (state.py) only what came since is read; without one everything, or what a selection asks for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own convention)

from txbridge.core.names import Names
from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.incremental.state import State
from txbridge_audit.judge.mentions import Frames
from txbridge_audit.read import context, decode
from txbridge_audit.read.context import Facts, Limits, Progress
from txbridge_audit.read.cuts import Cut, Ends, Range, TopicPartition, ranges, settle
from txbridge_audit.read.kafka_admin import Cluster, partitions_of
from txbridge_audit.read.kafka_config import KafkaSettings
from txbridge_audit.read.kafka_source import READ_COMMITTED, READ_UNCOMMITTED, read
from txbridge_audit.read.selection import Selection
from txbridge_audit.read.selection import begin as begin_of
from txbridge_audit.read.spark_session import Progress as Say
from txbridge_audit.read.spark_session import suit


@dataclass(frozen=True, slots=True)
class Plan:
    """What an audit was asked for."""

    #: When it began, ms.
    now: int
    limits: Limits
    selection: Selection
    real_topics: frozenset[str]
    settle_timeout: float


@dataclass(frozen=True, slots=True)
class Gathered:
    """What was read."""

    frames: Frames
    facts: Facts
    #: Of OP as it is: what can not be read may be of another version.
    raw_op: DataFrame
    #: Log starts of the internal and of the real topics.
    starts: Ends
    #: Where HALF, END and OP were read from.
    begin: Ends
    #: Real partitions that lack their beginning.
    truncated: Sequence[TopicPartition]
    #: Real topics that half messages name.
    named: frozenset[str]
    progress: Mapping[int, Progress]
    #: What was read of each partition.
    spans: Mapping[TopicPartition, Range]
    #: Partitions that an open Kafka transaction hides: their stable offset, and the high watermark it did not reach.
    hidden: Mapping[TopicPartition, tuple[int, int]]


class Reader:
    """Reads for one audit. Frames that several jobs use are kept in memory until `release`."""

    def __init__(
        self,
        spark: SparkSession,
        cluster: Cluster,
        settings: KafkaSettings,
        names: Names,
        topics: Mapping[str, int],
        say: Say,
    ) -> None:
        self.spark, self.cluster, self.names = spark, cluster, names
        self.say = say
        self._settings = settings
        self.partitions = {name: partitions_of(name, count) for name, count in topics.items()}
        self._persisted: list[DataFrame] = []

    def keep(self, frame: DataFrame) -> DataFrame:
        """Persist what several jobs use, until `release`."""
        self._persisted.append(frame.persist())
        return frame

    def cut_off(self, frame: DataFrame, rows: int) -> DataFrame:
        """The frame computed, so that no later query is planned with all that leads to it. For about so many rows."""
        few = self.spark.sparkContext.defaultParallelism
        computed = frame.coalesce(few).localCheckpoint()
        suit(self.spark, rows)
        return computed

    def release(self) -> None:
        """Let go of what was kept."""
        for frame in self._persisted:
            frame.unpersist()
        self._persisted.clear()

    def read(self, starts: Ends, ends: Ends, isolation: str, *, may_vanish: bool = False) -> DataFrame:
        """Records of the partitions in `ends`, from `starts`."""
        return read(self.spark, self._settings, ranges(starts, ends), isolation, may_vanish=may_vanish)

    def gather(self, plan: Plan, state: State | None = None) -> Gathered:
        """Take the cuts and read up to them. The numbered steps are the order of the cuts (see cuts.py).

        Raises CouldNotAuditError.
        """
        names, cluster = self.names, self.cluster
        cluster.forget_leaders()
        internal = [key for keys in self.partitions.values() for key in keys]
        starts = cluster.log_starts(internal)

        # Step 1: which real topics there are, from a first look at HALF.
        self.say("reading half messages")
        half_keys = self.partitions[names.half]
        told_in = [*self.partitions[names.end], *self.partitions[names.op]]
        if state is None:
            begin = begin_of(cluster, plan.selection, half_keys, told_in, starts) | {
                key: starts[key] for key in (*self.partitions[names.offset], *self.partitions[names.discard])
            }
        else:
            begin = state.start_of(internal, starts, whole=True)
        spans: dict[TopicPartition, Range] = {}
        told = cluster.high_watermarks(internal)
        suit(self.spark, _size(begin, told))
        first_look = {key: told[key] for key in half_keys}
        early = self.keep(decode.halves(self.read(begin, first_look, READ_UNCOMMITTED)))
        named = self._named_in(early) | plan.real_topics | (frozenset() if state is None else state.named)
        real = self._existing(named, plan.selection)

        # Step 2: the earlier cut of the real topics.
        before = cluster.stable_offsets(real)

        # Step 3: OFFSET, read at once and then to what was added meanwhile. Compaction may remove an entry below the
        # cut because of a newer one above it; by the second reading that newer one is in what we read.
        self.say("reading progress")
        offset_keys = self.partitions[names.offset]
        cut = cluster.stable_offsets(offset_keys)
        suit(self.spark, _size(begin, cut))
        read_once = self.keep(self.read(begin, cut, READ_COMMITTED))
        read_once.count()
        later = cluster.stable_offsets(offset_keys)
        kept = read_once
        if later != cut:
            kept = self.keep(kept.unionByName(self.read(cut, later, READ_COMMITTED)))
        parked = self.keep(decode.parked(kept, names))
        spans |= ranges(begin, later)
        context.refuse_unknown_versions(kept.where(F.col("key").cast("string").startswith(f"{names.half}@")))
        progress = dict(() if state is None else state.progress) | context.progress(kept, names, cluster)

        # Step 4: the check topics. Before discard: a discard that makes a decision late comes before a later check.
        # They keep an hour, so some may vanish while we read: what is not there accuses nobody.
        check_keys = context.check_partitions(names, cluster)
        check_starts = self._resumed(state, check_keys, cluster.log_starts(check_keys))
        check = cluster.stable_offsets(check_keys)

        # Steps 5 to 8: OP and discard, once every Kafka transaction that had written by now is decided; END; HALF.
        hidden: dict[TopicPartition, tuple[int, int]] = {}
        op = self._settle(plan, self.partitions[names.op], hidden)
        discard = self._settle(plan, self.partitions[names.discard], hidden)
        # As the worker reads it: what was aborted there decides nothing, and behind what is open nothing is applied.
        end = self._settle(plan, self.partitions[names.end], hidden).ends
        half = cluster.high_watermarks(half_keys)
        context.check_ends(names, progress, end, half)

        # Step 9: the real topics again, those named meanwhile included.
        halves = early
        if half != first_look:
            suit(self.spark, _size(first_look, half))
            added = self.keep(decode.halves(self.read(first_look, half, READ_UNCOMMITTED)))
            named |= self._named_in(added)
            halves = early.unionByName(added)
        spans |= ranges(begin, half)
        real = self._existing(named, plan.selection)
        after = self._settle(plan, real, hidden)
        real_starts = cluster.log_starts(real)
        real_begin = self._resumed(state, real, real_starts)
        if state is not None:
            _refuse_shorter(begin, later, op.ends, discard.ends, end, half)

        # Step 10: everything is fixed; read the rest.
        self.say("reading decisions, outcomes and real topics")
        spans |= ranges(begin, discard.ends) | ranges(begin, op.ends) | ranges(begin, end)
        spans |= ranges(real_begin, after.ends) | ranges(check_starts, check)
        suit(self.spark, _size(begin, discard.ends))
        discards = self.keep(decode.discards(self.read(begin, discard.ends, READ_COMMITTED)))
        # Counted before it is joined: then Spark knows how small it is, and spares the others a shuffle.
        discards.count()
        suit(self.spark, _size(begin, told))
        raw_op = self.read(begin, op.ends, READ_COMMITTED)
        # Kept: each is looked at more than once, and every record names many half messages.
        ends = self.keep(decode.end_records(self.read(begin, end, READ_COMMITTED)))
        op_records = self.keep(decode.op_records(raw_op))
        known = context.partition_facts(names, cluster, self.partitions, starts, progress, op, begin)
        if state is not None:
            known = [
                dataclasses.replace(
                    fact,
                    half_start=fact.log_start,
                    known_since=state.known_since.get(fact.partition, fact.known_since),
                )
                for fact in known
            ]
        return Gathered(
            frames=Frames(
                halves=halves,
                entries=decode.entries(ends),
                bad_ends=decode.unreadable(ends),
                outcomes=decode.outcomes(op_records),
                parked=parked,
                discards=discards,
                copies=decode.copies(self.read(real_begin, after.ends, READ_COMMITTED)),
                checks=decode.checks(self.read(check_starts, check, READ_COMMITTED, may_vanish=True)),
            ),
            facts=Facts(
                partitions=known,
                topics=context.topic_facts(cluster, real, real_starts, after),
                before=before,
                now=plan.now,
                limits=plan.limits,
            ),
            raw_op=raw_op,
            starts=starts | real_starts,
            begin=begin,
            truncated=[key for key, start in real_starts.items() if start > 0],
            named=frozenset(named),
            progress=progress,
            spans=spans,
            hidden=hidden,
        )

    def refuse_moved(self, gathered: Gathered) -> None:
        """Raise ElectionError when a cut may be that of a deposed leader, and too low.

        Asked once all is read and judged: by then such a leader has heard of its successor, unless it is cut off from
        the controllers for good.
        """
        self.cluster.refuse_moved({*gathered.spans, *gathered.facts.before})

    @staticmethod
    def _resumed(state: State | None, partitions: Collection[TopicPartition], starts: Ends) -> Ends:
        """Where to read topics from that retention may shorten at any time."""
        return starts if state is None else state.start_of(partitions, starts, whole=False)

    @staticmethod
    def _named_in(halves: DataFrame) -> frozenset[str]:
        rows = halves.where(F.col("fault").isNull()).select("real_topic").distinct().collect()
        return frozenset(row.real_topic for row in rows)

    def _existing(self, topics: Collection[str], selection: Selection) -> list[TopicPartition]:
        """Partitions of the real topics that exist; to deliver to one that does not, the worker waits."""
        counts = self.cluster.partition_counts()
        chosen = selection.topics
        unknown = sorted(chosen - set(topics) - set(counts))
        if unknown:
            raise CouldNotAuditError(f"no topic {', '.join(unknown)}, and no half message names it: check --only-topic")
        topics = set(topics) & chosen if chosen else topics
        hidden = self.cluster.forbidden([topic for topic in topics if topic not in counts])
        if hidden:
            raise CouldNotAuditError(
                f"half messages go to {', '.join(hidden)}, which the audit's user may not see: what became of them can "
                "not be told; give it the right to read there, or audit others with --only-topic",
            )
        return [key for topic in sorted(topics) if topic in counts for key in partitions_of(topic, counts[topic])]

    def _settle(
        self, plan: Plan, partitions: Sequence[TopicPartition], hidden: dict[TopicPartition, tuple[int, int]]
    ) -> Cut:
        cut = settle(self.cluster, partitions, timeout=plan.settle_timeout)
        hidden |= {key: (cut.ends[key], target) for key, target in cut.unsettled.items()}
        return cut


def _size(starts: Ends, ends: Ends) -> int:
    """Offsets from one to the other, which is about so many records: what its queries are made to suit."""
    return sum(end - starts[key] for key, end in ends.items())


def _refuse_shorter(begin: Ends, *cuts: Ends) -> None:
    """Raise CouldNotAuditError when a partition ends before what was read of it: its offsets are other ones now."""
    for (topic, partition), end in (item for cut in cuts for item in cut.items()):
        if end < begin[topic, partition]:
            raise CouldNotAuditError(
                f"{topic}/{partition} ends at {end}, but the last audit has read it up to {begin[topic, partition]}: "
                "its records were lost or the topic was created again; begin a new ledger",
            )
