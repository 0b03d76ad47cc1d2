"""The reading of one audit: the cuts in their order (cuts.py), and the typed rows and facts below them.

A step of a continued audit reads only records that are newer than the last step (`Seen`). Any other audit reads all
records, or those for a selection.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own convention)

from txbridge_audit.cluster import facts
from txbridge_audit.cluster import seen as seen_facts
from txbridge_audit.cluster.cuts import AuditCut, Ends, Range, ranges, settle
from txbridge_audit.cluster.kafka_admin import AuditedCluster
from txbridge_audit.cluster.plan import Plan
from txbridge_audit.cluster.seen import Seen
from txbridge_audit.cluster.selection import begin
from txbridge_audit.engines.spark.read import context, decode
from txbridge_audit.engines.spark.read.frame_cache import FrameCache
from txbridge_audit.engines.spark.read.frames import Frames
from txbridge_audit.engines.spark.read.kafka_source import READ_COMMITTED, READ_UNCOMMITTED, AuditSource
from txbridge_audit.engines.spark.read.spark_session import FEW, suit
from txbridge_audit.judge.facts import Facts, TopicPartition
from txbridge_audit.judge.selection import AuditSelection
from txbridge_audit.protocol.worker_records import AuditCheckpoint


@dataclass(frozen=True, slots=True)
class Gathered:
    """The result of the reading."""

    frames: Frames
    facts: Facts
    #: Raw records of OP. One that cannot be read may be of another version.
    raw_op: DataFrame
    #: Log starts of the internal and of the real topics.
    starts: Ends
    #: Partitions of real topics that have lost their beginning.
    truncated: Sequence[TopicPartition]
    #: Real topics that half messages name.
    named: frozenset[str]
    checkpoints: Mapping[int, AuditCheckpoint]
    #: The offsets that were read of each partition.
    spans: Mapping[TopicPartition, Range]
    #: Partitions that an open Kafka transaction hides: their stable offset, and the high watermark it did not reach.
    hidden: Mapping[TopicPartition, tuple[int, int]]

    @property
    def size(self) -> int:
        """Number of offsets that were read, which is about the number of records."""
        return sum(span.end - span.start for span in self.spans.values())

    def refuse_moved(self, cluster: AuditedCluster) -> None:
        """Raise ElectionError when a cut may be that of a deposed leader, and too low.

        Called after everything is read and judged. By then such a leader has learnt of its successor, unless it stays
        cut off from the controllers.
        """
        cluster.refuse_moved({*self.spans, *self.facts.before})


def gather(source: AuditSource, cache: FrameCache, plan: Plan, seen: Seen | None = None) -> Gathered:
    """Take the cuts and read up to them. The numbered steps are the order of the cuts (see cuts.py).

    Raises CouldNotAuditError.
    """
    spark, cluster, names, partitions = source.spark, source.cluster, source.names, source.partitions
    cluster.forget_leaders()
    internal = [key for keys in partitions.values() for key in keys]
    starts = cluster.log_starts(internal)
    first = _all_of(source, plan.selection, starts) if seen is None else seen.start_of(internal, starts, whole=True)

    # Step 1: the real topics that exist, from a first look at HALF.
    source.say("reading half messages")
    half_keys = partitions[names.half]
    watermarks = cluster.high_watermarks(internal)
    suit(spark, _size(first, watermarks))
    first_look = {key: watermarks[key] for key in half_keys}

    def table(name: str, begin: Ends, end: Ends, make: Callable[[], DataFrame], *, keep: bool = True) -> DataFrame:
        """The table, in memory if it may have rows. Spark leaves a table that is known to be empty out of its plans."""
        if not _some(begin, end):
            return make() if seen is None else source.none_of(name, make)
        return cache.keep(make()) if keep else make()

    def read_halves(begin: Ends, end: Ends) -> DataFrame:
        return table("halves", begin, end, lambda: decode.halves(source.read(begin, end, READ_UNCOMMITTED)))

    halves = read_halves(first, first_look)
    named = plan.real_topics | (frozenset() if seen is None else seen.named)
    if _some(first, first_look):
        named |= _named_in(halves)
    real = facts.existing(cluster, named, plan.selection.topics)

    # Step 2: the earlier cut of the real topics.
    before = cluster.stable_offsets(real)

    # Step 3: OFFSET.
    source.say("reading checkpoints")
    offset, offset_records = _read_offset(source, cache, first)
    parked = table("parked", first, offset, lambda: decode.parked(offset_records, names))
    checkpoints = dict(() if seen is None else seen.checkpoints)
    if _some(first, offset):
        ours = F.col("key").cast("string").startswith(f"{names.half}@")
        context.refuse_unknown_versions(offset_records.where(ours))
        checkpoints |= context.checkpoints(offset_records, names, cluster)

    # Step 4: the check topics. Before discard: a discard that makes a decision late comes before a later check.
    # They keep records for an hour, so some may vanish while we read. No rule concludes from a missing one.
    check_keys = facts.check_partitions(names, cluster.partition_counts())
    check_starts = cluster.log_starts(check_keys)
    check_first = _resumed(seen, check_keys, check_starts)
    checks_since = seen_facts.checks_since(names, cluster, check_starts, seen)
    check = cluster.stable_offsets(check_keys)

    # Steps 5 to 8: OP and discard, once every Kafka transaction that had written by now is decided; END; HALF.
    op = settle(cluster, partitions[names.op], timeout=plan.settle_timeout)
    discard = settle(cluster, partitions[names.discard], timeout=plan.settle_timeout)
    # END as the worker reads it: an aborted record decides nothing, and none behind an open transaction is applied.
    end = settle(cluster, partitions[names.end], timeout=plan.settle_timeout)
    half = cluster.high_watermarks(half_keys)
    facts.check_ends(names, checkpoints, end.ends, half)

    # Step 9: the real topics again, those named meanwhile included.
    if half != first_look:
        suit(spark, _size(first_look, half))
        added = read_halves(first_look, half)
        named |= _named_in(added)
        halves = halves.unionByName(added)
    real = facts.existing(cluster, named, plan.selection.topics)
    after = settle(cluster, real, timeout=plan.settle_timeout)
    real_starts = cluster.log_starts(real)
    real_first = _resumed(seen, real, real_starts)
    if seen is not None:
        seen_facts.refuse_shorter(first, offset, op.ends, discard.ends, end.ends, half)

    # Step 10: everything is fixed; read the rest.
    source.say("reading decisions, outcomes and real topics")
    suit(spark, _size(first, discard.ends))
    begin_at, fixed = {**first, **real_first}, (discard.ends, op.ends, end.ends, after.ends)
    rest = _Rest(source, cache, begin_at, fixed, again=seen is not None)
    discards = table("discards", first, discard.ends, lambda: decode.discards(rest.read(discard.ends)))
    if seen is None and _some(first, discard.ends):
        # Counted before it is joined. Then Spark knows how small it is, and need not shuffle the other tables. A step
        # writes its records to files, whose size Spark knows, too.
        discards.count()
    suit(spark, _size(first, watermarks))
    discards_cut = any(starts[key] > 0 for key in partitions[names.discard])
    raw_op = rest.read(op.ends)
    # Kept, because each is read more than once, and every record names many half messages.
    decision_records = table(
        "ends", first, end.ends, lambda: decode.decision_records(rest.read(end.ends), exactly=discards_cut)
    )
    op_records = table("op", first, op.ends, lambda: decode.op_records(raw_op))
    numbers = Counter(topic for topic, _ in real)

    def read_checks() -> DataFrame:
        return decode.checks(source.read(check_first, check, READ_COMMITTED, may_vanish=True))

    known = facts.partition_facts(names, cluster, partitions, starts, checkpoints, op, first, watermarks)
    return Gathered(
        frames=Frames(
            halves=halves,
            entries=table("entries", first, end.ends, lambda: decode.entries(decision_records), keep=False),
            bad_ends=table("bad_ends", first, end.ends, lambda: decode.unreadable(decision_records), keep=False),
            outcomes=table("outcomes", first, op.ends, lambda: decode.outcomes(op_records), keep=False),
            parked=parked,
            discards=discards,
            copies=table(
                "copies", real_first, after.ends, lambda: decode.copies(rest.read(after.ends), numbers), keep=False
            ),
            checks=table("checks", check_first, check, read_checks, keep=False),
        ),
        facts=Facts(
            partitions=known if seen is None else seen_facts.since_the_first_step(known, seen),
            topics=facts.topic_facts(cluster, real, real_starts, after),
            before=before,
            now=plan.now,
            limits=plan.limits,
            checks_since=checks_since,
            discards_cut=discards_cut,
        ),
        raw_op=raw_op,
        starts=starts | real_starts,
        truncated=[key for key, start in real_starts.items() if start > 0],
        named=frozenset(named),
        checkpoints=checkpoints,
        spans={
            **ranges(first, {**offset, **half, **discard.ends, **op.ends, **end.ends}),
            **ranges(real_first, after.ends),
            **ranges(check_first, check),
        },
        hidden=_hidden(op, discard, end, after),
    )


class _Rest:
    """The reading of committed records after all cuts: topic by topic, or at once for the few new records of a step."""

    def __init__(
        self, source: AuditSource, cache: FrameCache, starts: Ends, ends: Collection[Ends], *, again: bool
    ) -> None:
        self._source, self._starts = source, starts
        whole = {key: end for some in ends for key, end in some.items()}
        # Each reading requests metadata and opens connections, which takes longer than reading a few records.
        few = again and 0 < _size(starts, whole) <= FEW
        self._all = cache.keep(source.read(starts, whole, READ_COMMITTED)) if few else None

    def read(self, ends: Ends) -> DataFrame:
        """Records of the topics in `ends`, up to these offsets. Lazy, as `Source.read` is."""
        if self._all is None or not _some(self._starts, ends):
            return self._source.read(self._starts, ends, READ_COMMITTED)
        return self._all.where(F.col("topic").isin(sorted({topic for topic, _ in ends})))


def _all_of(source: AuditSource, selection: AuditSelection, starts: Ends) -> dict[TopicPartition, int]:
    """Start offsets of an audit that is not continued: log starts, or where the selection's range of time begins."""
    names, partitions = source.names, source.partitions
    speaking = [*partitions[names.end], *partitions[names.op]]
    return begin(source.cluster, selection, partitions[names.half], speaking, starts) | {
        key: starts[key] for key in (*partitions[names.offset], *partitions[names.discard])
    }


