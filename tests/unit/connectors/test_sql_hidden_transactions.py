"""Hooks of an application that use a cursor of the driver, and a task that is cancelled at each of its awaits.

Row-level security is often set up like that. A task that is cancelled inside such a hook can leave a transaction that
SQLAlchemy does not know. Each later COMMIT on this connection only releases a savepoint in it. The oracle is the same
everywhere: what was answered is what another connection sees.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from itertools import count

import pytest
from sqlalchemy import StaticPool, create_engine, event, func, insert, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import Session
from txbridge_sqlalchemy import (
    AsyncInbox,
    AsyncSqlTransactionListener,
    LostTransactionError,
    SqlTransactionListener,
    create_table,
)

from tests.support import sql_application
from tests.support.async_engine import async_twin
from tests.support.cancel_at import cancelled_everywhere
from tests.support.consumed import Record
from tests.support.sql_application import COMMIT, ROLLBACK, message, order_ids, orders
from tests.support.sql_application import place_async as place
from txbridge import Rollback
from txbridge.client.barrier import is_in_transaction

SET_TENANT = "SET LOCAL app.tenant = 'one'"


def by_cursor(dbapi_connection):
    cursor = dbapi_connection.cursor()
    try:
        cursor.execute(SET_TENANT)
    finally:
        cursor.close()


def on_begin(engine, _):
    event.listen(engine.sync_engine, "begin", lambda connection: by_cursor(connection.connection))


def on_before_execute(engine, _):
    event.listen(engine.sync_engine, "before_execute", lambda connection, *_: by_cursor(connection.connection))


def on_before_cursor_execute(engine, _):
    event.listen(engine.sync_engine, "before_cursor_execute", lambda connection, *_: by_cursor(connection.connection))


def on_after_begin(_, session_class):
    event.listen(session_class, "after_begin", lambda _s, _t, connection: by_cursor(connection.connection))


def on_checkout(engine, _):
    event.listen(engine.sync_engine, "checkout", lambda dbapi_connection, *_: by_cursor(dbapi_connection))


def on_connect(engine, _):
    event.listen(engine.sync_engine, "connect", lambda dbapi_connection, _: by_cursor(dbapi_connection))


#: A hook, and the way in which the transaction begins.
CELLS = [
    pytest.param(hook, opens, id=f"{hook.__name__}-{opens}")
    for hook in (on_begin, on_before_execute, on_before_cursor_execute, on_after_begin, on_checkout, on_connect)
    for opens in ("connection", "session")
    if (hook, opens) != (on_after_begin, "connection")
]


@pytest.fixture(params=["asyncpg", pytest.param("psycopg", marks=pytest.mark.long)])
def driver(request):
    return request.param


@pytest.fixture
def url(postgresql_url):
    """The database of the second connection, `engine`, with which the tests look."""
    return postgresql_url


@pytest.fixture
def run(engine, postgresql_url, driver):
    """Run a coroutine function with a pool of one connection, and what SQL is to be opened with."""

    def run(hook, opens, program):
        async def running():
            class OwnSession(Session):
                pass

            twin = async_twin(postgresql_url, driver, pool_size=1, max_overflow=0)
            hook(twin, OwnSession)
            database = twin if opens == "connection" else async_sessionmaker(twin, sync_session_class=OwnSession)
            try:
                await program(database)
            finally:
                await twin.dispose()

        asyncio.run(running())

    return run


def ids(engine):
    return set(order_ids(engine))


async def decided(listener, placed):
    """The answer to the checks of this message: asked until it is definite."""
    for _ in range(3):
        try:
            answer = await listener.check_local_transaction(placed)
        except LostTransactionError:
            continue
        if answer in {COMMIT, ROLLBACK}:
            return answer
    raise AssertionError("no definite answer")


@pytest.mark.parametrize(("hook", "opens"), CELLS)
def test_p1_p2_what_the_sender_heard_is_what_the_database_has(engine, run, hook, opens):
    """Each cancelled send is followed by two others: an answer is COMMIT exactly when the order is there."""
    answers = {}

    async def program(database):
        numbers = count(1)
        listener = AsyncSqlTransactionListener(database, place, check_wait=10)
        await listener.verify()

        async def send(number):
            try:
                answers[number] = await listener.execute_local_transaction(message(f"{number:032X}"), number)
            except (Rollback, LostTransactionError):
                answers[number] = ROLLBACK
            return answers[number]

        lost = 0
        async for where, cancelled, _ in cancelled_everywhere(lambda: send(next(numbers)), collects=False):
            await send(next(numbers))
            # One send may meet the connection before its driver knows of the transaction. It is the only one.
            assert await send(next(numbers)) is COMMIT, where
            lost += cancelled
        assert lost > 5
        for number in set(range(1, next(numbers))) - set(answers):
            answers[number] = await decided(listener, message(f"{number:032X}"))

    run(hook, opens, program)
    assert ids(engine) == {number for number, answer in answers.items() if answer is COMMIT}
    assert set(answers.values()) <= {COMMIT, ROLLBACK}


@pytest.mark.parametrize(
    ("hook", "opens"), [pytest.param(on_begin, "connection"), pytest.param(on_after_begin, "session")]
)
def test_p3_an_inbox_whose_transaction_is_none_says_so(engine, run, hook, opens):
    async def work(connection, record):
        await connection.execute(insert(orders).values(transaction_id=str(record.offset())))

    async def program(database):
        numbers = count(1)
        inbox = AsyncInbox(database, "billing")
        await inbox.verify()

        async def process(number):
            return await inbox.process(Record(offset=number), work)

        def effects(number):
            with engine.connect() as connection:
                query = select(func.count()).where(orders.c.transaction_id == str(number))
                return connection.execute(query).scalar_one()

        async for where, _cancelled, _ in cancelled_everywhere(lambda: process(next(numbers)), collects=False):
            after = next(numbers)
            try:
                assert await process(after) is True, where
                assert effects(after) == 1, where
            except LostTransactionError:
                assert effects(after) == 0, where
                assert await process(after) is True, where
            assert await process(after) is False, where
            assert effects(after) == 1, where

    run(hook, opens, program)


async def hide(database):
    """Begin a transaction on the only connection of the pool, as its driver, and give the connection back."""
    async with database.connect() as connection:
        raw = await connection.get_raw_connection()
        await raw.driver_connection.transaction().start()
        await connection.execute(text("SELECT 1"))


only_asyncpg = pytest.mark.parametrize("driver", ["asyncpg"], indirect=True)


def events(caplog):
    return [record.event for record in caplog.records if record.levelno >= logging.WARNING]


@only_asyncpg
def test_a_connection_that_comes_with_a_transaction_is_replaced(engine, run, caplog):
    async def program(database):
        listener = AsyncSqlTransactionListener(database, place)
        await listener.verify()
        await hide(database)
        assert await listener.execute_local_transaction(message("A" * 32), 1) is COMMIT
        assert events(caplog) == ["sql_connection_was_in_transaction"]
        assert await listener.execute_local_transaction(message("B" * 32), 2) is COMMIT
        assert len(caplog.records) == 1

    run(lambda *_: None, "connection", program)
    assert ids(engine) == {1, 2}


@only_asyncpg
@pytest.mark.parametrize("opens", ["connection", "session"])
def test_p1_a_commit_that_ends_a_savepoint_only_is_a_rollback(engine, run, opens, caplog):
    """The transaction is hidden after the check-out, so only the state after COMMIT shows it."""
    hidden = []

    def hook(twin, _):
        def begin(connection):
            if hidden:
                hidden.clear()
                connection.connection.run_async(lambda driver: driver.transaction().start())

        event.listen(twin.sync_engine, "begin", begin)

    async def bill(connection, record):
        await connection.execute(insert(orders).values(id=record.offset()))

    async def program(database):
        listener = AsyncSqlTransactionListener(database, place)
        await listener.verify()
        hidden.append(True)
        with pytest.raises(LostTransactionError):
            await listener.execute_local_transaction(message("A" * 32), 1)
        assert events(caplog) == ["sql_transaction_was_rolled_back"]
        assert "hint=COMMIT has committed nothing" in caplog.records[0].message
        assert await listener.check_local_transaction(message("A" * 32)) is ROLLBACK
        # A check that reads its own hidden rows would answer with a commit.
        hidden.append(True)
        with pytest.raises(LostTransactionError, match="COMMIT has committed nothing"):
            await listener.check_local_transaction(message("B" * 32))
        inbox = AsyncInbox(database, "billing")
        await inbox.verify()
        hidden.append(True)
        with pytest.raises(LostTransactionError, match="COMMIT has committed nothing"):
            await inbox.process(Record(offset=1), bill)
        assert await inbox.process(Record(offset=1), bill) is True

    run(hook, opens, program)
    assert ids(engine) == {1}


def test_a_pool_that_leaves_transactions_open_does_not_have_them_committed(engine, postgresql_url):
    """`pool_reset_on_return=None`: the work of the connection's last user is no part of the local transaction."""
    left = create_engine(postgresql_url, pool_size=1, max_overflow=0, pool_reset_on_return=None)
    listener = SqlTransactionListener(left, sql_application.place)
    listener.verify()
    raw = left.raw_connection()
    raw.cursor().execute("INSERT INTO orders VALUES (7, 'of another user')")
    raw.close()
    assert listener.execute_local_transaction(message("A" * 32), 1) is COMMIT
    assert ids(engine) == {1}
    left.dispose()


