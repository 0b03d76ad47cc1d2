"""`txbridge answer-checks` as a process: it answers from the table for applications that no longer run."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.request
from contextlib import contextmanager

import pytest
from sqlalchemy import create_engine, insert, select
from txbridge_sqlalchemy import SqlTransactionListener, create_table, transactions

from tests.support import http, sql_application
from tests.support.command_line import PROGRAM
from tests.support.harness import eventually
from tests.support.sql_application import GROUP, orders, place
from txbridge import LocalTransactionState, Message, TransactionListener, TransactionProducer
from txbridge.embedded.ports import free_port


@pytest.fixture
def url(tmp_path):
    """A database with the tables of an application."""
    made = f"sqlite:///{tmp_path}/app.db?timeout=5"
    engine = create_engine(made)
    create_table(engine)
    sql_application.tables.create_all(engine)
    engine.dispose()
    return made


def command(*words):
    return [*PROGRAM, "answer-checks", *words]


@contextmanager
def answering(bridge, url, *more):
    """Start the process; kill it at the end unless it has ended."""
    where = ("--bootstrap-servers", bridge.bootstrap_servers, "--namespace", bridge.namespace)
    ours = {"TXBRIDGE_DATABASE_URL": url, "TXBRIDGE_LOG_FORMAT": "json"}
    # A variable of another program: prometheus_client would write there.
    environment = {**os.environ, **ours, "PROMETHEUS_MULTIPROC_DIR": "/nowhere"}
    session = ("--kafka", "session.timeout.ms=6000")
    process = subprocess.Popen(
        command(*where, *session, *more), env=environment, stderr=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


class Dying(TransactionListener):
    """Stops before its process decides, and answers no check."""

    def __init__(self, engine):
        self._listener = SqlTransactionListener(engine, place)

    def execute_local_transaction(self, message, arg):
        if arg is not None:
            self._listener.execute_local_transaction(message, arg)
        return LocalTransactionState.UNKNOWN

    def check_local_transaction(self, message):
        return LocalTransactionState.UNKNOWN


def page(port, path):
    return http.ask_if_there(urllib.request.Request(f"http://127.0.0.1:{port}{path}"))


def test_p2_p4_a_dead_application_is_answered_for_by_its_table(bridge, url):
    """Committed, rolled back and never begun, while this process is the only live member of the group."""
    topic = bridge.create_topic("orders")
    engine = create_engine(url)
    settings = {"bootstrap.servers": bridge.bootstrap_servers}
    with TransactionProducer(GROUP, Dying(engine), settings, namespace=bridge.namespace) as producer:
        producer.send_message_in_transaction(Message(topic, b"committed"), 1)
        lost = producer.send_message_in_transaction(Message(topic, b"rolled back"))
        producer.send_message_in_transaction(Message(topic, b"never begun"))
        producer.flush()
    with engine.begin() as connection:
        row = {"id": lost.transaction_id, "state": "rolled back", "created_at": time.time_ns() // 1_000_000}
        connection.execute(insert(transactions).values(row))
    port = free_port()
    bridge.worker(transaction_check_max=100)
    more = ("--group", "others", "--patience", "2", "--metrics-port", str(port))
    with answering(bridge, url, "--group", GROUP, *more) as process:
        eventually(lambda: page(port, "/readyz").status == 200, 60)
        assert page(port, "/livez").status == 200
        expected = [["commit"], ["rollback"], ["rollback"]]
        eventually(lambda: sorted(bridge.outcomes().values()) == expected, 60)
        assert bridge.visible(topic) == {b"committed": 1}
        text = page(port, "/metrics").text
        assert 'txbridge_client_decisions_total{group="sql",outcome="commit",source="check"} 1.0' in text
        assert 'txbridge_client_decisions_total{group="sql",outcome="rollback",source="check"} 2.0' in text
        assert "txbridge_answer_checks_ready 1.0" in text
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=60)[1]
        assert process.returncode == 0, said
        assert "Traceback" not in said
    with engine.connect() as connection:
        # A process that paused before its local transaction cannot commit it any more.
        states = select(transactions.c.state).where(transactions.c.id != "barrier")
        assert sorted(connection.execute(states).scalars()) == ["committed"] + ["rolled back"] * 2
        assert connection.execute(select(orders.c.id)).scalars().all() == [1]
    engine.dispose()


def test_a_database_that_goes_away_is_told_and_decides_nothing(bridge, url, tmp_path):
    topic = bridge.create_topic("orders")
    engine = create_engine(url)
    port = free_port()
    bridge.worker(transaction_check_max=100)
    with answering(bridge, url, "--group", GROUP, "--patience", "2", "--metrics-port", str(port)):
        eventually(lambda: page(port, "/readyz").status == 200, 60)
        # Stands for a database server that came back without the table.
        with engine.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE txbridge_transactions RENAME TO away")
        eventually(lambda: page(port, "/readyz").status == 503, 60)
        assert "the database does not answer: no such table: txbridge_transactions" in page(port, "/readyz").text
        settings = {"bootstrap.servers": bridge.bootstrap_servers}
        with TransactionProducer(GROUP, Dying(engine), settings, namespace=bridge.namespace) as producer:
            producer.send_message_in_transaction(Message(topic, b"value"))
        asked = 'txbridge_client_decisions_total{group="sql",outcome="unknown",source="check"}'
        eventually(lambda: asked in page(port, "/metrics").text, 60)
        assert bridge.outcomes() == {}
        with engine.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE away RENAME TO txbridge_transactions")
        eventually(lambda: page(port, "/readyz").status == 200, 60)
        eventually(lambda: list(bridge.outcomes().values()) == [["rollback"]], 60)
    engine.dispose()
