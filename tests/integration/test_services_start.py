"""Services that start while what they need is away, and workers that a signal ends while they work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from contextlib import contextmanager

import pytest
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import OffsetSpec

from tests.support import http
from tests.support.command_line import MARK, PROGRAM, SECRET_KAFKA
from tests.support.harness import COMMIT, Bridge, eventually
from tests.support.postgres import Postgres
from tests.support.relays import add_rows, make_outbox, make_progress, require_exact, wait_relayed
from txbridge.embedded.ports import free_port

#: Where nobody listens.
NOWHERE = "127.0.0.1:1"
PROGRAMS = {"worker": [], "relay": [], "answer-checks": ["--group", "orders"], "rocketmq": []}
WAITS = ["database_unreachable", "database_reachable", "kafka_unreachable", "kafka_reachable"]


class Service:
    def __init__(self, name, servers, url, log, *more):
        self._log = log
        where = ("--bootstrap-servers", servers, "--kafka", "session.timeout.ms=6000", *PROGRAMS[name], *more)
        environment = {
            "TXBRIDGE_DATABASE_URL": url,
            "TXBRIDGE_KAFKA": SECRET_KAFKA["KAFKA"],
            "TXBRIDGE_ROCKETMQ_SECRET": "5" * 64,
            "TXBRIDGE_LOG_FORMAT": "json",
        }
        with log.open("wb") as file:
            self.process = subprocess.Popen([*PROGRAM, name, *where], env={**os.environ, **environment}, stderr=file)

    def events(self):
        """Those that say for what it waits."""
        lines = [json.loads(line) for line in self._log.read_text().splitlines() if line.startswith("{")]
        return [line["event"] for line in lines if line["event"] in WAITS]

    def wait_for(self, event):
        eventually(lambda: event in self.events() or self.process.poll() is not None, 60)
        assert self.process.poll() is None, self._log.read_text()


@contextmanager
def started(*given):
    made = [Service(*one) for one in given]
    try:
        yield made
    finally:
        for one in made:
            one.process.kill()
            one.process.wait(60)


def test_services_wait_for_their_database_and_for_kafka(own_kafka, tmp_path):
    with Bridge(own_kafka.bootstrap_servers, "waits") as bridge, Postgres(listen_addresses="127.0.0.1") as server:
        url, topic = f"postgresql+psycopg://postgres@127.0.0.1:{server.port}/postgres", bridge.create_topic("orders")
        engine = make_outbox(url)
        add_rows(engine, topic, range(10))
        engine.dispose()
        server.stop()
        make_progress(bridge.bootstrap_servers, bridge.namespace)
        own_kafka.kill()
        more = ("--namespace", bridge.namespace)
        relay = ("relay", bridge.bootstrap_servers, url, tmp_path / "relay", *more)
        answers = ("answer-checks", bridge.bootstrap_servers, url, tmp_path / "answers", *more)
        with started(relay, answers) as services:
            for service in services:
                service.wait_for("database_unreachable")
            server.start()
            for service in services:
                service.wait_for("kafka_unreachable")
            own_kafka.restart()
            for service in services:
                service.wait_for("kafka_reachable")
                # Once each, however often it was tried.
                assert service.events() == WAITS
            wait_relayed(bridge, topic, 10, services[0].process, 60)
            for service in services:
                service.process.send_signal(signal.SIGTERM)
                assert service.process.wait(60) == 0
        require_exact(bridge, topic, 10)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_signal_ends_a_service_that_waits_at_once_and_sigterm_is_no_failure(tmp_path, name, number, code):
    """It has a signal handler for this wait. Without it process 1 of a container ignores SIGTERM."""
    url = f"postgresql+psycopg://u:{MARK}@{NOWHERE}/d?password={MARK}"
    port = free_port()
    with started((name, NOWHERE, url, tmp_path / "log", "--metrics-port", str(port))) as (service,):
        service.wait_for("kafka_unreachable" if name in {"worker", "rocketmq"} else "database_unreachable")
        life, readiness = (http.ask_if_there(f"http://127.0.0.1:{port}/{page}") for page in ("livez", "readyz"))
        # A probe of its life must not end it meanwhile.
        assert (life.status, readiness.status) == (200, 503)
        assert "starting" in readiness.text or "the checks are not read yet" in readiness.text
        service.process.send_signal(number)
        # An attempt to reach Kafka takes longer.
        assert service.process.wait(8) == code
    said = (tmp_path / "log").read_text()
    assert "Traceback" not in said
    assert MARK not in said
    assert ("https://me:***@idp.example/token?***" in said) == (name == "worker")


#: Ten minutes: a test that had to wait for another worker's session time-out would fail.
_PATIENT_MS = 600_000


def test_sigterm_under_load_ends_the_kafka_transactions_at_hand_and_leaves_the_group(bridge: Bridge) -> None:
    """A killed worker leaves a transaction open, and its partitions without an owner until the session time-out."""
    topic = bridge.create_topic("real")
    values = [b"%d" % number for number in range(6_000)]
    first = bridge.worker(session_timeout=_PATIENT_MS)
    bridge.decide_many(bridge.prepare_many(topic, values), COMMIT, batch=10)
    assert first.stop() == 0
    assert first.events("ended_without_leaving_the_group") == []
    group = bridge.names.worker_group
    assert bridge.admin.describe_consumer_groups([group])[group].result(120).members == []
    # Markers may still be missing. An open transaction would stay open until its time-out.
    eventually(lambda: not _open_transactions(bridge), 5)
    # The next worker waits for no session, and the work at hand was done once.
    bridge.worker(session_timeout=_PATIENT_MS)
    bridge.wait_visible(topic, values)
    assert bridge.visible(topic) == Counter(values)


def test_sigterm_hands_the_partitions_over_to_the_other_worker(bridge: Bridge) -> None:
    topic = bridge.create_topic("real")
    first = bridge.worker(session_timeout=_PATIENT_MS)
    second = bridge.worker(wait=1, session_timeout=_PATIENT_MS)
    values = [b"%d" % number for number in range(2_000)]
    bridge.decide_many(bridge.prepare_many(topic, values), COMMIT, batch=10)
    assert first.stop() == 0
    eventually(lambda: second.owned() == {0, 1})
    bridge.wait_visible(topic, values)
    assert bridge.visible(topic) == Counter(values)
    assert second.returncode is None


def _open_transactions(bridge: Bridge) -> bool:
    """Whether a reader of committed records sees an earlier end of OFFSET than others."""
    places = {TopicPartition(bridge.names.offset, number): OffsetSpec.latest() for number in range(bridge.partitions)}
    ends = [
        {
            place: answer.result(120).offset
            for place, answer in bridge.admin.list_offsets(places, isolation_level=one).items()
        }
        for one in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
    ]
    return ends[0] != ends[1]


def test_sighup_of_a_closed_terminal_leaves_the_group_as_sigterm_does(bridge: Bridge) -> None:
    worker = bridge.worker(session_timeout=_PATIENT_MS)
    os.kill(worker.pid, signal.SIGHUP)
    assert worker.wait_dead() == 0
    assert worker.events("worker_ended") != []
    group = bridge.names.worker_group
    assert bridge.admin.describe_consumer_groups([group])[group].result(120).members == []


def test_under_nohup_a_worker_stays_after_sighup(bridge: Bridge) -> None:
    topic = bridge.create_topic("real")
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        worker = bridge.worker()
    finally:
        signal.signal(signal.SIGHUP, before)
    os.kill(worker.pid, signal.SIGHUP)
    bridge.decide(bridge.prepare(topic, b"value"), COMMIT)
    bridge.wait_visible(topic, [b"value"])
    assert worker.returncode is None
    assert worker.stop() == 0
