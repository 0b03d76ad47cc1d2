"""The reading of one audit, whatever engine makes it: the cuts in their order (cluster/cuts.py), and the facts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from txbridge.core.names import Names, delivered_id
from txbridge_audit.cluster import facts
from txbridge_audit.cluster.cuts import Ends, Range, ranges, settle
from txbridge_audit.cluster.kafka_admin import AuditedCluster, partitions_of
from txbridge_audit.cluster.kafka_config import KafkaSettings
from txbridge_audit.cluster.past import PastAudit, Seen, refuse_shorter, since_the_first_step
from txbridge_audit.cluster.past import checks_since as checks_since_of
from txbridge_audit.cluster.plan import Plan, Progress, begin
from txbridge_audit.cluster.reader import read
from txbridge_audit.judge.facts import Facts, HalfFacts, TopicPartition
from txbridge_audit.judge.strays import HalfIdentity, OtherNamespaces
from txbridge_audit.protocol import client_records
from txbridge_audit.protocol.mentions import CopyMention, UnreadableMention
from txbridge_audit.protocol.record import KafkaRecord
from txbridge_audit.protocol.relay_records import Numbering
from txbridge_audit.protocol.worker_records import AuditCheckpoint


@dataclass(frozen=True, slots=True)
class AuditedTopics:
    """What one audit reads: the internal topics of a namespace, on a cluster."""

    cluster: AuditedCluster
    settings: KafkaSettings
    names: Names
    #: The partitions of each internal topic.
    partitions: Mapping[str, Sequence[TopicPartition]]
    #: Called with a short text for each phase.
    say: Progress


class Intake(Protocol):
    """Reads the records of spans as mentions. Everything is read once, the discard topic before END."""

    #: Real topics that well-formed half messages, and relays, name.
    named: set[str]
    #: The last checkpoint of each partition.
    checkpoints: dict[int, AuditCheckpoint]
    #: See Facts.
    relays: dict[int, Numbering]

    def take_halves(self, spans: Mapping[TopicPartition, Range]) -> None:
        """Read HALF, as soon as it is called: then `named` is known."""

    def take_offsets(self, spans: Mapping[TopicPartition, Range]) -> None:
        """Read OFFSET, as soon as it is called: then `checkpoints` are known, and compaction takes nothing."""

    def take_progress(self, spans: Mapping[TopicPartition, Range]) -> None:
        """Read OUTBOX, as soon as it is called: then `named` and `relays` are known."""

    def take_discards(self, spans: Mapping[TopicPartition, Range]) -> None:
        """Read the discard topic."""

    def take_others(self, spans: Mapping[TopicPartition, Range], counts: Mapping[str, int], *, exactly: bool) -> None:
        """Read END, OP and the real topics. `counts` says how many partitions each real topic has.

        `exactly` is that of `client_records.end_mentions`.
        """

    def take_checks(self, spans: Mapping[TopicPartition, Range]) -> None:
        """Read the check topics. Retention may remove records meanwhile."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read, besides the mentions."""

    facts: Facts
    #: Log starts of the internal and of the real topics.
    starts: Ends
    #: Partitions of real topics that have lost their beginning.
    truncated: Sequence[TopicPartition]
    checkpoints: Mapping[int, AuditCheckpoint]
    #: The offsets that were read of each partition.
    spans: Mapping[TopicPartition, Range]
    #: Partitions that an open Kafka transaction hides: their stable offset, and the high watermark it did not reach.
    hidden: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    #: Whether records that an earlier step of a continued audit has read are not in the spans.
    continued: bool = False
    #: Of an audit that is made again: by partition, the number of offsets that retention has removed since.
    lost: Mapping[TopicPartition, int] = field(default_factory=dict)


