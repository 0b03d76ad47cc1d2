"""Open transactions: connections that commit every statement by themselves, pools, and conflicts.

Of a connection that commits by itself, half of the work would stay after an error, and its message be delivered all the
same. It is refused before the function of the application runs, and leaves no row that would decide the transaction.
Django sets its connections right by itself: there the work is atomic.
"""

from __future__ import annotations

import inspect
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import AssertionPool, StaticPool, create_engine, insert, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.util import greenlet_spawn
from txbridge_sqlalchemy import (
    AsyncInbox,
    AsyncSqlTransactionListener,
    Inbox,
    Outbox,
    SqlTransactionListener,
    transactions,
)
from txbridge_sqlalchemy.inbox_table import inbox
from txbridge_sqlalchemy.outbox_table import OUR_OUTBOX

from tests.support.async_engine import DRIVERS, async_twin
from tests.support.consumed import Record
from tests.support.django_work import DjangoListener
from tests.support.sql_application import COMMIT, ROLLBACK, UNKNOWN, message, order_ids, orders, place
from tests.support.sql_service import SqlService
from txbridge import Message, UsageError
from txbridge.client.barrier import is_busy

MESSAGE = message("A" * 32)


@pytest.fixture(params=DRIVERS.keys())
def url(request):
    return request.getfixturevalue(f"{request.param}_url".replace("mysql", "mariadb"))


def by_option(database):
    return database.execution_options(isolation_level="AUTOCOMMIT")


def by_arguments(dialect):
    return {"connect_args": {"isolation_level": None} if dialect == "sqlite" else {"autocommit": True}}


def left_by_driver(dialect, given):
    """A nightly job has set it, and gives the connection back to its pool like that."""
    if dialect == "sqlite":
        given.isolation_level = None
        given.cursor().execute("VACUUM")
    elif dialect == "mysql":
        given.autocommit(True)
    else:
        given.autocommit = True


def left_by_statement(_, given):
    given.cursor().execute("SET autocommit = 1")


def leave(way, engine):
    raw = engine.raw_connection()
    way(engine.dialect.name, raw.dbapi_connection)
    raw.close()


#: A database, one of its asynchronous drivers or none, and a way. asyncpg has no argument for it.
CELLS = [
    pytest.param(database, driver, way, id=f"{driver or database}-{way.__name__}")
    for database, drivers in DRIVERS.items()
    for driver in ("", *drivers)
    for way in (by_option, by_arguments, left_by_driver, left_by_statement)
    if (way is not left_by_statement or database == "mysql") and (way, driver) != (by_arguments, "asyncpg")
]


def half(connection, *_):
    connection.execute(insert(orders).values(id=1))
    raise KeyError("the other half")


async def async_half(connection, *_):
    await connection.run_sync(half)


def listen(database, work):
    listener = (AsyncSqlTransactionListener if work is async_half else SqlTransactionListener)(database, work)
    return listener.verify, lambda: listener.execute_local_transaction(MESSAGE, 1)


def receive(database, work):
    receiving = (AsyncInbox if work is async_half else Inbox)(database, "billing")
    return receiving.verify, lambda: receiving.process(Record(), work)


def add(database, work):
    def adding():
        with getattr(database, "sync_engine", database).begin() as connection:
            Outbox().add(connection, Message("t", b""))
            half(connection)

    return lambda: None, adding if work is half else lambda: greenlet_spawn(adding)


async def done(returned):
    return await returned if inspect.isawaitable(returned) else returned


def everything(engine):
    """All rows but the identity of the table."""
    with engine.connect() as connection:
        rows = [row for table in (orders, inbox, OUR_OUTBOX.rows) for row in connection.execute(select(table))]
        return rows + connection.execute(select(transactions).where(transactions.c.id != "barrier")).all()


