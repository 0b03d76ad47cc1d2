"""`txbridge topics`, the check at the start and the check topics, on a real Kafka."""

from __future__ import annotations

import json
import threading
import time
import uuid

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicCollection
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType
from typer.testing import CliRunner

from tests.support.harness import eventually
from tests.support.module_fixtures import module_kafka
from tests.support.right_topics import CHECK, LOG, OUTBOX, RIGHT
from txbridge.cli.topics import app
from txbridge.core.names import Names
from txbridge.errors import UsageError
from txbridge.kafka import config as kafka_config
from txbridge.kafka.admin import KafkaCluster
from txbridge.topics.plan import PlanOptions, TopicAction, wanted_topics
from txbridge.topics.verify import LayoutError, apply, check_layout, ensure_check_topic, verify_relay_topic

DAY = 86_400_000
#: Settings that internal topics may inherit from their brokers, with the reason.
FREE = {
    "only the effort of a broker": "compression.gzip.level compression.lz4.level compression.zstd.level",
    "only its disk and its speed": "index.interval.bytes segment.index.bytes preallocate",
    "a record counts when the copies in sync have it, be it on their disks or not": "flush.messages flush.ms",
    "for whoever moves copies": "follower.replication.throttled.replicas leader.replication.throttled.replicas",
    "segments end, and compaction begins, earlier": "segment.jitter.ms max.compaction.lag.ms",
    "readers do not see the files that wait": "file.delete.delay.ms",
    "tiered records are read as others": "remote.storage.enable remote.log.copy.disable local.retention.bytes "
    "local.retention.ms remote.log.delete.on.disable",
    "they bound the times of clients, not Kafka's": "message.timestamp.after.max.ms message.timestamp.before.max.ms",
}
FREE_OF_STRANGERS = {"only workers and relays write, and librdkafka unpacks everything": "compression.type"}
FREE_WITH_POLICY = {
    "delete": {"nothing is compacted": "delete.retention.ms min.cleanable.dirty.ratio min.compaction.lag.ms"},
    "compact": {"only compaction removes a record": "retention.bytes retention.ms segment.ms"},
}


kafka = module_kafka(config={"auto.create.topics.enable": "true", "compression.type": "zstd"})


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
    return {name: entries[name].value for name in names or entries}


def actions(result):
    return {topic["topic"].partition(".")[2]: topic["action"] for topic in json.loads(result.stdout)["topics"]}


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

    assert check_layout(KafkaCluster(lambda: admin), Names(namespace)).weak == ()
    for name in Names(namespace).internal:
        assert len(admin.list_topics(name).topics[name].partitions) == 1


def test_every_setting_of_kafka_is_decided_for_every_internal_topic(topics, admin, namespace):
    """A release of Kafka with another setting fails here: it is to be set, or may be inherited for a reason."""
    names, cluster, of_relays = Names(namespace), KafkaCluster(lambda: admin), PlanOptions(relay=True)
    options = PlanOptions(groups=("orders",))
    apply(cluster, names, options)
    apply(cluster, names, of_relays)
    seen = cluster.read_topics(names.internal)
    for wanted in (*wanted_topics(names, options, seen), *wanted_topics(names, of_relays, {})):
        decided = {one.name: one.value for one in wanted.properties}
        free = {**FREE, **FREE_WITH_POLICY[decided["cleanup.policy"]]}
        if wanted.name not in {names.half, names.end}:
            free |= FREE_OF_STRANGERS
        inherited = {name for names in free.values() for name in names.split()}
        # Kafka reports min.insync.replicas as well, which depends on the number of copies.
        assert not inherited & set(decided)
        assert set(config_of(admin, wanted.name)) - inherited - set(decided) == {"min.insync.replicas"}


