"""OutboxRows on SQLite and a real PostgreSQL: order, lanes that relays share, and batches that count once."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import create_engine, event, insert, text
from sqlalchemy.dialects import mssql, mysql
from sqlalchemy.exc import DBAPIError
from txbridge_sqlalchemy import LaneState, Outbox, OutboxRows, create_outbox, outbox_rows, relay_sessions
from txbridge_sqlalchemy.outbox_dialects import dialect_of
from txbridge_sqlalchemy.outbox_statements import outbox_statements
from txbridge_sqlalchemy.outbox_table import OUR_OUTBOX, outbox_ddl
from txbridge_sqlalchemy.outbox_table import outbox as outbox_table

from tests.support import sql_application
from tests.support.harness import eventually
from tests.support.postgres import Postgres
from txbridge import Message, UsageError

FIRST = LaneState("A" * 32, 0, 1)
SECOND = LaneState("B" * 32, 0, 2)
OTHER = LaneState("C" * 32, 0, 3)


@pytest.fixture
def relay():
    """A factory of OutboxRows, each with the lanes that it can get."""
    made = []

    def relay(engine, lanes=1):
        made.append(OutboxRows(engine, lanes=lanes))
        made[-1].take_lanes(lanes)
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


def delete(engine, relay, lane, old, new, ids):
    """Delete a batch as a relay does: committed if it is whole."""
    with engine.connect() as connection, connection.begin() as transaction:
        is_whole = relay.delete_batch(connection, lane, old, new, ids)
        if not is_whole:
            transaction.rollback()
    return is_whole


def test_a_batch_is_read_and_deleted_with_the_state_of_its_lane(engine, relay):
    with engine.begin() as connection:
        add(connection, "1", "2", "3")
    rows = relay(engine)
    assert rows.lane_state(0) is None
    batch = rows.read_rows(0, limit=2)
    assert values_of(batch) == ["1", "2"]
    assert delete(engine, rows, 0, None, FIRST, ids_of(batch))
    assert rows.lane_state(0) == FIRST
    batch = rows.read_rows(0)
    assert values_of(batch) == ["3"]
    assert delete(engine, rows, 0, FIRST, SECOND, ids_of(batch))
    assert rows.lane_state(0) == SECOND
    assert rows.read_rows(0) == []
    assert rows.count_waiting() == (0, None)
    with engine.begin() as connection:
        add(connection, "4")
        connection.execute(text("DELETE FROM txbridge_outbox_lanes"))
    assert rows.lane_state(0) is None
    assert delete(engine, rows, 0, None, FIRST, ids_of(rows.read_rows(0)))


def test_a_batch_counts_only_after_the_batch_that_its_relay_has_seen(engine, relay):
    """A relay that was paused comes back with rows that another one has sent, or with other rows."""
    with engine.begin() as connection:
        add(connection, "1", "2")
    paused, running = relay(engine), relay(engine)
    read = paused.read_rows(0, limit=1)
    assert delete(engine, running, 0, None, OTHER, ids_of(running.read_rows(0, limit=1)))
    assert not delete(engine, paused, 0, None, FIRST, ids_of(read))
    assert not delete(engine, paused, 0, None, FIRST, ids_of(running.read_rows(0)))
    assert running.lane_state(0) == OTHER
    assert values_of(running.read_rows(0)) == ["2"]


def test_a_batch_counts_only_if_all_of_its_rows_are_there(engine, relay):
    with engine.begin() as connection:
        add(connection, "1", "2")
    rows = relay(engine)
    batch = rows.read_rows(0)
    with engine.begin() as connection:
        connection.execute(outbox_table.delete().where(outbox_table.c.id == batch[0].id))
    assert not delete(engine, rows, 0, None, FIRST, ids_of(batch))
    assert rows.lane_state(0) is None
    assert values_of(rows.read_rows(0)) == ["2"]


def test_a_relay_reads_no_more_bytes_than_it_can_send_but_one_row_at_least(engine, relay):
    with engine.begin() as connection:
        add(connection, "a" * 100, "b" * 100, "c" * 1_000, "d")
    rows = relay(engine)
    assert len(rows.read_rows(0, most_bytes=202)) == 2
    assert len(rows.read_rows(0, most_bytes=201)) == 1
    assert len(rows.read_rows(0, most_bytes=1)) == 1
    assert len(rows.read_rows(0, most_bytes=100_000)) == 4


def test_rows_that_cannot_be_sent_make_no_other_row_wait(engine, relay):
    with engine.begin() as connection:
        add(connection, "1")
        for topic, headers in (("not a topic", None), ("t", "{"), ("t", '[["TXB_V", "1"]]')):
            connection.execute(insert(outbox_table).values(topic=topic, headers=headers, value=b"s", created_at=1))
        add(connection, "2")
    rows = relay(engine)
    read = rows.read_rows(0, limit=4)
    assert [row.message and row.message.value for row in read] == [b"1", None, None, None]
    reasons = [row.reason for row in read[1:]]
    assert [reason.split(":")[0] for reason in reasons] == [
        "'not a topic' cannot be a topic",
        "the headers are not JSON",
        "header 'TXB_V' is reserved for txbridge (docs/protocol.md lists these names)",
    ]
    assert values_of(rows.read_rows(0, limit=4)) == ["1", "2"]
    rows.skip_rows(0, [read[0].id])
    assert values_of(rows.read_rows(0, limit=4)) == ["2"]
    count, oldest = rows.count_waiting()
    assert count == 5
    assert oldest == pytest.approx(time.time(), abs=60)


def test_lanes_share_the_rows_by_key_and_every_key_stays_in_its_lane(postgres, relay):
    rows = relay(postgres, 4)
    for number in range(2):
        with postgres.begin() as connection:
            for key in range(40):
                add(connection, f"{key} {number}", key=str(key).encode())
            add(connection, *(f"none {one}" for one in range(40)), key=None)
    assert rows.held == {0, 1, 2, 3}
    lanes = [values_of(rows.read_rows(lane)) for lane in range(4)]
    assert sorted(value for lane in lanes for value in lane) == sorted(
        [f"{key} {number}" for key in range(40) for number in range(2)] + [f"none {one}" for one in range(40)] * 2
    )
    for lane in lanes:
        assert len(lane) > 15
        keyed = [value for value in lane if "none" not in value]
        assert keyed == [f"{key} {n}" for n in range(2) for key in range(40) if f"{key} 0" in lane]


def test_a_lane_has_one_relay_and_goes_to_another_when_it_is_given_back(postgres, relay):
    first, second = relay(postgres, 4), relay(postgres, 4)
    assert (first.held, second.held) == ({0, 1, 2, 3}, set())
    first.give_lanes_back([1, 2])
    assert (first.held, second.take_lanes(1) <= {1, 2}) == ({0, 3}, True)
    assert second.take_lanes(4) | second.held == {1, 2}
    first.close()
    assert second.take_lanes(4) == {0, 3}


def test_a_lost_session_frees_its_lanes_at_once(postgres, relay):
    lost, other = relay(postgres, 2), relay(postgres, 2)
    with postgres.begin() as connection:
        connection.execute(
            text(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_locks WHERE locktype = 'advisory' AND database ="
                " (SELECT oid FROM pg_database WHERE datname = current_database())"
                " AND (objid::bigint & 65535) IN (0, 1)"
            )
        )
    assert other.take_lanes(2) == {0, 1}
    with pytest.raises(DBAPIError) as raised:
        lost.read_rows(0)
    assert raised.value.connection_invalidated
    assert lost.held == set()
    assert lost.take_lanes(2) == set()
    other.close()
    assert lost.take_lanes(2) == {0, 1}


def test_a_relay_without_a_lane_is_seen_by_those_that_have_some(postgres, relay):
    first = relay(postgres, 2)
    assert not first.is_lane_wanted()
    second = relay(postgres, 2)
    assert second.held == set()
    assert first.is_lane_wanted()
    first.give_lanes_back([1])
    assert second.take_lanes(2) == {1}
    assert not first.is_lane_wanted()
    third = relay(postgres, 2)
    assert first.is_lane_wanted()
    third.close()
    # The server notices the end of a session in its own time.
    eventually(lambda: not first.is_lane_wanted(), 20)


def test_tables_of_one_name_in_two_schemas_have_lanes_of_their_own(postgres, relay, request):
    other = create_engine(sql_application.in_new_schema(request.getfixturevalue("postgres_url"), "outbox_of_another"))
    create_outbox(other)
    assert relay(postgres).held == {0}
    assert relay(other).held == {0}
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
        assert rows.read_rows(0) == []
        assert rows.is_gate_closed
        late.commit()
    assert values_of(rows.read_rows(0)) == ["1", "2"]
    assert not rows.is_gate_closed


def test_rows_before_the_first_uncommitted_one_are_sent_meanwhile(postgres, relay):
    rows = relay(postgres)
    with postgres.connect() as late:
        with postgres.begin() as connection:
            add(connection, "1", "2", "3")
        batch = rows.read_rows(0, limit=2)
        add(late, "4")
        with postgres.begin() as connection:
            add(connection, "5")
        assert delete(postgres, rows, 0, None, FIRST, ids_of(batch))
        # It looks twice, as most transactions end soon.
        assert [rows.read_rows(0), values_of(rows.read_rows(0))] == [[], ["3"]]
        late.rollback()
    assert values_of(rows.read_rows(0)) == ["3", "5"]


def test_a_savepoint_holds_back_rows_until_it_is_rolled_back_or_committed(postgres, relay):
    rows = relay(postgres)
    with postgres.connect() as late, postgres.connect() as early:
        with late.begin_nested() as savepoint:
            add(late, "dropped")
            with early.begin_nested():
                add(early, "1")
            early.commit()
            assert rows.read_rows(0) == []
            savepoint.rollback()
        assert values_of(rows.read_rows(0)) == ["1"]
        with late.begin_nested():
            add(late, "2")
        add(early, "3")
        early.commit()
        assert [rows.read_rows(0), values_of(rows.read_rows(0))] == [[], ["1"]]
        late.commit()
    assert values_of(rows.read_rows(0)) == ["1", "2", "3"]


def test_a_transaction_that_is_prepared_for_two_phases_holds_rows_back_until_its_second_one(relay):
    with Postgres(max_prepared_transactions="1") as server:
        engine = create_engine(server.url)
        create_outbox(engine)
        rows = relay(engine)
        with engine.connect() as late, engine.connect() as early:
            add(late, "1")
            add(early, "2")
            early.commit()
            assert rows.read_rows(0) == []
            late.execute(text("PREPARE TRANSACTION 'late'"))
            assert rows.read_rows(0) == []
        # Its session has another transaction now.
        with engine.begin() as connection:
            add(connection, "3")
        assert [rows.read_rows(0), rows.is_gate_closed] == [[], True]
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("COMMIT PREPARED 'late'"))
        assert values_of(rows.read_rows(0)) == ["1", "2", "3"]
        rows.close()
        engine.dispose()


def test_transactions_that_add_no_row_delay_nothing(postgres, relay):
    """One that reads the outbox, one that writes elsewhere, and another relay's that deletes rows."""
    rows, other = relay(postgres), relay(postgres)
    with postgres.begin() as connection:
        connection.execute(text("CREATE TABLE written (number int)"))
        add(connection, "1")
    batch = rows.read_rows(0)
    with postgres.connect() as reading, postgres.connect() as writing, postgres.connect() as deleting:
        reading.execution_options(isolation_level="REPEATABLE READ")
        reading.execute(text("SELECT count(*) FROM txbridge_outbox")).all()
        writing.execute(text("INSERT INTO written VALUES (1)"))
        assert other.delete_batch(deleting, 0, None, FIRST, ids_of(batch))
        with postgres.begin() as connection:
            add(connection, "2")
        assert values_of(rows.read_rows(0)) == ["1", "2"]
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
        assert rows.read_rows(0) == []
        late.commit()
    assert values_of(rows.read_rows(0)) == ["1", "2"]


