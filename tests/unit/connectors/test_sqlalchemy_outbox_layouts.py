"""Outbox tables of applications, with rows as they write them: the messages that a relay makes of them."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import pytest
from sqlalchemy import create_engine, inspect, text
from sqlalchemy.exc import DBAPIError
from txbridge_sqlalchemy import Outbox, OutboxTable, create_outbox, outbox_ddl
from txbridge_sqlalchemy.outbox_rows import OutboxRows
from txbridge_sqlalchemy.outbox_state import OutboxState

from txbridge import Message, UsageError


@pytest.fixture
def engine(url):
    made = create_engine(url)
    yield made
    made.dispose()


@pytest.fixture
def postgres(postgresql_url):
    made = create_engine(postgresql_url)
    yield made
    made.dispose()


class Relay:
    """What a relay does with rows and state. What is read again has the same ids of messages."""

    def __init__(self, engine, table):
        create_outbox(engine, table)
        self.rows = OutboxRows(engine, table)
        self.state = OutboxState(engine, self.rows)
        verify(self.rows, self.state)
        self.rows.name_outbox(self.state.read_state().identity)
        self.state.take_outbox(self.state.read_state(), "owner", ("topic", 0, 0))

    def read(self):
        read = self.rows.read_rows()
        assert sorted(self.rows.read_again([row.name for row in read])) == sorted(read)
        return read

    def messages(self):
        return [row.message or row.reason for row in self.read()]

    def values(self):
        return [row.message.value.decode() for row in self.read()]

    def confirm(self, sent):
        batch = self.state.read_state().batch + 1
        self.state.confirm_batch("owner", batch, 10 * batch, sent)


@pytest.fixture
def relay():
    made = []

    def relay(engine, table):
        made.append(Relay(engine, table))
        return made[-1]

    yield relay
    for one in made:
        one.rows.close()


def execute(engine, *statements):
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement.replace(":", r"\:")))


DEBEZIUM = """
    CREATE TABLE outboxevent (
        id uuid PRIMARY KEY, aggregatetype varchar(255) NOT NULL, aggregateid varchar(255) NOT NULL,
        type varchar(255) NOT NULL, payload jsonb
    )
