"""The check of the internal topics at the start of clients and workers."""

from __future__ import annotations

import pytest

from tests.support.right_topics import RIGHT, facts
from txbridge.core.names import Names
from txbridge.errors import EnvironmentProblemError, UsageError
from txbridge.kafka.admin import Bounds, Greeting, MissingRight
from txbridge.topics.spec import PropertyRule, Wanted
from txbridge.topics.verify import Layout, LayoutError, check_layout, ensure_check_topic, verify_relay_topic

HALF, END, OP, OFFSET, DISCARD, OUTBOX, CHECK = (f"ns.{name}" for name in RIGHT)
NAMES = Names("ns")
APPLY = "`txbridge topics apply --namespace ns`"
APPLY_RELAY = "`txbridge topics apply --namespace ns --relay`"
APPLY_GROUP = "`txbridge topics apply --namespace ns --group orders`"


class FakeCluster:
    """Shows `sights`, one after the other for a topic with a list of them. Creates into `created`."""

    def __init__(self):
        self.sights = {topic: facts(topic) for topic in (HALF, END, OP, OFFSET, DISCARD)}
        self.created = []
        self.refusal = None
        self.cluster_id = "first"
        #: A property that the cluster does not allow to be set.
        self.forbidden = None
        self.bounds = Bounds()

    def read_greeting(self, topic):
        return Greeting(self.cluster_id, {})

    def read_topics(self, names):
        return {name: seen.pop(0) if isinstance(seen := self.sights[name], list) else seen for name in names}

    def create_topics(self, requests, *, dry_run):
        refused = [request.name for request in requests if self.forbidden in request.config]
        self.created += [request for request in requests if request.name not in refused and not dry_run]
        return {request.name: "cannot be set" if request.name in refused else self.refusal for request in requests}


@pytest.fixture
def cluster():
    return FakeCluster()


def problems(cluster, **options):
    with pytest.raises(LayoutError) as caught:
        check_layout(cluster, NAMES, **options)
    assert str(caught.value) == "the topics are not as txbridge needs them:\n" + "\n".join(
        f"- {problem}" for problem in caught.value.problems
    )
    return list(caught.value.problems)


def test_right_layout(cluster):
    layout = check_layout(cluster, NAMES, longest_wait_ms=259_200_000)
    assert layout == Layout(
        partitions=4,
        topic_ids={topic: f"id of {topic}" for topic in (HALF, END, OP, OFFSET, DISCARD)},
        half_max_message_bytes=1_065_536,
        max_message_bytes=1_131_072,
        half_retention_ms=604_800_000,
        replication_factor=3,
        min_insync_replicas=2,
        cluster_id="first",
    )
    assert layout.max_message_size == 1_000_000


def test_everything_that_is_wrong_is_said_at_once(cluster):
    cluster.sights |= {
        HALF: facts(HALF, message_timestamp_type="CreateTime"),
        END: facts(END, partitions=8, retention_ms="3600000"),
        OP: facts(OP, cleanup_policy="compact", retention_bytes="1000"),
        OFFSET: facts(OFFSET, cleanup_policy="compact,delete"),
        DISCARD: facts(DISCARD, max_message_bytes="1048588"),
    }
    lost = ", or records that are needed are removed"
    yourself = "; else set the policy yourself (kafka-configs.sh)"
    again = "or finished messages are asked about, and could be delivered, again"
    assert problems(cluster) == [
        f"{HALF}: message.timestamp.type is CreateTime, must be LogAppendTime: {APPLY} sets it",
        (
            f"{END}: has 8 partitions, must have 4: HALF, END, OP and OFFSET have the same number, fixed for the life "
            "of a namespace, because partitions with the same number belong together: ask for the number that is "
            f"there, or use a new namespace; or, if nothing in the topic is needed, delete it and run {APPLY}"
        ),
        f"{END}: retention.ms is 3600000 (1h), must be at least 604800000 (7d), {again}: {APPLY} sets it",
        (
            f"{OP}: cleanup.policy is compact, must be delete{lost}: if nothing in {OP} is needed, delete it and run "
            f"{APPLY}{yourself}"
        ),
        f"{OP}: retention.bytes is 1000, must be -1 (unlimited): {APPLY} sets it",
        (
            f"{OFFSET}: cleanup.policy is compact,delete, must be compact{lost}: if nothing in {OFFSET} is needed, "
            f"delete it and run {APPLY}{yourself}"
        ),
        f"{DISCARD}: max.message.bytes is 1048588, must be at least 1131072: {APPLY} sets it",
    ]


