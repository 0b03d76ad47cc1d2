"""A purge of the barrier table beside a bridge at work.

Whatever waits, a message whose local transaction is committed is never rolled back. By default every check that the
topics can still send is answered by its row.
"""

from __future__ import annotations

import signal
import time
from contextlib import contextmanager
from datetime import timedelta

import pytest
from sqlalchemy import create_engine, select
from txbridge_sqlalchemy import purge, transactions

from tests.bench.beside import beside
from tests.integration.test_who_answers import service, wait_members
from tests.support import sql_application
from tests.support.command_line import run_txbridge
from tests.support.harness import eventually
from tests.support.sql_application import GROUP, in_new_schema, order_ids, purge_all, state_of
from tests.support.stopped import wait_stopped
from txbridge import LocalTransactionState, Message, TransactionListener, TransactionProducer
from txbridge.operations import Action, Result, Selection, list_discarded, list_pending, resolve, resolve_all

COMMIT = LocalTransactionState.COMMIT_MESSAGE


@pytest.fixture
def url(postgres_url):
    made = in_new_schema(postgres_url, f"purge{time.time_ns()}")
    sql_application.create(made).dispose()
    return made


@pytest.fixture
def engine(url):
    made = create_engine(url)
    yield made
    made.dispose()


@contextmanager
def purging(url, act):
    """Purge again and again, beside everything else."""
    own = create_engine(url)

    def work(ended):
        while not ended.wait(0.05):
            act(own)

    try:
        with beside(work):
            yield
    finally:
        own.dispose()


def commit_and_die(bridge, url, topic):
    """A process that is killed between its COMMIT and its END. Kafka has forgotten it: nobody is asked in its place."""
    with sql_application.running(
        "produce", url, "committed", "KILL", bridge.bootstrap_servers, bridge.namespace, topic
    ) as process:
        assert process.wait(120) == -signal.SIGKILL
    wait_members(bridge, 0)


def purge_by_command(url):
    done = run_txbridge("purge", "--database-url", url)
    assert done.returncode == 0, done.stderr
    return done.stdout


def resumed_and_committed_by_hand(connection):
    how = {"reason": "test", "operator": "test", "timeout_s": 60}
    resolve_all(connection, Action.RESUME, Selection(group=GROUP), **how)
    pending = list_pending(connection, Selection()).messages
    done = [resolve(connection, f"{one.partition}:{one.half_offset}", Action.COMMIT, **how) for one in pending]
    return [one.result for one in done] == [Result.COMMITTED]


def test_p2_an_undecided_message_is_committed_by_its_row_beside_purges(bridge, url):
    """The worker was down meanwhile: nothing was asked, and the rows wait."""
    topic = bridge.create_topic("orders")
    commit_and_die(bridge, url, topic)
    assert purge_by_command(url).startswith("txbridge_transactions: 0 rows deleted")
    with purging(url, purge):
        bridge.worker()
        with service(bridge, url, patience=0):
            bridge.wait_visible(topic, [b"order"])
    assert list(bridge.outcomes().values()) == [["commit"]]


def test_p2_an_undecided_message_whose_row_is_gone_is_asked_about_and_then_decided_by_hand(bridge, url, engine):
    """The worker was down for longer than rows were kept. Nobody rolls the message back: it is discarded, and resumed,
    and discarded again, and a person who has found the order commits it."""
    topic = bridge.create_topic("orders")
    commit_and_die(bridge, url, topic)
    assert purge_all(engine) == 1
    bridge.worker(transaction_timeout=200, transaction_check_interval=300, transaction_check_max=2)
    connection = bridge.connection()
    with service(bridge, url, patience=0), purging(url, purge_all):
        eventually(lambda: len(bridge.discarded()) == 1, 60)
        resolve_all(connection, Action.RESUME, Selection(group=GROUP), reason="test", operator="test", timeout_s=60)
        eventually(lambda: len(bridge.discarded()) == 2, 60)
        assert bridge.count_answers() >= 4
        assert list(bridge.outcomes().values()) == [["discard", "discard"]]
    assert order_ids(engine) == [1]
    with engine.connect() as opened:
        assert opened.execute(select(transactions.c.state).where(transactions.c.state == "rolled back")).all() == []
    # The worker may count checks for some seconds after the group has left, and discard the message again.
    eventually(lambda: resumed_and_committed_by_hand(connection), 120)
    bridge.wait_visible(topic, [b"order"])