def gather(source: AuditedTopics, plan: Plan, intake: Intake, seen: Seen | None = None) -> Reading:
    """Take the cuts, and read up to them into the intake. The numbered steps are the order of the cuts (see cuts.py).

    With `seen` only records are read that are newer than the last step of a continued audit.

    Raises CouldNotAuditError.
    """
    if plan.past is not None:
        return _gather_again(source, plan, plan.past, intake)
    cluster, names, partitions = source.cluster, source.names, source.partitions
    cluster.forget_leaders()
    internal = [key for keys in partitions.values() for key in keys]
    starts = cluster.log_starts(internal)
    if seen is None:
        speaking = [*partitions[names.end], *partitions[names.op]]
        first = begin(cluster, plan.selection, partitions[names.half], speaking, starts)
    else:
        first = seen.start_of(internal, starts, whole=True)

    # Step 1: the real topics that exist, from a first look at HALF.
    source.say("reading half messages")
    half_keys, outbox_keys = partitions[names.half], partitions[names.outbox]
    watermarks = cluster.high_watermarks(internal)
    first_look = {key: watermarks[key] for key in half_keys}
    intake.take_halves(ranges(first, first_look))
    intake.relays |= {} if seen is None else seen.relays
    progress = cluster.stable_offsets(outbox_keys)
    intake.take_progress(ranges(first, progress))
    real = _existing(source, plan, intake, seen)

    # Step 2: the earlier cut of the real topics.
    before = cluster.stable_offsets(real)

    # Step 3: OFFSET, read at once, and then the records that were added meanwhile. Compaction may remove an entry below
    # the first end because of a newer one above it: the second reading has that newer one.
    source.say("reading checkpoints")
    offset_keys = partitions[names.offset]
    offset = cluster.stable_offsets(offset_keys)
    intake.take_offsets(ranges(first, offset))
    later = cluster.stable_offsets(offset_keys)
    intake.take_offsets(ranges(offset, later))
    checkpoints = {**(seen.checkpoints if seen else {}), **intake.checkpoints}
    for checkpoint in intake.checkpoints.values():
        facts.check_ids(names, cluster, checkpoint.topics)

    # Step 4: the check topics. Before discard: a discard that makes a decision late comes before a later check.
    # They keep records for an hour, so some may vanish while we read. No rule concludes from a missing one.
    check_keys = facts.check_partitions(names, cluster.partition_counts())
    check_starts = cluster.log_starts(check_keys)
    check_first = check_starts if seen is None else seen.start_of(check_keys, check_starts, whole=False)
    checks_since = checks_since_of(names, cluster, check_starts, seen)
    check = cluster.stable_offsets(check_keys)

    # Steps 5 to 8: OP, OUTBOX and discard, once every Kafka transaction that had written by now is decided; END; HALF.
    op = settle(cluster, partitions[names.op], timeout=plan.settle_timeout)
    outbox = settle(cluster, outbox_keys, timeout=plan.settle_timeout)
    discard = settle(cluster, partitions[names.discard], timeout=plan.settle_timeout)
    # END as the worker reads it: an aborted record decides nothing, and none behind an open transaction is applied.
    end = settle(cluster, partitions[names.end], timeout=plan.settle_timeout)
    half = cluster.high_watermarks(half_keys)
    facts.check_ends(names, checkpoints, end.ends, half)

    # Step 9: the real topics again, those named meanwhile included.
    intake.take_halves(ranges(first_look, half))
    intake.take_progress(ranges(progress, outbox.ends))
    real = _existing(source, plan, intake, seen)
    after = settle(cluster, real, timeout=plan.settle_timeout)
    real_starts = cluster.log_starts(real)
    real_first = real_starts if seen is None else seen.start_of(real, real_starts, whole=False)
    if seen is not None:
        refuse_shorter(first, offset, op.ends, outbox.ends, discard.ends, end.ends, half)

    # Step 10: everything is fixed; read the rest.
    source.say("reading decisions, outcomes and real topics")
    counts = Counter(topic for topic, _ in real)
    discards_cut = seen.discards_cut if seen else any(starts[key] > 0 for key in partitions[names.discard])
    intake.take_discards(ranges(first, discard.ends))
    rest = ranges({**first, **real_first}, {**end.ends, **op.ends, **after.ends})
    intake.take_others(rest, counts, exactly=discards_cut)
    asked = ranges(check_first, check)
    intake.take_checks(asked)

    known = facts.partition_facts(names, cluster, partitions, starts, checkpoints, op, first, watermarks)
    spans = {**ranges(first, {**later, **half, **outbox.ends, **discard.ends}), **rest, **asked}
    return Reading(
        facts=Facts(
            partitions=known if seen is None else since_the_first_step(known, seen),
            topics=facts.topic_facts(cluster, real, real_starts, after),
            before=before,
            now=plan.now,
            limits=plan.limits,
            checks_since=checks_since,
            discards_cut=discards_cut,
            relays=intake.relays,
            are_relays_settled=not outbox.unsettled,
            only_topics=plan.selection.topics,
        ),
        starts=starts | real_starts,
        truncated=[key for key, start in real_starts.items() if start > 0],
        checkpoints=checkpoints,
        spans=spans,
        hidden={
            key: (cut.ends[key], to) for cut in (op, outbox, discard, end, after) for key, to in cut.unsettled.items()
        },
        topic_ids=cluster.topic_ids({topic for topic, _ in spans}),
        continued=seen is not None,
    )


