"""Announcements in SQL, in every form: what is committed is delivered, and nobody is told what nobody knows."""

from __future__ import annotations

import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import timedelta
from functools import partial

import pytest
from sqlalchemy import delete, event, insert, select, text, update
from sqlalchemy.exc import IntegrityError
from txbridge_sqlalchemy import LostTransactionError, Outbox, SqlBridge, create_outbox, purge, transactions
from txbridge_sqlalchemy.outbox_table import OUR_OUTBOX

from tests.support.announcer import Announcer
from tests.support.sql_application import order_ids, orders, state_of
from tests.support.sql_service import FORMS
from txbridge import AsyncBridge, Bridge, Message, PrepareError, SendStatus, UsageError
from txbridge.client.errors import AlreadyDoneError, OutcomeUnknownError
from txbridge.client.message import now_ms
from txbridge.testing.memory import ClientCrashError, CrashPoint, MemoryBridge, TransactionState

MESSAGE = Message("orders", b"placed", key=b"1")


@pytest.fixture
def memory():
    with MemoryBridge() as bridge:
        yield bridge


@pytest.fixture(params=FORMS)
def form(request):
    return request.param


@pytest.fixture
def announcer(url, engine, form, memory):
    made = Announcer(url, form, memory.settings)
    yield made
    made.close()


def place(work, tx):
    work.execute(insert(orders).values(id=1, transaction_id=tx.transaction_id))


def values(memory):
    return [message.value() for message in memory.delivered("orders")]


def rows_of_outbox(engine):
    rows = OUR_OUTBOX.rows
    with engine.connect() as connection:
        return list(connection.execute(select(rows.c.topic, rows.c.value, rows.c.headers).order_by(rows.c.id)))


def test_p4_a_block_that_is_left_is_committed_and_delivered(engine, announcer, memory):
    tx = announcer.announce(place, MESSAGE, Message("orders", b"reminder", delay=30))
    assert (order_ids(engine), values(memory)) == ([1], [b"placed"])
    assert (tx.is_committed, tx.send_status) == (True, SendStatus.SEND_OK)
    assert state_of(engine, tx.transaction_id) == "committed"
    memory.advance(30)
    assert values(memory) == [b"placed", b"reminder"]


