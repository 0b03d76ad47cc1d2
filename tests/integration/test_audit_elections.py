"""Leaders that change: the audit asks again, judges nothing by the word of a former one, and gives its verdict."""

from __future__ import annotations

import subprocess
import sys

import pytest
from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.errors import ArithmeticException
from txbridge_audit.errors import ElectionError
from txbridge_audit.read import kafka_admin
from txbridge_audit.read.kafka_admin import Cluster, partitions_of
from txbridge_audit.read.kafka_config import kafka_settings
from txbridge_audit.read.spark_session import elections

from tests.integration.test_audit import ENVIRONMENT, KafkaLog
from tests.support.audit_cases import COMMIT, ORDERS
from tests.support.harness import eventually, quiet
from tests.support.second_broker import FIRST, SECOND, SESSION, SecondBroker
from txbridge.embedded import EmbeddedKafka
from txbridge.embedded.jars import JarCache
from txbridge.embedded.java import find_java

#: Prints the numbers of the errors that Kafka's own client repeats.
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
    """`kafka` only because it fetches the jars."""
    source = tmp_path / "Retriable.java"
    source.write_text(RETRIABLE)
    command = [find_java().executable, "-cp", JarCache().class_path, source]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert {int(code) for code in told.split()} == kafka_admin.RETRIABLE


@pytest.fixture(scope="module")
def brokers():
    with EmbeddedKafka(config=SESSION) as first, SecondBroker(first) as second:
        yield first, second


def leader(servers, topic):
    return AdminClient(quiet(servers)).list_topics(topic, timeout=120).topics[topic].partitions[0]


def bring_back(servers, second, *topics):
    """The second broker, and its leaders."""
    second.start()
    for topic in topics:
        eventually(lambda topic=topic: set(leader(servers, topic).isrs) == {FIRST, SECOND}, 60)
        admin = AdminClient(quiet(servers))
        admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition(topic, 0)]).result()
        eventually(lambda topic=topic: leader(servers, topic).leader == SECOND, 30)


def test_ends_are_told_after_the_leader_died_and_after_it_came_back(brokers):
    """librdkafka goes on asking the leader that it knows: one that is gone, then one of an older epoch."""
    first, second = brokers
    servers = first.bootstrap_servers
    log = KafkaLog(servers)
    log.create(NewTopic("moved", 1, replica_assignment=[[SECOND, FIRST]]))
    half = log.half("moved")
    log.end(half, COMMIT)
    log.transaction(log.copy(half, partition=0))
    asked = Cluster(kafka_settings(servers))
    (key,) = partitions_of("moved", 1)
    # The record and its marker, on both brokers.
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


def test_a_leader_that_dies_in_the_middle_of_an_audit(brokers):
    """Exit code 0, as every transaction is as it should be; what was begun before is begun again."""
    first, second = brokers
    servers = first.bootstrap_servers
    log = KafkaLog(servers, replicas=2)
    for _ in range(20):
        half = log.half(ORDERS)
        log.end(half, COMMIT)
        log.transaction(log.copy(half), log.op("commit", half))
    arguments = ["--bootstrap-servers", servers, "--namespace", log.names.namespace, "--format", "json"]
    command = [sys.executable, "-m", "txbridge.cli.main", "audit", *arguments]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as audit:
        told = []
        for line in audit.stderr:
            told.append(line)
            if "reading decisions" in line:
                second.kill()
                break
        told.append(audit.stderr.read())
        report = audit.stdout.read()
    assert audit.wait(300) == 0, "".join(told) + report
    assert '"delivered": 20' in report
    second.start()


def test_kafkas_errors_that_pass_are_told_from_others_in_spark(spark):
    """Of the driver here: nobody listens on that port."""
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.default.api.timeout.ms": "1000"}
    options |= {"kafka.request.timeout.ms": "500", "fetchOffset.numRetries": "1"}
    lost = spark.read.format("kafka").options(**options).option("assign", '{"t":[0]}').load()
    with pytest.raises(ElectionError, match="TimeoutException: a broker is away"), elections(spark):
        lost.count()
    wrong = spark.sql("SELECT 1 / 0 AS division")
    with pytest.raises(ArithmeticException), elections(spark):
        wrong.collect()
