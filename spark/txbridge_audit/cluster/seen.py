"""The progress of a continued audit, and the facts that its steps have read."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from txbridge.core.names import Names
from txbridge_audit.cluster import facts
from txbridge_audit.cluster.cuts import Ends
from txbridge_audit.cluster.kafka_admin import AuditedCluster
from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.judge.facts import HalfFacts, TopicPartition
from txbridge_audit.protocol.worker_records import AuditCheckpoint

#: Names of the facts about a half partition that a continued audit keeps from its first step.
EDGES = ("ends_since", "outcomes_since", "discards_since", "parked_since")
Edges = tuple[int, ...]


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

    def start_of(
        self, partitions: Collection[TopicPartition], starts: Ends, *, whole: bool
    ) -> dict[TopicPartition, int]:
        """Offsets to read from. With `whole` raises CouldNotAuditError where retention has removed unread records."""
        chosen = {}
        for key in partitions:
            position = self.positions.get(key, starts[key])
            if whole and starts[key] > position:
                raise CouldNotAuditError(
                    f"retention has removed {key[0]}/{key[1]} from {position} to {starts[key]}, which no audit has "
                    "read: the fate of these transactions is not known; begin a new ledger, and audit "
                    "more often than records expire",
                )
            chosen[key] = max(position, starts[key])
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
    """See judge.facts.Facts. In a continued audit only records that no step has read are missing."""
    if seen is None:
        return facts.checks_since(names, cluster, starts)
    unread = {key: start if start > seen.positions.get(key, 0) else 0 for key, start in starts.items()}
    found = facts.checks_since(names, cluster, unread)
    return {group: max(edge, seen.checks_since.get(group, -1)) for group, edge in found.items()}


def refuse_shorter(begin: Ends, *cuts: Ends) -> None:
    """Raise CouldNotAuditError when a partition ends below an offset that was read: its records are others now."""
    for (topic, partition), end in (item for cut in cuts for item in cut.items()):
        if end < begin[topic, partition]:
            raise CouldNotAuditError(
                f"{topic}/{partition} ends at {end}, but the last audit has read it up to {begin[topic, partition]}: "
                "its records were lost or the topic was created again; begin a new ledger",
            )
