"""`txbridge topics`, the check at the start and the check topics, on a real Kafka."""

from __future__ import annotations

import json
import threading
import time
import uuid

import pytest
from confluent_kafka import Consumer, Producer, TopicCollection
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from typer.testing import CliRunner

from tests.support.harness import eventually
from txbridge.cli.topics import app
from txbridge.core.names import Names
from txbridge.embedded import EmbeddedKafka
from txbridge.errors import EnvironmentProblemError, UsageError
from txbridge.kafka import config as kafka_config
from txbridge.kafka.admin import KafkaCluster
from txbridge.topics.apply import apply
from txbridge.topics.plan import PlanOptions, TopicAction
from txbridge.topics.verify import KafkaUnreachableError, LayoutError, check_layout, ensure_check_topic

DAY = 86_400_000
LOG = {
    "cleanup.policy": "delete",
    "retention.ms": str(7 * DAY),
    "retention.bytes": "-1",
    "message.timestamp.type": "LogAppendTime",
}


@pytest.fixture(scope="module")
def kafka():
    """A cluster with an authorizer that allows everything without an ACL, and with automatic creation of topics."""
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        "auto.create.topics.enable": "true",
    }
    with EmbeddedKafka(config=settings) as running:
        yield running


@pytest.fixture
def user(kafka):
    return {"bootstrap.servers": kafka.bootstrap_servers}


@pytest.fixture
def admin(user):
    return AdminClient(user)


@pytest.fixture
def namespace():
    return f"t{uuid.uuid4().hex[:8]}"


@pytest.fixture
def topics(kafka, namespace, monkeypatch):
    """Run the command in a namespace of this test."""
    monkeypatch.setenv("TXBRIDGE_BOOTSTRAP_SERVERS", kafka.bootstrap_servers)
    monkeypatch.setenv("TXBRIDGE_NAMESPACE", namespace)
    return lambda *arguments: CliRunner().invoke(app, arguments, catch_exceptions=True)


def create(admin, *topics):
    for future in admin.create_topics(list(topics)).values():
        future.result()
    # The broker answers before its own metadata contain the topic.
    names = TopicCollection([topic.topic for topic in topics])
    deadline = time.monotonic() + 10
    while any(future.exception() for future in admin.describe_topics(names).values()) and time.monotonic() < deadline:
        time.sleep(0.05)