def _read_offset(source: AuditSource, cache: FrameCache, first: Ends) -> tuple[dict[TopicPartition, int], DataFrame]:
    """The cut of OFFSET and its records, read at once, and then the records that were added meanwhile.

    Compaction may remove an entry below the first end because of a newer one above it. The second reading has that
    newer one.
    """
    keys = source.partitions[source.names.offset]
    cut = source.cluster.stable_offsets(keys)
    suit(source.spark, _size(first, cut))
    records = source.read(first, cut, READ_COMMITTED)
    if _some(first, cut):
        records = cache.keep(records)
        records.count()
    later = source.cluster.stable_offsets(keys)
    if later != cut:
        records = cache.keep(records.unionByName(source.read(cut, later, READ_COMMITTED)))
    return later, records


def _resumed(seen: Seen | None, partitions: Collection[TopicPartition], starts: Ends) -> Ends:
    """Start offsets for topics that retention may shorten at any time."""
    return starts if seen is None else seen.start_of(partitions, starts, whole=False)


def _named_in(halves: DataFrame) -> frozenset[str]:
    topics = F.coalesce(F.transform("parts", lambda part: part["topic"]), F.array("real_topic"))
    named = halves.where(F.col("fault").isNull()).select("real_topic", topics.alias("topics")).distinct()
    rows = named.select(F.explode("topics").alias("topic")).distinct().collect()
    return frozenset(row.topic for row in rows)


def _hidden(*cuts: AuditCut) -> dict[TopicPartition, tuple[int, int]]:
    """See Gathered.hidden."""
    return {key: (cut.ends[key], target) for cut in cuts for key, target in cut.unsettled.items()}


def _some(starts: Ends, ends: Ends) -> bool:
    """Whether there may be a record between `starts` and `ends`."""
    return any(end > starts[key] for key, end in ends.items())


def _size(starts: Ends, ends: Ends) -> int:
    """Number of offsets between `starts` and `ends`, which is about the number of records (see `suit`)."""
    return sum(end - starts[key] for key, end in ends.items())
