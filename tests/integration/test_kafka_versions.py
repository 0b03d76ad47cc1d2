"""The main scenarios on every release of Kafka that the embedded Kafka offers; docs/compatibility.md has the table."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import SparkSession
from txbridge_audit import run_audit

from tests.integration.test_transactional_msg import ByNumber
from tests.support.apis import APIS
from tests.support.command_line import run_txbridge
from tests.support.harness import COMMIT, Bridge, eventually, quiet
from txbridge import Message
from txbridge.embedded import KAFKA_VERSIONS, EmbeddedKafka

pytestmark = pytest.mark.long
#: All other tests run on the latest release.
RELEASES = [name for name in KAFKA_VERSIONS if name != "4.3"]
#: Messages per API, a fifth of them for each fate of ByNumber: committed, rolled back, checked (two answers),
#: undecided.
EACH = 20


@pytest.mark.parametrize("release", RELEASES)
def test_the_main_scenarios(release: str, running_spark: SparkSession) -> None:
    """P1 to P4, P7, P8, P13: every API, a take-over after kill -9, checks, a held commit, doctor, audit."""
    with EmbeddedKafka(kafka_version=release) as kafka, Bridge(kafka.bootstrap_servers, f"release {release}") as bridge:
        topic = bridge.create_topic("orders")
        _send_by_every_api(bridge, topic)
        committed = {b"%d" % number: 1 for number in range(EACH * len(APIS)) if number % 5 in {0, 2}}
        assert bridge.visible(topic) == committed
        _a_commit_waits_for_its_topic(bridge)
        _doctor_finds_no_fault(bridge)
        report = run_audit(kafka.bootstrap_servers, namespace=bridge.namespace, spark=running_spark)
        assert (report.exit_code, report.delivered) == (0, len(committed) + 1)
        if not release.startswith("3."):  # where the new protocol is a preview
            _a_consumer_of_the_new_group_protocol_reads(bridge, topic, len(committed))


def _send_by_every_api(bridge: Bridge, topic: str) -> None:
    """Send by every API, and kill the worker after the first one."""
    worker = bridge.worker()
    listener = ByNumber()
    settings = {"bootstrap.servers": bridge.bootstrap_servers}
    producers = [
        api(f"group-{number}", listener, settings, namespace=bridge.namespace) for number, api in enumerate(APIS)
    ]
    numbers = iter(range(EACH * len(APIS)))
    for producer in producers:
        producer.start()
        for number in (next(numbers) for _ in range(EACH)):
            producer.send(Message(topic, b"%d" % number, key=b"k%d" % number))
        if producer is producers[0]:
            worker.kill()
            bridge.worker()
    undecidable = {b"%d" % number for number in range(EACH * len(APIS)) if number % 5 == 4}
    eventually(lambda: {one["value"] for one in bridge.discarded()} == undecidable, 60, "not all were discarded")
    bridge.wait_visible(topic, [b"%d" % number for number in range(EACH * len(APIS)) if number % 5 in {0, 2}], 60)
    for producer in producers:
        producer.close(30)
        producer.end_loop()


def _a_commit_waits_for_its_topic(bridge: Bridge) -> None:
    missing = f"{bridge.namespace}.late"
    prepared = bridge.prepare(missing, b"late")
    bridge.decide(prepared, COMMIT)
    bridge.workers[-1].wait_logged('"held"')
    assert bridge.create_topic("late") == missing
    bridge.wait_visible(missing, [b"late"], 90)


def _doctor_finds_no_fault(bridge: Bridge) -> None:
    """Expect no finding except about a single node, ended applications and their undecided messages."""
    arguments = ["--bootstrap-servers", bridge.bootstrap_servers, "--namespace", bridge.namespace, "--format", "json"]
    done = run_txbridge("doctor", *arguments)
    found = {one["check"]: one for one in json.loads(done.stdout)["findings"] if one["level"] not in {"ok", "note"}}
    assert found.keys() <= {"replication", "producers", "limits", "backlog"}, found


def _a_consumer_of_the_new_group_protocol_reads(bridge: Bridge, topic: str, count: int) -> None:
    """Read with a consumer of the new group protocol (KIP-848)."""
    settings = {"group.id": f"{bridge.namespace}-new", "group.protocol": "consumer", "auto.offset.reset": "earliest"}
    reader = Consumer({**quiet(bridge.bootstrap_servers), **settings, "isolation.level": "read_committed"})
    reader.subscribe([topic])
    read = [eventually(lambda: reader.poll(1), 60) for _ in range(count)]
    assert {one.error() for one in read} == {None}
    last = {one.partition(): one.offset() + 1 for one in read}
    reader.commit(offsets=[TopicPartition(topic, *each) for each in last.items()], asynchronous=False)
    reader.close()
