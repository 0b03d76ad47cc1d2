"""The outbox on SQLite and a real PostgreSQL: what is added is sent if and only if its transaction is committed."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

import pytest
from sqlalchemy import create_engine, event, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from txbridge_sqlalchemy import Outbox, create_outbox, outbox_metadata
from txbridge_sqlalchemy.outbox_rows import OutboxRows
from txbridge_sqlalchemy.outbox_table import outbox as outbox_table
from txbridge_sqlalchemy.relay import listen_for_commits

from tests.support.async_engine import DRIVERS, async_twin
from tests.support.harness import eventually
from txbridge import Message, UsageError

WHOLE = Message(
    "orders.placed",
    b"\x00\xff",
    key=b"\xfe",
    headers=[("text", "é"), ("bytes", b"\xff"), ("none", None), ("empty", b""), ("text", "again")],
    timestamp=1_700_000_000_000,
    partition=3,
    deliver_at=datetime(2040, 1, 1, tzinfo=UTC),
)


def waiting(engine):
    """The messages in the outbox, as a relay reads them; also those that are not due."""
    with engine.connect() as connection:
        ids = connection.execute(select(outbox_table.c.id)).scalars().all()
    rows = OutboxRows(engine)
    try:
        rows.verify()
        return [row.message for row in rows.read_again(ids)]
    finally:
        rows.close()


def test_a_message_is_read_back_as_it_was_added(engine):
    with engine.begin() as connection:
        Outbox().add(connection, WHOLE)
    assert waiting(engine) == [WHOLE]


def test_messages_keep_their_order_within_and_across_transactions(engine):
    outbox = Outbox()
    with engine.begin() as connection:
        outbox.add(connection, *(Message("t", f"{number}") for number in range(3)))
        outbox.add(connection, Message("t", "3"))
    with Session(engine) as session, session.begin():
        outbox.add(session, Message("t", "4"), Message("t", "5"))
    assert [message.value for message in waiting(engine)] == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_a_rollback_leaves_nothing(engine):
    outbox = Outbox(notify=True)
    with engine.connect() as connection, connection.begin() as transaction:
        outbox.add(connection, WHOLE)
        transaction.rollback()
    with Session(engine) as session, session.begin() as transaction:
        outbox.add(session, WHOLE)
        transaction.rollback()
    with engine.begin() as connection:
        with connection.begin_nested() as savepoint:
            outbox.add(connection, Message("t", "in the savepoint"))
            savepoint.rollback()
        outbox.add(connection, Message("t", "after it"))
    assert [message.value for message in waiting(engine)] == [b"after it"]


def test_it_is_part_of_the_transaction_that_is_open(engine):
    with engine.connect() as connection:
        connection.execute(select(1))
        Outbox().add(connection, WHOLE)
        assert waiting(engine) == []
        connection.commit()
    assert waiting(engine) == [WHOLE]


@pytest.mark.parametrize("driver", [*DRIVERS["postgresql"], *DRIVERS["sqlite"]])
async def test_asynchronous_connections_and_sessions(request, driver):
    database = next(name for name, drivers in DRIVERS.items() if driver in drivers)
    url = request.getfixturevalue(f"{database}_url")
    engine, plain, outbox = async_twin(url, driver), create_engine(url), Outbox(notify=True)
    async with engine.begin() as connection:
        await connection.run_sync(outbox_metadata.create_all)
        await outbox.async_add(connection, WHOLE, Message("t", "2"))
    async with AsyncSession(engine) as session, session.begin():
        await outbox.async_add(session, Message("t", "3"))
    async with AsyncSession(engine) as session, session.begin() as transaction:
        await outbox.async_add(session, Message("t", "4"))
        await transaction.rollback()
    await engine.dispose()
    assert [message.value for message in waiting(plain)] == [WHOLE.value, b"2", b"3"]
    plain.dispose()


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Message("grüße", b""), "cannot be a topic"),
        (Message("", b""), "topic is empty"),
        (Message("__consumer_offsets", b""), "system topic"),
        (Message("t", b"", headers={"UNIQ_KEY": "x"}), "reserved"),
        (Message("t", b"", key=b"k" * 40_000), "more than 32768"),
        (Message("t", b"", partition=-1), "partition must be between"),
        (Message("t", b"", check_immunity_time=5), "no check asks about its rows"),
        ("orders", "a Message is needed, not str"),
    ],
)
def test_what_no_relay_could_send_is_refused_at_once_and_nothing_is_written(engine, message, reason):
    with engine.begin() as connection, pytest.raises(UsageError, match=reason):
        Outbox().add(connection, Message("t", b"fine"), message)
    assert waiting(engine) == []


def test_other_objects_than_connections_are_refused_with_what_to_give(engine):
    with pytest.raises(UsageError, match="a Connection or a Session is needed, not Engine"):
        Outbox().add(engine, WHOLE)


async def test_async_add_refuses_a_plain_connection(engine):
    wrong = pytest.raises(UsageError, match="an AsyncConnection or an AsyncSession is needed, not Connection")
    with engine.connect() as connection, wrong:
        await Outbox().async_add(connection, WHOLE)


def test_transactions_that_the_application_begins_on_sqlite_are_transactions(sqlite_url):
    engine = create_engine(sqlite_url)
    create_outbox(engine)
    event.listen(engine, "connect", lambda connection, _: setattr(connection, "isolation_level", None))
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    engine.dispose()
    with engine.begin() as connection:
        Outbox().add(connection, WHOLE)
    with engine.connect() as connection, connection.begin() as transaction:
        Outbox().add(connection, WHOLE)
        transaction.rollback()
    assert waiting(engine) == [WHOLE]
    engine.dispose()


def test_a_missing_table_is_the_database_s_error(url):
    engine = create_engine(url)
    with engine.begin() as connection, pytest.raises(DBAPIError, match="txbridge_outbox"):
        Outbox().add(connection, WHOLE)
    engine.dispose()


def test_one_statement_for_any_number_of_messages_and_one_to_wake_the_relay(postgresql_url):
    engine = create_engine(postgresql_url)
    create_outbox(engine)
    statements = []
    event.listen(engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    with engine.begin() as connection:
        Outbox().add(connection, WHOLE, WHOLE, WHOLE)
    with engine.begin() as connection:
        Outbox(notify=True).add(connection, WHOLE)
    assert [statement.split()[0] for statement in statements] == ["INSERT", "INSERT", "SELECT"]
    assert not any("RETURNING" in statement for statement in statements)
    engine.dispose()


def test_a_second_transaction_never_gets_the_number_of_a_deleted_row(engine):
    outbox = Outbox()
    with engine.begin() as connection:
        outbox.add(connection, WHOLE)
        connection.execute(outbox_table.delete())
        outbox.add(connection, WHOLE)
        assert connection.execute(select(outbox_table.c.id)).scalar_one() == 2


def test_a_commit_wakes_a_relay_that_listens(postgresql_url):
    engine, woken, ended = create_engine(postgresql_url), threading.Event(), threading.Event()
    create_outbox(engine)
    listen_for_commits(engine, outbox_table.name, woken.set, ended)

    def is_woken(notify):
        woken.clear()
        with engine.begin() as connection:
            Outbox(notify=notify).add(connection, WHOLE)
        return woken.wait(0.3)

    eventually(lambda: is_woken(True))
    assert not is_woken(False)
    ended.set()
    for thread in threading.enumerate():
        if thread.name == "txbridge-listen":
            thread.join(60)
    engine.dispose()
