"""The plan of one audit, by either engine: from options, an earlier audit that is made again, or earlier steps."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from txbridge.core.names import Names, is_topic
from txbridge.text import iso_time
from txbridge_audit.cluster.cuts import Ends, Range
from txbridge_audit.cluster.facts import FOREVER
from txbridge_audit.cluster.kafka_admin import AuditedCluster
from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.judge.facts import CLOCK_MARGIN_MS, AuditLimits, AuditSelection, HalfFacts, TopicPartition
from txbridge_audit.protocol.relay_records import Numbering
from txbridge_audit.protocol.worker_records import AuditCheckpoint

#: Names of the facts about a half partition that a continued audit keeps from its first step.
EDGES = ("ends_since", "outcomes_since", "discards_since", "parked_since")
Edges = tuple[int, ...]
_AGAIN = "audit what is there now, without --at"


@dataclass(frozen=True, slots=True)
class Seen:
    """The progress of a continued audit, and facts that its steps have read."""

    #: Offset up to which each partition was read.
    positions: Ends
    checkpoints: Mapping[int, AuditCheckpoint]
    #: By half partition, the edges of removed records at the first step (`edges_of`). Later records were read.
    edges: Mapping[int, Edges]
    #: `checks_since` of judge.facts.Facts at the last step.
    checks_since: Mapping[str, int]
    #: Real topics that half messages name.
    named: frozenset[str]
    #: `discards_cut` of judge.facts.Facts at the first step. Later records were read.
    discards_cut: bool
    #: See judge.facts.Facts.
    relays: Mapping[int, Numbering] = dataclasses.field(default_factory=dict)

    def start_of(self, starts: Ends, *, whole: bool) -> dict[TopicPartition, int]:
        """Offsets to read from. With `whole` raises CouldNotAuditError where retention has removed unread records."""
        chosen = {}
        for key, start in starts.items():
            position = self.positions.get(key, start)
            if whole and start > position:
                raise CouldNotAuditError(
                    f"retention has removed {key[0]}/{key[1]} from {position} to {start}, which no audit has "
                    "read: the fate of these transactions is not known; begin a new ledger, and audit "
                    "more often than records expire"
                )
            chosen[key] = max(position, start)
        return chosen


def since_the_first_step(known: Collection[HalfFacts], seen: Seen) -> list[HalfFacts]:
    """The facts of a continued audit. Records that a step has read count, although retention may have removed them."""
    return [
        dataclasses.replace(
            fact,
            half_start=fact.log_start,
            **dict(zip(EDGES, seen.edges.get(fact.partition, edges_of(fact)), strict=True)),  # type: ignore[arg-type]
        )
        for fact in known
    ]


def edges_of(fact: HalfFacts) -> Edges:
    """The facts that EDGES names, in its order."""
    return tuple(getattr(fact, name) for name in EDGES)


def checks_since(names: Names, cluster: AuditedCluster, starts: Ends, seen: Seen | None) -> dict[str, int]:
    """See judge.facts.Facts. `starts` are the log starts of the check topics.

    In a continued audit only records that no step has read are missing.
    """
    positions, before = (seen.positions, seen.checks_since) if seen else ({}, {})
    oldest = cluster.first_timestamps([key for key, start in starts.items() if start > positions.get(key, 0)])
    prefix = names.check("")
    found: dict[str, int] = {}
    for topic, partition in starts:
        edge = oldest.get((topic, partition), -1)
        group = topic.removeprefix(prefix)
        # No margin: it is compared with the time of a client's decision, and the rule itself compares no clock.
        found[group] = max(FOREVER if edge is None else edge, found.get(group, before.get(group, -1)))
    return found


def refuse_shorter(begin: Ends, *cuts: Ends) -> None:
    """Raise CouldNotAuditError when a partition ends below an offset that was read: its records are others now."""
    for (topic, partition), end in (item for cut in cuts for item in cut.items()):
        if end < begin[topic, partition]:
            raise CouldNotAuditError(
                f"{topic}/{partition} ends at {end}, but the last audit has read it up to {begin[topic, partition]}: "
                "its records were lost or the topic was created again; begin a new ledger"
            )


@dataclass(frozen=True, slots=True)
class PastAudit:
    """An earlier audit: what it was about, and what it has read."""

    namespace: str
    cluster_id: str
    #: When it began, ms.
    now: int
    limits: AuditLimits
    selection: AuditSelection
    topic_ids: Mapping[str, str]
    spans: Mapping[TopicPartition, Range]
    #: The earlier cut of the real topics.
    before: Ends
    #: High watermarks that the cuts of partitions with an open Kafka transaction did not reach.
    targets: Ends

    def begin(self, starts: Ends) -> dict[TopicPartition, int]:
        """Where the records begin that were read then and are still there."""
        return {key: min(max(self.spans[key].start, start), self.spans[key].end) for key, start in starts.items()}

    def high_watermarks(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Those of then, as far as a cut has waited for them. See Offsets."""
        return {key: self.targets.get(key, self.spans[key].end) for key in partitions}

    def stable_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The cut of then. See Offsets."""
        return {key: self.spans[key].end for key in partitions}

    def lost_of(self, key: TopicPartition, spans: Mapping[TopicPartition, Range]) -> int:
        """The number of offsets that retention has removed since."""
        return spans[key].start - self.spans[key].start

    def refuse_changed(self, namespace: str, cluster: AuditedCluster, internal: Collection[TopicPartition]) -> None:
        """Raise CouldNotAuditError when the topics are others now, so that the offsets mean nothing any more."""
        if namespace != self.namespace:
            raise CouldNotAuditError(f"the report of --at is about the namespace {self.namespace!r}: check --namespace")
        there = cluster.partition_counts()
        if self.cluster_id != cluster.cluster_id:
            raise CouldNotAuditError(
                f"the report of --at is about the cluster {self.cluster_id}, not {cluster.cluster_id}: check "
                "--bootstrap-servers"
            )
        ids = cluster.topic_ids([topic for topic in self.topic_ids if topic in there])
        if changed := sorted(topic for topic, one in self.topic_ids.items() if ids.get(topic) != one):
            raise CouldNotAuditError(
                f"{', '.join(changed)} was deleted or created again since the report of --at: its offsets mean "
                f"other records now; {_AGAIN}"
            )
        if not self.spans.keys() >= set(internal):
            raise CouldNotAuditError(f"internal topics have more partitions than in the report of --at; {_AGAIN}")
        for (topic, partition), end in cluster.high_watermarks(self.spans).items():
            if end < self.spans[topic, partition].end:
                raise CouldNotAuditError(
                    f"{topic}/{partition} ends at {end}, below the cut of the report of --at "
                    f"({self.spans[topic, partition].end}): its records were lost; {_AGAIN}"
                )


def past_audit(text: str, file: str) -> PastAudit:
    """The audit whose report in the JSON form this is. Raises CouldNotAuditError."""
    try:
        told = json.loads(text)
        if told["continued"]:
            raise CouldNotAuditError(
                f"--at {file} is the report of a continued audit, whose cuts are those of its last step alone: give "
                "the report of one without --continue and --follow"
            )
        chosen = told["selection"]
        cuts = {(topic, int(at)): cut for topic, those in told["cuts"].items() for at, cut in those.items()}
        return PastAudit(
            told["namespace"],
            told["cluster_id"],
            int(told["started_at"]),
            AuditLimits(**told["limits"]),
            AuditSelection(chosen["since"], chosen["until"], frozenset(chosen["topics"])),
            dict(told["topic_ids"]),
            {key: Range(int(cut["start"]), int(cut["end"])) for key, cut in cuts.items()},
            *({key: int(cut[name]) for key, cut in cuts.items() if name in cut} for name in ("before", "target")),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise CouldNotAuditError(
            f"--at {file} is no report of an audit of this version ({type(error).__name__}: {error}): give a file that "
            "--report has written"
        ) from error


#: Called with a short text for each phase.
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """The parameters of an audit."""

    #: Start of the audit, ms.
    now: int
    limits: AuditLimits
    selection: AuditSelection
    real_topics: frozenset[str]
    settle_timeout: float
    #: An earlier audit that is made again at its cuts, and when that begins, ms.
    past: PastAudit | None = None
    again_at: int = 0

    @property
    def read_at(self) -> int:
        """When the topics are read, ms."""
        return self.again_at or self.now


def selection_of(since: str | None, until: str | None, topics: Sequence[str]) -> AuditSelection:
    """The selection from options of a command line. Raises CouldNotAuditError when they are wrong."""
    for topic in topics:
        if not is_topic(topic) or Names.is_forbidden(topic):
            raise CouldNotAuditError(f"{topic!r} cannot be a real topic: check --only-topic")
    chosen = AuditSelection(_parsed(since, "--since"), _parsed(until, "--until"), frozenset(topics))
    if chosen.since is not None and chosen.until is not None and chosen.until <= chosen.since:
        raise CouldNotAuditError("--until must be later than --since")
    return chosen


def _parsed(text: str | None, option: str) -> int | None:
    """A time of ISO 8601 as ms since 1970; without an offset it is UTC."""
    if text is None:
        return None
    try:
        time = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise CouldNotAuditError(
            f"{option} {text!r} is not a time: write it as 2026-11-21, 2026-11-21T08:30 or 2026-11-21T08:30:00+01:00"
        ) from error
    return round((time if time.tzinfo else time.replace(tzinfo=dt.UTC)).timestamp() * 1000)


def begin(
    cluster: AuditedCluster,
    selection: AuditSelection,
    half: Sequence[TopicPartition],
    others: Sequence[TopicPartition],
    starts: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Offsets from which internal topics are read: log starts; HALF, and END and OP (`others`), from the range of time.

    Records of END and OP about a transaction come after its birth. The clocks of two brokers may differ by
    CLOCK_MARGIN_MS.
    Raises CouldNotAuditError when retention has removed half messages of the range.
    """
    if selection.since is None:
        return dict(starts)
    shortened = [key for key in half if starts[key] > 0]
    for (topic, partition), oldest in cluster.first_timestamps(shortened).items():
        if oldest is None or oldest > selection.since:
            left = "nothing" if oldest is None else f"nothing before {iso_time(oldest)}"
            raise CouldNotAuditError(
                f"retention has left {left} in {topic}/{partition}: what was prepared since "
                f"{iso_time(selection.since)} is gone in part, and so would be the verdict; give a later --since, or "
                "none to audit what is left"
            )
    found = cluster.offsets_at([*half, *others], selection.since - CLOCK_MARGIN_MS)
    return {**starts, **{key: max(starts[key], offset) for key, offset in found.items()}}