@pytest.mark.parametrize("use", [listen, receive, add])
@pytest.mark.parametrize(("url", "driver", "way"), CELLS, indirect=["url"])
async def test_p1_p3_a_connection_that_commits_by_itself_is_refused_before_the_work(engine, url, driver, way, use):
    # One connection: the one that was left is the next one.
    options = {"pool_size": 1, "max_overflow": 0} | (by_arguments(engine.dialect.name) if way is by_arguments else {})
    made = async_twin(url, driver, **options) if driver else create_engine(url, **options)
    database = by_option(made) if way is by_option else made
    verify, act = use(database, async_half if driver else half)
    is_left = way in {left_by_driver, left_by_statement}
    try:
        if is_left:
            await done(verify())
            await done(greenlet_spawn(leave, way, made.sync_engine) if driver else leave(way, made))
        for call in (act,) if is_left or use is add else (verify, act):
            with pytest.raises(UsageError, match="AUTOCOMMIT"):
                await done(call())
    finally:
        await done(made.dispose())
    assert everything(engine) == []


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_p1_a_job_that_leaves_its_connection_in_autocommit_costs_no_order(engine):
    """A message was delivered without its order: the row was committed by itself, and so was nothing after it."""
    listener = SqlTransactionListener(engine, place)
    assert listener.execute_local_transaction(message("B" * 32), 2) is COMMIT
    leave(left_by_driver, engine)
    with pytest.raises(UsageError, match="set it back before the connection returns to its pool"):
        listener.execute_local_transaction(MESSAGE, 1)
    raw = engine.raw_connection()
    raw.dbapi_connection.isolation_level = ""
    raw.close()
    assert listener.check_local_transaction(MESSAGE) is ROLLBACK
    assert order_ids(engine) == [2]


def test_p1_django_begins_its_transactions_whatever_was_left(engine):
    listener = DjangoListener(engine, lambda _arg, work, *_: half(work))
    listener.verify()
    from django.db import connections, transaction
    from django.test import override_settings
    from txbridge_django import outbox

    def add_half():
        with transaction.atomic("scripts"):
            outbox.add(Message("t", b""))
            half(listener._work)

    try:
        for work in (lambda: listener.execute_local_transaction(MESSAGE, 1), add_half):
            connections["scripts"].ensure_connection()
            left_by_driver(engine.dialect.name, connections["scripts"].connection)
            with pytest.raises(KeyError), override_settings(TXBRIDGE={"DATABASE": "scripts"}):
                work()
    finally:
        listener.close()
    assert everything(engine) == []


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sqlite3 has no autocommit before Python 3.12")
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_driver_that_is_always_in_a_transaction_commits_all_the_same(engine, url, caplog):
    always = create_engine(url, connect_args={"autocommit": False})
    listener = SqlTransactionListener(always, place, patience=0)
    assert listener.execute_local_transaction(MESSAGE, 1) is COMMIT
    assert listener.execute_local_transaction(message("B" * 32), 2) is COMMIT
    assert listener.check_local_transaction(message("C" * 32)) is ROLLBACK
    always.dispose()
    assert order_ids(engine) == [1, 2]
    assert caplog.records == []


@pytest.mark.parametrize("pool", [StaticPool, AssertionPool])
@pytest.mark.parametrize("use", [listen, receive])
@pytest.mark.parametrize(
    ("url", "driver"), [("postgresql", ""), ("postgresql", "asyncpg"), ("mysql", "")], indirect=["url"]
)
async def test_p1_a_pool_that_may_share_a_connection_is_refused_by_its_name(engine, url, driver, use, pool):
    made = async_twin(url, driver, poolclass=pool) if driver else create_engine(url, poolclass=pool)
    verify, _ = use(made, async_half if driver else half)
    with pytest.raises(UsageError, match=f"the engine's pool, a {pool.__name__}, may give one connection to several"):
        await done(verify())
    await done(made.dispose())


@pytest.mark.parametrize("form", ["connection", "asyncio", "django"])
def test_p5_a_check_behind_an_open_transaction_answers_unknown(engine, url, form):
    django = form == "django"
    one = DjangoListener(engine, lambda *_: None) if django else SqlService(url, form, check_wait=0.3)
    one.verify()
    with engine.begin() as connection:
        connection.execute(insert(transactions).values(id="A" * 32, state="committed", created_at=0))
        assert one.check_local_transaction(MESSAGE) is UNKNOWN
    assert one.check_local_transaction(MESSAGE) is COMMIT
    one.close()


@pytest.mark.parametrize("url", ["postgresql", "mysql"], indirect=True)
def test_p5_a_deadlock_is_a_conflict(engine):
    with engine.begin() as connection:
        connection.execute(insert(orders), [{"id": 1}, {"id": 2}])

    def touch(connection, number):
        try:
            connection.execute(update(orders).where(orders.c.id == number).values(transaction_id="x"))
        except DBAPIError as error:
            connection.rollback()
            return is_busy(error.__cause__)
        return None

    with engine.connect() as first, engine.connect() as second, ThreadPoolExecutor(1) as thread:
        assert (touch(first, 1), touch(second, 2)) == (None, None)
        crossing = thread.submit(touch, first, 2)
        answers = {touch(second, 1), crossing.result(60)}
    assert answers == {None, True}
