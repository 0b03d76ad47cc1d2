"""AsyncSqlTransactionListener with each driver: tasks of one event loop, and cancellation at each await."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import nullcontext
from functools import partial, wraps
from itertools import count

import pytest
import txbridge_sqlalchemy
from sqlalchemy import create_engine, func, insert, select
from sqlalchemy.ext.asyncio import async_sessionmaker
from txbridge_sqlalchemy import AsyncInbox, AsyncSqlBridge, AsyncSqlTransactionListener, Outbox, SqlTransactionListener
from txbridge_sqlalchemy.inbox_table import inbox as inbox_table

from tests.support.async_engine import async_twin
from tests.support.cancel_at import cancelled_everywhere
from tests.support.consumed import Record
from tests.support.sql_application import COMMIT, ROLLBACK, UNKNOWN, message, order_ids, orders
from tests.support.sql_application import place as place_plain
from tests.support.sql_application import place_async as place
from txbridge import AlreadyDoneError, Message, Rollback, UsageError
from txbridge.testing.memory import MemoryBridge, TransactionState

ID = "0123456789ABCDEF" * 2
MESSAGE = message(ID)


@pytest.fixture(params=["aiosqlite", "psycopg", "asyncpg", "asyncmy"])
def driver(request):
    return request.param


@pytest.fixture
def url(request, driver):
    return request.getfixturevalue({"aiosqlite": "sqlite_url", "asyncmy": "mariadb_url"}.get(driver, "postgresql_url"))


@pytest.fixture
def run(engine, url, driver):
    """Run a coroutine function with an asynchronous engine, which must have all its connections at the end."""

    def run(program, **options):
        async def running():
            twin = async_twin(url, driver, **options)
            try:
                await program(twin)
                await asyncio.sleep(0)
                assert twin.pool.checkedout() == 0
            finally:
                await twin.dispose()

        asyncio.run(running())

    return run


def test_many_tasks_at_once(engine, run):
    """Tasks execute and check at the same time. One of the two comes first, and both have the same result."""

    async def program(twin):
        listener = AsyncSqlTransactionListener(twin, place)
        await listener.verify()

        async def one(number):
            ours = message(f"{number:032X}")
            while True:
                both = [listener.execute_local_transaction(ours, number), listener.check_local_transaction(ours)]
                executed, checked = await asyncio.gather(*both, return_exceptions=True)
                if isinstance(executed, Rollback):
                    executed = ROLLBACK
                if isinstance(executed, BaseException):
                    # SQLite has one writer at a time, and no queue for the others.
                    assert "locked" in str(executed)
                    executed = await listener.check_local_transaction(ours)
                    if executed is UNKNOWN:
                        continue
                assert checked in {executed, UNKNOWN}
                return executed

        answers = await asyncio.gather(*(one(number) for number in range(1, 13)))
        committed = [number for number, answer in enumerate(answers, 1) if answer is COMMIT]
        assert order_ids(engine) == committed

    run(program)


@pytest.mark.parametrize("made_from", [lambda engine: engine, async_sessionmaker], ids=["connection", "session"])
def test_the_function_can_see_its_transaction(run, made_from):
    async def look(given, _, arg):
        return given.get_transaction().is_active

    async def program(engine):
        listener = AsyncSqlTransactionListener(made_from(engine), look)
        assert await listener.execute_local_transaction(MESSAGE, None) is COMMIT

    run(program)


def test_functions_that_return_the_coroutine_of_another_one_are_taken(engine, run):
    @wraps(place)
    def decorated(*given):
        return place(*given)

    async def program(twin):
        forms = [decorated, lambda work, placed, _: place(work, placed, 2), partial(decorated), lambda *_: None]
        listeners = [AsyncSqlTransactionListener(twin, one) for one in forms]
        answers = [await one.execute_local_transaction(message(str(n) * 32), n) for n, one in enumerate(listeners, 1)]
        with pytest.raises(UsageError, match="no coroutine function"):
            AsyncSqlTransactionListener(twin, place_plain)
        assert answers == [COMMIT] * 4
        assert order_ids(engine) == [1, 2, 3]

    run(program)


def test_what_can_not_work(url, driver):
    plain = create_engine(url)
    with pytest.raises(UsageError, match="database must be an AsyncEngine or an async_sessionmaker, not Engine"):
        AsyncSqlTransactionListener(plain, place)
    twin, other = async_twin(url, driver), async_twin(url, driver)
    with pytest.raises(UsageError, match=r"not AsyncEngine \(the class whose name begins with Async takes"):
        SqlTransactionListener(twin, place)
    with pytest.raises(UsageError, match="bound to 2 engines"):
        AsyncSqlTransactionListener(async_sessionmaker(twin, binds={orders: other}), place)
    with pytest.raises(UsageError, match="two-phase"):
        AsyncSqlTransactionListener(async_sessionmaker(twin, twophase=True), place)
    with pytest.raises(UsageError, match="check_wait must be positive"):
        AsyncSqlTransactionListener(twin, place, check_wait=0)
    with pytest.raises(UsageError, match=r"an Outbox, as in outbox=Outbox\(\), not <class"):
        AsyncSqlBridge("orders", twin, outbox=Outbox)
    with pytest.raises(
        UsageError, match="place_async is a coroutine function: an AsyncSqlTransactionListener takes it"
    ):
        SqlTransactionListener(plain, partial(place))
    with pytest.raises(UsageError, match=r"place is no coroutine function .*: a SqlTransactionListener takes it"):
        AsyncSqlTransactionListener(twin, place_plain)
    with pytest.raises(UsageError, match="a function is needed, not str"):
        SqlTransactionListener(plain, "place")


def test_all_public_names_are_listed():
    assert set(txbridge_sqlalchemy.__all__) <= set(dir(txbridge_sqlalchemy))


def test_without_greenlet_the_plain_forms_work_and_the_others_say_what_they_need():
    """SQLAlchemy's asyncio part needs greenlet, and an extra for threads does not install it."""
    program = (
        "import sys; sys.modules['greenlet'] = None; import txbridge_sqlalchemy as t; t.Inbox, t.SqlTransactionListener"
        "; t.AsyncInbox"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        "txbridge.errors.MissingExtraError: AsyncInbox needs greenlet: pip install 'sqlalchemy[asyncio]'"
    )


