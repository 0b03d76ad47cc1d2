"""The facts that no record states: log starts, policies, topic ids, and the ends below a checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from txbridge.core.names import Names, is_topic
from txbridge_audit.cluster.cuts import AuditCut
from txbridge_audit.cluster.kafka_admin import AuditedCluster, partitions_of
from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.judge.facts import CLOCK_MARGIN_MS, HalfFacts, RealTopicFacts, TopicPartition
from txbridge_audit.protocol.worker_records import AuditCheckpoint

#: Later than any record.
FOREVER = 2**62


def named(namespace: str) -> Names:
    """The names of a namespace. Raises CouldNotAuditError when the names of its topics would not be valid."""
    names = Names(namespace)
    if not is_topic(names.check("x")):
        raise CouldNotAuditError(
            f"{namespace!r} cannot be a namespace: letters, digits and . _ - name topics; check --namespace"
        )
    return names


def internal_topics(cluster: AuditedCluster, names: Names) -> dict[str, list[TopicPartition]]:
    """The partitions of each internal topic, and of OUTBOX if there is one. Where only relays work there is only this.

    Raises CouldNotAuditError when topics or rights are missing.
    """
    counts = cluster.partition_counts()
    wanted = names.internal if names.outbox not in counts or counts.keys() & set(names.internal) else ()
    missing = [name for name in wanted if name not in counts]
    if hidden := cluster.forbidden_topics(missing):
        raise CouldNotAuditError(
            f"missing right DESCRIBE on topic {', '.join(hidden)}: give it, and READ, to the audit's user "
            "(docs/security.md)"
        )
    if missing:
        raise CouldNotAuditError(f"no topic {', '.join(missing)}: check --namespace, or run `txbridge topics apply`")
    number = {counts[name] for name in wanted[:4]}
    if len(number) > 1:
        raise CouldNotAuditError(
            "HALF, END, OP and OFFSET must have the same number of partitions, but have "
            + ", ".join(f"{name} {counts[name]}" for name in wanted[:4])
        )
    return {name: partitions_of(name, counts.get(name, 0)) for name in (*names.internal, names.outbox)}


def check_partitions(names: Names, counts: Mapping[str, int]) -> list[TopicPartition]:
    """The partitions of all check topics of the namespace. `counts` are those of all topics that we may see."""
    prefix = names.check("")
    chosen = sorted(topic for topic in counts if topic.startswith(prefix))
    return [key for topic in chosen for key in partitions_of(topic, counts[topic])]


def check_ids(names: Names, cluster: AuditedCluster, stored: Mapping[str, str]) -> None:
    """Raise CouldNotAuditError when a topic has another id than in the checkpoint: other ids mean other offsets."""
    known = {short: name for short, name in names.identified.items() if short in stored}
    ids = cluster.topic_ids(known.values()) if known else {}
    changed = [name for short, name in known.items() if ids[name] != stored[short]]
    if changed:
        raise CouldNotAuditError(
            f"{', '.join(changed)} was deleted and created again since the worker wrote its checkpoint: the offsets "
            "in the other internal topics mean nothing any more; use a new namespace"
        )


def check_ends(
    names: Names,
    known: Mapping[int, AuditCheckpoint],
    end: Mapping[TopicPartition, int],
    half: Mapping[TopicPartition, int],
) -> None:
    """Raise CouldNotAuditError when END or HALF, cut after OFFSET, end below the positions of a checkpoint."""
    for partition, seen in known.items():
        for topic, ends, position in ((names.end, end, seen.least_end), (names.half, half, seen.low)):
            if position is not None and position > ends.get((topic, partition), 0):
                raise CouldNotAuditError(
                    f"{topic}/{partition} ends at {ends.get((topic, partition), 0)}, below the worker's checkpoint "
                    f"({position}): its records were lost or the topic was created again; no verdict is possible"
                )


def partition_facts(
    names: Names,
    cluster: AuditedCluster,
    partitions: Mapping[str, Sequence[TopicPartition]],
    starts: Mapping[TopicPartition, int],
    known: Mapping[int, AuditCheckpoint],
    op: AuditCut,
    begin: Mapping[TopicPartition, int],
    written: Mapping[TopicPartition, int],
) -> list[HalfFacts]:
    """Facts about each half partition. `partitions` and `starts` are those of the internal topics.

    HALF is read from `begin`. `written` are ends from before OFFSET was cut: OP records below them had a checkpoint.
    """
    cut = [key for name in (names.end, names.op, names.offset, names.discard) for key in partitions[name]]
    oldest = cluster.first_timestamps([key for key in cut if starts[key] > 0])

    def since(key: TopicPartition, last: int | None = None) -> int:
        """A time (ms) that is not before that of any removed record; -1 if none was removed.

        Append times rise, so the oldest record that is left tells it. An emptied partition tells it only by `last`, a
        time that is known to be no earlier.
        """
        if key not in oldest:
            return -1
        edge = last if oldest[key] is None else oldest[key]
        return FOREVER if edge is None else edge + CLOCK_MARGIN_MS

    def facts(topic: str, partition: int) -> HalfFacts:
        end, outcomes, offset = (names.end, partition), (names.op, partition), (names.offset, partition)
        seen = known.get(partition, AuditCheckpoint())
        # Each record of OP is written with a checkpoint. The worker had read the END records below its END position.
        applied = seen.applied_to is not None and seen.applied_to >= starts[end]
        return HalfFacts(
            partition=partition,
            half_start=begin[topic, partition],
            log_start=starts[topic, partition],
            applied_to=seen.applied_to,
            applied_entry=seen.applied_entry,
            low=seen.low,
            ends_since=since(end, seen.stamp if applied else None),
            outcomes_since=since(outcomes, seen.stamp),
            discards_since=max(map(since, partitions[names.discard])),
            parked_since=since(offset),
            checkpoint_gone=seen.applied_to is None and (written[outcomes] > 0 or starts[offset] > 0),
            op_settled=outcomes not in op.unsettled,
        )

    return [facts(topic, partition) for topic, partition in partitions[names.half]]


def topic_facts(
    cluster: AuditedCluster, real: Collection[TopicPartition], starts: Mapping[TopicPartition, int], after: AuditCut
) -> list[RealTopicFacts]:
    """Facts about each real topic, given the log starts and the later cut of its partitions."""
    topics = {topic for topic, _ in real}
    policies = cluster.cleanup_policies(topics)
    truncated = {topic for (topic, _), start in starts.items() if start > 0}
    unsettled = {topic for topic, _ in after.unsettled}
    return [
        RealTopicFacts(
            topic=topic,
            compacted="compact" in (policies[topic] or "compact"),  # unknown: nothing may be concluded
            truncated=topic in truncated,
            settled=topic not in unsettled,
            policy_known=policies[topic] is not None,
        )
        for topic in sorted(topics)
    ]


def existing(cluster: AuditedCluster, topics: Collection[str], chosen: Collection[str]) -> list[TopicPartition]:
    """Partitions of the real topics that exist, of those `chosen` if any are.

    For one that does not exist, the worker holds the messages. Raises CouldNotAuditError.
    """
    counts = cluster.partition_counts()
    unknown = sorted(set(chosen) - set(topics) - set(counts))
    if unknown:
        raise CouldNotAuditError(f"no topic {', '.join(unknown)}, and no message names it: check --only-topic")
    wanted = set(topics) & set(chosen) if chosen else set(topics)
    hidden = cluster.forbidden_topics([topic for topic in wanted if topic not in counts])
    if hidden:
        raise CouldNotAuditError(
            f"messages go to {', '.join(hidden)}, which the audit's user may not see, so their fates are "
            "not known; give it the right to read there, or audit others with --only-topic"
        )
    return [key for topic in sorted(wanted) if topic in counts for key in partitions_of(topic, counts[topic])]
