"""OutboxRows on SQLite and a real PostgreSQL: which rows come next, in which order, and what they wait for."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import create_engine, event, insert, text
from sqlalchemy.dialects import mssql, mysql
from sqlalchemy.exc import DBAPIError
from txbridge_sqlalchemy import Outbox, create_outbox, outbox_rows
from txbridge_sqlalchemy.outbox_dialects import dialect_of
from txbridge_sqlalchemy.outbox_rows import OutboxRows
from txbridge_sqlalchemy.outbox_state import OutboxState
from txbridge_sqlalchemy.outbox_statements import outbox_statements
from txbridge_sqlalchemy.outbox_table import OUR_OUTBOX, outbox_ddl
from txbridge_sqlalchemy.outbox_table import outbox as outbox_table
from txbridge_sqlalchemy.relay_blocks import MOST_HEADS

from tests.support import sql_application
from tests.support.harness import eventually
from tests.support.postgres import Postgres
from txbridge import Message, UsageError
from txbridge.client.outbox_values import row_after


@pytest.fixture
def relay():
    """A factory of OutboxRows with a state, that ask for the lock."""
    made = []

    def relay(engine):
        made.append(OutboxRows(engine))
        OutboxState(engine, made[-1]).read_state()
        made[-1].try_lock()
        return made[-1]

    yield relay
    for one in made:
        one.close()


def add(connection, *values, key=b"k"):
    Outbox().add(connection, *(Message("t", value, key) for value in values))


def values_of(rows):
    return [row.message.value.decode() for row in rows]


def ids_of(rows):
    return [row.id for row in rows]


def delete(engine, ids):
    with engine.begin() as connection:
        connection.execute(outbox_table.delete().where(outbox_table.c.id.in_(ids)))


def test_a_relay_reads_no_more_bytes_than_it_can_send_but_one_row_at_least(engine, relay):
    with engine.begin() as connection:
        add(connection, "a" * 100, "b" * 100, "c" * 1_000, "d")
    rows = relay(engine)
    assert len(rows.read_rows(most_bytes=202)) == 2
    assert len(rows.read_rows(most_bytes=201)) == 1
    assert len(rows.read_rows(most_bytes=1)) == 1
    assert len(rows.read_rows(most_bytes=100_000)) == 4


def test_a_row_that_no_message_can_be_made_of_says_why(engine, relay):
    with engine.begin() as connection:
        add(connection, "1")
        for topic, headers in (("not a topic", None), ("t", "{"), ("t", '[["TXB_V", "1"]]'), ("RMQ_SYS_X", None)):
            connection.execute(insert(outbox_table).values(topic=topic, headers=headers, value=b"s", created_at=1))
    rows = relay(engine)
    read = rows.read_rows()
    assert [row.message and row.message.value for row in read] == [b"1", None, None, None, None]
    assert [row.topic for row in read] == ["t", "not a topic", "t", "t", "RMQ_SYS_X"]
    reasons = [row.reason for row in read[1:]]
    assert [reason.split(":")[0].split(" (")[0] for reason in reasons] == [
        "'not a topic' cannot be a topic",
        "the headers are not JSON",
        "header 'TXB_V' is reserved for txbridge",
        "sending to system topic RMQ_SYS_X is forbidden",
    ]
    count, oldest = rows.count_waiting()
    assert count == 5
    assert oldest == pytest.approx(time.time(), abs=60)


def test_what_waits_behind_a_head_is_not_read_and_all_else_is(engine, relay):
    with engine.begin() as connection:
        for topic in ("t", "u"):
            for key in (b"k", b"l", None):
                Outbox().add(connection, Message(topic, f"{topic}{key}", key))
        connection.execute(insert(outbox_table), row_after(Message("t", "stored", b"m"), []))
    rows = relay(engine)
    read = rows.read_rows()
    everything = values_of(read)
    assert rows.read_again([row.name for row in read]) == read

    def passed(*others):
        assert values_of(rows.read_rows()) == [value for value in everything if value not in others]

    one = rows.blocks.block_row(read[0], "x", 0.0)
    passed("tb'k'")
    # Read again by itself, a head is there.
    assert rows.read_again([read[0].name]) == [read[0]]
    other = rows.blocks.block_row(read[2], "x", 0.0)
    passed("tb'k'", "tNone")
    whole = rows.blocks.block_row(read[3], "x", 0.0, whole_topic=True)
    passed("tb'k'", "tNone", "ub'k'", "ub'l'", "uNone")
    for head in (one, other, whole):
        rows.blocks.lift_block(head)
    rows.forget_reads()
    passed()
    with engine.begin() as connection:
        # The second one waits behind the stored one of its key, as the order of the rows says.
        Outbox().add(connection, Message("u", "other topic", b"m"), Message("t", "behind", b"m"))
    everything += ["other topic"]
    rows.blocks.hold_stored(0.0)
    passed("stored")
    rows.blocks.block_row(read[3], "x", 0.0, whole_topic=True)
    everything.remove("other topic")
    passed("stored", "ub'k'", "ub'l'", "uNone")


@pytest.mark.parametrize("url", ["sqlite", "postgresql", "mariadb"], indirect=True)
def test_ten_thousand_heads_are_left_out_by_one_statement(engine, relay):
    with engine.begin() as connection:
        Outbox().add(connection, *(Message("t", b"", b"%d" % number) for number in range(MOST_HEADS + 1)))
    rows = relay(engine)
    for row in rows.read_rows(MOST_HEADS):
        rows.blocks.block_row(row, "x", 0.0)
    assert [row.key for row in rows.read_rows()] == [b"%d" % MOST_HEADS]


def test_one_relay_has_the_lock_and_another_gets_it_when_the_session_ends(postgres, relay):
    first, second = relay(postgres), relay(postgres)
    assert (first.has_lock, second.has_lock) == (True, False)
    first.close()
    # The server notices the end of a session in its own time.
    eventually(second.try_lock, 20)
    assert not first.try_lock()
    with postgres.begin() as connection:
        ended = "SELECT pg_terminate_backend(pid, 5000) FROM pg_locks WHERE locktype = 'advisory' AND granted"
        connection.execute(text(f"{ended} AND classid = 1954021376 + ({TABLE}) / 4294967296"))
    assert first.try_lock()
    with pytest.raises(DBAPIError) as raised:
        second.read_rows()
    assert raised.value.connection_invalidated
    assert not second.has_lock
    assert not second.try_lock()


TABLE = "SELECT CAST('txbridge_outbox_relay' AS regclass)::oid::bigint"


def test_a_session_that_a_pooler_exchanges_is_refused_by_name(postgres, relay):
    rows = relay(postgres)
    rows.require_session()
    rows._session_id += 1
    with pytest.raises(UsageError, match="a pooler between the relay and the database has exchanged its session"):
        rows.require_session()


def test_tables_of_one_name_in_two_schemas_have_locks_of_their_own(postgres, relay, request):
    other = create_engine(sql_application.in_new_schema(request.getfixturevalue("postgres_url"), "outbox_of_another"))
    create_outbox(other)
    assert relay(postgres).has_lock
    assert relay(other).has_lock
    other.dispose()


@pytest.mark.parametrize("began_first", [False, True])
def test_a_row_that_commits_late_is_never_overtaken(postgres, relay, began_first):
    """Neither by a transaction that began to write first, nor by one that began later."""
    rows = relay(postgres)
    with postgres.connect() as late, postgres.connect() as early:
        if began_first:
            early.execute(text("CREATE TABLE written ()"))
        add(late, "1")
        add(early, "2")
        early.commit()
        assert rows.read_rows() == []
        assert rows.is_gate_closed
        late.commit()
    assert values_of(rows.read_rows()) == ["1", "2"]
    assert not rows.is_gate_closed


def test_a_savepoint_holds_back_rows_until_it_is_rolled_back_or_committed(postgres, relay):
    rows = relay(postgres)
    with postgres.connect() as late, postgres.connect() as early:
        with late.begin_nested() as savepoint:
            add(late, "dropped")
            with early.begin_nested():
                add(early, "1")
            early.commit()
            assert rows.read_rows() == []
            savepoint.rollback()
        assert values_of(rows.read_rows()) == ["1"]
        with late.begin_nested():
            add(late, "2")
        add(early, "3")
        early.commit()
        assert [rows.read_rows(), values_of(rows.read_rows())] == [[], ["1"]]
        late.commit()
    assert values_of(rows.read_rows()) == ["1", "2", "3"]


def test_a_transaction_that_is_prepared_for_two_phases_holds_rows_back_until_its_second_one(relay):
    with Postgres(max_prepared_transactions="1") as server:
        engine = create_engine(server.url)
        create_outbox(engine)
        rows = relay(engine)
        with engine.connect() as late, engine.connect() as early:
            add(late, "1")
            add(early, "2")
            early.commit()
            assert rows.read_rows() == []
            late.execute(text("PREPARE TRANSACTION 'late'"))
            assert rows.read_rows() == []
        # Its session has another transaction now.
        with engine.begin() as connection:
            add(connection, "3")
        assert [rows.read_rows(), rows.is_gate_closed] == [[], True]
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("COMMIT PREPARED 'late'"))
        assert values_of(rows.read_rows()) == ["1", "2", "3"]
        rows.close()
        engine.dispose()


def test_transactions_that_add_no_row_delay_nothing(postgres, relay):
    """One that reads the outbox, one that writes elsewhere, and another relay's that deletes rows."""
    rows = relay(postgres)
    with postgres.begin() as connection:
        connection.execute(text("CREATE TABLE written (number int)"))
        add(connection, "1")
    batch = rows.read_rows()
    with postgres.connect() as reading, postgres.connect() as writing, postgres.connect() as deleting:
        reading.execution_options(isolation_level="REPEATABLE READ")
        reading.execute(text("SELECT count(*) FROM txbridge_outbox")).all()
        writing.execute(text("INSERT INTO written VALUES (1)"))
        deleting.execute(text("UPDATE txbridge_outbox_relay SET batch = 1"))
        deleting.execute(outbox_table.delete().where(outbox_table.c.id.in_(ids_of(batch))))
        with postgres.begin() as connection:
            add(connection, "2")
        assert values_of(rows.read_rows()) == ["1", "2"]
        deleting.commit()


