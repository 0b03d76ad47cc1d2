"""The settings of all our Kafka clients, derived from the user's one mapping."""

from __future__ import annotations

import logging

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from txbridge.errors import UsageError
from txbridge.kafka import config as kafka_config

OF_ALL = {
    "bootstrap.servers": "127.0.0.1:1",
    "security.protocol": "sasl_ssl",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "orders",
    "sasl.password": "tops3cret",
    "statistics.interval.ms": 5000,
}
USER = {**OF_ALL, "batch.num.messages": 500, "fetch.min.bytes": 10}
COMMON = {**OF_ALL, "client.id": "txbridge", "allow.auto.create.topics": False}
OURS = {"acks": "all", "enable.idempotence": True, "partitioner": "murmur2_random"}
PRODUCER = {**COMMON, "batch.num.messages": 500, **OURS}


@pytest.mark.parametrize("timeout", [0, 30_001, "300000"])
def test_a_half_message_may_not_be_sent_longer_than_copies_are_known(timeout):
    with pytest.raises(UsageError, match=r"'message\.timeout\.ms' cannot be .*: from 1 to 30000"):
        kafka_config.half_producer_config({**USER, "message.timeout.ms": timeout}, max_message_bytes=1_000)
    config = kafka_config.half_producer_config({**USER, "delivery.timeout.ms": 30_000}, max_message_bytes=1_000)
    assert config["message.timeout.ms"] == 30_000


def test_admin_gets_what_concerns_every_client():
    assert kafka_config.admin_config(USER) == COMMON


def test_half_producer():
    assert kafka_config.half_producer_config(USER, max_message_bytes=1_065_536) == {
        **PRODUCER,
        "linger.ms": 0,
        "message.timeout.ms": 3000,
        "message.max.bytes": 1_065_536,
        "batch.size": 1_000_000,
    }


def test_user_overrules_our_defaults_under_any_alias():
    user = {**USER, "delivery.timeout.ms": 10_000, "queue.buffering.max.ms": 7, "client.id": "orders-3"}
    config = kafka_config.half_producer_config(user, max_message_bytes=2_000_000)
    assert config["message.timeout.ms"] == 10_000
    assert config["linger.ms"] == 7
    assert config["client.id"] == "orders-3"
    assert "delivery.timeout.ms" not in config
    assert "queue.buffering.max.ms" not in config


def test_half_messages_that_gather_wait_a_little_unless_the_user_says_otherwise():
    assert kafka_config.half_producer_config(USER, max_message_bytes=2_000_000, linger_ms=5)["linger.ms"] == 5
    user = {**USER, "queue.buffering.max.ms": 0}
    assert kafka_config.half_producer_config(user, max_message_bytes=2_000_000, linger_ms=5)["linger.ms"] == 0


def test_a_batch_never_exceeds_what_the_topic_accepts():
    small = kafka_config.half_producer_config(USER, max_message_bytes=165_536)
    assert (small["message.max.bytes"], small["batch.size"]) == (165_536, 165_536)
    chosen = kafka_config.half_producer_config({**USER, "batch.size": 16_384}, max_message_bytes=165_536)
    assert (chosen["message.max.bytes"], chosen["batch.size"]) == (165_536, 16_384)


def test_end_producer_keeps_its_own_time_out_and_does_not_compress():
    config = kafka_config.end_producer_config({**USER, "message.timeout.ms": 500, "compression.codec": "lz4"})
    assert config["message.timeout.ms"] == 30_000
    assert config["compression.type"] == "none"
    assert config["linger.ms"] == 0


def test_transactional_producer():
    config = kafka_config.transactional_producer_config(
        USER,
        transactional_id="RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS/0/0",
        commit_timeout_ms=10_000,
        max_message_bytes=1_131_072,
    )
    assert config == {
        **PRODUCER,
        "transactional.id": "RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS/0/0",
        "transaction.timeout.ms": 10_000,
        "message.timeout.ms": 5_000,
        "retry.backoff.ms": 10,
        "message.max.bytes": 1_131_072,
        "batch.size": 1_000_000,
    }


def test_reader():
    assert kafka_config.reader_config(USER, group="CID_RMQ_SYS_TRANS", read_committed=False) == {
        **COMMON,
        "fetch.min.bytes": 10,
        "group.id": "CID_RMQ_SYS_TRANS",
        "isolation.level": "read_uncommitted",
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
    }
    committed = kafka_config.reader_config(USER, group="g", read_committed=True)
    assert committed["isolation.level"] == "read_committed"


