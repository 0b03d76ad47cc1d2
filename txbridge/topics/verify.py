"""Verification of the internal topics when a client or worker starts. A layout that would lose messages is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from confluent_kafka.admin import AdminClient

from txbridge.core.names import Names, is_group, is_topic
from txbridge.errors import EnvironmentProblemError, UsageError
from txbridge.kafka.admin import ALIKE, Bounds, FoundTopic, KafkaCluster, MissingRight, Sight, TopicRequest, wait_for
from txbridge.kafka.unreachable import other_cluster
from txbridge.text import counted
from txbridge.topics.spec import (
    HALF_ROOM,
    Wanted,
    WantedTopic,
    check_topic,
    discard_topic,
    half_topic,
    history_topics,
    offset_topic,
)

__all__ = ["Layout", "LayoutError", "check_layout", "ensure_check_topic"]


class LayoutError(EnvironmentProblemError):
    """The internal topics are not as the protocol needs them. `problems` has all problems, each with its remedy."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("the topics are not as txbridge needs them:\n" + "\n".join(f"- {text}" for text in problems))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class Layout:
    """Facts about the internal topics that a client or worker needs, all checked."""

    #: Partitions of HALF, END, OP and OFFSET each.
    partitions: int
    #: By topic name.
    topic_ids: Mapping[str, str]
    #: Bytes; max.message.bytes of HALF.
    half_max_message_bytes: int
    #: Bytes; largest max.message.bytes of all internal topics, for the worker's producer.
    max_message_bytes: int
    #: ms; retention.ms of HALF. -1 is unlimited.
    half_retention_ms: int
    #: Of HALF. Check topics are created with the same values.
    replication_factor: int
    min_insync_replicas: int
    #: Topics that this user may not describe. A worker never has any. A client may lack OP, OFFSET and discard.
    unchecked: tuple[str, ...]
    #: Kafka's id of the cluster.
    cluster_id: str = ""

    @property
    def max_message_size(self) -> int:
        """Bytes; the largest user value. 64 KiB are left for key and headers."""
        return self.half_max_message_bytes - HALF_ROOM


def check_layout(
    admin: AdminClient,
    names: Names,
    *,
    client: bool = False,
    longest_wait_ms: int = 0,
    bounds: Bounds | None = None,
) -> Layout:
    """Verify the internal topics of a namespace. Each request is bounded by REQUEST_TIMEOUT_S and `bounds`.

    All topics must exist, with the right cleanup policy and LogAppendTime. HALF, END, OP and OFFSET must have the same
    number of partitions. END and OP must be kept as long as HALF, and HALF as long as `longest_wait_ms`. A `client`
    never touches OP, OFFSET and discard. So it needs no rights to see them (DESCRIBE, DESCRIBE_CONFIGS). The ones that
    it may see are checked all the same.

    Raises LayoutError with all problems, KafkaUnreachableError, EnvironmentProblemError.
    """
    cluster = KafkaCluster(admin, bounds)
    seen = cluster.read_topics([names.half, names.end, names.op, names.offset, names.discard])
    half = seen[names.half]
    unchecked: tuple[str, ...] = ()
    if client:
        unchecked = tuple(
            topic for topic in (names.op, names.offset, names.discard) if isinstance(seen[topic], MissingRight)
        )
    problems = [
        f"{topic}: {problem}"
        for topic, problem in _problems(names, seen, half, longest_wait_ms)
        if topic not in unchecked
    ]
    if problems or not isinstance(half, FoundTopic):
        raise LayoutError(problems)
    present = [facts for facts in seen.values() if isinstance(facts, FoundTopic)]
    return Layout(
        partitions=half.partitions,
        topic_ids={facts.name: facts.topic_id for facts in present},
        half_max_message_bytes=int(half.config["max.message.bytes"]),
        max_message_bytes=max(int(facts.config["max.message.bytes"]) for facts in present),
        half_retention_ms=int(half.config["retention.ms"]),
        replication_factor=half.replication_factor,
        min_insync_replicas=int(half.config.get("min.insync.replicas", "1")),
        unchecked=unchecked,
        cluster_id=cluster.read_greeting(names.half).cluster_id,
    )