@pytest.mark.parametrize(
    ("statements", "written"),
    [
        (
            (
                "DROP TABLE txbridge_outbox",
                (
                    "CREATE TABLE txbridge_outbox (id bigserial, topic text, key bytea, value bytea, headers text,"
                    " partition int, timestamp bigint, deliver_at bigint, created_at bigint) PARTITION BY LIST (topic)"
                ),
                "CREATE TABLE of_t PARTITION OF txbridge_outbox FOR VALUES IN ('t')",
            ),
            "of_t",
        ),
        (("CREATE TABLE of_t () INHERITS (txbridge_outbox)", "CREATE TABLE of_today () INHERITS (of_t)"), "of_today"),
    ],
    ids=["partition", "inherits"],
)
def test_a_table_below_that_is_written_directly_holds_its_table_back(postgres, relay, statements, written):
    with postgres.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))
    rows = relay(postgres)
    with postgres.connect() as late:
        late.execute(text(f"INSERT INTO {written} (topic, value, created_at) VALUES ('t', '1', 1)"))
        with postgres.begin() as connection:
            add(connection, "2")
        assert rows.read_rows() == []
        late.commit()
    assert values_of(rows.read_rows()) == ["1", "2"]


def test_missing_tables_are_named_with_what_creates_them(url):
    engine = create_engine(url)
    rows = OutboxRows(engine)
    with pytest.raises(DBAPIError, match=r"(?s)create_outbox.*relay --ddl.*txbridge_outbox"):
        rows.verify()
    create_outbox(engine)
    rows.verify()
    rows.close()
    engine.dispose()


