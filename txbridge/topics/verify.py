"""The internal topics on the cluster: a plan is applied, or tried, and the layout is verified when a program starts.

A layout that would lose messages is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from txbridge.core.names import Names, is_group, is_topic
from txbridge.errors import EnvironmentProblemError, UsageError
from txbridge.kafka.admin import ALIKE, FoundTopic, KafkaCluster, MissingRight, TopicRequest, wait_for
from txbridge.kafka.errors import other_cluster
from txbridge.topics.plan import PlanOptions, TopicAction, TopicPlan, compare, judge
from txbridge.topics.spec import HALF_ROOM, IN_SYNC, RETENTION, Deviation, check_topic


def plan(cluster: KafkaCluster, names: Names, options: PlanOptions) -> list[TopicPlan]:
    """Compare the topics with the wanted ones, and have the cluster judge the changes in a dry run. Changes nothing."""
    return _plan(cluster, names, _with_groups_there(cluster, names, options))


def _plan(cluster: KafkaCluster, names: Names, options: PlanOptions) -> list[TopicPlan]:
    brokers = cluster.broker_count()
    seen = cluster.read_topics(_topics(names, options))
    plans = compare(names, options, seen, brokers)
    return carry_out(cluster, plans, dry_run=True)


def apply(cluster: KafkaCluster, names: Names, options: PlanOptions) -> list[TopicPlan]:
    """Carry out the plan. If the dry run refuses anything, nothing is done. Returns the plan with its refusals.

    Waits until the cluster shows all topics as wanted. It may run again, and several may run at a time.
    """
    options = _with_groups_there(cluster, names, options)
    planned = _plan(cluster, names, options)
    if any(one.action is TopicAction.REFUSED for one in planned):
        return planned
    done = carry_out(cluster, planned, dry_run=False)
    if not any(one.action is TopicAction.REFUSED for one in done):
        wait_for(lambda: _is_done(cluster, names, options, done), "some topics were still not as wanted")
    return done


def _with_groups_there(cluster: KafkaCluster, names: Names, options: PlanOptions) -> PlanOptions:
    """Add the groups whose check topics clients have created. These topics grow with the largest message as well."""
    if options.relay:
        return options
    for group in options.groups:
        if not is_group(group) or not is_topic(names.check(group)):
            raise UsageError(f"{group!r} cannot be a producer group: {names.check(group)!r} would be no topic name")
    prefix = names.check("")
    there = {topic.removeprefix(prefix) for topic in cluster.topics_with_prefix(prefix)}
    return replace(options, groups=tuple(sorted({*options.groups, *there})))


def _topics(names: Names, options: PlanOptions) -> list[str]:
    ours = [names.outbox] if options.relay else [*names.internal, *map(names.check, options.groups)]
    return [*ours, *(one.name for one in options.real_topics)]


def carry_out(cluster: KafkaCluster, plans: list[TopicPlan], *, dry_run: bool) -> list[TopicPlan]:
    """Create and alter topics, or have the cluster judge both. Its refusals (rights, policies, brokers) go into plans.

    Providers of Kafka do not let every property be set. A property that is not vital does not stop the others.
    """
    refusals = _request(cluster, plans, dry_run=dry_run)
    return [
        _settle(cluster, one, reason, dry_run=dry_run) if (reason := refusals.get(one.topic)) else one for one in plans
    ]


def _request(cluster: KafkaCluster, plans: list[TopicPlan], *, dry_run: bool) -> dict[str, str | None]:
    """Make the requests of these plans. Returns the reason for each topic that was refused; None for the others."""
    create = [
        TopicRequest(one.topic, one.partitions, one.replication_factor, one.config)
        for one in plans
        if one.action is TopicAction.CREATE
    ]
    alter = {one.topic: one.config for one in plans if one.action is TopicAction.CHANGE and one.changes}
    refusals: dict[str, str | None] = {}
    if create:
        refusals |= cluster.create_topics(create, dry_run=dry_run)
    if alter:
        refusals |= cluster.alter_topics(alter, dry_run=dry_run)
    return refusals


def _settle(cluster: KafkaCluster, refused: TopicPlan, reason: str, *, dry_run: bool) -> TopicPlan:
    """The part of a refused plan that can be done: all vital changes.

    In a dry run, the other changes are added that the cluster accepts.
    """
    optional = [change for change in refused.changes if not change.vital]
    settled = replace(refused, changes=tuple(change for change in refused.changes if change.vital))
    if not optional or _request(cluster, [settled], dry_run=dry_run).get(refused.topic):
        return replace(refused, action=TopicAction.REFUSED, reasons=(reason,))
    for change in optional:
        why: str | None = reason
        if dry_run:
            more = replace(settled, changes=(*settled.changes, change))
            why = _request(cluster, [more], dry_run=True).get(refused.topic)
            if why is None:
                settled = more
                continue
        note = f"{change.name}={change.new} is not set; all start without it: {why}"
        settled = replace(settled, notes=(*settled.notes, note), left_out=(*settled.left_out, change.name))
    if settled.action is TopicAction.CHANGE and not settled.changes:
        settled = replace(settled, action=TopicAction.OK)
    return settled


def _is_done(cluster: KafkaCluster, names: Names, options: PlanOptions, done: list[TopicPlan]) -> bool:
    seen = cluster.read_topics(_topics(names, options))
    leaders = all(isinstance(sight, FoundTopic) and sight.leaderless == 0 for sight in seen.values())
    left_out = {one.topic: set(one.left_out) for one in done}
    # The number of brokers counts for new topics only, and all topics exist now.
    return leaders and all(
        not one.reasons and all(change.name in left_out[one.topic] for change in one.changes)
        for one in compare(names, options, seen, brokers=1)
    )


__all__ = ["Layout", "LayoutError", "OutboxLayout", "check_layout", "ensure_check_topic", "verify_relay_topic"]


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
    #: Each deviation without which nothing would be lost, with its remedy.
    weak: tuple[str, ...] = ()
    #: Kafka's id of the cluster.
    cluster_id: str = ""

    @property
    def max_message_size(self) -> int:
        """Bytes; the largest user value. 64 KiB are left for key and headers."""
        return self.half_max_message_bytes - HALF_ROOM


def check_layout(cluster: KafkaCluster, names: Names, *, client: bool = False, longest_wait_ms: int = 0) -> Layout:
    """Verify the internal topics of a namespace. Each request is bounded by REQUEST_TIMEOUT_S.

    All topics must exist, with the right cleanup policy and LogAppendTime. HALF, END, OP and OFFSET must have the same
    number of partitions. END and OP must be kept as long as HALF, and HALF as long as `longest_wait_ms`. A `client`
    never touches OP, OFFSET and discard. So it needs no rights to see them (DESCRIBE, DESCRIBE_CONFIGS). The ones that
    it may see are checked all the same.

    Raises LayoutError with all problems, KafkaUnreachableError, EnvironmentProblemError.
    """
    seen = cluster.read_topics(names.internal)
    half = seen[names.half]
    spared = (names.op, names.offset, names.discard) if client else ()
    unchecked = tuple(topic for topic in spared if isinstance(seen[topic], MissingRight))
    # No size is asked for: whatever HALF takes, the others must take as well.
    options = PlanOptions(max_message_size=1, longest_wait=longest_wait_ms)
    weak = _list_weak(one for one in judge(names, options, seen) if one.topic not in unchecked)
    assert isinstance(half, FoundTopic)
    present = [facts for facts in seen.values() if isinstance(facts, FoundTopic)]
    return Layout(
        partitions=half.partitions,
        topic_ids={facts.name: facts.topic_id for facts in present},
        half_max_message_bytes=int(half.config["max.message.bytes"]),
        max_message_bytes=max(int(facts.config["max.message.bytes"]) for facts in present),
        half_retention_ms=int(half.config[RETENTION]),
        replication_factor=half.replication_factor,
        min_insync_replicas=int(half.config.get(IN_SYNC, "1")),
        weak=weak,
        cluster_id=cluster.read_greeting(names.half).cluster_id,
    )


class OutboxLayout(NamedTuple):
    """OUTBOX, and each deviation without which nothing would be lost, with its remedy."""

    topic: FoundTopic
    weak: tuple[str, ...]


def verify_relay_topic(cluster: KafkaCluster, names: Names) -> OutboxLayout:
    """Verify OUTBOX, the only internal topic that a relay needs. Raises and is bounded as `check_layout`."""
    seen = cluster.read_topics([names.outbox])
    weak, topic = _list_weak(judge(names, PlanOptions(relay=True), seen)), seen[names.outbox]
    assert isinstance(topic, FoundTopic)
    return OutboxLayout(topic, weak)


def _list_weak(found: Iterable[Deviation]) -> tuple[str, ...]:
    """The deviations without which nothing would be lost. Raises LayoutError if there are others."""
    listed = [(one.vital, f"{one.topic}: {one}") for one in found]
    if vital := [text for is_vital, text in listed if is_vital]:
        raise LayoutError(vital)
    return tuple(text for _, text in listed)


def ensure_check_topic(cluster: KafkaCluster, names: Names, group: str, layout: Layout) -> bool:
    """Create the topic of a producer group's checks if it is missing, and wait until it can be subscribed to.

    Returns whether it was missing. It is replicated like HALF. An existing topic must be able to carry the checks.
    Raises UsageError for a name that cannot be a group, LayoutError, KafkaUnreachableError, EnvironmentProblemError.
    """
    topic = names.check(group)
    if not is_group(group) or not is_topic(topic):
        raise UsageError(f"{group!r} cannot be a producer group: {topic!r} would be no topic name")
    wanted = check_topic(names, group, message_size=layout.max_message_size)
    sight = cluster.read_topics([topic])[topic]
    if sight is None:
        if problem := other_cluster(layout.cluster_id, cluster.read_greeting(names.half).cluster_id):
            raise EnvironmentProblemError(problem)
        copies = layout.replication_factor
        properties = replace(wanted, in_sync=layout.min_insync_replicas).new_properties(copies)
        planned = [TopicPlan(topic, TopicAction.CREATE, wanted.partitions, copies, tuple(properties))]
        # The dry run leaves out what the cluster does not allow to be set and is not vital.
        [done] = carry_out(cluster, carry_out(cluster, planned, dry_run=True), dry_run=False)
        for reason in done.reasons:
            if ALIKE in reason:
                raise UsageError(
                    f"the name of producer group {group!r} is too similar to that of another group here: {reason}"
                )
            raise LayoutError([f"{topic}: {reason}; or let an administrator run {wanted.apply}"])
    else:
        _list_weak(wanted.deviations(sight))

    def is_visible() -> bool:
        now = cluster.read_topics([topic])[topic]
        return isinstance(now, FoundTopic) and now.leaderless == 0

    wait_for(is_visible, f"the topic {topic} did not get leaders for all of its partitions", cluster.bounds)
    return sight is None