#: When SQLite's driver is cancelled, its thread goes on, so each step takes ten times as long. The first test shows it.
rarely_sqlite = pytest.mark.parametrize(
    "driver", [pytest.param("aiosqlite", marks=pytest.mark.long), "psycopg", "asyncpg", "asyncmy"], indirect=True
)


@pytest.mark.parametrize(
    "factory",
    [lambda engine: engine, pytest.param(async_sessionmaker, marks=pytest.mark.long)],
    ids=["connection", "session"],
)
def test_p2_p4_cancelled_anywhere_data_and_answer_agree(engine, run, driver, factory):
    """No connection goes back into the pool with a transaction that its next user would commit."""

    async def program(twin):
        numbers = count(1)
        listener = AsyncSqlTransactionListener(factory(twin), place, check_wait=10)
        await listener.verify()
        number = 0

        def make():
            nonlocal number
            number = next(numbers)
            return listener.execute_local_transaction(message(f"{number:032X}"), number)

        outcomes = set()
        async for where, cancelled, returned in cancelled_everywhere(make, collects=driver == "aiosqlite"):
            assert returned is (None if cancelled else COMMIT), where
            # This commits everything that the previous connection has left open, if it is still there.
            after = message(f"{number:032X}".replace("0", "A", 1))
            assert await listener.execute_local_transaction(after, 10_000 + number) is COMMIT, where
            answer = await listener.check_local_transaction(message(f"{number:032X}"))
            assert answer in {COMMIT, ROLLBACK}, where
            assert (number in order_ids(engine)) is (answer is COMMIT), where
            assert await listener.check_local_transaction(message(f"{number:032X}")) is answer, where
            outcomes.add((cancelled, answer))
        # Cancelled before and after the COMMIT, and not at all.
        assert outcomes == {(True, ROLLBACK), (True, COMMIT), (False, COMMIT)}

    run(program, pool_size=1, max_overflow=0)