def test_what_a_topic_inherits_is_named_and_repaired_and_a_small_record_stays_small(topics, admin, user, namespace):
    names = Names(namespace)
    assert topics("apply").exit_code == 0
    bomb = Producer({**user, "compression.type": "zstd", "message.max.bytes": 50_000_000, "batch.size": 1_000_000})
    for topic in (names.half, names.end):
        refused = []
        bomb.produce(topic, bytes(20_000_000), on_delivery=lambda error, _, refused=refused: refused.append(error))
        bomb.flush(30)
        assert [error.code() for error in refused] == [KafkaError.MSG_SIZE_TOO_LARGE]
    entry = ConfigEntry("compression.type", "", incremental_operation=AlterConfigOpType.DELETE)
    resource = ConfigResource(ResourceType.TOPIC, names.end, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result()
    eventually(lambda: config_of(admin, names.end, "compression.type") == {"compression.type": "zstd"})
    [weak] = check_layout(KafkaCluster(lambda: admin), names).weak
    assert weak.startswith(
        f"{names.end}: compression.type is zstd, must be uncompressed, or a small record that unpack"
    )
    assert topics("plan").exit_code == 1
    assert topics("apply").exit_code == 0
    assert check_layout(KafkaCluster(lambda: admin), names).weak == ()


def test_the_topic_of_relays_is_made_and_repaired_alone(topics, admin, namespace):
    names = Names(namespace)
    with pytest.raises(
        LayoutError, match=f"{names.outbox}: does not exist: `txbridge topics apply .* --relay` creates"
    ):
        verify_relay_topic(KafkaCluster(lambda: admin), names)
    assert topics("apply", "--relay").exit_code == 0
    assert [topic for topic in admin.list_topics().topics if topic.startswith(namespace)] == [names.outbox]
    topic, weak = verify_relay_topic(KafkaCluster(lambda: admin), names)
    assert (topic.partitions, weak) == (8, ())
    entry = ConfigEntry("message.timestamp.type", "CreateTime", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, names.outbox, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result()
    eventually(lambda: topics("plan", "--relay").exit_code == 1)
    with pytest.raises(LayoutError, match=r"message.timestamp.type is CreateTime"):
        verify_relay_topic(KafkaCluster(lambda: admin), names)
    # Workers and clients have nothing to do with it.
    assert actions(topics("plan", "--format", "json")).keys() == {*RIGHT} - {OUTBOX, CHECK}
    assert topics("apply", "--relay").exit_code == 0
    assert topics("plan", "--relay").exit_code == 0


def test_table(topics, namespace):
    planned = topics("plan", "--partitions", "2")
    assert planned.exit_code == 1
    lines = [" ".join(line.split()) for line in planned.stdout.splitlines()]
    assert "action topic partitions copies what" in lines
    assert f"create {namespace}.RMQ_SYS_TRANS_HALF_TOPIC 2 1 cleanup.policy=delete" in lines
    assert lines[-1] == "5 to create, 0 to change: run apply"
    assert topics("apply", "--partitions", "2").stdout.splitlines()[-1] == "5 created, 0 changed"


def test_weaker_settings_are_raised_and_no_other_is_touched(topics, admin, namespace):
    names = Names(namespace)
    weak = {"retention.ms": "3600000", "retention.bytes": "1000", "flush.messages": "9"}
    create(admin, NewTopic(names.half, 4, 1, config=weak))
    create(admin, NewTopic(names.op, 4, 1, config={**LOG, "retention.ms": str(60 * DAY)}))
    planned = topics("plan", "--format", "json")
    assert planned.exit_code == 1
    assert json.loads(planned.stdout)["topics"][0]["changes"] == [
        {"name": "retention.ms", "old": "3600000", "new": "604800000", "vital": True},
        {"name": "retention.bytes", "old": "1000", "new": "-1", "vital": True},
        {"name": "message.timestamp.type", "old": "CreateTime", "new": "LogAppendTime", "vital": True},
        {"name": "max.message.bytes", "old": "1048588", "new": "1065536", "vital": True},
        {"name": "segment.ms", "old": "604800000", "new": "86400000", "vital": False},
        {"name": "compression.type", "old": "zstd", "new": "uncompressed", "vital": False},
    ]
    assert topics("apply").exit_code == 0
    # The change is incremental: settings outside the plan are kept, and longer retention stays.
    assert config_of(admin, names.half, *LOG, "flush.messages") == {**LOG, "flush.messages": "9"}
    assert config_of(admin, names.op, "retention.ms") == {"retention.ms": str(60 * DAY)}
    assert topics("plan").exit_code == 0


def test_several_at_a_time(admin, namespace):
    results = []

    def run():
        done = apply(KafkaCluster(lambda: admin), Names(namespace), PlanOptions())
        results.append({one.action for one in done})

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert not any(TopicAction.REFUSED in actions for actions in results)
    assert check_layout(KafkaCluster(lambda: admin), Names(namespace)).partitions == 1


def test_what_the_cluster_refuses_is_refused(topics, admin, namespace):
    result = topics("plan", "--replication-factor", "3")
    assert result.exit_code == 2
    assert "only 1 broker(s) are registered" in result.stdout
    assert topics("apply", "--replication-factor", "3").exit_code == 2
    assert not [topic for topic in admin.list_topics().topics if topic.startswith(namespace)]


def test_a_group_whose_name_is_too_like_that_of_another_is_refused_with_the_reason(topics, admin, namespace):
    names = Names(namespace)
    assert topics("apply").exit_code == 0
    layout = check_layout(KafkaCluster(lambda: admin), names, client=True)
    ensure_check_topic(KafkaCluster(lambda: admin), names, "orders.eu", layout)
    with pytest.raises(
        UsageError, match=r"'orders_eu' is too similar .* differ only in '.' and '_' .*: choose another"
    ):
        ensure_check_topic(KafkaCluster(lambda: admin), names, "orders_eu", layout)
    result = topics("apply", "--group", "orders_eu")
    assert result.exit_code == 2
    assert "choose another name" in result.stdout


def test_check_topic_can_be_subscribed_to_at_once(topics, admin, namespace, user):
    names = Names(namespace)
    assert topics("apply").exit_code == 0
    layout = check_layout(KafkaCluster(lambda: admin), names, client=True)
    ensure_check_topic(KafkaCluster(lambda: admin), names, "orders", layout)
    ensure_check_topic(KafkaCluster(lambda: admin), names, "orders", layout)
    check = names.check("orders")
    assert check == f"{namespace}.RMQ_SYS_TRANS_CHECK.orders"
    expected = {**LOG, "retention.ms": "3600000", "segment.ms": "600000", "max.message.bytes": "1131072"}
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
