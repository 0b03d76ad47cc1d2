"""The start of a cluster: folders and ports, ports that others took, the former broker's session, and diagnoses."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from txbridge.embedded import EmbeddedKafka, KafkaStartError, datadir, process, server
from txbridge.embedded.fencing import is_fenced
from txbridge.embedded.jars import JarCache
from txbridge.embedded.java import Java, advice, describe_failure, read_tail, relevant_lines
from txbridge.errors import UsageError


@pytest.mark.parametrize(
    ("brokers", "why"),
    [
        (0, ""),
        (2, ": with two, none may be away (a quorum of two needs both)"),
        (10, ": each one needs a JVM of its own"),
    ],
)
def test_sizes_that_are_refused(brokers, why):
    with pytest.raises(UsageError) as refused:
        datadir.check_size(brokers)
    assert str(refused.value) == f"brokers must be 1, or 3 to 9, not {brokers}{why}"


def test_further_brokers_take_the_ports_behind_the_first():
    assert datadir.check_port(65_533, 3) == 65_533
    with pytest.raises(UsageError, match="port must be between 1 and 65533, or None for a free one, not 65534"):
        datadir.check_port(65_534, 3)
    members = datadir.choose_ports(4, 40_000)
    assert [one.port for one in members] == [40_000, 40_001, 40_002, 40_003]


def test_a_port_that_is_chosen_is_not_one_that_is_wanted(monkeypatch):
    chosen = iter([20_001, 20_002, *range(30_000, 30_010)])
    monkeypatch.setattr(datadir, "free_port", lambda: next(chosen))
    members = datadir.choose_ports(3, 20_000)
    assert [one.port for one in members] == [20_000, 20_001, 20_002]
    assert [one.internal for one in members] == [30_000, 30_002, 30_004]


def formatted(folder):
    (folder / "kafka").mkdir(parents=True)
    (folder / "kafka" / "meta.properties").write_text("")


def test_a_folder_is_started_with_as_many_nodes_as_it_has(tmp_path):
    assert datadir.choose_folders(tmp_path, 1) == {1: tmp_path}
    cluster = {1: tmp_path / "broker-1", 2: tmp_path / "broker-2", 3: tmp_path / "broker-3"}
    assert datadir.choose_folders(tmp_path, 3) == cluster
    for folder in cluster.values():
        formatted(folder)
    assert datadir.find_folders(tmp_path) == list(cluster.values())
    assert datadir.choose_folders(tmp_path, 3) == cluster
    with pytest.raises(UsageError, match=r"belongs to a Kafka of 3 brokers: start it with as many \(--brokers"):
        datadir.choose_folders(tmp_path, 1)


def test_a_folder_of_one_node_is_no_cluster(tmp_path):
    formatted(tmp_path)
    with pytest.raises(UsageError, match="belongs to a Kafka of 1 broker: start it with as many"):
        datadir.choose_folders(tmp_path, 3)


class Stubborn:
    """Ends by SIGTERM unless it needs a quorum that is gone."""

    def __init__(self, name, ended, obeys):
        self.name, self.ended, self.obeys = name, ended, obeys

    def is_running(self):
        return self.name not in self.ended

    def terminate(self):
        if self.obeys:
            self.ended.append(self.name)

    def kill(self):
        if self.is_running():
            self.ended.append(f"{self.name} killed")
            self.ended.append(self.name)


def test_the_last_node_is_not_waited_for_when_there_is_no_quorum(monkeypatch):
    monkeypatch.setattr(process, "_WITHOUT_QUORUM_S", 0.1)
    ended = []
    nodes = [Stubborn("1", ended, True), Stubborn("2", ended, True), Stubborn("3", ended, False)]
    since = time.monotonic()
    process.stop_together(nodes, 1_000)
    assert time.monotonic() - since < 500
    assert ended == ["1", "2", "3 killed", "3"]


LOST = KafkaStartError("lost", 1, "java.net.BindException: Address already in use")
OTHER = KafkaStartError("other", 1, "java.lang.OutOfMemoryError")


@pytest.mark.parametrize(
    ("failures", "attempts", "why"),
    [([LOST, LOST], 3, None), ([LOST, LOST, LOST], 3, "lost"), ([LOST, OTHER], 2, "other")],
)
def test_a_lost_port_is_replaced_twice_and_nothing_else_is_tried_again(tmp_path, monkeypatch, failures, attempts, why):
    started = []

    def start_once(kafka, *_, **__):
        started.append(kafka)
        if len(started) <= len(failures):
            raise failures[len(started) - 1]

    monkeypatch.setattr(server, "find_java", lambda: Java(Path("/no/java"), 17, "17.0.15"))
    monkeypatch.setattr(JarCache, "ensure_jars", lambda _: None)
    monkeypatch.setattr(EmbeddedKafka, "_start_once", start_once)
    kafka = EmbeddedKafka(data_dir=tmp_path)
    if why is None:
        kafka.start()
    else:
        with pytest.raises(KafkaStartError, match=why):
            kafka.start()
    assert len(started) == attempts


REGISTERED = "Replayed initial RegisterBrokerRecord for broker 1: RegisterBrokerRecord(brokerId=1, fenced=true, y)\n"
CAUGHT_UP = "BrokerRegistrationChangeRecord(brokerId=1, brokerEpoch=11, fenced=-1, inControlledShutdown=0)\n"
SERVING = "BrokerRegistrationChangeRecord(brokerId=1, brokerEpoch=11, fenced=0, inControlledShutdown=0)\n"
FENCED = "BrokerRegistrationChangeRecord(brokerId=1, brokerEpoch=11, fenced=1, inControlledShutdown=0)\n"
ACTIVE = "Performing controller activation. (org.apache.kafka.controller.QuorumController)\n"
WRITTEN = "Read-write operation maybeFenceStaleBroker(12) will be completed when the log reaches offset 17.\n"
LOOKED = "Processed maybeFenceStaleBroker(1) in 271 us (org.apache.kafka.controller.QuorumController)\n"
COMMITTED = "Processed maybeFenceStaleBroker(12) in 31415 us (org.apache.kafka.controller.QuorumController)\n"


@pytest.mark.parametrize(
    ("log", "fenced"),
    [
        ("", False),
        (REGISTERED + CAUGHT_UP + SERVING, False),
        (REGISTERED + CAUGHT_UP + SERVING + ACTIVE, False),
        (REGISTERED + CAUGHT_UP + ACTIVE, False),
        (REGISTERED + CAUGHT_UP + SERVING + ACTIVE + LOOKED, False),
        (REGISTERED + CAUGHT_UP + SERVING + ACTIVE + LOOKED + FENCED, False),
        (REGISTERED + CAUGHT_UP + SERVING + ACTIVE + LOOKED + FENCED + WRITTEN, False),
        (REGISTERED + CAUGHT_UP + SERVING + ACTIVE + FENCED + WRITTEN + LOOKED, False),
        (REGISTERED + CAUGHT_UP + SERVING + ACTIVE + LOOKED + FENCED + WRITTEN + LOOKED + COMMITTED, True),
        (REGISTERED + CAUGHT_UP + SERVING + FENCED, False),
        (REGISTERED + CAUGHT_UP + SERVING + FENCED + ACTIVE, True),
        (REGISTERED + CAUGHT_UP + SERVING + FENCED + REGISTERED + CAUGHT_UP + SERVING + ACTIVE, False),
        (REGISTERED + ACTIVE, True),
        (REGISTERED.replace("fenced=true", "fenced=false") + ACTIVE, False),
        (ACTIVE, True),
    ],
    ids=[
        "nothing yet", "loading", "in charge, session open", "session open, killed early", "looked, session open",
        "decided", "not on disk", "not on disk, an earlier look ended", "on disk", "not in charge",
        "fenced before", "came back since", "never served", "from a snapshot", "never registered",
    ],
)  # fmt: skip
def test_fenced_once_it_is_on_disk(log: str, fenced: bool) -> None:
    assert is_fenced(log) is fenced


# From a real server.log (shortened).
BIND = """[2025-11-21 11:20:01,001] INFO [SocketServer id=1] Created data-plane acceptor (kafka.network.SocketServer)
[2025-11-21 11:20:01,002] ERROR [BrokerServer id=1] Fatal error during broker startup. Prepare to shutdown
org.apache.kafka.common.KafkaException: Socket server failed to bind to 127.0.0.1:9092: Address already in use.
\tat kafka.network.Acceptor.openServerSocket(SocketServer.scala:722)
\tat kafka.network.Acceptor.run(SocketServer.scala:588)
Caused by: java.net.BindException: Address already in use
\tat java.base/sun.nio.ch.Net.bind0(Native Method)
\t... 18 more
[2025-11-21 11:20:01,003] INFO [BrokerServer id=1] shutting down (kafka.server.BrokerServer)
"""


def test_errors_are_quoted_without_their_stack():
    assert [line[:60] for line in relevant_lines(BIND)] == [
        "[2025-11-21 11:20:01,002] ERROR [BrokerServer id=1] Fatal er",
        "org.apache.kafka.common.KafkaException: Socket server failed",
        "Caused by: java.net.BindException: Address already in use",
    ]


def test_without_errors_the_last_lines_are_quoted():
    assert relevant_lines("a\n\nb\nc\n", limit=2) == ["b", "c"]
    assert relevant_lines("") == []


def test_repeated_lines_are_quoted_once():
    assert relevant_lines("ERROR x\nERROR x\nERROR y\n") == ["ERROR x", "ERROR y"]


@pytest.mark.parametrize(
    ("said", "starts"),
    [
        (BIND, "Another program took the port meanwhile. Choose another with --port"),
        ("java.io.IOException: No space left on device", "The disk is full."),
        ("java.lang.OutOfMemoryError: Java heap space", "Java lacks memory. Give the broker more (--heap"),
        (
            "Error occurred during initialization of VM\nCould not reserve enough space for 99999744KB",
            "Java lacks memory",
        ),
        ("java.nio.file.AccessDeniedException: /d/kafka/x", "A file is not accessible to this user"),
        ("java.lang.UnsupportedClassVersionError: kafka/Kafka", "This Java is too old"),
        ("java.util.zip.ZipException: zip END header not found", "A jar is damaged."),
        ("Invalid value soon for configuration log.retention.ms", None),
    ],
)
def test_advice(said, starts):
    assert (advice(said) or "")[: len(starts or "")] == (starts or "")


def test_only_what_was_written_since_is_read(tmp_path):
    log = tmp_path / "server.log"
    assert read_tail(log) == ""
    log.write_text("ERROR old\n")
    start = log.stat().st_size
    with log.open("a") as file:
        file.write("ERROR new\n")
    assert read_tail(log, start) == "ERROR new\n"
    log.write_text("rolled\n")
    assert read_tail(log, start) == "rolled\n"


def test_message(tmp_path):
    log = tmp_path / "console.log"
    assert describe_failure("Kafka ended", "ERROR No space left on device", log) == (
        "Kafka ended. The disk is full. Free some space, or keep the data elsewhere (--data-dir, in Python "
        f"data_dir=...). It wrote:\n  ERROR No space left on device\nAll of it is in {log}"
    )
    assert describe_failure("Kafka ended", "", log) == (
        f"Kafka ended. It wrote:\n  (it wrote nothing)\nAll of it is in {log}"
    )


def test_a_full_disk_is_recognised_when_nothing_could_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr("txbridge.embedded.java.shutil.disk_usage", lambda _: type("Usage", (), {"free": 8192}))
    assert describe_failure("It failed", "", tmp_path / "log").startswith("It failed. The disk is full. Free some")