def test_history_must_be_kept_as_long_as_the_half_messages(cluster):
    cluster.sights[HALF] = facts(HALF, retention_ms="-1")
    assert problems(cluster) == [
        f"{topic}: retention.ms is 604800000 (7d), must be -1 (unlimited), or finished messages are asked about, and "
        f"could be delivered, again: {APPLY} sets it"
        for topic in (END, OP)
    ]


def test_half_messages_must_be_kept_for_their_whole_life(cluster):
    assert problems(cluster, longest_wait_ms=604_800_001) == [
        (
            f"{HALF}: retention.ms is 604800000 (7d), must be at least 604800001 (7d), or messages vanish that wait "
            f"for 7d (transaction_max_age, timer_max_delay): {APPLY} sets it"
        )
    ]


def test_what_only_costs_time_is_told_and_not_refused(cluster):
    cluster.sights[END] = facts(END, compression_type="zstd")
    cluster.sights[OFFSET] = facts(OFFSET, segment_bytes="1073741824", min_cleanable_dirty_ratio="0.5")
    cluster.sights[DISCARD] = facts(DISCARD, retention_ms="3600000")
    sets = f": {APPLY} sets it, if the cluster allows it"
    early = "or records are deleted too early"
    late = "a small record that unpacks to a huge one stops a partition, and commits can be a second late"
    assert check_layout(cluster, NAMES).weak == (
        f"{END}: compression.type is zstd, must be uncompressed, or {late}{sets}",
        f"{OFFSET}: segment.bytes is 1073741824, must be at most 16777216, or take-overs read more{sets}",
        f"{OFFSET}: min.cleanable.dirty.ratio is 0.5, must be at most 0.1, or take-overs read more{sets}",
        f"{DISCARD}: retention.ms is 3600000 (1h), must be at least 2592000000 (30d), {early}{sets}",
    )


def test_a_client_needs_no_rights_on_what_only_the_worker_touches(cluster):
    cluster.sights |= {topic: MissingRight("DESCRIBE", topic) for topic in (OP, OFFSET, DISCARD)}
    layout = check_layout(cluster, NAMES, client=True)
    assert layout.topic_ids == {HALF: f"id of {HALF}", END: f"id of {END}"}
    cluster.sights[OP] = facts(OP, partitions=5)
    assert problems(cluster, client=True)[0].startswith(f"{OP}: has 5 partitions, must have 4: ")


def test_a_relay_looks_at_its_own_topic_alone(cluster):
    cluster.sights = {OUTBOX: facts(OUTBOX, partitions=8, retention_ms="3600000", in_sync="1")}
    topic, weak = verify_relay_topic(cluster, NAMES)
    assert (topic.topic_id, topic.partitions) == (f"id of {OUTBOX}", 8)
    sets = f": {APPLY_RELAY} sets it, if the cluster allows it"
    late = "a relay that comes back later does not know what it has sent"
    assert weak == (
        f"{OUTBOX}: retention.ms is 3600000 (1h), must be at least 604800000 (7d), or {late}{sets}",
        f"{OUTBOX}: min.insync.replicas is 1, must be at least 2, or what one broker has can be lost with it{sets}",
    )


@pytest.mark.parametrize(
    ("sight", "problem"),
    [
        (None, f"does not exist: {APPLY_RELAY} creates it"),
        (
            facts(OUTBOX, max_message_bytes="1000"),
            f"max.message.bytes is 1000, must be at least 1048576: {APPLY_RELAY} sets it",
        ),
        (
            MissingRight("DESCRIBE", OUTBOX),
            f"missing right DESCRIBE on topic {OUTBOX}: grant it to the user of this connection",
        ),
    ],
)
def test_what_a_relay_does_not_start_without(cluster, sight, problem):
    cluster.sights = {OUTBOX: sight}
    with pytest.raises(LayoutError) as caught:
        verify_relay_topic(cluster, NAMES)
    assert caught.value.problems == (f"{OUTBOX}: {problem}",)


def test_check_topic_is_created_and_waited_for(cluster):
    layout = check_layout(cluster, NAMES)
    cluster.sights[CHECK] = [None, None, facts(CHECK, leaderless=1), facts(CHECK)]
    ensure_check_topic(cluster, NAMES, "orders", layout)
    (request,) = cluster.created
    assert (request.name, request.partitions, request.replication_factor) == (CHECK, 4, 3)
    assert request.config == {**RIGHT["RMQ_SYS_TRANS_CHECK.orders"], "min.insync.replicas": "2"}
    assert cluster.sights[CHECK] == []