def _gather_again(source: AuditedTopics, plan: Plan, past: PastAudit, intake: Intake) -> Reading:
    """Read what an earlier audit has read, as far as it is still there.

    Its cuts were taken in their order, so the verdicts at them are as sound as they were. What retention has removed
    since is gone for the rules as in any audit. Compaction of OFFSET is the exception: it may have removed an entry
    below the cut because of one above it, and leaves no gap that could be seen. A worker writes its checkpoint last. So
    if a checkpoint that the last one below the cut has replaced is still there, compaction has not come as far as the
    last one, and nothing is missing. Else parked entries count as gone, unless nothing was written since.
    """
    cluster, names, partitions = source.cluster, source.names, source.partitions
    cluster.forget_leaders()
    # OUTBOX may have been made since.
    outbox = [key for key in partitions[names.outbox] if key in past.spans]
    internal = {key for topic in names.internal for key in partitions[topic]} | set(outbox)
    past.refuse_changed(names.namespace, cluster, internal)
    source.say("reading the offsets of the report again")
    starts = cluster.log_starts(past.spans)
    spans = {key: Range(min(max(span.start, starts[key]), span.end), span.end) for key, span in past.spans.items()}
    checks = {key for key in spans if key[0].startswith(names.check(""))}
    real = spans.keys() - internal - checks

    def of(*topics: str) -> dict[TopicPartition, Range]:
        return {key: spans[key] for topic in topics for key in partitions[topic]}

    intake.take_halves(of(names.half))
    intake.take_offsets(of(names.offset))
    intake.take_progress({key: spans[key] for key in outbox})
    for checkpoint in intake.checkpoints.values():
        facts.check_ids(names, cluster, checkpoint.topics)
    discards_cut = any(starts[key] > 0 for key in partitions[names.discard])
    intake.take_discards(of(names.discard))
    rest = of(names.end, names.op) | {key: spans[key] for key in real}
    intake.take_others(rest, Counter(topic for topic, _ in real), exactly=discards_cut)
    intake.take_checks({key: spans[key] for key in checks})

    first = {key: span.start for key, span in spans.items()}
    ends = {key: span.end for key, span in spans.items()}
    op, after = past.cut_of(partitions[names.op]), past.cut_of(real)
    known = facts.partition_facts(names, cluster, partitions, starts, intake.checkpoints, op, first, ends)
    now_at = cluster.high_watermarks(partitions[names.offset])
    real_starts = {key: starts[key] for key in real}
    lost = {key: span.start - past.spans[key].start for key, span in spans.items() if key not in checks}

    def as_of_now(fact: HalfFacts) -> HalfFacts:
        offset, outcomes = (names.offset, fact.partition), (names.op, fact.partition)
        checkpoint = intake.checkpoints.get(fact.partition)
        compacted = now_at[offset] > ends[offset] > 0 and not (checkpoint and checkpoint.follows)
        # If nothing is left of OP, its age is told by the last checkpoint, and that may be above the cut.
        emptied = lost[outcomes] > 0 and first[outcomes] == ends[outcomes]
        return replace(
            fact,
            parked_since=facts.FOREVER if compacted or fact.checkpoint_gone else fact.parked_since,
            outcomes_since=facts.FOREVER if emptied else fact.outcomes_since,
        )

    return Reading(
        facts=Facts(
            partitions=list(map(as_of_now, known)),
            topics=facts.topic_facts(cluster, real, real_starts, after),
            before=past.before,
            now=plan.now,
            limits=plan.limits,
            read_at=plan.read_at,
            checks_since=facts.checks_since(names, cluster, {key: starts[key] for key in checks}),
            discards_cut=discards_cut,
            relays=intake.relays,
            are_relays_settled=not past.cut_of(outbox).unsettled,
            only_topics=plan.selection.topics,
        ),
        starts=starts,
        truncated=[key for key, start in real_starts.items() if start > 0],
        checkpoints=intake.checkpoints,
        spans=spans,
        hidden={key: (ends[key], target) for key, target in past.targets.items()},
        topic_ids=past.topic_ids,
        lost={key: number for key, number in lost.items() if number},
    )


