"""Local transactions in SQL with a real Kafka and worker: readers of the topic see what is in the database."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress

import pytest
from sqlalchemy import event, select
from sqlalchemy.orm import sessionmaker
from txbridge_sqlalchemy import (
    AsyncSqlBridge,
    AsyncSqlTransactionListener,
    SqlBridge,
    SqlTransactionListener,
    transactions,
)

from tests.support import sql_application
from tests.support.async_engine import async_twin
from tests.support.harness import eventually
from tests.support.sql_application import GROUP, order_ids, place, place_async
from tests.support.stopped import wait_stopped
from txbridge import AsyncTransactionProducer, LocalTransactionState, Message, Rollback, TransactionProducer

#: In `make test` each guarantee is tested on one database; tests/unit/connectors tests the listener on both.
long_on_sqlite = pytest.mark.parametrize(
    "engine", [pytest.param("sqlite", marks=pytest.mark.long), "postgresql"], indirect=True
)
long_on_postgresql = pytest.mark.parametrize(
    "engine", ["sqlite", pytest.param("postgresql", marks=pytest.mark.long)], indirect=True
)


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request, tmp_path):
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/app.db?timeout=5"
    else:
        url = sql_application.in_new_schema(request.getfixturevalue("postgres_url"), f"i_{tmp_path.name}".lower())
    made = sql_application.create(url)
    yield made
    made.dispose()


@pytest.fixture
def topic(bridge):
    return bridge.create_topic("orders")


def producer_on(bridge, listener):
    settings = {"bootstrap.servers": bridge.bootstrap_servers, "session.timeout.ms": 6_000}
    return TransactionProducer(GROUP, listener, settings, namespace=bridge.namespace)


def states(engine):
    with engine.connect() as connection:
        return list(connection.execute(select(transactions.c.state).where(transactions.c.id != "barrier")).scalars())


@long_on_postgresql
def test_p4_announcements_follow_the_rows(bridge, topic, engine):
    """Commit and an exception, blocking and on an event loop. The worker checks none of them."""
    settings, url = {"bootstrap.servers": bridge.bootstrap_servers}, engine.url.render_as_string(hide_password=False)
    with SqlBridge(GROUP, sessionmaker(engine), settings, namespace=bridge.namespace) as announcing:
        for number in range(4):
            with suppress(ZeroDivisionError), announcing.announce(Message(topic, str(number), key=b"k")) as tx:
                place(tx.session, tx, number)
                assert 1 // (1 - number % 2)

    async def program():
        twin = async_twin(url)
        async with AsyncSqlBridge(GROUP, twin, settings, namespace=bridge.namespace) as announcing:
            for number in range(4, 8):
                with suppress(ZeroDivisionError):
                    async with announcing.announce(Message(topic, str(number), key=b"k")) as tx:
                        await place_async(tx.connection, tx, number)
                        assert 1 // (1 - number % 2)
        await twin.dispose()

    asyncio.run(program())
    bridge.worker()
    eventually(lambda: sorted(bridge.outcomes().values()) == [["commit"]] * 4 + [["rollback"]] * 4, 40)
    assert order_ids(engine) == [0, 2, 4, 6]
    assert bridge.visible(topic) == {str(number).encode(): 1 for number in range(0, 8, 2)}
    assert states(engine) == ["committed"] * 4


@long_on_sqlite
@pytest.mark.parametrize(
    ("mode", "point", "commits"),
    [("produce", "committed", True), ("produce", "commit", False), ("announce", "committed", True)],
)
def test_p10_a_killed_producer_is_judged_by_its_database(bridge, topic, engine, mode, point, commits):
    """kill -9 between the half message and its END; another process of the group gets the check."""
    url = engine.url.render_as_string(hide_password=False)
    more = (bridge.bootstrap_servers, bridge.namespace, topic)
    with sql_application.running(mode, url, point, "KILL", *more) as process:
        assert process.wait(60) == -signal.SIGKILL
    assert len(bridge.read(bridge.names.half)) == 1
    assert bridge.read(bridge.names.end) == []
    assert order_ids(engine) == ([1] if commits else [])
    # More checks than usual, because some go to the dead process until Kafka has noticed its death.
    bridge.worker(transaction_check_max=100)
    with producer_on(bridge, SqlTransactionListener(engine, place, patience=2)):
        expected = ["commit" if commits else "rollback"]
        eventually(lambda: list(bridge.outcomes().values()) == [expected], 60)
    assert order_ids(engine) == ([1] if commits else [])
    assert states(engine) == ["committed" if commits else "rolled back"]
    assert bridge.visible(topic) == ({b"order": 1} if commits else {})


@long_on_postgresql
def test_p5_a_stopped_producer_can_not_commit_what_a_check_rolled_back(bridge, topic, engine):
    """The producer pauses before its local transaction, and goes on after the message was rolled back."""
    url = engine.url.render_as_string(hide_password=False)
    more = (bridge.bootstrap_servers, bridge.namespace, topic)
    with sql_application.running("produce", url, "insert", "STOP", *more) as process:
        wait_stopped(process)
        bridge.worker(transaction_check_max=100)
        with producer_on(bridge, SqlTransactionListener(engine, place, patience=2)):
            eventually(lambda: list(bridge.outcomes().values()) == [["rollback"]], 60)
        process.send_signal(signal.SIGCONT)
        assert process.communicate(timeout=60)[0].split() == ["ROLLBACK_MESSAGE"]
    assert order_ids(engine) == []
    assert bridge.visible(topic) == {}


@long_on_postgresql
def test_p4_messages_follow_the_rows_on_an_event_loop(bridge, topic, engine):
    """AsyncTransactionProducer and an asynchronous engine, with a task that is cancelled in its local transaction."""

    async def place_even(connection, message, arg):
        await place_async(connection, message, arg)
        if arg % 4 == 1:
            raise Rollback
        if arg % 4 == 3:
            asyncio.current_task().cancel()
            await asyncio.sleep(60)

    async def program():
        twin = async_twin(engine.url.render_as_string(hide_password=False))
        listener = AsyncSqlTransactionListener(twin, place_even)
        settings = {"bootstrap.servers": bridge.bootstrap_servers, "session.timeout.ms": 6_000}
        async with AsyncTransactionProducer(GROUP, listener, settings, namespace=bridge.namespace) as producer:
            for number in range(12):
                sending = producer.send_message_in_transaction(Message(topic, str(number), key=str(number)), number)
                # A task of its own, as a web framework makes it for a request.
                [sent] = await asyncio.gather(asyncio.create_task(sending), return_exceptions=True)
                assert isinstance(sent, asyncio.CancelledError) is (number % 4 == 3)
            expected = [["commit"]] * 6 + [["rollback"]] * 6
            told = lambda: sorted(bridge.outcomes().values()) == expected  # noqa: E731
            await asyncio.to_thread(eventually, told, 60)
        await twin.dispose()

    bridge.worker(transaction_check_max=15)
    asyncio.run(program())
    # Nothing was checked.
    assert states(engine) == ["committed"] * 6
    assert order_ids(engine) == [0, 2, 4, 6, 8, 10]
    assert bridge.visible(topic) == {str(number).encode(): 1 for number in range(0, 12, 2)}


def test_p1_after_a_cancelled_send_readers_see_what_the_database_has(bridge, topic, postgres_url, tmp_path):
    """asyncpg, and a hook with a cursor of the driver: the cancelled task leaves a transaction on the connection."""
    url = sql_application.in_new_schema(postgres_url, f"h_{tmp_path.name}".lower())
    engine = sql_application.create(url)
    bridge.worker()
    sending = []

    async def send():
        twin = async_twin(url, "asyncpg", pool_size=1, max_overflow=0)

        @event.listens_for(twin.sync_engine, "begin")
        def set_tenant(connection):
            if sending:
                # At the next step of the loop, when BEGIN is on its way.
                asyncio.get_running_loop().call_soon(sending.pop().cancel)
            cursor = connection.connection.cursor()
            cursor.execute("SET LOCAL app.tenant = 'one'")
            cursor.close()

        listener = AsyncSqlTransactionListener(twin, place_async)
        await listener.verify()
        settings = {"bootstrap.servers": bridge.bootstrap_servers, "session.timeout.ms": 6_000}
        heard = {}
        async with AsyncTransactionProducer(GROUP, listener, settings, namespace=bridge.namespace) as producer:
            for number in range(1, 9):
                task = asyncio.create_task(producer.send_message_in_transaction(Message(topic, b"%d" % number), number))
                if number == 2:
                    sending.append(task)
                try:
                    heard[number] = (await task).local_transaction_state
                except asyncio.CancelledError:
                    assert number == 2
            committed = {number for number, state in heard.items() if state is LocalTransactionState.COMMIT_MESSAGE}
            # The cancelled task costs one more transaction at most.
            assert len(committed) >= 6
            assert set(order_ids(engine)) == committed
            await asyncio.to_thread(
                eventually, lambda: bridge.visible(topic) == {b"%d" % number: 1 for number in committed}, 60
            )
            await asyncio.to_thread(eventually, lambda: len(bridge.outcomes()) == 8, 120)
        assert set(bridge.visible(topic)) == {b"%d" % number for number in committed}
        await twin.dispose()

    asyncio.run(send())
    engine.dispose()