def test_check_topic_is_not_created_in_another_cluster(cluster):
    layout = check_layout(cluster, NAMES)
    cluster.cluster_id, cluster.sights[CHECK] = "second", None
    with pytest.raises(EnvironmentProblemError, match="second, not first as at the start"):
        ensure_check_topic(cluster, NAMES, "orders", layout)
    assert cluster.created == []


def test_check_topic_that_is_there_is_left_alone(cluster):
    layout = check_layout(cluster, NAMES)
    cluster.sights[CHECK] = facts(CHECK, partitions=2, retention_ms="60000")
    ensure_check_topic(cluster, NAMES, "orders", layout)
    assert cluster.created == []


@pytest.mark.parametrize(
    ("sight", "problem"),
    [
        (
            facts(CHECK, max_message_bytes="1048588"),
            f"max.message.bytes is 1048588, must be at least 1131072: {APPLY_GROUP} sets it",
        ),
        (None, f"missing right CREATE on topic x; or let an administrator run {APPLY_GROUP}"),
    ],
)
def test_check_topic_that_can_not_carry_checks_or_be_created(cluster, sight, problem):
    layout = check_layout(cluster, NAMES)
    cluster.sights[CHECK] = sight
    cluster.refusal = "missing right CREATE on topic x"
    with pytest.raises(LayoutError) as caught:
        ensure_check_topic(cluster, NAMES, "orders", layout)
    assert caught.value.problems == (f"{CHECK}: {problem}",)


@pytest.mark.parametrize("forbidden", ["retention.ms", "unclean.leader.election.enable"])
def test_check_topic_without_a_setting_that_the_cluster_refuses_and_that_is_not_vital(cluster, forbidden):
    layout = check_layout(cluster, NAMES)
    cluster.sights[CHECK] = [None, facts(CHECK)]
    cluster.forbidden = forbidden
    ensure_check_topic(cluster, NAMES, "orders", layout)
    (request,) = cluster.created
    right = {**RIGHT["RMQ_SYS_TRANS_CHECK.orders"], "min.insync.replicas": "2"}
    assert request.config == {name: value for name, value in right.items() if name != forbidden}


def test_check_topic_that_never_gets_leaders(cluster, monkeypatch):
    monkeypatch.setattr("txbridge.kafka.admin.VISIBLE_TIMEOUT_S", 0.1)
    layout = check_layout(cluster, NAMES)
    cluster.sights[CHECK] = facts(CHECK, leaderless=4)
    with pytest.raises(
        EnvironmentProblemError, match=f"the topic {CHECK} did not get leaders for all of its partitions"
    ):
        ensure_check_topic(cluster, NAMES, "orders", layout)


@pytest.mark.parametrize(("namespace", "group"), [("ns", ""), ("ns", "a b"), ("n" * 100, "g" * 200)])
def test_groups_that_can_not_be(cluster, namespace, group):
    layout = check_layout(cluster, NAMES)
    with pytest.raises(UsageError, match="cannot be a producer group"):
        ensure_check_topic(cluster, Names(namespace), group, layout)


@pytest.mark.parametrize(
    ("name", "rule", "value", "actual", "met"),
    [
        ("cleanup.policy", PropertyRule.IS, "delete", "delete", True),
        ("cleanup.policy", PropertyRule.IS, "delete", "compact,delete", False),
        ("cleanup.policy", PropertyRule.IS, "delete", None, False),
        ("retention.ms", PropertyRule.AT_LEAST, "100", "100", True),
        ("retention.ms", PropertyRule.AT_LEAST, "100", "99", False),
        ("retention.ms", PropertyRule.AT_LEAST, "100", "-1", True),
        ("retention.ms", PropertyRule.AT_LEAST, "-1", "9223372036854775807", False),
        ("retention.ms", PropertyRule.AT_LEAST, "-1", "-1", True),
        ("min.cleanable.dirty.ratio", PropertyRule.AT_MOST, "0.1", "0.1", True),
        ("min.cleanable.dirty.ratio", PropertyRule.AT_MOST, "0.1", "0.11", False),
    ],
)
def test_rules(name, rule, value, actual, met):
    assert Wanted(name, rule, value).is_met(actual) is met