"""


def test_debezium_s_layout_makes_the_records_of_its_event_router(postgres, relay):
    execute(
        postgres,
        DEBEZIUM,
        """INSERT INTO outboxevent VALUES
           ('406c07f3-26f0-4eea-a50c-109940064b8f', 'order', '1', 'OrderCreated', '{"id": 1, "items": ["é", null]}')""",
        "INSERT INTO outboxevent VALUES ('00000000-0000-0000-0000-000000000001', 'customer', '7', 'Gone', NULL)",
    )
    rows = relay(postgres, OutboxTable.for_debezium(header_columns={"eventType": "type"}))
    read = rows.read()
    assert [row.message for row in read] == [
        Message(
            "outbox.event.order",
            '{"id": 1, "items": ["é", null]}',
            "1",
            {"id": "406c07f3-26f0-4eea-a50c-109940064b8f", "eventType": "OrderCreated"},
        ),
        Message(
            "outbox.event.customer", None, "7", {"id": "00000000-0000-0000-0000-000000000001", "eventType": "Gone"}
        ),
    ]
    assert [row.id for row in read] == [UUID(int=0x406C07F326F04EEAA50C109940064B8F), UUID(int=1)]
    rows.confirm(read)
    assert rows.read() == []
    assert rows.rows.count_waiting() == (0, None)


def test_a_condition_comes_true_while_a_transaction_holds_later_rows_back(postgres, relay):
    """The condition depends on another table here, as it may depend on the time."""
    execute(
        postgres,
        "CREATE TABLE released (number int)",
        "CREATE TABLE o (id bigserial PRIMARY KEY, topic text, body text)",
        "INSERT INTO o (topic, body) VALUES ('t', '1')",
    )
    rows = relay(postgres, OutboxTable(name="o", topic="t", value="body", where="EXISTS (SELECT FROM released)"))
    assert rows.read() == []
    with postgres.connect() as late:
        late.execute(text("INSERT INTO o (topic, body) VALUES ('t', '2')"))
        execute(postgres, "INSERT INTO o (topic, body) VALUES ('t', '3')")
        assert [rows.read(), rows.rows.is_gate_closed] == [[], True]
        execute(postgres, "INSERT INTO released VALUES (1)")
        assert rows.messages() == [Message("t", "1")]


def test_ids_that_are_no_numbers_keep_the_order_of_transactions_and_of_their_statements(postgres, relay):
    execute(postgres, DEBEZIUM)
    insert = "INSERT INTO outboxevent VALUES (gen_random_uuid(), 'a', 'k', 't', '{number}')"
    for first in range(0, 20, 4):
        execute(postgres, *(insert.format(number=number) for number in range(first, first + 3)))
        # Space that is free again is used by later rows.
        execute(postgres, f"DELETE FROM outboxevent WHERE payload = '{first}'", insert.format(number=first + 3))
    rows = relay(postgres, OutboxTable.for_debezium())
    values = [*map(int, rows.values())]
    assert values == [number for number in range(20) if number % 4]
    with postgres.connect() as late, postgres.connect() as early:
        late.execute(text(insert.format(number=100)))
        early.execute(text(insert.format(number=200)))
        early.commit()
        assert [*map(int, rows.values())] == values
        late.commit()
    assert [*map(int, rows.values())][-2:] == [100, 200]


def test_a_column_that_grows_gives_the_order_of_transactions_that_wait_for_one_another(postgres, relay):
    """The second transaction began first, and then waited for the lock of the other."""
    execute(
        postgres,
        DEBEZIUM,
        "ALTER TABLE outboxevent ADD COLUMN written bigint GENERATED ALWAYS AS IDENTITY",
        "CREATE TABLE orders (id int PRIMARY KEY, state int)",
        "INSERT INTO orders VALUES (1, 0)",
    )
    insert = "INSERT INTO outboxevent VALUES (gen_random_uuid(), 'a', 'k', 't', '{number}')"
    with postgres.connect() as second, postgres.connect() as first:
        second.execute(text("INSERT INTO orders VALUES (2, 0)"))
        first.execute(text("UPDATE orders SET state = 1 WHERE id = 1"))
        first.execute(text(insert.format(number=1)))
        first.commit()
        second.execute(text("UPDATE orders SET state = 2 WHERE id = 1"))
        second.execute(text(insert.format(number=2)))
        second.commit()
    rows = relay(postgres, OutboxTable.for_debezium(order="written"))
    assert rows.values() == ["1", "2"]
    # What docs/outbox.md says of a table without such a column.
    rows = relay(postgres, OutboxTable.for_debezium())
    assert rows.values() == ["2", "1"]


def test_rows_with_a_flag_a_constant_topic_and_json(engine, relay, monkeypatch):
    """As many services have it: a row stays, and a column says whether it was sent."""
    execute(
        engine,
        "CREATE TABLE outbox (id INTEGER PRIMARY KEY, event_type VARCHAR(50), aggregate_id INTEGER, payload JSON,"
        " created_at TIMESTAMP, processed_at TIMESTAMP)",
        """INSERT INTO outbox VALUES (1, 'placed', 7, '{"a":1}', '2020-01-01 00:00:00', '2020-01-01 00:00:01')""",
        """INSERT INTO outbox VALUES (2, 'placed', 7, '{"a":2}', '2020-01-01 00:00:00', NULL)""",
        """INSERT INTO outbox VALUES (3, 'paid', NULL, '{"a":3}', '2020-01-01 00:00:00', NULL)""",
    )
    table = OutboxTable(
        name="outbox",
        topic="orders.events",
        key="aggregate_id",
        value="payload",
        header_columns={"type": "event_type"},
        created_at="created_at",
        where="processed_at IS NULL",
    )
    rows = relay(engine, table)
    read = rows.read()
    assert [row.message for row in read] == [
        Message("orders.events", '{"a":2}', "7", {"type": "placed"}),
        Message("orders.events", '{"a":3}', None, {"type": "paid"}),
    ]
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    count, oldest = rows.rows.count_waiting()
    monkeypatch.undo()
    time.tzset()
    assert count == 2
    assert oldest == pytest.approx(time.time() - 1_577_836_800, abs=600)
    rows.confirm(read)
    with engine.begin() as connection:
        assert connection.execute(text("SELECT id FROM outbox")).scalars().all() == [1]


def test_topic_key_bytes_headers_partition_and_times_by_columns(postgres, relay):
    execute(
        postgres,
        "CREATE TABLE messages (message_id text PRIMARY KEY, destination text, partition_key text, body bytea,"
        " headers jsonb, target int, happened_at timestamptz, not_before timestamp)",
        """INSERT INTO messages VALUES ('b', 'orders.placed', 'k', '\\x00ff', '{"trace": "1", "try": 2, "no": null}',
           3, '2023-11-14 22:13:20+00', '2020-01-01 00:00:00')""",
    )
    table = OutboxTable(
        name="messages",
        id="message_id",
        topic="{destination}",
        key="partition_key",
        value="body",
        headers="headers",
        partition="target",
        timestamp="happened_at",
        deliver_at="not_before",
        order="message_id",
    )
    assert relay(postgres, table).messages() == [
        Message(
            "orders.placed",
            b"\x00\xff",
            "k",
            {"no": None, "try": "2", "trace": "1"},
            timestamp=1_700_000_000_000,
            partition=3,
            deliver_at=datetime(2020, 1, 1, tzinfo=UTC),
        )
    ]


def test_columns_of_cloudevents_become_headers(postgres, relay):
    execute(
        postgres,
        "CREATE TYPE source AS ENUM ('/orders')",
        "CREATE TABLE items (id uuid PRIMARY KEY, topic text, message_key uuid, payload bytea, event_type varchar(99),"
        " source source, number bigint GENERATED ALWAYS AS IDENTITY)",
        *(
            f"INSERT INTO items VALUES ('{UUID(int=number)}', 'people', '{UUID(int=number % 5)}', '\\x0{number}',"
            " 'saved', '/orders')"
            for number in range(10)
        ),
    )
    table = OutboxTable(
        name="items",
        topic="{topic}",
        key="message_key",
        value="payload",
        header_columns={"ce_id": "id", "ce_type": "event_type", "ce_source": "source"},
        order="number",
    )
    messages = relay(postgres, table).messages()
    assert [message.value for message in messages] == [bytes([number]) for number in range(10)]
    assert messages[6] == Message(
        "people", b"\x06", str(UUID(int=1)), {"ce_id": str(UUID(int=6)), "ce_type": "saved", "ce_source": "/orders"}
    )


def test_a_column_of_the_order_that_may_be_null_comes_last_and_has_the_order_of_transactions(postgres, relay):
    execute(
        postgres,
        "CREATE TABLE items (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), body text, place int)",
        "INSERT INTO items (body, place) VALUES ('3', NULL), ('2', 2), ('1', 1)",
    )
    rows = relay(postgres, OutboxTable(name="items", topic="t", value="body", order="place"))
    assert rows.values() == ["1", "2", "3"]
    with postgres.connect() as open_one:
        open_one.execute(text("INSERT INTO items (body, place) VALUES ('4', 4)"))
        execute(postgres, "INSERT INTO items (body, place) VALUES ('5', 5)")
        assert rows.values() == ["1", "2", "3"]


def test_a_row_without_a_topic_or_with_a_wrong_type_says_why(postgres, relay):
    execute(
        postgres,
        "CREATE TABLE o (id serial PRIMARY KEY, kind text, region text, body text, target text)",
        "INSERT INTO o (kind, region, body, target) VALUES ('a', NULL, 'x', NULL), ('{region}', 'b', 'x', NULL),"
        " ('a', 'b', 'x', 'three'), ('a', 'b', NULL, NULL)",
    )
    table = OutboxTable(name="o", topic="{region}.{kind}", value="body", partition="target")
    assert relay(postgres, table).messages() == [
        "the column region, which names the topic, has no text but NoneType",
        "'b.{region}' cannot be a topic: it takes 1 to 249 characters of A-Z a-z 0-9 . _ -",
        "partition must be a whole number or None, not str",
        Message("b.a", None),
    ]


def test_values_that_python_cannot_read_stop_no_other_row(postgres, relay):
    execute(
        postgres,
        "CREATE TABLE o (id serial PRIMARY KEY, body text, headers text, due timestamptz, at timestamptz, made date)",
        "INSERT INTO o (body, headers, due, at, made) VALUES ('a', NULL, '-infinity', NULL, '2020-01-01'),"
        " ('b', NULL, NULL, '12000-01-01 00:00:00+00', 'infinity'), ('c', repeat('[', 100000), NULL, NULL, NULL),"
        " ('d', '{}', NULL, NULL, '-infinity'), ('e', NULL, 'infinity', NULL, NULL)",
    )
    table = OutboxTable(
        name="o", topic="t", value="body", headers="headers", deliver_at="due", timestamp="at", created_at="made"
    )
    rows = relay(postgres, table)
    (infinite,) = rows.messages()
    late, nested, plain = rows.messages()
    assert infinite.startswith("deliver_at must be between 0")
    assert (late.timestamp, plain.value) == (316_516_204_800_000, b"d")
    assert "recursion" in nested
    execute(postgres, "DELETE FROM o WHERE body = 'd'")
    assert rows.rows.count_waiting().oldest > 6 * 365 * 86_400
    assert math.isnan(relay(postgres, replace(table, created_at="body")).rows.count_waiting().oldest)


def verify(rows, state):
    rows.verify()
    state.verify()


def refuse(engine, table, reason):
    rows = OutboxRows(engine, table)
    with pytest.raises((UsageError, DBAPIError), match=reason):
        verify(rows, OutboxState(engine, rows))
    rows.close()


def test_mistakes_in_a_mapping_are_told_before_the_first_row(engine):
    execute(engine, "CREATE TABLE o (id INTEGER PRIMARY KEY, body TEXT)")
    for table, reason in [
        (OutboxTable(name="absent", topic="t", value="body"), "there is no table absent in this database"),
        (
            OutboxTable(name="o", topic="{kind}", value="payload"),
            "the table o has no column kind, payload. Its columns are id, body",
        ),
        (OutboxTable(name="o", topic="t", value="body"), "create_outbox"),
        (OutboxTable(name="o", topic="t", value="body", where="nothing = 1"), "nothing"),
    ]:
        refuse(engine, table, reason)


def test_only_the_table_of_the_state_is_created_beside_a_table_of_the_application(engine):
    table = OutboxTable.for_debezium()
    assert "outboxevent (" not in outbox_ddl(engine.dialect, table)
    create_outbox(engine, table)
    assert inspect(engine).get_table_names() == ["outboxevent_relay"]
    with pytest.raises(UsageError, match="the application writes the rows itself"):
        Outbox(table)


def test_a_second_outbox_of_our_layout_in_a_schema(postgres, relay):
    execute(postgres, "CREATE SCHEMA IF NOT EXISTS other")
    table = OutboxTable.for_txbridge("Order's outbox", "other")
    create_outbox(postgres, table)
    with postgres.begin() as connection:
        Outbox(table).add(connection, Message("t", b"v"))
    assert relay(postgres, table).messages() == [Message("t", b"v")]
    execute(postgres, "DROP SCHEMA other CASCADE")


def of_one_time(engine, name):
    """A table with ids that do not grow, and rows of which some have the same time."""
    kind = "TIMESTAMP(6)" if engine.name == "mysql" else "TIMESTAMP"
    execute(
        engine,
        f"CREATE TABLE {name} (id VARCHAR(36) PRIMARY KEY, body VARCHAR(9), created_at {kind} NOT NULL)",
        *(
            f"INSERT INTO {name} VALUES ('{body}', '{body}', '2020-01-01 00:00:0{second}')"
            for body, second in [("z", 1), ("y", 1), ("b", 1), ("a", 0), ("x", 1)]
        ),
    )
    return OutboxTable(name=name, topic="t", value="body", order="created_at")


def test_rows_of_one_time_come_in_the_order_of_their_inserts(engine, relay):
    assert relay(engine, of_one_time(engine, "o")).values() == ["a", "z", "y", "b", "x"]


def test_an_order_with_ties_is_refused_where_the_database_has_no_order_of_inserts(mariadb_url):
    engine = create_engine(mariadb_url)
    for table in (of_one_time(engine, "o"), replace(of_one_time(engine, "p"), order=None)):
        refuse(engine, table, "give `order` a column that does, with another value for each row")
    engine.dispose()


@pytest.mark.parametrize("kind", ["TIMESTAMP", "BOOLEAN", "DATE"])
def test_rows_of_a_table_that_is_kept_are_marked_and_never_sent_again(engine, relay, kind):
    execute(
        engine,
        f"CREATE TABLE history (id INTEGER PRIMARY KEY, body VARCHAR(9), sent {kind})",
        "INSERT INTO history VALUES (1, '1', NULL), (2, '2', NULL), (3, '3', NULL)",
    )
    rows = relay(engine, OutboxTable(name="history", topic="t", value="body", mark="sent"))
    read = rows.read()
    # The application marks one itself: it counts as sent.
    execute(engine, "UPDATE history SET sent = CURRENT_TIMESTAMP WHERE id = 2" if kind != "BOOLEAN" else "SELECT 1")
    rows.confirm(read[:2])
    assert rows.values() == ["3"]
    assert rows.state.confirm_named("owner", 2, 20, {row.name: row.message_id[:16] for row in read}) == 1
    assert rows.read() == []
    assert rows.rows.count_waiting().rows == 0
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM history WHERE sent IS NOT NULL")).scalar_one() == 3


def test_a_mark_that_says_no_time_is_refused(engine):
    execute(engine, "CREATE TABLE history (id INTEGER PRIMARY KEY, body VARCHAR(9), sent INTEGER)")
    table = OutboxTable(name="history", topic="t", value="body", mark="sent")
    refuse(engine, table, "`mark` names the column sent, which is neither a time nor a Boolean")


def test_debezium_s_columns_under_other_names(engine, relay):
    execute(
        engine,
        "CREATE TABLE events (number INTEGER PRIMARY KEY, uid VARCHAR(9), kind VARCHAR(9), name VARCHAR(9), data TEXT)",
        "INSERT INTO events VALUES (2, 'u-2', 'order', 'k', 'second'), (7, 'u-1', 'order', 'k', NULL)",
    )
    named = {"topic": "shop.{kind}", "id": "uid", "key": "name", "value": "data", "order": "number"}
    rows = relay(engine, OutboxTable.for_debezium("events", **named, header_columns={"eventType": "kind"}))
    assert rows.messages() == [
        Message("shop.order", "second", "k", {"id": "u-2", "eventType": "order"}),
        Message("shop.order", None, "k", {"id": "u-1", "eventType": "order"}),
    ]


@pytest.mark.parametrize("kind", ["BIGINT", "TIMESTAMP"])
def test_rows_that_are_due_come_first_by_their_time_and_others_in_turn(engine, relay, kind):
    times = {"1": 1_600_000_001_000, "2": 1_600_000_000_000, "3": 4_000_000_000_000}
    due = {
        name: at if kind == "BIGINT" else f"'{datetime.fromtimestamp(at / 1000, UTC):%Y-%m-%d %H:%M:%S}'"
        for name, at in times.items()
    }
    execute(
        engine,
        f"CREATE TABLE o (id INTEGER PRIMARY KEY, body VARCHAR(9), due {kind})",
        *(f"INSERT INTO o VALUES ({number}, '{number}', {due.get(number, 'NULL')})" for number in "01234"),
    )
    rows = relay(engine, OutboxTable(name="o", topic="t", value="body", deliver_at="due"))
    timed = rows.read()
    assert [(row.name, row.message.deliver_at) for row in timed] == [(2, times["2"]), (1, times["1"])]
    assert rows.values() == ["0", "4"]
    rows.confirm(timed)
    assert rows.values() == ["0", "4"]
    assert rows.rows.count_waiting().rows == 3