def _existing(source: AuditedTopics, plan: Plan, intake: Intake, seen: Seen | None) -> list[TopicPartition]:
    """Partitions of the real topics that exist. For one that does not, the worker holds the messages."""
    named = plan.real_topics | intake.named | (seen.named if seen else frozenset())
    return facts.existing(source.cluster, named, plan.selection.topics)


def other_namespaces(source: AuditedTopics, strays: Iterable[CopyMention]) -> OtherNamespaces:
    """The half messages of other namespaces at the half coordinates that strays claim."""
    claimed = {(copy.partition, copy.half) for copy in strays if copy.half is not None}
    base = Names().half
    counts = source.cluster.partition_counts()
    topics = [name for name in counts if name == base or name.endswith(f".{base}")]
    others = {name: Names(name.removesuffix(base).removesuffix(".")) for name in topics if name != source.names.half}
    keys = [key for name in others for key in partitions_of(name, counts[name])]
    if not keys or not claimed:
        return OtherNamespaces()
    starts, ends = source.cluster.log_starts(keys), source.cluster.high_watermarks(keys)
    # Nothing is known of half messages that nobody claims: between the first and the last one all are read.
    lowest: dict[int, int] = {}
    highest: dict[int, int] = {}
    for partition, half in claimed:
        lowest[partition] = min(half, lowest.get(partition, half))
        highest[partition] = max(half + 1, highest.get(partition, 0))
    asked = {
        key: Range(max(starts[key], lowest[key[1]]), min(ends[key], highest[key[1]]))
        for key in keys
        if key[1] in lowest
    }
    mentions = map(client_records.half_mention, read(source.settings, asked, committed=False))
    halves = {(half.partition, half.half, half.delivered_id) for half in mentions if half.delivered_id is not None}
    # Their ENDs are needed only where half messages are gone.
    end_of = {key: (others[key[0]].end, key[1]) for key in keys if starts[key] > 0}
    there = [key for key in end_of.values() if key[1] < counts.get(key[0], 0)]
    end_starts, end_ends = source.cluster.log_starts(there), source.cluster.stable_offsets(there)
    edges: dict[int, int] = {}
    for key, end in end_of.items():
        if end_starts.get(end, 1) > 0:
            edges[key[1]] = max(starts[key], edges.get(key[1], 0))
    named = named_identities_of(read(source.settings, ranges(end_starts, end_ends), committed=True))
    return OtherNamespaces(halves, named, edges)


def named_identities_of(records: Iterable[KafkaRecord]) -> set[HalfIdentity]:
    """Identities of the half messages that these records of END name."""
    return {
        (end.partition, end.half, identity)
        for found in map(client_records.end_mentions, records)
        if not isinstance(found, UnreadableMention)
        for end in found
        if end.half is not None
        # END does not say whether its messages had times.
        for identity in (end.id, delivered_id(end.id))
    }