def test_missing_tables_are_named_with_what_creates_them(url):
    engine = create_engine(url)
    rows = OutboxRows(engine)
    with pytest.raises(DBAPIError, match=r"(?s)create_outbox.*relay --ddl.*txbridge_outbox"):
        rows.verify()
    create_outbox(engine)
    rows.verify()
    rows.close()
    engine.dispose()


@pytest.mark.parametrize("commits", [True, False])
def test_a_relay_that_comes_second_waits_for_the_first_and_is_taken_if_that_is_rolled_back(postgres, relay, commits):
    with postgres.begin() as connection:
        add(connection, "1", "2")
    first, second = relay(postgres), relay(postgres)
    ids = ids_of(first.read_rows(0))
    with ThreadPoolExecutor() as pool, postgres.connect() as connection:
        assert first.delete_batch(connection, 0, None, FIRST, ids)
        other = pool.submit(delete, postgres, second, 0, None, OTHER, ids)
        assert not other.done()
        connection.commit() if commits else connection.rollback()
        assert other.result(30) is not commits
    assert second.lane_state(0) == (FIRST if commits else OTHER)


def test_a_batch_does_not_wait_long_for_a_lock_of_somebody_else(postgres, relay, monkeypatch):
    monkeypatch.setattr(relay_sessions, "LOCKED_S", 1)
    relay_sessions.limit_transactions(limited := create_engine(postgres.url))
    rows = relay(postgres)
    with postgres.begin() as indexing:
        indexing.execute(text("CREATE INDEX ON txbridge_outbox (topic)"))
        with pytest.raises(DBAPIError, match="lock timeout"):
            delete(limited, rows, 0, None, FIRST, [1])
    assert rows.lane_state(0) is None
    limited.dispose()


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

    rows = relay(postgres, 2)
    states, sent = {0: None, 1: None}, []

    def send():
        """Take a batch of each lane; whether there was one."""
        found = False
        for lane, state in states.items():
            if batch := rows.read_rows(lane, limit=7):
                states[lane] = LaneState(f"{len(sent):032X}", lane, len(sent))
                assert delete(postgres, rows, lane, state, states[lane], ids_of(batch))
                sent.extend(values_of(batch))
                found = True
        return found

    with ThreadPoolExecutor(writers) as pool:
        written = [pool.submit(write, writer) for writer in range(writers)]
        while not all(one.done() for one in written):
            send()
        for one in written:
            one.result()
    # Rows of a backlog wait once more at a gate that was seen closed.
    eventually(lambda: not send() and rows.count_waiting().rows == 0, 20)
    with postgres.connect() as connection:
        numbers = {row.key: row.number for row in connection.execute(text("SELECT key, number FROM keys"))}
    for key, count in numbers.items():
        of_it = [int(value.split()[1]) for value in sent if value.startswith(f"{key} ")]
        assert of_it == list(range(1, count + 1))