@pytest.mark.parametrize("seed", range(3))
def test_order_by_key_is_that_of_the_commits_where_transactions_lock_their_key(postgres, relay, seed):
    """Writers begin early, wait for one another, use savepoints and roll back, while a relay reads."""
    keys, writers, each = 3, 4, 40
    with postgres.begin() as connection:
        connection.execute(text("CREATE TABLE keys (key int PRIMARY KEY, number int NOT NULL)"))
        connection.execute(text("CREATE TABLE other (number int)"))
        connection.execute(text(f"INSERT INTO keys SELECT n, 0 FROM generate_series(0, {keys - 1}) n"))

    def write(writer):
        chance = random.Random(f"{seed} {writer}")
        for _ in range(each):
            key = chance.randrange(keys)
            with postgres.connect() as connection:
                if chance.random() < 0.5:
                    connection.execute(text("INSERT INTO other VALUES (1)"))
                locked = text("UPDATE keys SET number = number + 1 WHERE key = :key RETURNING number")
                number = connection.execute(locked, {"key": key}).scalar_one()
                with connection.begin_nested() as savepoint:
                    add(connection, f"{key} {number}", key=str(key).encode())
                    if is_dropped := chance.random() < 0.2:
                        savepoint.rollback()
                if is_dropped:
                    add(connection, f"{key} {number}", key=str(key).encode())
                connection.rollback() if chance.random() < 0.1 else connection.commit()

    rows, sent = relay(postgres), []

    def send():
        """Take a batch; whether there was one."""
        batch = rows.read_rows(limit=7)
        while batch:
            more = rows.read_beyond(limit=7) if rows.can_read_beyond else []
            delete(postgres, ids_of(batch))
            sent.extend(values_of(batch))
            batch = more
        return bool(sent)

    with ThreadPoolExecutor(writers) as pool:
        written = [pool.submit(write, writer) for writer in range(writers)]
        while not all(one.done() for one in written):
            send()
        for one in written:
            one.result()
    # Rows of a backlog wait once more at a gate that was seen closed.
    eventually(lambda: send() and rows.count_waiting().rows == 0, 20)
    with postgres.connect() as connection:
        numbers = {row.key: row.number for row in connection.execute(text("SELECT key, number FROM keys"))}
    for key, count in numbers.items():
        of_it = [int(value.split()[1]) for value in sent if value.startswith(f"{key} ")]
        assert of_it == list(range(1, count + 1))


