from __future__ import annotations

import pytest

from txbridge.embedded.diagnose import advice, describe_failure, read_tail, relevant_lines

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
    monkeypatch.setattr("txbridge.embedded.diagnose.shutil.disk_usage", lambda _: type("Usage", (), {"free": 8192}))
    assert describe_failure("It failed", "", tmp_path / "log").startswith("It failed. The disk is full. Free some")