def test_p2_a_discarded_message_that_is_resumed_is_committed_by_its_row(bridge, url):
    """Its group could not answer until it was discarded."""
    topic = bridge.create_topic("orders")
    commit_and_die(bridge, url, topic)
    bridge.worker(transaction_timeout=200, transaction_check_interval=1_000, transaction_check_max=2)
    settings = {"bootstrap.servers": bridge.bootstrap_servers}
    with TransactionProducer(GROUP, CannotSay(), settings, namespace=bridge.namespace):
        eventually(bridge.discarded, 60)
    assert len(list_discarded(bridge.connection(), Selection()).messages) == 1
    assert purge_by_command(url).startswith("txbridge_transactions: 0 rows deleted")
    with service(bridge, url, patience=0):
        wait_members(bridge, 1)
        resolve_all(
            bridge.connection(), Action.RESUME, Selection(group=GROUP), reason="test", operator="test", timeout_s=60
        )
        bridge.wait_visible(topic, [b"order"])


def test_p2_held_and_delayed_messages_need_no_rows(bridge, url, engine):
    """They are committed, and never asked about again."""
    topic, missing = bridge.create_topic("orders"), f"{bridge.namespace}.missing"
    bridge.worker(transaction_timeout=200, transaction_check_interval=300)
    with service(bridge, url, patience=0) as producer:
        with purging(url, purge_all):
            sent = [
                producer.send_message_in_transaction(Message(missing, b"held"), 1),
                producer.send_message_in_transaction(Message(topic, b"delayed", delay=timedelta(seconds=6)), 2),
            ]
            assert [one.local_transaction_state for one in sent] == [COMMIT, COMMIT]
            states = {"held", "scheduled"}
            eventually(lambda: states <= {*bridge.parked_states(0), *bridge.parked_states(1)}, 60)
            eventually(lambda: not any(state_of(engine, one.transaction_id) for one in sent), 60)
            bridge.wait_visible(topic, [b"delayed"], 60)
        bridge.create_topic("missing")
        bridge.wait_visible(missing, [b"held"], 60)
    assert bridge.count_answers() == 0
    assert sorted(bridge.outcomes().values()) == [["commit"], ["commit"]]


def test_p4_a_paused_sender_cannot_commit_what_a_check_has_rolled_back_before_a_purge(bridge, url, engine):
    """SIGSTOP between the half message and the INSERT, for longer than the patience of the check."""
    topic = bridge.create_topic("orders")
    more = (bridge.bootstrap_servers, bridge.namespace, topic)
    with sql_application.running("produce", url, "insert", "STOP", *more) as process:
        wait_stopped(process)
        wait_members(bridge, 0)
        bridge.worker()
        with service(bridge, url, patience=0):
            eventually(lambda: list(bridge.outcomes().values()) == [["rollback"]], 60)
        with purging(url, purge_all):
            process.send_signal(signal.SIGCONT)
            assert process.communicate(timeout=120)[0].split() == ["ROLLBACK_MESSAGE"]
    assert order_ids(engine) == []
    assert bridge.visible(topic) == {}


def test_p2_the_row_of_a_message_has_the_birth_that_its_check_names(bridge, url, engine):
    """So the purge and the check go by the same clock."""
    topic = bridge.create_topic("orders")
    with service(bridge, url) as producer:
        sent = producer.send_message_in_transaction(Message(topic, b"order"), 1)
    [half] = bridge.read(bridge.names.half)
    with engine.connect() as connection:
        query = select(transactions.c.created_at).where(transactions.c.id == sent.transaction_id)
        assert connection.execute(query).scalar_one() == half.timestamp()[1]


class CannotSay(TransactionListener):
    """Of a process whose database does not answer."""

    def execute_local_transaction(self, message, arg):
        return LocalTransactionState.UNKNOWN

    def check_local_transaction(self, message):
        return LocalTransactionState.UNKNOWN
