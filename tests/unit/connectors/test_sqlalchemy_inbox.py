"""Inbox and AsyncInbox on SQLite and a real PostgreSQL: every record has its effect once."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, insert, inspect, select, text, update
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session, registry, sessionmaker
from txbridge_sqlalchemy import (
    AsyncInbox,
    Inbox,
    LostTransactionError,
    Outbox,
    SqlTransactionListener,
    async_purge,
    async_purge_inbox,
    create_inbox_table,
    create_outbox,
    create_table,
    ddl,
    inbox_ddl,
    inbox_metadata,
    outbox_ddl,
    purge,
    purge_inbox,
)
from txbridge_sqlalchemy.inbox_table import inbox as inbox_table

from tests.support import sql_application
from tests.support.async_engine import async_twin
from tests.support.consumed import ConsumerRecord, Record
from txbridge import Message, UsageError

ID = "0123456789ABCDEF" * 2

tables = MetaData()
effects = Table("effects", tables, Column("number", Integer, primary_key=True), Column("what", String(40)))


def delivered(transaction_id=ID, message=None, **more):
    """A record as a worker delivers it."""
    headers = [("mine", b"1"), ("UNIQ_KEY", transaction_id.encode()), ("TXB_HALF", b"0:42")]
    if message is not None:
        headers.append(("TXB_MESSAGE", message))
    return Record(headers, **more)


def add_effect(connection, record):
    connection.execute(insert(effects).values(what=str(record.offset())))


class Loop:
    """An AsyncInbox behind the interface of the blocking one."""

    def __init__(self, url, consumer):
        self._runner = asyncio.Runner()
        self._engine = async_twin(url)
        self._inbox = AsyncInbox(self._engine, consumer)

    def process(self, record, work):
        async def on_loop(connection, record):
            return await connection.run_sync(work, record)

        return self._runner.run(self._inbox.process(record, on_loop))

    def verify(self):
        self._runner.run(self._inbox.verify())

    def purge(self, older_than, **more):
        return self._runner.run(async_purge_inbox(self._engine, older_than, **more))

    def close(self):
        self._runner.run(self._engine.dispose())
        self._runner.close()


class Threads:
    """An Inbox behind the same interface."""

    def __init__(self, url, consumer):
        self._engine = create_engine(url)
        self._inbox = Inbox(self._engine, consumer)
        self.process, self.verify = self._inbox.process, self._inbox.verify

    def purge(self, older_than, **more):
        return purge_inbox(self._engine, older_than, **more)

    def close(self):
        self._engine.dispose()


@pytest.fixture
def engine(url):
    made = sql_application.create(url)
    tables.create_all(made)
    yield made
    made.dispose()


@pytest.fixture(params=[Threads, Loop])
def make(request, url, engine):
    """A factory of inboxes of either form, by the consumer's name."""
    made = []

    def make(consumer="billing"):
        made.append(request.param(url, consumer))
        return made[-1]

    yield make
    for one in made:
        one.close()


def what(engine):
    with engine.connect() as connection:
        return list(connection.execute(select(effects.c.what).order_by(effects.c.number)).scalars())


def noted(engine):
    with engine.connect() as connection:
        rows = connection.execute(select(inbox_table.c.consumer, inbox_table.c.source, inbox_table.c.number))
        return sorted(map(tuple, rows))


def test_a_record_has_its_effect_once_and_a_repeat_is_told(engine, make, caplog):
    caplog.set_level("INFO")
    inbox = make()
    assert inbox.process(delivered(), add_effect) is True
    assert inbox.process(delivered(offset=9), add_effect) is False  # The same transaction in a mirror of the topic.
    assert what(engine) == ["7"]
    assert noted(engine) == [("billing", ID, 1)]
    (record,) = (record for record in caplog.records if record.name == "txbridge.client")
    assert record.event == "inbox_repeat_skipped"
    assert record.fields == {"consumer": "billing", "record": "01234567...", "number": 1} or ID not in str(
        record.fields
    )
    # Another process knows it, too.
    assert make().process(delivered(), add_effect) is False


