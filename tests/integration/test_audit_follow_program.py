"""`txbridge audit --follow` as a program: it reports a new violation within seconds, and signals end it cleanly."""

from __future__ import annotations

import json
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from txbridge_audit.judge.table import VIOLATIONS

from tests.corruption.writer import Writer
from tests.support.audit_log import ENVIRONMENT, values_in
from tests.support.command_line import PROGRAM
from tests.support.harness import eventually
from txbridge.embedded import EmbeddedKafka

NAMESPACE, ALARMS = "program", "alarms"
#: Limit for a loaded machine (s); on an idle one it takes a few seconds.
PATIENCE = 400


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka() as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_topics([NewTopic(ALARMS, 1, 1)])[ALARMS].result()
        yield broker


def raised(servers: str) -> list[dict[str, str]]:
    """The committed alarms."""
    return [json.loads(value) for value in values_in(servers, ALARMS)]


@contextmanager
def following(servers: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    options = ["--bootstrap-servers", servers, "--namespace", NAMESPACE, "--follow", "--interval", "0.5"]
    options += ["--ledger", str(folder / "ledger"), "--violations-topic", ALARMS, "--report", str(folder / "report")]
    command = [*PROGRAM, "audit", *options, "--format", "json"]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=ENVIRONMENT, cwd=folder)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def ended_by(process: subprocess.Popen[str], number: int) -> dict[str, object]:
    """End the program by this signal, and return the report that it prints."""
    process.send_signal(number)
    out, told = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1, told[-3000:]
    assert "Traceback" not in told
    report: dict[str, object] = json.loads(out)
    return report


def stray(servers: str, topic: str, half: int) -> None:
    """Write a visible record with the headers of a half message that does not exist, by an ordinary Kafka client."""
    producer = Producer({"bootstrap.servers": servers})
    headers: list[tuple[str, str | bytes | None]] = [("TXB_HALF", b"0:%d" % half), ("UNIQ_KEY", b"F" * 32)]
    producer.produce(topic, b"value", headers=headers)
    assert producer.flush(120) == 0


def planted_topics(servers: str) -> tuple[Writer, int]:
    """Plant one of each case; return the writer and the number of violations that an audit must report."""
    writer = Writer(servers, NAMESPACE, seed=5, batch=200)
    writer.plant(transactions=300, each=1)
    return writer, sum(map(writer.truth.count_kind, VIOLATIONS))


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_program_raises_what_comes_and_goes_on_where_it_was_ended(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    servers = kafka.bootstrap_servers
    writer, planted = planted_topics(servers)
    with following(servers, tmp_path) as process:
        # A step has ended: its alarms and files are written.
        eventually((tmp_path / "report").exists, timeout=PATIENCE)
        eventually(lambda: len(raised(servers)) == planted, timeout=PATIENCE)
        for number in range(3):
            before = len(raised(servers))
            stray(servers, writer.topics[0], 1_000_000 + number)
            eventually(lambda: len(raised(servers)) > before, timeout=PATIENCE)  # noqa: B023  (called at once)
        report = ended_by(process, signal.SIGTERM)
    alarms, written = raised(servers), (tmp_path / "report").stat().st_mtime
    assert len(alarms) == planted + 3
    assert [(alarm["kind"], alarm["transaction"]) for alarm in alarms[-3:]] == [("PHANTOM", "FFFFFFFF")] * 3
    with following(servers, tmp_path) as process:
        eventually(lambda: (tmp_path / "report").stat().st_mtime > written, timeout=PATIENCE)
        again = ended_by(process, signal.SIGINT)
    assert raised(servers) == alarms, "an alarm was raised again"
    assert Counter(alarm["id"] for alarm in alarms).most_common(1)[0][1] == 1
    assert again["violations"] == report["violations"]
    assert isinstance(again["violations"], dict)
    assert again["violations"]["total"] == len(alarms)
