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
from txbridge_sqlalchemy import LaneState, Outbox, OutboxRows, OutboxTable, create_outbox, outbox_ddl

from txbridge import Message, UsageError

FIRST = LaneState("A" * 32, 0, 1)


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


@pytest.fixture
def relay():
    made = []

    def relay(engine, table, lanes=1):
        create_outbox(engine, table)
        made.append(OutboxRows(engine, table, lanes))
        made[-1].verify()
        made[-1].take_lanes(lanes)
        return made[-1]

    yield relay
    for one in made:
        one.close()


def execute(engine, *statements):
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement.replace(":", r"\:")))


def messages_of(rows):
    return [row.message or row.reason for row in rows]


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
    read = rows.read_rows(0)
    assert messages_of(read) == [
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
    with postgres.begin() as connection:
        assert rows.delete_batch(connection, 0, None, FIRST, [row.id for row in read])
    assert rows.read_rows(0) == []
    assert rows.count_waiting() == (0, None)


def test_a_condition_comes_true_while_a_transaction_holds_later_rows_back(postgres, relay):
    """The condition depends on another table here, as it may depend on the time."""
    execute(
        postgres,
        "CREATE TABLE released (number int)",
        "CREATE TABLE o (id bigserial PRIMARY KEY, topic text, body text)",
        "INSERT INTO o (topic, body) VALUES ('t', '1')",
    )
    rows = relay(postgres, OutboxTable(name="o", topic="t", value="body", where="EXISTS (SELECT FROM released)"))
    assert rows.read_rows(0) == []
    with postgres.connect() as late:
        late.execute(text("INSERT INTO o (topic, body) VALUES ('t', '2')"))
        execute(postgres, "INSERT INTO o (topic, body) VALUES ('t', '3')")
        assert [rows.read_rows(0), rows.is_gate_closed] == [[], True]
        execute(postgres, "INSERT INTO released VALUES (1)")
        assert messages_of(rows.read_rows(0)) == [Message("t", "1")]


def test_ids_that_are_no_numbers_keep_the_order_of_transactions_and_of_their_statements(postgres, relay):
    execute(postgres, DEBEZIUM)
    insert = "INSERT INTO outboxevent VALUES (gen_random_uuid(), 'a', 'k', 't', '{number}')"
    for first in range(0, 20, 4):
        execute(postgres, *(insert.format(number=number) for number in range(first, first + 3)))
        # Space that is free again is used by later rows.
        execute(postgres, f"DELETE FROM outboxevent WHERE payload = '{first}'", insert.format(number=first + 3))
    rows = relay(postgres, OutboxTable.for_debezium())
    values = [int(row.message.value) for row in rows.read_rows(0)]
    assert values == [number for number in range(20) if number % 4]
    with postgres.connect() as late, postgres.connect() as early:
        late.execute(text(insert.format(number=100)))
        early.execute(text(insert.format(number=200)))
        early.commit()
        assert [int(row.message.value) for row in rows.read_rows(0)] == values
        late.commit()
    assert [int(row.message.value) for row in rows.read_rows(0)][-2:] == [100, 200]


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
    assert [row.message.value for row in rows.read_rows(0)] == [b"1", b"2"]
    # What docs/outbox.md says of a table without such a column.
    rows = relay(postgres, OutboxTable.for_debezium())
    assert [row.message.value for row in rows.read_rows(0)] == [b"2", b"1"]


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
    read = rows.read_rows(0)
    assert messages_of(read) == [
        Message("orders.events", '{"a":2}', "7", {"type": "placed"}),
        Message("orders.events", '{"a":3}', None, {"type": "paid"}),
    ]
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    count, oldest = rows.count_waiting()
    monkeypatch.undo()
    time.tzset()
    assert count == 2
    assert oldest == pytest.approx(time.time() - 1_577_836_800, abs=600)
    with engine.connect() as connection:
        connection.execute(text("UPDATE outbox SET processed_at = created_at WHERE id = 3"))
        assert not rows.delete_batch(connection, 0, None, FIRST, [2, 3])
    with engine.begin() as connection:
        assert rows.delete_batch(connection, 0, None, FIRST, [2, 3])
        assert connection.execute(text("SELECT id FROM outbox")).scalars().all() == [1]


def test_topic_key_bytes_headers_partition_and_times_by_columns(postgres, relay):
    execute(
        postgres,
        "CREATE TABLE messages (message_id text PRIMARY KEY, destination text, partition_key text, body bytea,"
        " headers jsonb, target int, happened_at timestamptz, not_before timestamp)",
        """INSERT INTO messages VALUES ('b', 'orders.placed', 'k', '\\x00ff', '{"trace": "1", "try": 2, "no": null}',
           3, '2023-11-14 22:13:20+00', '2040-01-01 00:00:00')""",
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
    rows = relay(postgres, table, 3)
    assert [message for lane in range(3) for message in messages_of(rows.read_rows(lane))] == [
        Message(
            "orders.placed",
            b"\x00\xff",
            "k",
            {"no": None, "try": "2", "trace": "1"},
            timestamp=1_700_000_000_000,
            partition=3,
            deliver_at=datetime(2040, 1, 1, tzinfo=UTC),
        )
    ]


def test_columns_of_cloudevents_become_headers_and_keys_keep_to_their_lanes(postgres, relay):
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
    rows = relay(postgres, table, 2)
    lanes = [messages_of(rows.read_rows(lane)) for lane in range(2)]
    assert sorted(message.value for lane in lanes for message in lane) == [bytes([number]) for number in range(10)]
    assert Message(
        "people", b"\x06", str(UUID(int=1)), {"ce_id": str(UUID(int=6)), "ce_type": "saved", "ce_source": "/orders"}
    ) in [*lanes[0], *lanes[1]]
    for lane in lanes:
        for key in {message.key for message in lane}:
            assert [message.value[0] % 5 for message in lane if message.key == key] == [UUID(key.decode()).int] * 2


def test_a_column_of_the_order_that_may_be_null_comes_last_and_has_the_order_of_transactions(postgres, relay):
    execute(
        postgres,
        "CREATE TABLE items (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), body text, place int)",
        "INSERT INTO items (body, place) VALUES ('3', NULL), ('2', 2), ('1', 1)",
    )
    rows = relay(postgres, OutboxTable(name="items", topic="t", value="body", order="place"))
    assert [row.message.value for row in rows.read_rows(0)] == [b"1", b"2", b"3"]
    with postgres.connect() as open_one:
        open_one.execute(text("INSERT INTO items (body, place) VALUES ('4', 4)"))
        execute(postgres, "INSERT INTO items (body, place) VALUES ('5', 5)")
        assert [row.message.value for row in rows.read_rows(0)] == [b"1", b"2", b"3"]


def test_a_row_without_a_topic_or_with_a_wrong_type_says_why(postgres, relay):
    execute(
        postgres,
        "CREATE TABLE o (id serial PRIMARY KEY, kind text, region text, body text, target text)",
        "INSERT INTO o (kind, region, body, target) VALUES ('a', NULL, 'x', NULL), ('{region}', 'b', 'x', NULL),"
        " ('a', 'b', 'x', 'three'), ('a', 'b', NULL, NULL)",
    )
    table = OutboxTable(name="o", topic="{region}.{kind}", value="body", partition="target")
    assert messages_of(relay(postgres, table).read_rows(0)) == [
        "the column region, which names the topic, has no text but NoneType",
        "'b.{region}' cannot be a topic: it takes 1 to 249 characters of A-Z a-z 0-9 . _ -",
        "partition must be a whole number or None, not str",
        Message("b.a", None),
    ]


def test_values_that_python_cannot_read_stop_no_other_row(postgres, relay):
    execute(
        postgres,
        "CREATE TABLE o (id serial PRIMARY KEY, body text, headers text, due timestamptz, made date)",
        "INSERT INTO o (body, headers, due, made) VALUES ('a', NULL, 'infinity', '2020-01-01'),"
        " ('b', NULL, '12000-01-01 00:00:00+00', NULL), ('c', repeat('[', 100000), NULL, NULL),"
        " ('d', '{}', NULL, NULL)",
    )
    table = OutboxTable(name="o", topic="t", value="body", headers="headers", deliver_at="due", created_at="made")
    rows = relay(postgres, table)
    infinite, late, nested, plain = messages_of(rows.read_rows(0))
    assert infinite.startswith("deliver_at must be between 0")
    assert (late.deliver_at, plain.value) == (316_516_204_800_000, b"d")
    assert "recursion" in nested
    assert rows.count_waiting().oldest > 6 * 365 * 86_400
    assert math.isnan(relay(postgres, replace(table, created_at="body")).count_waiting().oldest)


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
        rows = OutboxRows(engine, table)
        with pytest.raises((UsageError, DBAPIError), match=reason):
            rows.verify()
        rows.close()


def test_only_the_table_of_lanes_is_created_beside_a_table_of_the_application(engine):
    table = OutboxTable.for_debezium()
    assert "outboxevent (" not in outbox_ddl(engine.dialect, table)
    create_outbox(engine, table)
    assert inspect(engine).get_table_names() == ["outboxevent_lanes"]
    with pytest.raises(UsageError, match="the application writes the rows itself"):
        Outbox(table)


def test_a_second_outbox_of_our_layout_in_a_schema(postgres, relay):
    execute(postgres, "CREATE SCHEMA IF NOT EXISTS other")
    table = OutboxTable.for_txbridge("Order's outbox", "other")
    create_outbox(postgres, table)
    with postgres.begin() as connection:
        Outbox(table).add(connection, Message("t", b"v"))
    assert messages_of(relay(postgres, table).read_rows(0)) == [Message("t", b"v")]
    execute(postgres, "DROP SCHEMA other CASCADE")
