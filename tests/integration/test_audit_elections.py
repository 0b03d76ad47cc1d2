"""Leaders that change or are away: the audit repeats its questions, and bases no verdict on a former leader."""

from __future__ import annotations

import subprocess

import pytest
from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.errors import ArithmeticException
from txbridge_audit import run_audit
from txbridge_audit.audit import AuditEngine
from txbridge_audit.cluster import kafka_admin
from txbridge_audit.cluster.kafka_admin import AuditedCluster, partitions_of
from txbridge_audit.cluster.kafka_config import kafka_settings
from txbridge_audit.engines.spark.spark_session import elections
from txbridge_audit.errors import ElectionError

from tests.support.audit_log import ENVIRONMENT, KafkaLog
from tests.support.audit_terms import COMMIT, ORDERS, PLAIN
from tests.support.command_line import run_txbridge
from tests.support.harness import eventually, quiet
from tests.support.second_broker import FIRST, SECOND, SESSION, SecondBroker
from txbridge.embedded import EmbeddedKafka
from txbridge.embedded.jars import JarCache
from txbridge.embedded.java import find_java

#: Java program that prints the numbers of the errors that Kafka's own client repeats.
RETRIABLE = """
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.protocol.Errors;

public class Retriable {
    public static void main(String[] arguments) {
        for (Errors error : Errors.values())
            if (error.exception() instanceof RetriableException) System.out.println(error.code());
    }
}
"""


def test_what_is_repeated_is_what_kafkas_own_client_repeats(kafka, tmp_path):
    """The fixture `kafka` is here only because it fetches the jars."""
    source = tmp_path / "Retriable.java"
    source.write_text(RETRIABLE)
    command = [find_java().executable, "-cp", JarCache().class_path, source]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert {int(code) for code in told.split()} == kafka_admin.RETRIABLE


#: Real topic with one partition on each broker.
SPLIT = "orders.split"


@pytest.fixture(scope="module")
def brokers():
    with EmbeddedKafka(config=SESSION) as first, SecondBroker(first) as second:
        yield first, second


def leader(servers, topic, partition=0):
    return AdminClient(quiet(servers)).list_topics(topic, timeout=120).topics[topic].partitions[partition]


def bring_back(servers, second, *topics):
    """Start the second broker, and give it its leaderships again."""
    second.start()
    for topic in topics:
        eventually(lambda topic=topic: set(leader(servers, topic).isrs) == {FIRST, SECOND}, 60)
        admin = AdminClient(quiet(servers))
        admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition(topic, 0)]).result()
        eventually(lambda topic=topic: leader(servers, topic).leader == SECOND, 30)


@pytest.mark.long
def test_ends_are_told_after_the_leader_died_and_after_it_came_back(brokers):
    """librdkafka goes on asking the leader that it knows: first one that is dead, then one of an older epoch."""
    first, second = brokers
    servers = first.bootstrap_servers
    log = KafkaLog(servers)
    log.create(NewTopic("moved", 1, replica_assignment=[[SECOND, FIRST]]))
    half = log.half("moved")
    log.end(half, COMMIT)
    log.transaction(log.copy(half, partition=0))
    asked = AuditedCluster(kafka_settings(servers))
    (key,) = partitions_of("moved", 1)
    # The record and its marker are on both brokers.
    eventually(lambda: asked.stable_offsets([key]) == {key: 2}, 30)
    second.kill()
    assert asked.high_watermarks([key]) == {key: 2}
    assert asked.log_starts([key]) == {key: 0}
    bring_back(servers, second, "moved")
    assert asked.high_watermarks([key]) == {key: 2}
    asked.refuse_moved([key])
    second.kill()
    with pytest.raises(ElectionError, match="moved/0 got another leader"):
        asked.refuse_moved([key])
    second.start()


@pytest.mark.long
def test_a_leader_that_dies_in_the_middle_of_an_audit(brokers, spark):
    """The verdict is clean, as it should be; steps that the election interrupted are repeated."""
    first, second = brokers
    log = KafkaLog(first.bootstrap_servers, replicas=2)
    for _ in range(20):
        half = log.half(ORDERS)
        log.end(half, COMMIT)
        log.transaction(log.copy(half), log.op("commit", half))
    log.transaction(log.progress(PLAIN, half=20))
    killed = []

    def dies_once(told):
        if told.startswith("reading decisions") and not killed:
            killed.append(told)
            second.kill()

    report = run_audit(log.servers, namespace=log.names.namespace, spark=spark, progress=dies_once)
    second.start()
    assert killed
    assert (report.exit_code, report.delivered) == (0, 20)


@pytest.mark.long
def test_half_of_the_brokers_away_is_no_verdict(brokers):
    """The audit names the partitions that no broker can serve."""
    first, second = brokers
    # All topics but the real one are on both brokers.
    log = KafkaLog(first.bootstrap_servers, replicas=2)
    log.create(NewTopic(SPLIT, 2, replica_assignment=[[FIRST], [SECOND]]))
    for partition in (0, 1):
        half = log.half(SPLIT)
        log.end(half, COMMIT)
        log.transaction(log.copy(half, partition=partition), log.op("commit", half))
    log.transaction(log.progress(PLAIN, half=2))
    assert run_audit(log.servers, namespace=log.names.namespace, engine=AuditEngine.LOCAL).exit_code == 0
    second.kill()
    eventually(lambda: leader(log.servers, SPLIT, 1).leader < 0, 60, "the controller did not notice")
    arguments = ["--bootstrap-servers", log.servers, "--namespace", log.names.namespace]
    done = run_txbridge("audit", *arguments, env=ENVIRONMENT)
    second.start()
    assert done.returncode == 2, done.stdout + done.stderr
    # Nothing on stdout can be taken for a report.
    assert done.stdout == ""
    assert f"{SPLIT}/1" in done.stderr
    assert "no verdict is possible" in done.stderr
    assert "check that all of its brokers are up" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_kafkas_errors_that_pass_are_told_from_others_in_spark(spark):
    """The driver raises this error, because no broker listens on that port."""
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.default.api.timeout.ms": "1000"}
    options |= {"kafka.request.timeout.ms": "500", "fetchOffset.numRetries": "1"}
    lost = spark.read.format("kafka").options(**options).option("assign", '{"t":[0]}').load()
    with pytest.raises(ElectionError, match="TimeoutException: a broker is away"), elections():
        lost.count()
    wrong = spark.sql("SELECT 1 / 0 AS division")
    with pytest.raises(ArithmeticException), elections():
        wrong.collect()
