"""Store and forward on SQLite and a real PostgreSQL: what is stored, what goes directly, and after which ENDs."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import Future
from contextlib import suppress

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import sessionmaker
from txbridge_sqlalchemy import AsyncSqlTransactionListener, Outbox, OutboxTable, SqlTransactionListener, create_outbox
from txbridge_sqlalchemy.outbox_rows import OutboxRows
from txbridge_sqlalchemy.outbox_table import outbox as outbox_table

from tests.support.async_engine import DRIVERS, async_twin
from tests.support.sql_application import COMMIT, create, order_ids, place, place_async, state_of
from txbridge import Message, MessageExt, Rollback, UsageError
from txbridge.client.answers import Stored
from txbridge.client.decide.decision_batcher import Ticket
from txbridge.client.errors import EndTransactionError
from txbridge.client.message import NO_HALF
from txbridge.client.message_batch import joined
from txbridge.client.outbox_values import AFTER
from txbridge.client.prepare.prepared import Prepared
from txbridge.core.decision_record import Decision, DecisionEntry
from txbridge.core.names import Names

HALF, EARLIER = "A" * 32, "B" * 32
WHOLE = Message("t", b"v\xff", b"k", [("h", "x"), ("n", None)], 1_700_000_000_000, 2, None, 2_200_000_000_000)


@pytest.fixture
def sent():
    """The ENDs that were sent again, with their futures."""
    return {}


@pytest.fixture
def listener(engine, sent):
    return connected(SqlTransactionListener(engine, place, outbox=Outbox()), sent)


def connected(listener, sent, *, acknowledges=True):
    def send_again(*half):
        sent[half] = Future()
        if acknowledges:
            sent[half].set_result(None)
        return sent[half]

    listener.forwarding.connect("group", send_again)
    return listener


def direct(message=WHOLE, transaction_id=HALF):
    """The message with a half message."""
    return MessageExt.for_execution(message, transaction_id, 0, 5, 1_000)


def without_half(message=WHOLE):
    return Prepared.without_half().for_listener(message)


def waiting(engine):
    with engine.connect() as connection:
        ids = connection.execute(select(outbox_table.c.id)).scalars().all()
    rows = OutboxRows(engine)
    try:
        return rows.read_again(ids)
    finally:
        rows.close()


def stored(engine):
    return [row.message for row in waiting(engine)]


def add(engine, *messages):
    with engine.begin() as connection:
        Outbox().add(connection, *messages)


def test_while_kafka_is_away_data_and_message_are_committed_together(engine, listener):
    counted = []
    listener.forwarding.count_stored = lambda: counted.append(1)
    message = without_half()
    assert isinstance(listener.execute_local_transaction(message, 1), Stored)
    assert counted == [1]
    assert order_ids(engine) == [1]
    assert stored(engine) == [WHOLE]
    # The row proves that the COMMIT was one of this transaction. No half message has its id.
    assert state_of(engine, message.transaction_id) == "committed"
    assert message.half_offset == NO_HALF


@pytest.mark.parametrize("error", [None, ZeroDivisionError])
def test_a_function_that_rolls_back_stores_nothing(engine, error):
    def refuse(connection, message, arg):
        place(connection, message, arg)
        if error:
            raise error
        return False

    listener = SqlTransactionListener(engine, refuse, outbox=Outbox())
    if error:
        with pytest.raises(error):
            listener.execute_local_transaction(without_half(), 1)
    else:
        with pytest.raises(Rollback):
            listener.execute_local_transaction(without_half(), 1)
    assert (order_ids(engine), stored(engine)) == ([], [])


def test_a_function_that_caught_an_error_of_its_transaction_stores_nothing(postgresql_url):
    engine = create(postgresql_url)
    create_outbox(engine)

    def fail(connection, message, arg):
        place(connection, message, arg)
        with suppress(DBAPIError):
            connection.execute(text("SELECT 1/0"))

    listener = SqlTransactionListener(engine, fail, outbox=Outbox())
    with pytest.raises(Exception, match="aborted"):
        listener.execute_local_transaction(without_half(), 1)
    assert (order_ids(engine), stored(engine)) == ([], [])
    engine.dispose()


def test_a_function_that_commits_by_itself_is_told_that_its_message_is_not_sent(engine):
    def commit(connection, message, arg):
        place(connection, message, arg)
        connection.connection.driver_connection.commit()

    listener = SqlTransactionListener(engine, commit, outbox=Outbox())
    with pytest.raises(UsageError, match="has committed by itself"):
        listener.execute_local_transaction(without_half(), 1)
    assert stored(engine) == []


def test_with_a_half_message_and_an_empty_outbox_it_goes_directly(engine, listener, sent):
    assert listener.execute_local_transaction(direct(), 1) is COMMIT
    assert (order_ids(engine), stored(engine), sent) == ([1], [], {})
    assert state_of(engine, HALF) == "committed"


def test_behind_a_row_of_its_key_it_is_stored_and_its_half_message_can_never_be_committed(engine, listener):
    first = Message("t", b"first", b"k")
    add(engine, first)
    assert isinstance(listener.execute_local_transaction(direct(), 1), Stored)
    assert order_ids(engine) == [1]
    assert stored(engine) == [first, WHOLE]
    assert state_of(engine, HALF) is None


@pytest.mark.parametrize("message", [Message("t", b"v", b"other"), Message("t", b"v"), WHOLE])
def test_rows_of_other_keys_and_rows_with_a_time_stop_nobody(engine, listener, message):
    add(engine, *([WHOLE] * 1_000 if message is WHOLE else [Message("t", b"first", b"k")]))
    assert listener.execute_local_transaction(direct(message), 1) is COMMIT


def test_while_very_many_rows_wait_each_message_is_stored(engine, listener):
    add(engine, *(Message("t", b"v", b"other") for _ in range(1_000)))
    assert isinstance(listener.execute_local_transaction(direct(), 1), Stored)


def test_several_messages_are_stored_behind_any_row_each_with_its_time(engine, listener):
    several = joined([Message("t", b"1", b"k", deliver_at=2_200_000_000_000), Message("u", b"2", b"l")], Names())
    assert listener.execute_local_transaction(direct(several), 1) is COMMIT
    add(engine, Message("t", b"v", b"other"))
    assert isinstance(listener.execute_local_transaction(direct(several, "D" * 32), 2), Stored)
    assert stored(engine)[1:] == [Message("t", b"1", b"k", deliver_at=2_200_000_000_000), Message("u", b"2", b"l")]


def commit(listener, message, transaction_id, error=None):
    """Commit a message of which Kafka may not have the END; it has not if there is an error."""
    end = Ticket(DecisionEntry(3, transaction_id, Decision.COMMIT), 1)
    listener.forwarding.note_commit(message, (transaction_id, 2, 3), end)
    if error is not None:
        end.settle_with(error)
    return end


LOST = EndTransactionError("given up")


def test_a_row_names_the_ends_of_its_key_that_kafka_may_not_have(engine, listener, sent):
    acknowledged, lost = commit(listener, WHOLE, "D" * 32), commit(listener, WHOLE, EARLIER)
    other = commit(listener, Message("t", b"v", b"other"), "E" * 32)
    acknowledged.settle_with()
    assert isinstance(listener.execute_local_transaction(without_half(), 1), Stored)
    (row,) = waiting(engine)
    assert (row.message, row.after) == (WHOLE, (("group", EARLIER, 2, 3),))
    # An END that was given up is sent again before any message goes directly.
    lost.settle_with(LOST)
    other.settle_with()
    last_one = direct(Message("t", b"v", b"new"), "F" * 32)
    assert listener.execute_local_transaction(last_one, 2) is COMMIT
    assert list(sent) == [(EARLIER, 2, 3)]
    assert listener.forwarding.list_open({b"k"}) == []


@pytest.mark.parametrize("error", [None, LOST])
def test_a_message_is_stored_while_an_end_of_this_process_does_not_come_to_kafka(engine, sent, monkeypatch, error):
    monkeypatch.setattr("txbridge_sqlalchemy.forwarding._SETTLE_S", 0.05)
    listener = connected(SqlTransactionListener(engine, place, outbox=Outbox()), sent, acknowledges=False)
    listener.forwarding._send_again = lambda *half: sent.setdefault(half, failed(error))
    commit(listener, WHOLE, EARLIER, LOST)
    assert isinstance(listener.execute_local_transaction(direct(), 1), Stored)
    assert (list(sent), state_of(engine, HALF), stored(engine)) == ([(EARLIER, 2, 3)], None, [WHOLE])


def failed(error):
    end = Future()
    if error is not None:
        end.set_exception(error)
    return end


@pytest.mark.parametrize("after", ["x", [1], [["g", "short", 1, 2]], [["g", HALF, -1, 2]], [["g", HALF, 1]]])
def test_a_row_with_a_damaged_list_of_ends_is_refused(engine, after):
    add(engine, WHOLE)
    headers = json.dumps([[AFTER, json.dumps(after)]])
    with engine.begin() as connection:
        connection.execute(text("UPDATE txbridge_outbox SET headers = :headers"), {"headers": headers})
    (row,) = waiting(engine)
    assert row.message is None
    assert AFTER in row.reason


def test_a_listener_that_hides_the_outbox_from_its_producer_is_told_so(engine):
    hidden = SqlTransactionListener(engine, place, outbox=Outbox())
    with pytest.raises(UsageError, match="pass its attribute `forwarding` on"):
        hidden.execute_local_transaction(direct(), 1)
    assert order_ids(engine) == []


def test_a_session_and_a_table_of_another_name(engine):
    table = OutboxTable.for_txbridge("billing_outbox")
    create_outbox(engine, table)
    listener = SqlTransactionListener(sessionmaker(engine), place, outbox=Outbox(table))
    assert isinstance(listener.execute_local_transaction(without_half(), 1), Stored)
    assert order_ids(engine) == [1]
    assert stored(engine) == []
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM billing_outbox")).scalar_one() == 1


def test_a_missing_outbox_is_found_at_the_start(url, engine):
    listener = SqlTransactionListener(engine, place, outbox=Outbox(OutboxTable.for_txbridge("missing")))
    with pytest.raises(Exception, match="missing"):
        listener.verify()


async def test_asyncio_stores_and_sends_ends_again_too(url, engine, sent):
    for number, driver in enumerate(DRIVERS[engine.dialect.name]):
        twin = async_twin(url, driver)
        listener = connected(AsyncSqlTransactionListener(twin, place_async, outbox=Outbox()), sent)
        assert isinstance(await listener.execute_local_transaction(without_half(), 10 * number), Stored)
        rows = await asyncio.to_thread(stored, engine)
        assert rows == [WHOLE] * (number + 1)
        commit(listener, WHOLE, EARLIER, LOST)
        message = direct(Message("t", b"v", b"free"), f"{number:032}")
        assert await listener.execute_local_transaction(message, 10 * number + 1) is COMMIT
        assert list(sent) == [(EARLIER, 2, 3)]
        sent.clear()
        await twin.dispose()
