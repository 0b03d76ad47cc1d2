"""Application of a topics plan, or its dry run on the cluster, with the reason for each refusal."""

from __future__ import annotations

from dataclasses import replace

from txbridge.core.names import Names, is_group, is_topic
from txbridge.errors import UsageError
from txbridge.kafka.admin import FoundTopic, KafkaCluster, TopicRequest, wait_for
from txbridge.topics.plan import PlanOptions, TopicAction, TopicPlan, compare


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