@pytest.fixture
def statements(engine):
    """The first word of each statement of the engine."""
    found = []
    event.listen(engine, "before_cursor_execute", lambda *given: found.append(given[2].split()[0]))
    return found


def test_a_round_takes_few_statements(engine, relay, statements):
    with engine.begin() as connection:
        add(connection, *map(str, range(100)))
    rows, old = relay(engine), None
    batch = rows.read_rows(0, limit=40)
    for state in (FIRST, SECOND):
        statements.clear()
        assert delete(engine, rows, 0, old, state, ids_of(batch))
        batch, old = rows.read_rows(0, limit=40), state
        # A backlog needs no look at the writers.
        assert statements == ["UPDATE", "DELETE", "SELECT"]
    assert delete(engine, rows, 0, old, OTHER, ids_of(batch))
    statements.clear()
    assert rows.read_rows(0) == []
    # With a gate, a lane that was found empty is not read before there is a higher row.
    statements.clear()
    assert rows.read_rows(0) == []
    assert statements == ["SELECT"]


def test_rows_that_a_long_transaction_holds_back_are_not_looked_at_again_and_again(postgres, relay):
    rows = relay(postgres)
    with postgres.begin() as connection:
        add(connection, "0")
    assert delete(postgres, rows, 0, None, FIRST, ids_of(rows.read_rows(0)))
    with postgres.connect() as late:
        add(late, "1")
        with postgres.begin() as connection:
            add(connection, "2")
        assert [rows.read_rows(0), rows.read_rows(0)] == [[], []]
        statements = []
        event.listen(postgres, "before_cursor_execute", lambda *given: statements.append(given[2]))
        assert [rows.read_rows(0), rows.read_rows(0)] == [[], []]
        assert len(statements) == 2
        late.commit()
    # What was read and not deleted is read again.
    assert values_of(rows.read_rows(0)) == values_of(rows.read_rows(0)) == ["1", "2"]


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
    batch = rows.read_rows(0)
    assert delete(postgres, rows, 0, None, FIRST, ids_of(batch))
    assert rows.read_rows(0) == []
    with postgres.begin() as connection:
        connection.execute(insert(outbox_table).values(id=drawn, topic="t", value=b"1", created_at=1))
    eventually(lambda: values_of(rows.read_rows(0)) == ["1"], 20)