def test_consumers_do_not_know_of_each_other(engine, make):
    assert make("billing").process(delivered(), add_effect) is True
    assert make("shipping").process(delivered(), add_effect) is True
    assert what(engine) == ["7", "7"]


def test_messages_of_one_transaction_are_told_apart(engine, make):
    inbox = make()
    assert [inbox.process(delivered(message=b"%d/3" % number), add_effect) for number in (1, 2, 3)] == [True] * 3
    assert [inbox.process(delivered(message=b"%d/3" % number), add_effect) for number in (1, 2, 3)] == [False] * 3
    assert noted(engine) == [("billing", ID, 1), ("billing", ID, 2), ("billing", ID, 3)]


def test_an_error_of_the_work_is_raised_and_the_record_is_as_new(engine, make):
    def fail(connection, record):
        add_effect(connection, record)
        raise ZeroDivisionError

    inbox = make()
    with pytest.raises(ZeroDivisionError):
        inbox.process(delivered(), fail)
    assert (what(engine), noted(engine)) == ([], [])
    assert inbox.process(delivered(), add_effect) is True
    assert what(engine) == ["7"]


def test_a_conflict_in_the_work_is_no_repeat(engine, make):
    def collide(connection, record):
        connection.execute(insert(effects).values(number=1))
        connection.execute(insert(effects).values(number=1))

    with pytest.raises(IntegrityError):
        make().process(delivered(), collide)
    assert (what(engine), noted(engine)) == ([], [])


def test_an_error_that_ended_the_transaction_and_was_swallowed_is_not_done(engine, make):
    with engine.begin() as connection:
        connection.execute(insert(effects).values(number=100, what="other"))

    def swallow(connection, record):
        add_effect(connection, record)
        statement = insert(effects).values(number=100, what="again")
        if engine.dialect.name == "sqlite":
            statement = statement.prefix_with("OR ROLLBACK")
        with pytest.raises(IntegrityError):
            connection.execute(statement)

    with pytest.raises(LostTransactionError, match="begin_nested"):
        make().process(delivered(), swallow)
    assert (what(engine), noted(engine)) == (["other"], [])


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_the_table_has_the_last_word_when_the_work_ends_the_transaction(engine, make, ends):
    def meddle(connection, record):
        add_effect(connection, record)
        getattr(connection, ends)()

    inbox = make()
    if ends == "commit":
        assert inbox.process(delivered(), meddle) is True
        assert inbox.process(delivered(), meddle) is False
        assert what(engine) == ["7"]
    else:
        with pytest.raises(LostTransactionError, match="has rolled the transaction back itself"):
            inbox.process(delivered(), meddle)
        assert (what(engine), noted(engine)) == ([], [])


@pytest.mark.parametrize("returned", [False, True, 0, "done"])
def test_what_may_be_a_mistake_is_rolled_back(engine, make, returned):
    def answer(connection, record):
        add_effect(connection, record)
        return returned

    with pytest.raises(UsageError, match="returns None, not"):
        make().process(delivered(), answer)
    assert (what(engine), noted(engine)) == ([], [])


def test_a_coroutine_function_is_refused_by_the_plain_form(engine, url):
    async def forgotten(connection, record):
        raise AssertionError

    with pytest.raises(UsageError, match="takes an AsyncInbox"):
        Inbox(engine, "billing").process(delivered(), forgotten)
    assert noted(engine) == []


def test_sessions(engine, url):
    def count(session: Session, record):
        session.execute(update(effects).values(what="changed"))
        session.add(Effect("added"))

    class Effect:
        def __init__(self, what):
            self.what = what

    registry().map_imperatively(Effect, effects)
    inbox = Inbox(sessionmaker(engine), "billing")
    assert inbox.process(delivered(), count) is True
    assert inbox.process(delivered(), count) is False
    assert what(engine) == ["added"]