def test_p4_on_sqlite_nothing_is_committed_after_the_end_of_the_transaction(sqlite_url):
    """SQLAlchemy's recipe for savepoints: the driver begins nothing by itself, so each statement would commit."""
    engine = create_engine(sqlite_url)

    @event.listens_for(engine, "connect")
    def begin_nothing(dbapi_connection, _):
        dbapi_connection.isolation_level = None

    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    create_table(engine)
    sql_application.tables.create_all(engine)
    with engine.begin() as connection:
        connection.execute(insert(orders).values(id=7, transaction_id="earlier"))

    def swallow(connection, placed, arg):
        with contextlib.suppress(IntegrityError):
            connection.execute(insert(orders).values(id=7).prefix_with("OR ROLLBACK"))
        sql_application.place(connection, placed, arg)

    listener = SqlTransactionListener(engine, swallow)
    with pytest.raises(LostTransactionError):
        listener.execute_local_transaction(message("A" * 32), 1)
    assert ids(engine) == {7}
    engine.dispose()


def test_a_connection_that_several_share_is_left_alone():
    """SQLite in memory with one connection for all: closing it would lose the database."""
    shared = create_engine("sqlite://", poolclass=StaticPool)
    create_table(shared)
    sql_application.tables.create_all(shared)
    listener = SqlTransactionListener(shared, sql_application.place)
    raw = shared.raw_connection()
    listener.verify()
    raw.cursor().execute("INSERT INTO orders VALUES (7, 'another user')")
    assert listener.execute_local_transaction(message("A" * 32), 1) is COMMIT
    assert ids(shared) == {1, 7}
    shared.dispose()


def test_the_drivers_know_whether_they_are_in_a_transaction(postgresql_url, sqlite_url):
    for url in (postgresql_url, sqlite_url):
        plain = create_engine(url)
        with plain.connect() as connection:
            driver = connection.connection.driver_connection
            assert not is_in_transaction(driver)
            connection.execute(text("CREATE TABLE one (id INTEGER)"))
            connection.execute(text("INSERT INTO one VALUES (1)"))
            assert is_in_transaction(driver)
            connection.commit()
            assert not is_in_transaction(driver)
        plain.dispose()


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg", "aiosqlite"])
async def test_the_asynchronous_drivers_know_it_too(request, driver):
    twin = async_twin(request.getfixturevalue("sqlite_url" if driver == "aiosqlite" else "postgresql_url"), driver)
    async with twin.connect() as connection:
        raw = await connection.get_raw_connection()
        assert not is_in_transaction(raw.driver_connection)
        await connection.execute(text("CREATE TABLE one (id INTEGER)"))
        await connection.execute(text("INSERT INTO one VALUES (1)"))
        assert is_in_transaction(raw.driver_connection)
        await connection.commit()
        assert not is_in_transaction(raw.driver_connection)
    await twin.dispose()