def config_of(admin, topic, *names):
    (future,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
    entries = future.result()
    return {name: entries[name].value for name in names}


def actions(result):
    return {topic["topic"].partition(".")[2]: topic["action"] for topic in json.loads(result.stdout)["topics"]}


class Denied:
    """Takes rights away from everybody inside the block; all users are ANONYMOUS here."""

    def __init__(self, admin, kind, name, *operations):
        self._admin = admin
        self._kind = kind
        self._name = name
        self._operations = operations

    def __enter__(self):
        bindings = [self._binding(AclOperation.ALL, AclPermissionType.ALLOW)]
        bindings += [self._binding(operation, AclPermissionType.DENY) for operation in self._operations]
        for future in self._admin.create_acls(bindings).values():
            future.result()
        eventually(lambda: len(self._known()) == len(bindings), 30)

    def __exit__(self, *_):
        one = AclBindingFilter(
            self._kind, self._name, ResourcePatternType.LITERAL, None, None, AclOperation.ANY, AclPermissionType.ANY
        )
        for future in self._admin.delete_acls([one]).values():
            future.result()
        eventually(lambda: not self._known(), 30)

    def _known(self):
        """ACLs that the broker itself knows: it reads its metadata log some time after the controller wrote it."""
        one = AclBindingFilter(
            self._kind, self._name, ResourcePatternType.LITERAL, None, None, AclOperation.ANY, AclPermissionType.ANY
        )
        return self._admin.describe_acls(one).result()

    def _binding(self, operation, permission):
        return AclBinding(
            self._kind, self._name, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*", operation, permission
        )


def test_plan_apply_plan_on_a_fresh_cluster(topics, admin, namespace):
    planned = topics("plan", "--format", "json")
    assert planned.exit_code == 1
    assert set(actions(planned).values()) == {"create"}
    assert admin.list_topics().topics.keys() & {f"{namespace}.RMQ_SYS_TRANS_HALF_TOPIC"} == set()

    applied = topics("apply", "--format", "json")
    assert applied.exit_code == 0
    again = topics("plan", "--format", "json")
    assert again.exit_code == 0
    assert actions(again) == {
        "RMQ_SYS_TRANS_HALF_TOPIC": "ok",
        "RMQ_SYS_TRANS_END_TOPIC": "ok",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC": "ok",
        "RMQ_SYS_TRANS_OFFSET_TOPIC": "ok",
        "TRANS_CHECK_MAX_TIME_TOPIC": "ok",
    }
    second = topics("apply")
    assert second.exit_code == 0
    assert "all topics are as they should be" in second.stdout

    expected = {
        "RMQ_SYS_TRANS_HALF_TOPIC": (4, {**LOG, "max.message.bytes": "1065536"}),
        "RMQ_SYS_TRANS_END_TOPIC": (4, LOG),
        "RMQ_SYS_TRANS_OP_HALF_TOPIC": (4, LOG),
        "RMQ_SYS_TRANS_OFFSET_TOPIC": (
            4,
            {
                "cleanup.policy": "compact",
                "message.timestamp.type": "LogAppendTime",
                "segment.bytes": "16777216",
                "min.cleanable.dirty.ratio": "0.1",
                "delete.retention.ms": str(DAY),
            },
        ),
        "TRANS_CHECK_MAX_TIME_TOPIC": (
            1,
            {**LOG, "retention.ms": str(30 * DAY), "max.message.bytes": "1131072"},
        ),
    }
    for name, (partitions, config) in expected.items():
        topic = f"{namespace}.{name}"
        assert len(admin.list_topics(topic).topics[topic].partitions) == partitions
        assert config_of(admin, topic, *config) == config


def test_table(topics, namespace):
    planned = topics("plan", "--partitions", "2")
    assert planned.exit_code == 1
    lines = [" ".join(line.split()) for line in planned.stdout.splitlines()]
    assert "action topic partitions copies what" in lines
    assert f"create {namespace}.RMQ_SYS_TRANS_HALF_TOPIC 2 1 cleanup.policy=delete" in lines
    assert lines[-1] == "5 to create, 0 to change: run apply"
    assert topics("apply", "--partitions", "2").stdout.splitlines()[-1] == "5 created, 0 changed"


def test_layout_of_applied_topics(topics, admin, namespace):
    assert topics("apply", "--partitions", "3", "--max-message-size", "3000000").exit_code == 0
    names = Names(namespace)
    layout = check_layout(admin, names, longest_wait_ms=3 * DAY)
    described = {name: layout.topic_ids[name] for name in (names.half, names.end, names.op, names.offset)}
    assert len(set(described.values())) == 4
    assert all(len(topic_id) == 22 for topic_id in described.values())
    assert layout.partitions == 3
    assert layout.max_message_size == 3_000_000
    assert layout.half_max_message_bytes == 3_065_536
    assert layout.max_message_bytes == 3_131_072
    assert layout.half_retention_ms == 7 * DAY
    assert (layout.replication_factor, layout.min_insync_replicas, layout.unchecked) == (1, 1, ())
    assert check_layout(admin, names, client=True) == check_layout(admin, names)


def test_namespaces_do_not_see_each_other(topics, admin, namespace):
    assert topics("apply").exit_code == 0
    with pytest.raises(LayoutError, match=f"other.{namespace}.RMQ_SYS_TRANS_HALF_TOPIC: does not exist"):
        check_layout(admin, Names(f"other.{namespace}"))


def test_partition_mismatch_is_refused(topics, admin, namespace):
    create(admin, NewTopic(f"{namespace}.RMQ_SYS_TRANS_OP_HALF_TOPIC", 6, 1))
    for command in ("plan", "apply"):
        result = topics(command, "--partitions", "4", "--format", "json")
        assert result.exit_code == 2
        op = next(one for one in json.loads(result.stdout)["topics"] if one["topic"].endswith("OP_HALF_TOPIC"))
        assert op["action"] == "refused"
        assert op["reasons"][0].startswith("has 6 partitions, must have 4: ")
    assert f"{namespace}.RMQ_SYS_TRANS_HALF_TOPIC" not in admin.list_topics().topics
    # Without an option, the plan keeps the existing number.
    assert topics("apply").exit_code == 0
    assert check_layout(admin, Names(namespace)).partitions == 6
    grown = topics("apply", "--partitions", "8")
    assert grown.exit_code == 2
    assert "has 6 partitions, must have 8" in grown.stdout


def test_longer_retention_stays_and_the_others_follow(topics, admin, namespace):
    names = Names(namespace)
    create(admin, NewTopic(names.half, 4, 1, config={**LOG, "retention.ms": str(14 * DAY)}))
    create(admin, NewTopic(names.op, 4, 1, config={**LOG, "retention.ms": str(60 * DAY)}))
    create(admin, NewTopic(names.discard, 1, 1, config={"retention.ms": "-1", "segment.ms": "3600000"}))
    assert topics("apply").exit_code == 0
    retention = {
        topic: config_of(admin, topic, "retention.ms")["retention.ms"]
        for topic in (names.half, names.end, names.op, names.discard)
    }
    assert retention == {
        names.half: str(14 * DAY),
        names.end: str(14 * DAY),
        names.op: str(60 * DAY),
        names.discard: "-1",
    }
    # The change is incremental: settings outside the plan are kept.
    assert config_of(admin, names.discard, "segment.ms") == {"segment.ms": "3600000"}


def test_weaker_settings_are_raised(topics, admin, namespace):
    names = Names(namespace)
    create(admin, NewTopic(names.half, 4, 1, config={"retention.ms": "3600000", "retention.bytes": "1000"}))
    planned = topics("plan", "--format", "json")
    assert planned.exit_code == 1
    assert json.loads(planned.stdout)["topics"][0]["changes"] == [
        {"name": "retention.ms", "old": "3600000", "new": "604800000", "vital": True},
        {"name": "retention.bytes", "old": "1000", "new": "-1", "vital": True},
        {"name": "message.timestamp.type", "old": "CreateTime", "new": "LogAppendTime", "vital": True},
        {"name": "max.message.bytes", "old": "1048588", "new": "1065536", "vital": True},
    ]
    assert topics("apply").exit_code == 0
    assert config_of(admin, names.half, *LOG) == LOG
    assert topics("plan").exit_code == 0


def test_several_at_a_time(admin, namespace):
    results = []

    def run():
        done = apply(KafkaCluster(admin), Names(namespace), PlanOptions())
        results.append({one.action for one in done})

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert not any(TopicAction.REFUSED in actions for actions in results)
    assert check_layout(admin, Names(namespace)).partitions == 4


def test_what_the_cluster_refuses_is_refused(topics, admin, namespace):
    result = topics("plan", "--replication-factor", "3")
    assert result.exit_code == 2
    assert "only 1 broker(s) are registered" in result.stdout
    assert topics("apply", "--replication-factor", "3").exit_code == 2
    assert not [topic for topic in admin.list_topics().topics if topic.startswith(namespace)]


@pytest.mark.parametrize(
    ("operation", "right"),
    [
        (AclOperation.DESCRIBE, "DESCRIBE"),
        (AclOperation.DESCRIBE_CONFIGS, "DESCRIBE_CONFIGS"),
        (AclOperation.ALTER_CONFIGS, "ALTER_CONFIGS"),
    ],
)
def test_a_missing_right_on_a_topic_is_named(topics, admin, namespace, operation, right):
    names = Names(namespace)
    assert topics("apply").exit_code == 0
    with Denied(admin, ResourceType.TOPIC, names.end, operation):
        result = topics("plan", "--max-message-size", "2000000", "--format", "json")
        if right == "ALTER_CONFIGS":  # nothing to alter in END
            assert result.exit_code == 1
        else:
            assert result.exit_code == 2
            end = json.loads(result.stdout)["topics"][1]
            assert end["reasons"] == [
                f"missing right {right} on topic {names.end}: grant it to the user of this connection",
            ]
            for client in (True, False):
                with pytest.raises(LayoutError, match=f"{names.end}: missing right {right} on topic {names.end}"):
                    check_layout(admin, names, client=client)
    with Denied(admin, ResourceType.TOPIC, names.half, operation):
        result = topics("apply", "--max-message-size", "2000000")
        assert result.exit_code == 2
        assert f"missing right {right} on topic {names.half}" in result.stdout
    assert config_of(admin, names.discard, "max.message.bytes") == {"max.message.bytes": "1131072"}
    with Denied(admin, ResourceType.TOPIC, names.op, operation):
        if right == "ALTER_CONFIGS":
            check_layout(admin, names)
        else:
            assert check_layout(admin, names, client=True).unchecked == (names.op,)
            with pytest.raises(LayoutError, match=f"{names.op}: missing right {right}"):
                check_layout(admin, names)


def test_the_missing_right_to_create_is_named(topics, admin, namespace):
    names = Names(namespace)
    with (
        Denied(admin, ResourceType.BROKER, "kafka-cluster", AclOperation.CREATE),
        Denied(admin, ResourceType.TOPIC, names.op, AclOperation.CREATE),
    ):
        result = topics("apply")
        assert result.exit_code == 2
        assert f"missing right CREATE on topic {names.op} (or on the cluster)" in result.stdout
    assert topics("apply").exit_code == 0
    check = names.check("orders")
    layout = check_layout(admin, names)
    with (
        Denied(admin, ResourceType.BROKER, "kafka-cluster", AclOperation.CREATE),
        Denied(admin, ResourceType.TOPIC, check, AclOperation.CREATE),
        pytest.raises(LayoutError, match=f"{check}: missing right CREATE .*`txbridge topics apply .* --group orders`"),
    ):
        ensure_check_topic(admin, names, "orders", layout)
    assert topics("apply", "--group", "orders").exit_code == 0
    with (
        Denied(admin, ResourceType.BROKER, "kafka-cluster", AclOperation.CREATE),
        Denied(admin, ResourceType.TOPIC, check, AclOperation.CREATE),
    ):
        ensure_check_topic(admin, names, "orders", layout)


def test_a_group_whose_name_is_too_like_that_of_another_is_refused_with_the_reason(topics, admin, namespace):
    names = Names(namespace)
    assert topics("apply").exit_code == 0
    layout = check_layout(admin, names, client=True)
    ensure_check_topic(admin, names, "orders.eu", layout)
    with pytest.raises(UsageError, match=r"'orders_eu' is too like .* differ only in '.' and '_' .*: choose another"):
        ensure_check_topic(admin, names, "orders_eu", layout)
    result = topics("apply", "--group", "orders_eu")
    assert result.exit_code == 2
    assert "choose another name" in result.stdout


def test_check_topic_can_be_subscribed_to_at_once(topics, admin, namespace, user):
    names = Names(namespace)
    assert topics("apply").exit_code == 0
    layout = check_layout(admin, names, client=True)
    ensure_check_topic(admin, names, "orders", layout)
    ensure_check_topic(admin, names, "orders", layout)
    check = names.check("orders")
    assert check == f"{namespace}.RMQ_SYS_TRANS_CHECK.orders"
    expected = {**LOG, "retention.ms": "3600000", "max.message.bytes": "1131072"}
    assert config_of(admin, check, *expected) == expected
    consumer = Consumer(kafka_config.check_consumer_config(user, group=check))
    try:
        consumer.subscribe([check])
        deadline = time.monotonic() + 20
        while not consumer.assignment() and time.monotonic() < deadline:
            assert consumer.poll(0.1) is None
        assert [part.partition for part in consumer.assignment()] == [0, 1, 2, 3]
    finally:
        consumer.close()
    # A larger limit also reaches the check topics that clients have created.
    assert topics("apply", "--max-message-size", "2000000").exit_code == 0
    assert config_of(admin, check, "max.message.bytes") == {"max.message.bytes": "2131072"}


def test_unreachable_cluster(namespace, monkeypatch):
    monkeypatch.setattr("txbridge.kafka.admin.REQUEST_TIMEOUT_S", 1.0)
    result = CliRunner().invoke(app, ["plan", "--bootstrap-servers", "127.0.0.1:1", "--namespace", namespace])
    assert isinstance(result.exception, KafkaUnreachableError)
    assert "Kafka cannot be reached" in str(result.exception)
    assert "Connection refused" in str(result.exception)
    quiet = AdminClient({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    with pytest.raises(KafkaUnreachableError):
        check_layout(quiet, Names(namespace))
    assert issubclass(KafkaUnreachableError, EnvironmentProblemError)


def test_no_client_of_ours_creates_topics_by_accident(user, admin, namespace):
    """The broker of these tests would create them: auto.create.topics.enable=true."""
    topic = f"{namespace}.orders.placed"
    failures = []
    producer = Producer(kafka_config.producer_config({**user, "message.timeout.ms": 1_000}))
    producer.produce(topic, b"x", on_delivery=lambda error, _: failures.append(error))
    producer.flush(120)
    assert len(failures) == 1
    assert failures[0] is not None
    assert topic not in admin.list_topics().topics