def ensure_check_topic(
    admin: AdminClient, names: Names, group: str, layout: Layout, *, bounds: Bounds | None = None
) -> bool:
    """Create the topic of a producer group's checks if it is missing, and wait until it can be subscribed to.

    Returns whether it was missing. It is replicated like HALF. An existing topic must be able to carry the checks.
    Raises UsageError for a name that cannot be a group, LayoutError, KafkaUnreachableError, EnvironmentProblemError.
    """
    topic = names.check(group)
    if not is_group(group) or not is_topic(topic):
        raise UsageError(f"{group!r} cannot be a producer group: {topic!r} would be no topic name")
    cluster = KafkaCluster(admin, bounds)
    wanted = check_topic(names, group, message_size=layout.max_message_size)
    sight = cluster.read_topics([topic])[topic]
    if sight is None:
        if problem := other_cluster(layout.cluster_id, cluster.read_greeting(names.half).cluster_id):
            raise EnvironmentProblemError(problem)
        reason = _create(cluster, wanted, wanted.properties, layout)
        if reason is not None and ALIKE in reason:
            raise UsageError(
                f"the name of producer group {group!r} is too similar to that of another group here: {reason}"
            )
        # Some providers' clusters do not let every property be set. Then the topic is created with the vital ones only.
        vital = tuple(prop for prop in wanted.properties if prop.vital)
        if reason is not None and _create(cluster, wanted, vital, layout) is not None:
            raise LayoutError([f"{topic}: {reason}; or let an administrator run {_apply(names, group)}"])
    elif problems := list(_of_topic(wanted, sight, _apply(names, group))):
        raise LayoutError([f"{topic}: {problem}" for problem in problems])

    def is_visible() -> bool:
        now = cluster.read_topics([topic])[topic]
        return isinstance(now, FoundTopic) and now.leaderless == 0

    wait_for(is_visible, f"the topic {topic} did not get leaders for all of its partitions", bounds)
    return sight is None


def _create(cluster: KafkaCluster, topic: WantedTopic, properties: tuple[Wanted, ...], layout: Layout) -> str | None:
    """Create a check topic with these properties. Returns the reason if it was refused."""
    config = {prop.name: prop.value for prop in properties}
    config["min.insync.replicas"] = str(layout.min_insync_replicas)
    request = TopicRequest(topic.name, topic.partitions or 1, layout.replication_factor, config)
    return cluster.create_topics([request], dry_run=False)[topic.name]


def repair_of_policy(name: str, actual: str | None, wanted: str) -> str:
    """The remedy for a wrong cleanup policy. txbridge does not change it, because records may be missing."""
    return (
        f"cleanup.policy is {actual}, must be {wanted}: records that are needed may have been removed. If nothing in "
        f"{name} is needed, delete it and run `txbridge topics apply`; else set the policy yourself (kafka-configs.sh)"
    )


def _problems(names: Names, seen: Mapping[str, Sight], half: Sight, longest_wait_ms: int) -> Iterator[tuple[str, str]]:
    """All problems, each with its topic. Without HALF, the other topics are judged by their own needs only."""
    retention, size = str(longest_wait_ms), 0
    if isinstance(half, FoundTopic):
        retention = half.config["retention.ms"]
        size = int(half.config["max.message.bytes"]) - HALF_ROOM
    every = [
        half_topic(names, message_size=1, retention_ms=str(longest_wait_ms)),
        *history_topics(names, half_retention_ms=retention),
        offset_topic(names),
        discard_topic(names, message_size=size),
    ]
    for wanted in every:
        sight = seen[wanted.name]
        for problem in _of_topic(wanted, sight, _apply(names)):
            yield wanted.name, problem
        if wanted.partitions is not None or not isinstance(half, FoundTopic) or not isinstance(sight, FoundTopic):
            continue
        if sight.partitions != half.partitions:
            has = counted(sight.partitions, "partition")
            problem = (
                f"has {has}, {names.half} has {half.partitions}: the number must be the same and never change. Use "
                f"another namespace, or, if nothing in the topic is needed, delete it and run {_apply(names)}"
            )
            yield wanted.name, problem


def _of_topic(wanted: WantedTopic, sight: Sight, remedy: str) -> Iterator[str]:
    if sight is None:
        yield f"does not exist: {remedy} creates it"
    elif isinstance(sight, MissingRight):
        yield str(sight)
    else:
        for prop in wanted.unmet_properties(sight.config):
            actual = sight.config.get(prop.name)
            if prop.name == "cleanup.policy":
                yield repair_of_policy(wanted.name, actual, prop.value)
            elif prop.vital:
                yield f"{prop.complaint_about(actual)}: {remedy} sets it"


def _apply(names: Names, group: str = "") -> str:
    namespace = f" --namespace {names.namespace}" if names.namespace else ""
    return f"`txbridge topics apply{namespace}{group and ' --group '}{group}`"