def test_a_row_that_somebody_has_repaired_is_sent_later(engine, relay, monkeypatch):
    monkeypatch.setattr(outbox_rows, "_SKIPPED_FOR_S", 0.0)
    with engine.begin() as connection:
        connection.execute(insert(outbox_table).values(topic="not a topic", value=b"s", created_at=1))
    rows = relay(engine)
    assert rows.read_rows(0)[0].reason is not None
    with engine.begin() as connection:
        connection.execute(outbox_table.update().values(topic="t"))
    assert values_of(rows.read_rows(0)) == ["s"]


def test_a_lane_with_too_many_wrong_rows_stands_still_and_says_so(engine, relay, monkeypatch):
    monkeypatch.setattr(outbox_rows, "MOST_SKIPPED", 2)
    rows = relay(engine)
    with engine.begin() as connection:
        for _ in range(3):
            connection.execute(insert(outbox_table).values(topic="not a topic", created_at=1))
        add(connection, "1")
    assert [row.message for row in rows.read_rows(0, limit=3)] == [None] * 3
    with pytest.raises(UsageError, match="more than 2 rows of lane 0 cannot be sent"):
        rows.read_rows(0)


def test_a_database_that_a_relay_does_not_know_is_refused():
    with pytest.raises(UsageError, match="a relay works with PostgreSQL, MySQL, MariaDB and SQLite, not with mssql"):
        dialect_of(mssql.dialect())


