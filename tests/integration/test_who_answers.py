"""The right to answer a check: senders that wait for their database, and one group on two databases."""

from __future__ import annotations

import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest
from sqlalchemy import create_engine, insert, select, update
from txbridge_sqlalchemy import SqlTransactionListener

from tests.integration.test_answer_checks import answering
from tests.support import sql_application
from tests.support.harness import eventually
from tests.support.sql_application import GROUP, in_new_schema, orders, place
from txbridge import LocalTransactionState, Message, TransactionProducer
from txbridge.operations import Selection, list_pending

#: The product's default suits the product's check interval. Here a busy machine may take minutes for some checks.
PATIENCE_S = 600
ORDERS = 30


@pytest.fixture
def urls(postgres_url):
    """Two databases: new schemas with the tables of an application."""
    made = [in_new_schema(postgres_url, f"w{number}_{time.time_ns()}") for number in (1, 2)]
    for url in made:
        sql_application.create(url).dispose()
    return made


@pytest.fixture
def check_topic(bridge):
    """Four partitions, so that every process of the group is asked."""
    return bridge.create_topic(
        f"RMQ_SYS_TRANS_CHECK.{GROUP}", 4, message_timestamp_type="LogAppendTime", max_message_bytes="1131072"
    )


def place_beside_a_hot_row(connection, message, arg):
    connection.execute(update(orders).where(orders.c.id == 0).values(transaction_id="hot"))
    place(connection, message, arg)


@contextmanager
def service(bridge, url, execute=place, patience=PATIENCE_S):
    """A process of the group: its own producer, and its own pool of five connections."""
    engine = create_engine(url, pool_size=5, max_overflow=0, pool_timeout=600)
    listener = SqlTransactionListener(engine, execute, patience=patience)
    settings = {"bootstrap.servers": bridge.bootstrap_servers, "session.timeout.ms": 6_000}
    with TransactionProducer(GROUP, listener, settings, namespace=bridge.namespace) as producer:
        yield producer
    engine.dispose()


def wait_members(bridge, count):
    group = bridge.names.check(GROUP)
    eventually(lambda: len(bridge.admin.describe_consumer_groups([group])[group].result(60).members) == count, 60)


@pytest.mark.parametrize("another", ["instance", pytest.param("answer-checks", marks=pytest.mark.long)])
def test_p4_senders_that_wait_for_a_connection_are_not_rolled_back(bridge, urls, check_topic, another):
    """A hot row is locked: five of 30 orders wait for it, the others for one of five connections. They have no row."""
    topic = bridge.create_topic("orders")
    engine = create_engine(urls[0])
    with engine.begin() as connection:
        connection.execute(insert(orders).values(id=0, transaction_id="cold"))
    bridge.worker(transaction_check_max=1_000)
    with ExitStack() as stack:
        producer = stack.enter_context(service(bridge, urls[0], place_beside_a_hot_row))
        producer.send_message_in_transaction(Message(topic, b"first"), 1_000)
        if another == "instance":
            stack.enter_context(service(bridge, urls[0], place_beside_a_hot_row))
        else:
            stack.enter_context(answering(bridge, urls[0], "--group", GROUP, "--patience", str(PATIENCE_S)))
        wait_members(bridge, 2)
        with engine.connect() as locker, ThreadPoolExecutor(ORDERS) as pool:
            locker.execute(update(orders).where(orders.c.id == 0).values(transaction_id="locked"))
            results = [
                pool.submit(producer.send_message_in_transaction, Message(topic, f"{number}", key=f"{number}"), number)
                for number in range(1, ORDERS + 1)
            ]
            eventually(lambda: bridge.count_answers() >= 3 * ORDERS, 60)
            locker.rollback()
            states = [result.result(600).local_transaction_state for result in results]
        assert states == [LocalTransactionState.COMMIT_MESSAGE] * ORDERS
        eventually(lambda: len(bridge.outcomes()) == ORDERS + 1, 60)
    assert set(map(tuple, bridge.outcomes().values())) == {("commit",)}
    with engine.connect() as connection:
        assert len(connection.execute(select(orders)).all()) == ORDERS + 2
    engine.dispose()


@pytest.mark.parametrize("another", ["instance", "answer-checks"])
def test_p2_a_service_with_another_database_does_not_answer_rollback(bridge, urls, another):
    """Two databases, one group: A commits and dies, B is asked. Then A comes back."""
    topic = bridge.create_topic("orders")
    with sql_application.running(
        "produce", urls[0], "committed", "KILL", bridge.bootstrap_servers, bridge.namespace, topic
    ) as process:
        assert process.wait(120) == -signal.SIGKILL
    bridge.worker(transaction_check_max=1_000)
    wrong = create_engine(urls[1])
    right = create_engine(urls[0])
    names = [SqlTransactionListener(engine, place).barrier_id() for engine in (right, wrong)]
    with ExitStack() as stack:
        if another == "instance":
            stack.enter_context(service(bridge, urls[1], patience=0))
        else:
            process = stack.enter_context(answering(bridge, urls[1], "--group", GROUP, "--patience", "0"))
            lines = map(json.loads, process.stderr)
            error = next(line for line in lines if line["level"] == "error")
            assert "check_for_another_database" in error["event"]
            assert all(name in str(error) for name in names)
        eventually(lambda: bridge.count_answers() >= 2, 60)
        assert bridge.outcomes() == {}
        [pending] = list_pending(bridge.connection(), Selection()).messages
        assert pending.barrier_id == names[0]
    with service(bridge, urls[0]):
        bridge.wait_visible(topic, [b"order"])
    assert list(bridge.outcomes().values()) == [["commit"]]
    for engine in (right, wrong):
        engine.dispose()
