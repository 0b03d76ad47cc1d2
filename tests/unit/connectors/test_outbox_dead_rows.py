"""Rows that are deleted, and that an old snapshot keeps in PostgreSQL's table and index: no look passes them by.

What a look costs is counted in the pages that it reads. What is left out must be gone for good: also with sequences,
snapshots and open transactions that bring a lower id later.
"""

from __future__ import annotations

import random
from contextlib import ExitStack

import pytest
from sqlalchemy import event, text
from txbridge_sqlalchemy import Outbox, SqlTransactionListener, create_outbox, forwarding
from txbridge_sqlalchemy.forwarding import SqlForwarding, StoreInsteadError
from txbridge_sqlalchemy.outbox_rows import OutboxRows

from tests.support.sql_application import COMMIT, create, place
from txbridge import Message, MessageExt

#: Reads of some pages of two indexes and their tables. To pass by all dead rows takes more than 1,000.
FEW = 60


@pytest.fixture
def engine(postgresql_url):
    made = create(postgresql_url)
    create_outbox(made)
    yield made
    made.dispose()


@pytest.fixture(params=["ANALYZE", ""], ids=["analyzed", "not"])
def dead(engine, request):
    """100,000 dead rows; with and without what PostgreSQL learns of them within a minute or so."""
    with engine.connect() as holding:
        holding.execution_options(isolation_level="REPEATABLE READ").execute(text("SELECT count(*) FROM orders"))
        with engine.begin() as connection:
            values = "SELECT 't', 'k', 1 FROM generate_series(1, 100000)"
            connection.execute(text(f"INSERT INTO txbridge_outbox (topic, key, created_at) {values}"))
        with engine.begin() as connection:
            connection.execute(text(f"DELETE FROM txbridge_outbox; {request.param}"))
        yield


@pytest.fixture
def pages(engine, monkeypatch):
    """Pages that each statement about the outbox reads."""
    found = []
    # By SQLAlchemy, which has events.
    monkeypatch.setattr(OutboxRows, "ask_often", lambda rows, *given: rows.ask(*given).all())

    def explain(_connection, cursor, statement, parameters, *_):
        if statement.startswith("SELECT") and "txbridge_outbox" in statement and "advisory" not in statement:
            cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", parameters)
            ((((plan,),),),) = (cursor.fetchall(),)
            found.append(plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"])

    event.listen(engine, "before_cursor_execute", explain)
    return found


def add(engine, value):
    with engine.begin() as connection:
        Outbox().add(connection, Message("t", value, b"k"))


def delete(engine, condition="true"):
    with engine.begin() as connection:
        connection.execute(text(f"DELETE FROM txbridge_outbox WHERE {condition}"))


def read_all(rows):
    return [row.message.value for row in rows.read_rows()]


@pytest.mark.usefixtures("dead")
def test_an_idle_relay_passes_no_dead_rows_by_look_for_look(engine, pages):
    rows = OutboxRows(engine)
    for _ in range(2):
        assert read_all(rows) == []
        pages.clear()
    for value in (b"1", b"2"):
        add(engine, value)
        assert read_all(rows) == [value]
        assert read_all(rows) == [value]
        delete(engine)
        assert read_all(rows) == []
        assert read_all(rows) == []
    assert max(pages) < FEW
    rows.close()


def test_a_batch_of_a_burst_reads_no_rows_behind_it(engine, pages):
    """PostgreSQL has no statistics yet, takes 100,000 rows for a few, and would sort all of them for each batch."""
    with engine.begin() as connection:
        values = "SELECT 't', 'k', 1 FROM generate_series(1, 100000)"
        connection.execute(text(f"INSERT INTO txbridge_outbox (topic, key, created_at) {values}"))
    rows = OutboxRows(engine)
    assert [row.id for row in (*rows.read_rows(100), *rows.read_beyond(100))] == list(range(1, 201))
    assert max(pages) < FEW
    rows.close()


@pytest.fixture
def ask(engine):
    """Ask whether a message may go directly, as a process of a service does."""
    made = SqlForwarding(Outbox(), lambda *_: None)
    made.connect("group", lambda *_: None)
    with engine.begin() as connection:
        made.verify(connection)

    def ask(connection=None, known=None):
        message = MessageExt.for_execution(Message("t", b"v", b"k"), "A" * 32, 0, 5, 1_000)
        known = known or made.known
        with ExitStack() as at_end:
            try:
                made.require_direct(connection or at_end.enter_context(engine.begin()), message, known)
            except StoreInsteadError:
                return False
        return True

    ask.forwarding = made
    return ask


@pytest.fixture
def looks_at_once(monkeypatch):
    monkeypatch.setattr(forwarding, "_LOOK_EVERY_S", 0.0)


@pytest.mark.usefixtures("dead")
def test_a_direct_message_passes_no_dead_rows_by(engine, pages):
    listener = SqlTransactionListener(engine, place, outbox=Outbox())
    listener.forwarding.connect("group", lambda *_: None)
    for number in range(5):
        if number == 3:
            pages.clear()
        message = MessageExt.for_execution(Message("t", b"v", b"k"), f"{number:032}", 0, 5, 1_000)
        assert listener.execute_local_transaction(message, number) is COMMIT
    assert 0 < max(pages) < FEW


def test_a_row_is_seen_that_an_old_snapshot_still_has(engine, ask, looks_at_once):
    """A relay has deleted it since."""
    add(engine, b"1")
    known = ask.forwarding.known
    with engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        connection.execute(text("SELECT count(*) FROM txbridge_outbox"))
        delete(engine)
        assert all(ask() for _ in range(3))
        assert not ask(connection, known)


@pytest.mark.parametrize("change", ["CACHE 10", "RESTART"])
def test_a_row_is_seen_though_the_sequence_draws_no_higher_id(engine, ask, looks_at_once, change):
    with engine.connect() as first, engine.connect() as second:
        for connection in (first, second):
            if change == "CACHE 10":
                connection.execute(text(f"ALTER SEQUENCE txbridge_outbox_id_seq {change}"))
                connection.commit()
            Outbox().add(connection, Message("t", b"1", b"k"))
            connection.commit()
            delete(engine)
        assert all(ask() for _ in range(3))
        if change == "RESTART":
            first.execute(text(f"ALTER SEQUENCE txbridge_outbox_id_seq {change}"))
            first.commit()
            assert ask()
        Outbox().add(first, Message("t", b"1", b"k"))
        first.commit()
    assert not ask()


@pytest.mark.parametrize("seed", range(5))
def test_questions_see_every_committed_row_whatever_is_open(engine, ask, looks_at_once, seed):
    """Writers that stay open, that roll back and commit, and relays that delete, in any order."""
    chance, writers, rows = random.Random(seed), [], OutboxRows(engine)
    with ExitStack() as at_end:
        at_end.callback(rows.close)
        for step in range(150):
            match chance.randrange(6):
                case 0 | 1 if len(writers) < 4:
                    writers.append(at_end.enter_context(engine.connect()))
                    Outbox().add(writers[-1], Message("t", b"%d" % step, b"k"))
                case 2 if writers:
                    one = writers.pop(chance.randrange(len(writers)))
                    one.commit() if chance.random() < 0.7 else one.rollback()
                    one.close()
                case 3:
                    # As a relay does: those that it reads, the first ones.
                    if ids := [row.id for row in rows.read_rows()]:
                        delete(engine, f"id <= {chance.choice(ids)}")
                case _:
                    with engine.connect() as connection:
                        count = connection.execute(text("SELECT count(*) FROM txbridge_outbox")).scalar_one()
                    assert ask() == (count == 0), step