def sql(statement):
    return " ".join(str(statement.compile(dialect=mysql.dialect())).split())


def test_the_statements_for_mysql():
    """They are compiled only. tests/integration/relay/test_relay_mariadb.py has a MariaDB, where there is one."""
    dialect = dialect_of(mysql.dialect())
    made = outbox_statements(OUR_OUTBOX, None, dialect, 4)
    read = sql(made.rows)
    assert "(crc32(txbridge_outbox.`key`) & 2147483647" in read
    assert "ORDER BY txbridge_outbox.id LIMIT %s" in read
    assert "sum(next_ones.size) OVER (ORDER BY next_ones.k0 ROWS" in read
    # Of a list of ids InnoDB would read, and lock, the whole table.
    assert sql(made.delete) == "DELETE FROM txbridge_outbox WHERE txbridge_outbox.id = %s"
    assert dialect.list_parameters([1, 2]) == [{"ids": 1}, {"ids": 2}]
    assert sql(dialect.try_lock(OUR_OUTBOX.lanes)).startswith("SELECT get_lock(concat(%s, md5(concat(database(), ")
    assert sql(dialect.unlock(OUR_OUTBOX.lanes)).startswith("SELECT release_lock(concat(%s, md5(")
    ddl = outbox_ddl(mysql.dialect())
    assert "value LONGBLOB" in ddl
    assert "headers MEDIUMTEXT" in ddl
    assert "id BIGINT NOT NULL AUTO_INCREMENT" in ddl