def test_p4_an_exception_rolls_back_at_once_and_comes_out_unchanged(engine, announcer, memory):
    error = KeyError("no such item")

    def refuse(work, tx):
        place(work, tx)
        raise error

    with pytest.raises(KeyError) as raised:
        announcer.announce(refuse, MESSAGE)
    assert raised.value is error
    assert error.__cause__ is None
    assert "refuse" in [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    assert (order_ids(engine), memory.read_fate(announcer.tx)) == ([], TransactionState.ROLLED_BACK)
    assert announcer.tx.is_committed is False


@pytest.mark.parametrize(
    ("then", "error"), [(place, IntegrityError), (lambda work, _: work.rollback(), LostTransactionError)]
)
def test_p4_a_block_whose_data_are_not_kept_is_rolled_back(engine, announcer, memory, then, error):
    def body(work, tx):
        place(work, tx)
        then(work, tx)

    with pytest.raises(error):
        announcer.announce(body, MESSAGE)
    assert (order_ids(engine), memory.read_fate(announcer.tx)) == ([], TransactionState.ROLLED_BACK)


def test_while_kafka_is_away_the_body_is_not_run(engine, announcer, memory):
    memory.stop()
    with pytest.raises(PrepareError, match="Kafka is away"):
        announcer.announce(place, MESSAGE)
    assert order_ids(engine) == []


@pytest.mark.parametrize("then", ["leaves", "raises"])
def test_p4_a_body_that_commits_by_itself_is_decided_by_a_check(engine, announcer, memory, then):
    def meddle(work, tx):
        place(work, tx)
        work.commit()
        if then == "raises":
            raise KeyError

    with pytest.raises(OutcomeUnknownError) as raised:
        announcer.announce(meddle, MESSAGE)
    assert raised.value.transaction_id == announcer.tx.transaction_id
    assert raised.value.transaction_id not in str(raised.value)
    assert isinstance(raised.value.__cause__, KeyError if then == "raises" else LostTransactionError)
    assert (announcer.tx.is_committed, memory.read_fate(announcer.tx)) == (None, TransactionState.PENDING)
    announcer.let_checks_be_due(memory)
    assert (order_ids(engine), values(memory)) == ([1], [b"placed"])


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("commits", [True, False])
def test_p4_a_commit_without_an_answer_is_decided_by_a_check(engine, announcer, memory, commits):
    """The server ends the connection after the COMMIT, or before it. The client sees the same."""
    dialect = announcer.engine.dialect
    announcer.announce(lambda *_: None, Message("other", b""))
    send = dialect.do_commit.args[0]

    def commit(pooled):
        cursor = pooled.cursor()
        cursor.execute("SELECT pg_backend_pid()")
        ((process,),) = cursor.fetchall()
        if commits:
            send(pooled)
        with engine.connect() as other:
            other.execute(text(f"SELECT pg_terminate_backend({process}, 5000)"))
        send(pooled) if not commits else cursor.execute("SELECT 1")

    dialect.do_commit = partial(dialect.do_commit.func, commit)
    with pytest.raises(OutcomeUnknownError) as raised:
        announcer.announce(place, MESSAGE)
    assert raised.value.transaction_id == announcer.tx.transaction_id
    assert memory.read_fate(announcer.tx) is TransactionState.PENDING
    dialect.do_commit = partial(dialect.do_commit.func, send)
    announcer.let_checks_be_due(memory)
    assert order_ids(engine) == ([1] if commits else [])
    assert values(memory) == ([b"placed"] if commits else [])


def test_mistakes_are_told_before_anything_is_sent(announcer, memory):
    with pytest.raises(UsageError, match="name the messages at announce"):
        announcer.announce(place)
    with pytest.raises(UsageError, match="topic"):
        announcer.announce(place, Message("", b""))
    assert memory.list_pending() == []
    for key in ("", 1):
        with pytest.raises(UsageError, match="once takes the text"):
            announcer.announce(place, MESSAGE, once=key)
    with pytest.raises(UsageError, match="needs a bridge with an outbox"):
        announcer.announce(lambda _, tx: tx.add(MESSAGE), MESSAGE)
    assert memory.read_fate(announcer.tx) is TransactionState.ROLLED_BACK


def test_an_announcement_in_the_block_of_another_one_is_refused(engine, announcer, memory):
    def nested(work, tx):
        place(work, tx)
        announcer.bridge.announce(MESSAGE).__enter__()

    async def nested_on_a_loop():
        async with announcer.bridge.announce(MESSAGE) as announcer.tx, announcer.bridge.announce(MESSAGE):
            pass

    with pytest.raises(UsageError, match="in the block of an announcement"):
        announcer.announce(nested, MESSAGE) if announcer.runner is None else announcer.run(nested_on_a_loop)
    assert (order_ids(engine), memory.read_fate(announcer.tx)) == ([], TransactionState.ROLLED_BACK)


@pytest.mark.parametrize(("point", "delivered"), [(CrashPoint.PREPARED, []), (CrashPoint.EXECUTED, [b"placed"])])
def test_after_a_crash_another_process_finds_the_outcome(url, engine, announcer, memory, form, point, delivered):
    memory.crash_at(point)
    with pytest.raises(ClientCrashError):
        announcer.announce(place, MESSAGE)
    heir = Announcer(url, form, memory.settings)
    heir.let_checks_be_due(memory)
    assert (order_ids(engine), values(memory)) == ([1] if delivered else [], delivered)
    heir.close()


@pytest.fixture
def outbox_alone(url, engine, form):
    create_outbox(engine)
    made = Announcer(url, form, outbox=Outbox())
    yield made
    made.close()


def test_without_kafka_messages_are_rows_of_the_same_transaction(engine, outbox_alone):
    def work(given, tx):
        place(given, tx)
        tx.add(Message("orders", f"computed {tx.is_committed}", headers={"a": "b"}), Message("bills", b"2"))

    tx = outbox_alone.announce(work, MESSAGE, once="1")
    with pytest.raises(AlreadyDoneError, match=tx.transaction_id[:8]):
        outbox_alone.announce(work, MESSAGE, once="1")
    assert (tx.is_committed, tx.send_status, tx.half_offset) == (True, SendStatus.STORED, -1)
    assert rows_of_outbox(engine) == [
        ("orders", b"placed", None),
        ("orders", b"computed None", '[["a", "b"]]'),
        ("bills", b"2", None),
    ]
    assert (order_ids(engine), state_of(engine, tx.transaction_id)) == ([1], "committed")
    assert outbox_alone.bridge.is_connected
    with pytest.raises(UsageError, match="after the end"):
        tx.add(MESSAGE)
    with pytest.raises(UsageError, match="this bridge has no Kafka"):
        outbox_alone.run(outbox_alone.bridge.cancel, tx, "why")


def test_without_kafka_the_errors_are_the_same(engine, outbox_alone):
    def refuse(work, tx):
        tx.add(MESSAGE)
        place(work, tx)
        raise KeyError("x")

    def meddle(work, tx):
        tx.add(MESSAGE)
        work.commit()

    with pytest.raises(KeyError):
        outbox_alone.announce(refuse)
    with pytest.raises(UsageError, match="has committed by itself"):
        outbox_alone.announce(meddle)
    with pytest.raises(UsageError, match="check_immunity_time"):
        outbox_alone.announce(lambda _, tx: tx.add(Message("orders", b"", check_immunity_time=1)))
    assert (order_ids(engine), rows_of_outbox(engine)) == ([], [])


def test_with_both_the_outbox_stores_what_kafka_does_not_take(url, engine, form, memory):
    create_outbox(engine)
    announcer = Announcer(url, form, memory.settings, outbox=Outbox())
    assert announcer.announce(lambda _, tx: tx.add(Message("bills", b"1")), MESSAGE).send_status is SendStatus.SEND_OK
    memory.stop()
    assert announcer.announce(place, MESSAGE).send_status is SendStatus.STORED
    assert values(memory) == [b"placed"]
    assert [row[:2] for row in rows_of_outbox(engine)] == [("bills", b"1"), ("orders", b"placed")]
    announcer.close()


def test_p4_a_key_that_was_committed_is_told_before_anything_is_sent(engine, announcer, memory):
    with pytest.raises(KeyError):
        announcer.announce(lambda *_: {}["x"], MESSAGE, once="request 1")
    first = announcer.announce(place, MESSAGE, once="request 1").transaction_id
    for is_purged in (False, True):
        with pytest.raises(AlreadyDoneError, match=first[:8]) as raised:
            announcer.announce(place, MESSAGE, once="request 1")
        assert raised.value.transaction_id == (first[:16] if is_purged else first)
        with engine.begin() as connection:
            connection.execute(delete(transactions).where(transactions.c.id == first))
    # There are the half messages of the first two calls.
    assert announcer.announce(lambda *_: None, MESSAGE, once="request 2").half_offset == 2
    assert (order_ids(engine), values(memory)) == ([1], [b"placed"] * 2)


@pytest.mark.parametrize("url", ["sqlite", "postgresql", "mariadb"], indirect=True)
@pytest.mark.parametrize("ends", ["commits", "rolls back"])
def test_p4_of_two_blocks_with_a_key_one_is_committed(url, engine, form, announcer, memory, ends):
    other, has_come = Announcer(url, form, memory.settings), threading.Event()

    def note(_connection, _cursor, statement, *_):
        if statement.startswith("INSERT INTO txbridge_transactions"):
            has_come.set()

    event.listen(other.engine, "before_cursor_execute", note)

    def run(work, tx):
        place(work, tx)
        second.append(pool.submit(other.announce, place, Message("orders", b"second"), once="1"))
        assert has_come.wait(60)
        if ends == "rolls back":
            raise KeyError

    second = []
    with ThreadPoolExecutor() as pool:
        with nullcontext() if ends != "rolls back" else pytest.raises(KeyError):
            first = announcer.announce(run, MESSAGE, once="1").transaction_id
        if ends == "rolls back":
            second[0].result(60)
        else:
            with pytest.raises(AlreadyDoneError) as raised:
                second[0].result(60)
            assert raised.value.transaction_id == first
    assert values(memory) == [b"second" if ends == "rolls back" else b"placed"]
    assert (order_ids(engine), memory.list_pending()) == ([1], [])
    other.close()


def test_a_key_is_kept_as_long_as_the_row_of_its_transaction(engine, announcer):
    announcer.announce(lambda *_: None, MESSAGE, once="1")
    young, two_hours = now_ms() + 1, 2 * 3_600_000
    with engine.begin() as connection:
        connection.execute(
            update(transactions).where(transactions.c.created_at < young).values(created_at=young - two_hours)
        )
        connection.execute(insert(transactions).values(id="young", state="committed", created_at=young))
    assert purge(engine, timedelta(hours=3)) == 0
    with pytest.raises(AlreadyDoneError):
        announcer.announce(lambda *_: None, MESSAGE, once="1")
    assert purge(engine, timedelta(hours=1)) == 2
    announcer.announce(lambda *_: None, MESSAGE, once="1")


async def test_a_blocking_transaction_is_refused_on_a_loop(engine, memory):
    blocking = SqlBridge("orders", engine, memory.settings)
    async with AsyncBridge("orders", blocking._listener, memory.settings) as bridge:
        with pytest.raises(UsageError, match="give an AsyncSqlBridge"):
            async with bridge.announce(MESSAGE):
                pass


def test_without_an_outbox_and_without_kafka_there_is_no_bridge(engine):
    with pytest.raises(UsageError, match="needs an outbox"):
        SqlBridge("orders", engine)
    with pytest.raises(UsageError, match="needs an outbox"):
        Bridge("orders", lambda _: True, None)