@pytest.fixture
def statements(engine, monkeypatch):
    """The first word of each statement of the engine, which SQLAlchemy executes here, as it has events."""
    found = []
    monkeypatch.setattr(OutboxRows, "ask_often", lambda rows, *given: rows.ask(*given).all())
    monkeypatch.setattr(outbox_rows, "_DUE_EVERY_S", 1_000.0)
    event.listen(engine, "before_cursor_execute", lambda *given: found.append(given[2].split()[0]))
    return found


def test_a_round_takes_few_statements(engine, relay, statements):
    with engine.begin() as connection:
        add(connection, *map(str, range(100)))
    rows = relay(engine)
    state = OutboxState(engine, rows)
    state.take_outbox(state.read_state(), "me", ("topic", 0, 0))
    batch = rows.read_rows(limit=40)
    for number in (1, 2):
        statements.clear()
        state.confirm_batch("me", number, 0, batch)
        batch = rows.read_rows(limit=40)
        # A backlog needs no look at the writers.
        assert statements == [*(["UPDATE", "DELETE"] if engine.name == "sqlite" else ["WITH"]), "SELECT"]
    state.confirm_batch("me", 3, 0, batch)
    statements.clear()
    assert rows.read_rows() == []
    # With a gate, an outbox that was found empty is not read before there is a higher row.
    statements.clear()
    assert rows.read_rows() == []
    assert statements == ["SELECT"]


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_rows_that_a_long_transaction_holds_back_are_not_looked_at_again_and_again(engine, relay, statements):
    rows = relay(postgres := engine)
    with postgres.begin() as connection:
        add(connection, "0")
    delete(postgres, ids_of(rows.read_rows()))
    with postgres.connect() as late:
        add(late, "1")
        with postgres.begin() as connection:
            add(connection, "2")
        assert [rows.read_rows(), rows.read_rows()] == [[], []]
        statements.clear()
        assert [rows.read_rows(), rows.read_rows()] == [[], []]
        assert len(statements) == 2
        late.commit()
    # What was read and not deleted is read again.
    assert values_of(rows.read_rows()) == values_of(rows.read_rows()) == ["1", "2"]


def test_a_row_whose_id_was_drawn_long_ago_is_sent_out_of_order_when_all_are_looked_at_again(
    postgres, relay, monkeypatch
):
    """An application draws ids itself, before it inserts."""
    monkeypatch.setattr(outbox_rows, "_ALL_AGAIN_S", 0.5)
    rows = relay(postgres)
    draw = text("SELECT nextval('txbridge_outbox_id_seq')")
    with postgres.begin() as connection:
        drawn = connection.execute(draw).scalar_one()
        add(connection, "2")
    batch = rows.read_rows()
    delete(postgres, ids_of(batch))
    assert rows.read_rows() == []
    with postgres.begin() as connection:
        connection.execute(insert(outbox_table).values(id=drawn, topic="t", value=b"1", created_at=1))
    eventually(lambda: values_of(rows.read_rows()) == ["1"], 20)


def test_a_database_that_a_relay_does_not_know_is_refused():
    with pytest.raises(UsageError, match="a relay works with PostgreSQL, MySQL, MariaDB and SQLite, not with mssql"):
        dialect_of(mssql.dialect())


def sql(statement):
    return " ".join(str(statement.compile(dialect=mysql.dialect())).split())


def test_the_statements_for_mysql():
    """They are compiled only. tests/integration/relay/test_relay_mariadb.py has a MariaDB, where there is one."""
    dialect = dialect_of(mysql.dialect())
    made = outbox_statements(OUR_OUTBOX, None, dialect)
    read = sql(made.rows)
    assert "ORDER BY txbridge_outbox.id LIMIT %s" in read
    assert "sum(next_ones.size) OVER (ORDER BY next_ones.k0 ROWS" in read
    # Of a list of ids InnoDB would read, and lock, the whole table.
    assert sql(made.delete) == "DELETE FROM txbridge_outbox WHERE txbridge_outbox.id = %s"
    assert dialect.list_parameters([1, 2]) == [{"ids": 1}, {"ids": 2}]
    assert sql(dialect.try_lock(OUR_OUTBOX.state)).startswith("SELECT get_lock(concat(%s, md5(concat(database(), ")
    ddl = outbox_ddl(mysql.dialect())
    assert "value LONGBLOB" in ddl
    assert "headers MEDIUMTEXT" in ddl
    assert "id BIGINT NOT NULL AUTO_INCREMENT" in ddl