def test_two_at_once_have_one_effect(engine, url):
    """A consumer that its group has given up still works while another one has its record."""
    entered, go_on = threading.Event(), threading.Event()

    def slow(connection, record):
        add_effect(connection, record)
        entered.set()
        assert go_on.wait(120)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(Inbox(engine, "billing").process, delivered(), slow)
        assert entered.wait(120)
        other = create_engine(url.replace("timeout=0.3", "timeout=60"))
        second = pool.submit(Inbox(other, "billing").process, delivered(), add_effect)
        with pytest.raises(TimeoutError):
            second.result(0.2)
        go_on.set()
        assert [first.result(120), second.result(120)] == [True, False]
        other.dispose()
    assert what(engine) == ["7"]


def foreign():
    half = ("TXB_HALF", b"0:1")
    yield Record([("UNIQ_KEY", ID.encode())])
    yield Record([("UNIQ_KEY", None), half])
    yield Record([("UNIQ_KEY", ID.encode()), ("UNIQ_KEY", b"FEDCBA9876543210" * 2), half])
    yield Record([("UNIQ_KEY", b"\xff" * 32), half])
    yield delivered("abc")
    for place in (b"0/2", b"3/2", b"1", b"", b"1/2/3", b"1/1000000"):
        yield delivered(message=place)


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (delivered(), (ID, 1)),
        (delivered(message=b"2/2"), (ID, 2)),
        (ConsumerRecord("orders", 0, 7, 5, (("UNIQ_KEY", ID.encode()), ("TXB_HALF", b"0:1"))), (ID, 1)),
        (Record([("UNIQ_KEY", ID.encode()), ("TXB_OUTBOX", b"1f0c92aa:42")]), (ID, 1)),
        (Record(), ("orders:0:7@1700000000000", 1)),
        (Record([], topic="o.p", partition=3, offset=12, timestamp=5), ("o.p:3:12@5", 1)),
        (ConsumerRecord("orders", 0, 7, 1_700_000_000_000, ()), ("orders:0:7@1700000000000", 1)),
        (Record(timestamp=-1), ("orders:0:7@0", 1)),
        # Records of other programs: half of the headers, or values that txbridge does not write.
        *((record, ("orders:0:7@1700000000000", 1)) for record in foreign()),
    ],
)
def test_names(sqlite_url, record, expected):
    engine = create_engine(sqlite_url)
    create_inbox_table(engine)
    assert Inbox(engine, "billing").process(record, lambda *_: None) is True
    assert noted(engine) == [("billing", *expected)]
    engine.dispose()


def test_a_topic_that_was_made_anew_has_new_records(engine, make):
    inbox = make()
    assert inbox.process(Record(timestamp=1_000), add_effect) is True
    assert inbox.process(Record(timestamp=1_000), add_effect) is False
    assert inbox.process(Record(timestamp=2_000), add_effect) is True


def test_the_longest_names_fit(engine, make):
    record = Record(topic="t" * 249, partition=2**31 - 1, offset=2**63 - 1, timestamp=2**63 - 1)
    inbox = make("c" * 100)
    assert [inbox.process(record, add_effect), inbox.process(record, add_effect)] == [True, False]


@pytest.mark.parametrize("record", [None, b"value", object()])
def test_what_is_no_record_is_refused(engine, make, record):
    with pytest.raises(UsageError, match="a record of confluent-kafka, aiokafka or kafka-python is needed, not"):
        make().process(record, add_effect)


def test_an_error_of_the_consumer_is_refused(engine, make):
    with pytest.raises(UsageError, match=r"not a record but an error of the consumer, .*: partition EOF"):
        make().process(Record(failure="partition EOF"), add_effect)


