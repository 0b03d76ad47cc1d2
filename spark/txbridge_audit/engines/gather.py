"""The reading of one audit: the cuts in their order (cluster/cuts.py), and the facts.

Engines read the records, have tasks make rows of them, and bring those of a block together.
"""

from __future__ import annotations

import marshal
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from txbridge.core.names import Names
from txbridge_audit.cluster import facts
from txbridge_audit.cluster.cuts import Ends, Offsets, Range, ranges, settle
from txbridge_audit.cluster.kafka_admin import AuditedCluster
from txbridge_audit.cluster.kafka_config import KafkaSettings
from txbridge_audit.cluster.plan import (
    PastAudit,
    Plan,
    Progress,
    Seen,
    begin,
    checks_since,
    refuse_shorter,
    since_the_first_step,
)
from txbridge_audit.engines import tasks
from txbridge_audit.engines.tasks import Blocks, Told
from txbridge_audit.judge.facts import AuditSelection, Facts, HalfFacts, TopicPartition
from txbridge_audit.judge.transaction import SetAside
from txbridge_audit.ledger.rows import LedgerRow
from txbridge_audit.protocol.mentions import AsideMention, from_row
from txbridge_audit.protocol.relay_records import Numbering, ProgressStep, numbered
from txbridge_audit.protocol.worker_records import AuditCheckpoint
from txbridge_audit.report.sums import OddRecords

Spans = Mapping[TopicPartition, Range]
#: Records as Arrow batches to rows.
Task = Callable[[Iterable[Any]], Iterable[Told]]
_A = TypeVar("_A")


class RowReader(Protocol):
    """Reads the records of spans, and keeps the rows that a task makes of them."""

    def take_rows(
        self, spans: Spans, task: Task, *, at_once: bool, committed: bool = True, may_vanish: bool = False
    ) -> list[tuple[str, bytes]]:
        """Read everything once, and return the rows of `tasks.LOOKS`; none if it may be read later.

        With `may_vanish` retention may remove records meanwhile.
        """


class AuditRows(RowReader, Protocol):
    """An engine: its rows come together by blocks."""

    #: Its name in a report.
    engine: str

    def ask_tasks(self, ask: Callable[[Blocks], _A]) -> Iterable[_A]:
        """The answer of each task about what it has of everything that was read. May be called more than once."""

    def write_ledger(self, facts: Facts, selection: AuditSelection, phantoms: Collection[LedgerRow]) -> None:
        """Write the ledger, where this engine was told to."""


#: The tasks of topics on whose records the next cuts, or the meaning of others, depend.
_AT_ONCE = frozenset({tasks.halves, tasks.offsets, tasks.progress, tasks.discards})


class AuditIntake:
    """Reads topic by topic: everything once, the discard topic before END."""

    def __init__(self, names: Names, rows: RowReader) -> None:
        self._names, self._rows = names, rows
        #: Real topics that well-formed half messages, and relays, name.
        self.named: set[str] = set()
        #: The last checkpoint of each partition.
        self.checkpoints: dict[int, AuditCheckpoint] = {}
        #: See Facts.
        self.relays: dict[int, Numbering] = {}
        self.asides = SetAside(names)

    def take_topic(self, task: Callable[..., Iterable[Told]], spans: Spans, *about: Any, **how: bool) -> None:
        """Read these spans with one of the tasks, which takes `about` them. `how` is that of `RowReader.take_rows`."""
        steps: list[ProgressStep] = []
        make, at_once = partial(task, self._names, *about), task in _AT_ONCE
        for what, packed in self._rows.take_rows(spans, make, at_once=at_once, **how):
            told = marshal.loads(packed)
            if what == tasks.NAMED:
                self.named.add(told)
            elif what == tasks.CHECKPOINT:
                partition, seen = told[0], AuditCheckpoint(*told[1:])
                # Of several tasks the last record of a partition: checkpoints move on.
                known = self.checkpoints.get(partition, seen)
                last = max(known, seen, key=lambda one: (one.stamp or 0, one.applied_to or 0))
                self.checkpoints[partition] = replace(last, follows=last.follows or known != seen)
            elif what == tasks.PROGRESS:
                steps.append(ProgressStep(*told))
            elif isinstance(mention := from_row(told), AsideMention):
                self.asides.add_record(mention)
            else:
                # A record of a newer worker is refused before all the rest is read.
                OddRecords(self._names).add_record(mention)
        # Several tasks may have read a partition.
        for step in sorted(steps):
            self.relays |= numbered(self.relays, step)


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
    #: Partitions whose end an open Kafka transaction hides: the high watermark that their span does not reach.
    hidden: Mapping[TopicPartition, int] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    #: Whether records that an earlier step of a continued audit has read are not in the spans.
    continued: bool = False
    #: Of an audit that is made again: by partition, the number of offsets that retention has removed since.
    lost: Mapping[TopicPartition, int] = field(default_factory=dict)