def test_check_consumer():
    group = "RMQ_SYS_TRANS_CHECK.orders"
    config = kafka_config.check_consumer_config(USER, group=group)
    assert config == {
        **COMMON,
        "fetch.min.bytes": 10,
        "group.id": group,
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": "1000",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "session.timeout.ms": 10_000,
        "topic.metadata.refresh.interval.ms": 30_000,
    }
    faster = kafka_config.check_consumer_config({**USER, "session.timeout.ms": 6_000}, group=group)
    assert faster["session.timeout.ms"] == 6_000
    modern = kafka_config.check_consumer_config({**USER, "group.protocol": "consumer"}, group=group)
    assert "session.timeout.ms" not in modern


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("transactional.id", "mine", "fence"),
        ("acks", 1, "in-sync"),
        ("request.required.acks", 1, "in-sync"),
        ("enable.idempotence", False, "twice"),
        ("partitioner", "random", "murmur2_random"),
        ("isolation.level", "read_uncommitted", "protocol"),
        ("group.id", "mine", "producer group"),
        ("auto.offset.reset", "latest", "lost"),
        ("enable.auto.commit", True, "itself decides"),
        ("auto.commit.enable", True, "itself decides"),
        ("on_delivery", print, "result"),
        ("transaction.timeout.ms", 5000, "commit_timeout"),
        ("default.topic.config", {"acks": 1}, "wrapper"),
        ("allow.auto.create.topics", True, "defaults"),
    ],
)
def test_what_the_protocol_needs_is_refused_with_the_reason(name, value, reason):
    for derive in (
        kafka_config.admin_config,
        kafka_config.producer_config,
        lambda user: kafka_config.reader_config(user, group="g", read_committed=True),
    ):
        with pytest.raises(UsageError, match=f"'{name}' cannot be set: .*{reason}"):
            derive({**USER, name: value})


@pytest.mark.parametrize("servers", [{}, {"bootstrap.servers": ""}, {"bootstrap.servers": None}])
def test_bootstrap_servers_are_required(servers):
    with pytest.raises(UsageError, match=r"'bootstrap\.servers' is missing"):
        kafka_config.admin_config(servers)


def test_old_name_of_bootstrap_servers():
    assert kafka_config.admin_config({"metadata.broker.list": "a:1"})["bootstrap.servers"] == "a:1"


def test_the_same_property_twice_is_refused():
    with pytest.raises(UsageError, match=r"'linger\.ms' is given twice \(once as 'queue\.buffering\.max\.ms'"):
        kafka_config.producer_config({**USER, "linger.ms": 1, "queue.buffering.max.ms": 2})


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("linger.mss", "linger.ms"),
        ("sasl.pasword", "sasl.password"),
        # These are like other names, too.
        ("ssl.keystore.locatio", "ssl.keystore.location"),
        ("sasl.oauthbearer.token.endpoint.uri", "sasl.oauthbearer.token.endpoint.url"),
    ],
)
def test_unknown_property_names_the_nearest(given, meant):
    with pytest.raises(UsageError, match=rf"unknown Kafka property '{given}'; did you mean '{meant}'\?"):
        kafka_config.admin_config({**USER, given: "x"})


def test_an_unknown_property_that_is_like_no_other():
    with pytest.raises(UsageError, match=r"unknown Kafka property 'key\.serializer' \(librdkafka's own names"):
        kafka_config.admin_config({**USER, "key.serializer": "x"})


def test_a_property_that_only_librdkafka_knows_goes_to_every_client():
    assert kafka_config.admin_config({**USER, "client.dns.lookup": "a"})["client.dns.lookup"] == "a"
    assert kafka_config.producer_config({**USER, "client.dns.lookup": "a"})["client.dns.lookup"] == "a"


def test_settings_are_a_dict_of_names():
    with pytest.raises(UsageError, match="names are text, not 5"):
        kafka_config.admin_config({5: 1})
    with pytest.raises(UsageError, match=r"a dict, {'bootstrap\.servers': \.\.\.}, not str"):
        kafka_config.admin_config("a:1")


def test_the_listed_names_are_those_of_the_installed_librdkafka():
    # Not librdkafka's own: one is confluent-kafka's for consumers, the other is an inner one of topics.
    for name in sorted(kafka_config._KNOWN - {"on_commit"}):
        kafka_config._require_known(name)


def test_derived_settings_give_librdkafka_nothing_to_complain_about(caplog):
    user = {**USER, "error_cb": lambda _: None, "logger": logging.getLogger("test.kafka")}
    with caplog.at_level(logging.DEBUG, logger="test.kafka"):
        producer = kafka_config.create(Producer, kafka_config.half_producer_config(user, max_message_bytes=1_065_536))
        limits = {"commit_timeout_ms": 10_000, "max_message_bytes": 1_131_072}
        own = kafka_config.transactional_producer_config(user, transactional_id="t", **limits)
        transactional = kafka_config.create(Producer, own)
        reader = kafka_config.create(Consumer, kafka_config.reader_config(user, group="g", read_committed=True))
        checks = kafka_config.create(Consumer, kafka_config.check_consumer_config(user, group="g"))
        admin = kafka_config.create(AdminClient, kafka_config.admin_config(user))
        for client in (producer, transactional, admin):
            client.poll(0.05)
        for consumer in (reader, checks):
            consumer.poll(0.05)
            consumer.close()
    assert [record for record in caplog.messages if "CONFWARN" in record and "property" in record] == []


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ({"linger.ms": -5}, "-5 is outside allowed range"),
        ({"security.protocol": "sasl"}, 'Invalid value "sasl" for configuration property "security.protocol"'),
        ({"error_cb": 5}, "callable"),
    ],
)
def test_values_that_librdkafka_refuses_are_usage_errors(extra, reason):
    with pytest.raises(UsageError, match=f"Kafka settings refused: .*{reason}"):
        kafka_config.create(Producer, kafka_config.producer_config({"bootstrap.servers": "127.0.0.1:1", **extra}))