@rarely_sqlite
def test_p4_an_announcement_that_is_cancelled_four_times_in_a_row_is_delivered_if_it_is_committed(engine, run, driver):
    async def program(twin):
        numbers = count(1)
        number, announced = 0, []

        async def announce(number):
            async with bridge.announce(Message("orders", b"%d" % number), once=str(number)) as tx:
                announced.append(tx)
                await place(tx.session, tx, number)

        def make():
            nonlocal number
            number = next(numbers)
            announced.clear()
            return announce(number)

        outcomes = set()
        with MemoryBridge() as memory:
            async with AsyncSqlBridge("orders", async_sessionmaker(twin), memory.settings, check_wait=10) as bridge:
                async for where, cancelled, _ in cancelled_everywhere(make, collects=driver == "aiosqlite", times=4):
                    fate = memory.read_fate(announced[0]) if announced else None
                    # Nobody has said more than is known.
                    assert fate in (
                        {None, TransactionState.PENDING, TransactionState.ROLLED_BACK}
                        if cancelled
                        else {TransactionState.COMMITTED}
                    ), where
                    # This commits everything that the previous connection has left open, if it is still there.
                    await announce(10_000 + number)
                    assert fate is not TransactionState.ROLLED_BACK or number not in order_ids(engine), where
                    await memory.aio.advance(300)
                    assert memory.list_pending() == [], where
                    values = [message.value() for message in memory.delivered("orders")]
                    assert values.count(b"%d" % number) == order_ids(engine).count(number), where
                    outcomes.add((cancelled, fate, number in order_ids(engine)))
                    with pytest.raises(AlreadyDoneError) if b"%d" % number in values else nullcontext():
                        await announce(number)
                    assert order_ids(engine).count(number) == 1, where
        # Cancelled before, in and after the transaction, and not at all.
        assert outcomes >= {
            *((True, None, False), (True, TransactionState.ROLLED_BACK, False)),
            *((True, TransactionState.PENDING, True), (False, TransactionState.COMMITTED, True)),
        }

    run(program, pool_size=1, max_overflow=0)


@rarely_sqlite
def test_p5_a_check_that_is_cancelled_anywhere_can_be_asked_again(engine, run, driver):
    async def program(twin):
        numbers = count(1)
        listener = AsyncSqlTransactionListener(twin, place, check_wait=10)
        await listener.verify()
        number = 0

        def make():
            nonlocal number
            number = next(numbers)
            return listener.check_local_transaction(message(f"{number:032X}"))

        async for where, cancelled, returned in cancelled_everywhere(make, collects=driver == "aiosqlite"):
            assert returned is (None if cancelled else ROLLBACK), where
            # The transaction may be decided or not. The next caller and the table agree.
            asked = message(f"{number:032X}")
            try:
                executed = await listener.execute_local_transaction(asked, number)
            except Rollback:
                executed = ROLLBACK
            assert await listener.check_local_transaction(asked) is executed, where
            assert (number in order_ids(engine)) is (executed is COMMIT), where

    run(program, pool_size=1, max_overflow=0)


@rarely_sqlite
def test_p3_an_inbox_that_is_cancelled_anywhere_has_the_effect_once(engine, run, driver):
    async def program(twin):
        numbers = count(1)
        inbox = AsyncInbox(twin, "billing")
        await inbox.verify()
        number = 0

        async def work(connection, record):
            await connection.execute(insert(orders).values(transaction_id=str(record.offset())))

        def make():
            nonlocal number
            number = next(numbers)
            return inbox.process(Record(offset=number), work)

        def effects():
            with engine.connect() as connection:
                query = select(func.count()).where(orders.c.transaction_id == str(number))
                return connection.execute(query).scalar_one()

        async for where, cancelled, returned in cancelled_everywhere(make, collects=driver == "aiosqlite"):
            assert returned is (None if cancelled else True), where
            before = effects()
            assert before in {0, 1}, where
            assert await inbox.process(Record(offset=number), work) is (before == 0), where
            assert effects() == 1, where
        with engine.connect() as connection:
            assert connection.execute(select(func.count()).select_from(inbox_table)).scalar_one() == number

    run(program, pool_size=1, max_overflow=0)