@pytest.mark.parametrize("consumer", ["", "c" * 101, None, 3, "a\0b"])
def test_names_of_consumers_that_can_not_be(sqlite_url, consumer):
    engine = create_engine(sqlite_url)
    with pytest.raises(UsageError, match="consumer must be a text of 1 to 100 characters"):
        Inbox(engine, consumer)
    with pytest.raises(UsageError, match="consumer must be a text of 1 to 100 characters"):
        AsyncInbox(async_twin(sqlite_url), consumer)


def test_a_missing_table_is_an_error_of_the_database(url):
    engine = create_engine(url)
    with pytest.raises(DBAPIError, match="txbridge_inbox"):
        Inbox(engine, "billing").verify()
    engine.dispose()


def test_the_statements_of_a_migration_make_all_tables(url):
    engine = create_engine(url)
    with engine.begin() as connection:
        for statement in ";\n".join(write(engine.dialect) for write in (ddl, outbox_ddl, inbox_ddl)).split(";\n"):
            if statement.strip():
                connection.execute(text(statement))
        Outbox().add(connection, Message("orders", b"1"))
    # They are there already.
    sql_application.create(url).dispose()
    create_outbox(engine)
    listener = SqlTransactionListener(engine, sql_application.place)
    assert listener.execute_local_transaction(sql_application.message(ID), 1) is sql_application.COMMIT
    assert Inbox(engine, "billing").process(delivered(), lambda *_: None) is True
    assert [index["name"] for index in inspect(engine).get_indexes("txbridge_inbox")] == ["txbridge_inbox_created_at"]
    assert list(inbox_metadata.tables) == ["txbridge_inbox"]
    engine.dispose()


@pytest.mark.parametrize("driver", ["", "psycopg", "asyncpg"])
def test_purge_takes_batches_of_any_size(postgresql_url, driver):
    """More rows than a statement can have parameters: 65,535 with psycopg, 32,767 with asyncpg."""
    plain = create_engine(postgresql_url)
    create_inbox_table(plain)
    create_table(plain)
    row = "SELECT 'billing', 'orders:0:' || n, 1, n FROM generate_series(1, 100000) n"
    with plain.begin() as connection:
        connection.execute(text(f"INSERT INTO txbridge_inbox {row}"))
        connection.execute(
            text("INSERT INTO txbridge_transactions SELECT n, 'committed', n FROM generate_series(1, 100000) n")
        )
        connection.execute(text("INSERT INTO txbridge_inbox VALUES ('billing', 'young', 1, 9223372036854775807)"))
        connection.execute(text("INSERT INTO txbridge_transactions VALUES ('young', 'committed', 9223372036854775806)"))

    async def on_loop():
        twin = async_twin(postgresql_url, driver)
        inbox_rows = await async_purge_inbox(twin, timedelta(days=1), batch=100_000)
        rows = await async_purge(twin, batch=100_000)
        await twin.dispose()
        return inbox_rows, rows

    if driver:
        deleted = asyncio.run(on_loop())
    else:
        deleted = purge_inbox(plain, timedelta(days=1), batch=100_000), purge(plain, batch=100_000)
    assert deleted == (100_000, 100_000)
    assert noted(plain) == [("billing", "young", 1)]
    plain.dispose()


def test_purge_deletes_what_is_older_and_nothing_else(engine, make):
    inbox = make()
    for offset in range(5):
        inbox.process(Record(offset=offset), add_effect)
    with engine.begin() as connection:
        old = inbox_table.c.source.in_([f"orders:0:{offset}@1700000000000" for offset in range(3)])
        connection.execute(update(inbox_table).where(old).values(created_at=inbox_table.c.created_at - 10_000_000))
    assert inbox.purge(timedelta(hours=1), batch=2) == 3
    assert inbox.purge(timedelta(hours=1)) == 0
    assert noted(engine) == [("billing", f"orders:0:{offset}@1700000000000", 1) for offset in (3, 4)]
    for wrong in ({"older_than": timedelta(0)}, {"older_than": timedelta(1), "batch": 0}):
        with pytest.raises(UsageError, match="must be positive"):
            inbox.purge(**wrong)
