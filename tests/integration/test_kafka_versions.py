"""The main scenarios on every release of Kafka that can be started; docs/compatibility.md has the table."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import SparkSession
from txbridge_audit import run_audit

from tests.integration.test_transactional_msg import ByNumber
from tests.support.faces import FACES
from tests.support.harness import COMMIT, Bridge, eventually, quiet
from txbridge import Message
from txbridge.embedded import KAFKA_VERSIONS, EmbeddedKafka

pytestmark = [
    pytest.mark.long,
    # py4j closes its sockets to the JVM in finalisers.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
#: All other tests run on the latest.
RELEASES = [name for name in KAFKA_VERSIONS if name != "4.3"]


@pytest.fixture(scope="module", params=RELEASES)
def kafka(request: pytest.FixtureRequest) -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(kafka_version=request.param) as broker:
        yield broker


def test_commit_rollback_and_checks_by_every_api_with_a_kill_in_between(kafka: EmbeddedKafka, bridge: Bridge) -> None:
    """P1, P2, P3, P4, P7: 20 messages by each API, the worker is killed and another takes over."""
    topic = bridge.create_topic("orders")
    settings = {"bootstrap.servers": kafka.bootstrap_servers}
    worker = bridge.worker()
    listener = ByNumber()
    producers = [
        face(f"group-{number}", listener, settings, namespace=bridge.namespace) for number, face in enumerate(FACES)
    ]
    numbers = iter(range(20 * len(FACES)))
    for producer in producers:
        producer.start()
        for number in (next(numbers) for _ in range(20)):
            producer.send(Message(topic, b"%d" % number, key=b"k%d" % number))
        if producer is producers[0]:
            worker.kill()
            bridge.worker()
    everything = range(20 * len(FACES))
    committed = {b"%d" % number: 1 for number in everything if number % 5 in {0, 2}}
    bridge.wait_visible(topic, list(committed), 60)
    undecidable = {b"%d" % number for number in everything if number % 5 == 4}
    eventually(lambda: {one["value"] for one in bridge.discarded()} == undecidable, 60, "not all were discarded")
    assert bridge.visible(topic) == committed
    for producer in producers:
        producer.close(30)
        producer.end_loop()


def test_a_commit_waits_for_its_topic(kafka: EmbeddedKafka, bridge: Bridge) -> None:
    """P8: it is held while the topic is not there, and delivered afterwards."""
    worker = bridge.worker()
    missing = f"{bridge.namespace}.late"
    prepared = bridge.prepare(missing, b"late")
    bridge.decide(prepared, COMMIT)
    worker.wait_logged('"held"')
    assert bridge.create_topic("late") == missing
    bridge.wait_visible(missing, [b"late"], 90)


def test_doctor_and_audit(kafka: EmbeddedKafka, bridge: Bridge, running_spark: SparkSession) -> None:
    """P13: nothing to complain of, and the fates as they are."""
    topic = bridge.create_topic("orders")
    bridge.worker()
    prepared = bridge.prepare_many(topic, [b"%d" % number for number in range(30)])
    bridge.decide_many(prepared, COMMIT)
    bridge.wait_visible(topic, [b"%d" % number for number in range(30)])
    arguments = ["--bootstrap-servers", kafka.bootstrap_servers, "--namespace", bridge.namespace, "--json"]
    command = [sys.executable, "-m", "txbridge.cli.main", "doctor", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    found = {one["check"]: one for one in json.loads(done.stdout)["findings"] if one["level"] not in {"ok", "note"}}
    # One node has one copy of everything; the group of these messages has no process.
    assert found.keys() <= {"replication", "producers", "limits"}, found
    report = run_audit(kafka.bootstrap_servers, namespace=bridge.namespace, spark=running_spark)
    assert (report.exit_code, report.delivered) == (0, 30)


def test_a_consumer_of_the_new_group_protocol_reads_what_is_delivered(kafka: EmbeddedKafka, bridge: Bridge) -> None:
    """KIP-848, from 4.0 on by default."""
    if kafka.version.startswith("3."):
        pytest.skip("a preview there")
    topic = bridge.create_topic("orders")
    bridge.worker()
    bridge.decide(bridge.prepare(topic, b"value"), COMMIT)
    settings = {"group.id": f"{bridge.namespace}-new", "group.protocol": "consumer", "auto.offset.reset": "earliest"}
    reader = Consumer({**quiet(kafka.bootstrap_servers), **settings})
    reader.subscribe([topic])
    read = eventually(lambda: reader.poll(1), 60)
    assert read.value() == b"value"
    reader.commit(offsets=[TopicPartition(topic, read.partition(), read.offset() + 1)], asynchronous=False)
    reader.close()
