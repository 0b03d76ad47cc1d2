"""An outbox in MariaDB: its relays and their time limits, a table of the application, and store and forward."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta

import pytest
from txbridge_sqlalchemy import Outbox, OutboxTable, SqlTransactionListener, create_outbox, purge
from txbridge_sqlalchemy.outbox_table import outbox_metadata
from txbridge_sqlalchemy.table import metadata

from tests.support import sql_application
from tests.support.relays import add_rows, end_gently, make_outbox, relaying, require_exact, rows_left, wait_relayed
from tests.support.sql_application import order_ids, place
from tests.support.stopped import wait_stopped
from txbridge import Message, SendStatus, TransactionProducer


@pytest.fixture
def url(mariadb_server):
    return mariadb_server


@pytest.fixture
def engine(url):
    made = make_outbox(url)
    sql_application.tables.create_all(made)
    yield made
    for one in (outbox_metadata, metadata, sql_application.tables):
        one.drop_all(made)
    made.dispose()


def test_p3_p14_two_relays_of_which_one_is_killed(bridge, topic, url, engine):
    """Threads write at once, while a transaction that has added a row stays open, and is committed after all."""
    with ExitStack() as running, ThreadPoolExecutor(4) as pool, engine.connect() as open_one:
        Outbox().add(open_one, Message(topic, b"3000", b"open"))
        list(pool.map(lambda first: add_rows(engine, topic, range(first, 2_000, 4), keys=20), range(4)))
        relays = [running.enter_context(relaying(bridge, url)) for _ in range(2)]
        wait_relayed(bridge, topic, 2_000)
        relays[0].send_signal(signal.SIGKILL)
        list(pool.map(lambda first: add_rows(engine, topic, range(first, 3_000, 4), keys=20), range(2_000, 2_004)))
        wait_relayed(bridge, topic, 3_000, relays[1])
        # Its id is lower than those of all that were sent.
        open_one.commit()
        wait_relayed(bridge, topic, 3_001, relays[1])
        end_gently(relays[1])
    require_exact(bridge, topic, 3_001)
    assert rows_left(engine) == 0
    assert purge(engine, timedelta(hours=1)) == 0


def test_p14_a_relay_that_is_paused_within_a_batch(bridge, topic, url, engine):
    add_rows(engine, topic, range(100))
    with ExitStack() as running:
        paused = running.enter_context(relaying(bridge, url, fault="commit.committed@2/SIGSTOP"))
        wait_stopped(paused, 60)
        other = running.enter_context(relaying(bridge, url))
        add_rows(engine, topic, range(100, 200))
        wait_relayed(bridge, topic, 200, other, timeout=60)
        paused.send_signal(signal.SIGCONT)
        end_gently(other)
        add_rows(engine, topic, range(200, 300))
        wait_relayed(bridge, topic, 300, paused)
        end_gently(paused)
    require_exact(bridge, topic, 300)


def test_a_table_of_the_application_with_json_and_times(bridge, topic, url, engine, tmp_path):
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE events (id CHAR(36) PRIMARY KEY DEFAULT (uuid()), body JSON, about VARCHAR(50), extra JSON,"
            " at TIMESTAMP(6) NOT NULL DEFAULT now(6), due DATETIME(6), written BIGINT AUTO_INCREMENT UNIQUE)"
        )
        connection.exec_driver_sql(
            "INSERT INTO events (body, about, extra, at, due) VALUES"
            """ ('{"ä": 1}', 'k', '{"h": "x"}', from_unixtime(1700000000.25), '2020-01-01 00:00:00.5')"""
        )
    described = f"name='events', topic='{topic}', key='about', value='body', headers='extra', timestamp='at'"
    described += ", deliver_at='due', created_at='at', order='written'"
    (tmp_path / "described.py").write_text(
        f"from txbridge_sqlalchemy import OutboxTable\nTABLE = OutboxTable({described})"
    )
    create_outbox(engine, OutboxTable(name="events", topic=topic, value="body"))
    with relaying(bridge, url, "--table", "described:TABLE", cwd=tmp_path) as relay:
        wait_relayed(bridge, topic, 1, relay)
        end_gently(relay)
    [record] = bridge.read(topic)
    assert (record.key(), record.value(), record.timestamp()[1]) == (b"k", '{"ä": 1}'.encode(), 1_700_000_000_250)
    assert ("h", b"x") in record.headers()


def test_p3_p14_store_and_forward(bridge, topic, url, engine):
    """A message goes directly, and one that finds a row of its key is stored behind it."""
    bridge.worker()
    listener = SqlTransactionListener(engine, place, outbox=Outbox())
    settings = {"bootstrap.servers": bridge.bootstrap_servers, "log_level": 0}
    with TransactionProducer("shop", listener, settings, namespace=bridge.namespace) as producer:

        def send(number):
            message = Message(topic, b"%d" % number, b"0")
            # MariaDB would take 0 for an id that it has to draw.
            return producer.send_message_in_transaction(message, number + 1).send_status

        assert send(0) is SendStatus.SEND_OK
        add_rows(engine, topic, range(1, 11), keys=1)
        assert send(11) is SendStatus.STORED
        with relaying(bridge, url) as relay:
            wait_relayed(bridge, topic, 12, relay)
            assert send(12) is SendStatus.SEND_OK
            wait_relayed(bridge, topic, 13, relay)
            # Its sessions are ended when they are silent; the next row does not notice.
            time.sleep(11)
            add_rows(engine, topic, range(13, 14), keys=1)
            wait_relayed(bridge, topic, 14, relay)
            end_gently(relay)
    require_exact(bridge, topic, 14)
    assert order_ids(engine) == [1, 12, 13]