def gather(source: AuditedTopics, plan: Plan, intake: AuditIntake, seen: Seen | None = None) -> Reading:
    """Take the cuts, and read up to them into the intake. The numbered steps are the order of the cuts (see cuts.py).

    With `seen` only records are read that are newer than the last step of a continued audit. An earlier audit that is
    made again (`plan.past`) answers with its own cuts, which were taken in this order: the verdicts are as sound as
    they were.

    Raises CouldNotAuditError.
    """
    cluster, names, partitions, past = source.cluster, source.names, source.partitions, plan.past
    cluster.forget_leaders()
    # OUTBOX may have been made since an earlier audit.
    outbox_keys = [key for key in partitions[names.outbox] if past is None or key in past.spans]
    internal = [*(key for name in names.internal for key in partitions[name]), *outbox_keys]
    if past is not None:
        past.refuse_changed(names.namespace, cluster, internal)
    offsets: Offsets = past or cluster
    # Where to begin with topics whose records may vanish.
    first_of: Callable[[Ends], Ends] = past.begin if past else partial(seen.start_of, whole=False) if seen else dict
    timeout = 0.0 if past else plan.settle_timeout
    starts = cluster.log_starts(internal)
    if past is not None:
        first = past.begin(starts)
    elif seen is None:
        speaking = [*partitions[names.end], *partitions[names.op]]
        first = begin(cluster, plan.selection, partitions[names.half], speaking, starts)
    else:
        first = seen.start_of(starts, whole=True)

    # Step 1: the real topics that exist, from a first look at HALF.
    source.say("reading half messages")
    half_keys = partitions[names.half]
    watermarks = offsets.high_watermarks(internal)
    first_look = {key: watermarks[key] for key in half_keys}
    intake.take_topic(tasks.halves, ranges(first, first_look), committed=False)
    intake.relays |= {} if seen is None else seen.relays
    progress = offsets.stable_offsets(outbox_keys)
    intake.take_topic(tasks.progress, ranges(first, progress))
    real = _existing(source, plan, intake, seen)

    # Step 2: the earlier cut of the real topics.
    before = past.before if past else cluster.stable_offsets(real)

    # Step 3: OFFSET, read at once, and then the records that were added meanwhile. Compaction may remove an entry below
    # the first end because of a newer one above it: the second reading has that newer one.
    source.say("reading checkpoints")
    offset_keys = partitions[names.offset]
    offset = offsets.stable_offsets(offset_keys)
    intake.take_topic(tasks.offsets, ranges(first, offset))
    later = offsets.stable_offsets(offset_keys)
    intake.take_topic(tasks.offsets, ranges(offset, later))
    checkpoints = {**(seen.checkpoints if seen else {}), **intake.checkpoints}
    for checkpoint in intake.checkpoints.values():
        facts.check_ids(names, cluster, checkpoint.topics)

    # Step 4: the check topics. Before discard: a discard that makes a decision late comes before a later check.
    # They keep records for an hour, so some may vanish while we read. No rule concludes from a missing one.
    there = facts.check_partitions(names, cluster.partition_counts())
    check_keys = [key for key in there if past is None or key in past.spans]
    check_starts = cluster.log_starts(check_keys)
    check_first = first_of(check_starts)
    checks_from = checks_since(names, cluster, check_starts, seen)
    check = offsets.stable_offsets(check_keys)

    # Steps 5 to 8: OP, OUTBOX and discard, once every Kafka transaction that had written by now is decided; END; HALF.
    op = settle(offsets, partitions[names.op], timeout=timeout)
    outbox = settle(offsets, outbox_keys, timeout=timeout)
    discard = settle(offsets, partitions[names.discard], timeout=timeout)
    # END as the worker reads it: an aborted record decides nothing, and none behind an open transaction is applied.
    end = settle(offsets, partitions[names.end], timeout=timeout)
    half = offsets.high_watermarks(half_keys)
    facts.check_ends(names, checkpoints, end.ends, half)

    # Step 9: the real topics again, those named meanwhile included.
    intake.take_topic(tasks.halves, ranges(first_look, half), committed=False)
    intake.take_topic(tasks.progress, ranges(progress, outbox.ends))
    real = _existing(source, plan, intake, seen)
    after = settle(offsets, real, timeout=timeout)
    real_starts = cluster.log_starts(real)
    if seen is not None:
        refuse_shorter(first, offset, op.ends, outbox.ends, discard.ends, end.ends, half)

    # Step 10: everything is fixed; read the rest.
    source.say("reading decisions, outcomes and real topics")
    counts = Counter(topic for topic, _ in real)
    discards_cut = seen.discards_cut if seen else any(starts[key] > 0 for key in partitions[names.discard])
    intake.take_topic(tasks.discards, ranges(first, discard.ends))
    rest = ranges({**first, **first_of(real_starts)}, {**end.ends, **op.ends, **after.ends})
    intake.take_topic(tasks.others, rest, dict(counts), intake.asides, discards_cut)
    asked = ranges(check_first, check)
    intake.take_topic(tasks.checks, asked, may_vanish=True)

    known = facts.partition_facts(names, cluster, partitions, starts, checkpoints, op, first, watermarks)
    spans = {**ranges(first, {**later, **half, **outbox.ends, **discard.ends}), **rest, **asked}
    if past is not None:
        known = _as_of_now(source, known, spans, past, checkpoints)
    return Reading(
        facts=Facts(
            partitions=known if seen is None else since_the_first_step(known, seen),
            topics=facts.topic_facts(cluster, real, real_starts, after),
            before=before,
            now=plan.now,
            limits=plan.limits,
            read_at=plan.read_at,
            checks_since=checks_from,
            discards_cut=discards_cut,
            relays=intake.relays,
            are_relays_settled=not outbox.unsettled,
            only_topics=plan.selection.topics,
        ),
        starts=starts | real_starts,
        truncated=[key for key, start in real_starts.items() if start > 0],
        checkpoints=checkpoints,
        spans=spans,
        hidden={key: to for cut in (op, outbox, discard, end, after) for key, to in cut.unsettled.items()},
        topic_ids=cluster.topic_ids({topic for topic, _ in spans}),
        continued=seen is not None,
        lost={} if past is None else {key: lost for key in spans.keys() - asked if (lost := past.lost_of(key, spans))},
    )


