"""OutboxState on SQLite, PostgreSQL and MariaDB: whose batch counts, and which rows it deletes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from sqlalchemy import create_engine, insert, select, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from txbridge_sqlalchemy import Outbox, OutboxTable, create_outbox, relay_sessions
from txbridge_sqlalchemy.outbox_rows import OutboxRows
from txbridge_sqlalchemy.outbox_state import OutboxState, StateRow
from txbridge_sqlalchemy.outbox_table import outbox as outbox_table

from txbridge import Message, UsageError
from txbridge.core.outbox_progress import hash_of
from txbridge.kafka.errors import OutdatedError

PLACE = ("topic", 3, 70)


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def url(request):
    return request.getfixturevalue(f"{request.param}_url")


@pytest.fixture
def engine(url):
    made = create_engine(url)
    create_outbox(made)
    yield made
    made.dispose()


@pytest.fixture
def make():
    """A factory of relays: rows and state."""
    with ExitStack() as at_end:

        def make(engine, table=None):
            rows = OutboxRows(engine) if table is None else OutboxRows(engine, table)
            at_end.callback(rows.close)
            state = OutboxState(engine, rows)
            state.verify()
            rows.name_outbox(state.read_state().identity)
            return rows, state

        yield make


@pytest.fixture
def relay(engine, make):
    """The relay that is the owner."""
    rows, state = make(engine)
    state.take_outbox(state.read_state(), "first", PLACE)
    return rows, state


def add(engine, *values):
    with engine.begin() as connection:
        Outbox().add(connection, *(Message("t", value, b"k") for value in values))


def execute(engine, *statements):
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


def left(engine):
    with engine.connect() as connection:
        found = connection.execute(select(outbox_table.c.value).order_by(outbox_table.c.id)).scalars()
        # SQLite keeps text as text.
        return [value if isinstance(value, str) else value.decode() for value in found]


def named(rows):
    return {row.name: hash_of(row.message_id) for row in rows}


def test_a_new_outbox_gets_one_identity_whoever_looks_first(engine, make):
    (_, one), (_, other) = make(engine), make(engine)
    found = one.read_state()
    assert other.read_state() == found == StateRow(found.identity, None, 0, None, None, None)
    assert len(bytes.fromhex(found.identity)) == 8
    execute(engine, "DELETE FROM txbridge_outbox_relay")
    assert one.read_state().identity != found.identity


def test_only_one_takes_the_place_of_an_owner(engine, make):
    (_, one), (_, other) = make(engine), make(engine)
    before = one.read_state()
    one.take_outbox(before, "one", PLACE)
    assert other.read_state() == StateRow(before.identity, "one", 0, *PLACE)
    with pytest.raises(OutdatedError):
        other.take_outbox(before, "other", PLACE)
    other.take_outbox(other.read_state(), "other", ("topic", 3, 71))
    assert one.read_state() == StateRow(before.identity, "other", 0, "topic", 3, 71)
    # A database that has come back with another batch has another place, too.
    seen = one.read_state()
    execute(engine, "UPDATE txbridge_outbox_relay SET batch = 1")
    with pytest.raises(OutdatedError):
        one.take_outbox(seen, "one", PLACE)
    execute(engine, "UPDATE txbridge_outbox_relay SET batch = 0")
    # Too late.
    one.leave_outbox("one")
    assert one.read_state().owner == "other"
    other.leave_outbox("other")
    assert one.read_state() == StateRow(before.identity, None, 0, "topic", 3, 71)


def test_a_batch_is_deleted_with_its_number_and_its_place(engine, relay):
    rows, state = relay
    add(engine, "1", "2", "3")
    state.confirm_batch("first", 1, 80, rows.read_rows(limit=2))
    assert (left(engine), state.read_state()[2:]) == (["3"], (1, "topic", 3, 80))
    # A batch of which all rows are gone counts, too.
    state.confirm_batch("first", 2, 90, [])
    state.note_position("first", 2, 95)
    assert (left(engine), state.read_state()[2:]) == (["3"], (2, "topic", 3, 95))


@pytest.mark.parametrize(("owner", "batch"), [("second", 1), ("first", 2), ("first", 0)])
def test_a_batch_of_another_owner_or_number_changes_nothing(engine, relay, owner, batch):
    rows, state = relay
    add(engine, "1")
    before, read = state.read_state(), rows.read_rows()
    for confirm in (state.confirm_batch, lambda *given: state.confirm_named(*given[:-1], named(given[-1]))):
        with pytest.raises(OutdatedError):
            confirm(owner, batch, 80, read)
    with pytest.raises(OutdatedError):
        state.note_position(owner, batch + 1, 80)
    assert (left(engine), state.read_state()) == (["1"], before)


def test_a_paused_owner_comes_back_when_another_one_has_gone_on(engine, relay, make):
    rows, state = relay
    add(engine, "1", "2")
    read = rows.read_rows(limit=1)
    others, other = make(engine)
    other.take_outbox(other.read_state(), "second", PLACE)
    with pytest.raises(OutdatedError):
        state.confirm_batch("first", 1, 80, read)
    assert other.confirm_named("second", 1, 80, named(others.read_rows(limit=1))) == 1
    with pytest.raises(OutdatedError):
        state.confirm_batch("first", 2, 80, read)
    assert left(engine) == ["2"]


@pytest.mark.parametrize("commits", [True, False])
def test_who_comes_second_waits_for_the_first(postgres, make, commits):
    add(postgres, "1", "2")
    rows, state = make(postgres)
    state.take_outbox(state.read_state(), "first", PLACE)
    read = rows.read_rows()
    with ThreadPoolExecutor() as pool, postgres.connect() as connection:
        connection.execute(text("UPDATE txbridge_outbox_relay SET owner = 'second'"))
        confirmed = pool.submit(state.confirm_batch, "first", 1, 80, read)
        assert not confirmed.done()
        connection.commit() if commits else connection.rollback()
        assert isinstance(confirmed.exception(30), OutdatedError) is commits
    assert left(postgres) == (["1", "2"] if commits else [])


def test_it_does_not_wait_long_for_a_lock_of_somebody_else(postgres, make, monkeypatch):
    monkeypatch.setattr(relay_sessions, "LOCKED_S", 1)
    relay_sessions.limit_transactions(limited := create_engine(postgres.url))
    add(postgres, "1")
    rows, state = make(limited)
    state.take_outbox(state.read_state(), "first", PLACE)
    read = rows.read_rows()
    with postgres.begin() as indexing:
        indexing.execute(text("CREATE INDEX ON txbridge_outbox (topic)"))
        with pytest.raises(DBAPIError, match="lock timeout"):
            state.confirm_batch("first", 1, 80, read)
    assert (left(postgres), state.read_state().batch) == (["1"], 0)
    limited.dispose()


CHANGES = {
    "deleted": ("DELETE FROM txbridge_outbox WHERE id = 1", ["3"]),
    "changed": ("UPDATE txbridge_outbox SET value = 'new', created_at = created_at + 1 WHERE id = 1", ["new", "3"]),
    "replaced": ("DELETE FROM txbridge_outbox WHERE id = 1; {insert}", ["new", "3"]),
}


@pytest.mark.parametrize("is_named", [False, True], ids=["just read", "named by the progress"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_row_that_is_not_what_was_sent_stays_and_the_others_go(engine, relay, change, is_named):
    """The application changes a row between the read and the DELETE."""
    rows, state = relay
    add(engine, "1", "2", "3")
    read, (statements, expected) = rows.read_rows(limit=2), CHANGES[change]
    new = "INSERT INTO txbridge_outbox (id, topic, value, created_at) VALUES (1, 't', 'new', 1)"
    execute(engine, *statements.format(insert=new).split("; "))
    if is_named:
        assert state.confirm_named("first", 1, 80, named(read)) == 1
    else:
        state.confirm_batch("first", 1, 80, read)
    assert (left(engine), state.read_state().batch) == (expected, 1)


def test_ids_that_are_given_again_after_a_truncate_are_those_of_other_rows(postgres, make):
    rows, state = make(postgres)
    state.take_outbox(state.read_state(), "first", PLACE)
    add(postgres, "1", "2")
    read = rows.read_rows()
    execute(postgres, "TRUNCATE txbridge_outbox RESTART IDENTITY")
    add(postgres, "3", "4")
    state.confirm_batch("first", 1, 80, read)
    assert (left(postgres), state.read_state().batch) == (["3", "4"], 1)
    assert state.confirm_named("first", 2, 90, named(read)) == 0
    rows.forget_reads()
    assert [row.id for row in rows.read_rows()] == [row.id for row in read]


#: Of SQLite, and of PostgreSQL.
SWALLOWS = {
    "sqlite": "CREATE TRIGGER t BEFORE DELETE ON txbridge_outbox WHEN old.id = 1 BEGIN SELECT RAISE(IGNORE); END",
    "postgresql": (
        "CREATE FUNCTION kept() RETURNS trigger AS 'BEGIN IF old.id = 1 THEN RETURN NULL; END IF; RETURN old; END'"
        " LANGUAGE plpgsql; CREATE TRIGGER t BEFORE DELETE ON txbridge_outbox FOR EACH ROW EXECUTE FUNCTION kept()"
    ),
}


@pytest.mark.parametrize("url", SWALLOWS, indirect=True)
def test_rows_that_a_trigger_keeps_are_told_and_nothing_is_changed(engine, relay):
    rows, state = relay
    add(engine, "1", "2")
    before, read = state.read_state(), rows.read_rows()
    execute(engine, SWALLOWS[engine.name])
    for _ in range(2):
        with pytest.raises(UsageError, match=r"cannot be deleted, such as 1: look for a trigger"):
            state.confirm_batch("first", 1, 80, read)
        with pytest.raises(UsageError, match="They are not sent again"):
            state.confirm_named("first", 1, 80, named(read))
    assert (left(engine), state.read_state()) == (["1", "2"], before)


def test_missing_tables_and_those_of_an_older_relay_are_named(url):
    engine = create_engine(url)
    rows = OutboxRows(engine)
    state = OutboxState(engine, rows)
    with pytest.raises(SQLAlchemyError, match=r"(?s)create_outbox.*relay --ddl.*txbridge_outbox_relay"):
        state.read_state()
    create_outbox(engine)
    execute(engine, "CREATE TABLE txbridge_outbox_lanes (lane INTEGER PRIMARY KEY)")
    with pytest.raises(UsageError, match="there is a table txbridge_outbox_lanes, of a relay before this release"):
        state.read_state()
    execute(engine, "DROP TABLE txbridge_outbox_lanes")
    assert state.read_state().batch == 0
    rows.close()
    engine.dispose()


def test_ids_that_are_no_numbers_are_named_by_their_text(url, make):
    engine = create_engine(url)
    kind = "UUID" if engine.name != "sqlite" else "TEXT"
    ids = [f"406c07f3-26f0-4eea-a50c-10994006{number:04x}" for number in range(3)]
    execute(engine, f"CREATE TABLE o (id {kind} PRIMARY KEY, body VARCHAR(9), n INTEGER NOT NULL)")
    execute(engine, *(f"INSERT INTO o VALUES ('{one}', '{n}', {n})" for n, one in enumerate(ids)))
    table = OutboxTable(name="o", topic="t", value="body", order="n")
    create_outbox(engine, table)
    rows, state = make(engine, table)
    state.take_outbox(state.read_state(), "first", PLACE)
    read = rows.read_rows()
    assert [row.name for row in read] == ids
    # Without a column for keys, too, one waits and others pass.
    head = rows.blocks.block_row(read[1], "x", 0.0)
    assert rows.read_rows() == [read[0], read[2]]
    rows.blocks.lift_block(head)
    state.confirm_batch("first", 1, 80, read[:1])
    assert state.confirm_named("first", 2, 90, named(read[:2])) == 1
    rows.forget_reads()
    assert rows.read_rows() == read[2:]
    assert rows.read_again([read[2].name]) == read[2:]
    engine.dispose()


def test_a_row_has_one_id_however_often_and_by_whom_it_is_read(engine, make):
    with engine.begin() as connection:
        connection.execute(
            insert(outbox_table),
            {"topic": "t", "key": b"\xfe", "value": b"\x00\xff", "headers": '[["a", "\u00e9"]]', "created_at": 7},
        )
    rows, _ = make(engine)
    others, _ = make(engine)
    (row,) = rows.read_rows()
    assert rows.read_rows() == others.read_rows() == others.read_again([row.name]) == [row]
    found = {row.message_id}
    changes = ["topic = 'u'", "key = NULL", "value = NULL", "value = ''", "headers = NULL", "headers = '[]'"]
    changes += ["partition = 0", "partition = 1", "timestamp = 1", "deliver_at = 1", "created_at = 8"]
    quoted = engine.dialect.identifier_preparer.quote
    for count, change in enumerate(changes, 2):
        column, _, value = change.partition(" = ")
        execute(engine, f"UPDATE txbridge_outbox SET {quoted(column)} = {value}")
        (again,) = others.read_again([row.name])
        found.add(again.message_id)
        assert len(found) == count, change