def _as_of_now(
    source: AuditedTopics,
    known: Sequence[HalfFacts],
    spans: Mapping[TopicPartition, Range],
    past: PastAudit,
    checkpoints: Mapping[int, AuditCheckpoint],
) -> list[HalfFacts]:
    """The facts of an audit that is made again. What retention has removed since is gone for the rules as in any audit.

    Compaction of OFFSET is the exception: it may have removed an entry below the cut because of one above it, and
    leaves no gap that could be seen. A worker writes its checkpoint last. So if a checkpoint that the last one below
    the cut has replaced is still there, compaction has not come as far as the last one, and nothing is missing. Else
    parked entries count as gone, unless nothing was written since.
    """
    names = source.names
    now_at = source.cluster.high_watermarks(source.partitions[names.offset])

    def of_now(fact: HalfFacts) -> HalfFacts:
        offset, outcomes = (names.offset, fact.partition), (names.op, fact.partition)
        checkpoint = checkpoints.get(fact.partition)
        compacted = now_at[offset] > spans[offset].end > 0 and not (checkpoint and checkpoint.follows)
        # If nothing is left of OP, its age is told by the last checkpoint, and that may be above the cut.
        emptied = past.lost_of(outcomes, spans) > 0 and spans[outcomes].empty
        return replace(
            fact,
            parked_since=facts.FOREVER if compacted or fact.checkpoint_gone else fact.parked_since,
            outcomes_since=facts.FOREVER if emptied else fact.outcomes_since,
        )

    return list(map(of_now, known))


def _existing(source: AuditedTopics, plan: Plan, intake: AuditIntake, seen: Seen | None) -> list[TopicPartition]:
    """Partitions of the real topics that exist. For one that does not, the worker holds the messages."""
    if plan.past is not None:
        ours = {*source.names.internal, source.names.outbox}
        checks = source.names.check("")
        return [key for key in plan.past.spans if key[0] not in ours and not key[0].startswith(checks)]
    named = plan.real_topics | intake.named | (seen.named if seen else frozenset())
    return facts.existing(source.cluster, named, plan.selection.topics)
