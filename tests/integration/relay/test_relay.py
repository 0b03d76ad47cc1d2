"""`txbridge relay` with a real Kafka, worker and PostgreSQL: each row once and in order, whatever dies when."""

from __future__ import annotations

import json
import signal
import time
import urllib.request
from contextlib import ExitStack

import pytest
from sqlalchemy import insert
from txbridge_sqlalchemy import Outbox, OutboxTable, create_outbox
from txbridge_sqlalchemy.outbox_table import outbox

from tests.support import http
from tests.support.command_line import run_txbridge
from tests.support.harness import eventually
from tests.support.relays import (
    RELAY_POINTS,
    add_rows,
    end_gently,
    make_outbox,
    relaying,
    require_exact,
    rows_left,
    wait_relayed,
)
from txbridge import Message
from txbridge.embedded.ports import free_port


def test_p3_p14_rows_become_messages_once_and_in_order(bridge, topic, url, engine):
    add_rows(engine, topic, range(500))
    bridge.worker()
    with relaying(bridge, url) as relay:
        wait_relayed(bridge, topic, 500, relay)
        add_rows(engine, topic, range(500, 600))
        wait_relayed(bridge, topic, 600, relay)
        end_gently(relay)
    require_exact(bridge, topic, 600)
    assert rows_left(engine) == 0


@pytest.mark.parametrize("point", RELAY_POINTS)
@pytest.mark.parametrize("time", [1, pytest.param(3, marks=pytest.mark.long)])
def test_p10_a_killed_relay_loses_repeats_and_reorders_nothing(bridge, topic, url, engine, point, time):
    """kill -9 at each step of a batch. The next relay begins while the transactions of the first are undecided."""
    add_rows(engine, topic, range(100))
    bridge.worker(transaction_check_max=100)
    with relaying(bridge, url, fault=f"{point}@{time}") as relay:
        eventually(lambda: rows_left(engine) == 0 or relay.poll() is not None, 60)
        add_rows(engine, topic, range(100, 200))
        eventually(lambda: rows_left(engine) == 0 or relay.poll() is not None, 60)
        add_rows(engine, topic, range(200, 300))
        assert relay.wait(60) == -signal.SIGKILL
    add_rows(engine, topic, range(300, 400))
    with relaying(bridge, url) as relay:
        wait_relayed(bridge, topic, 400, relay)
        # What the first relay has left behind is rolled back in its time.
        eventually(lambda: set(map(tuple, bridge.outcomes().values())) <= {("commit",), ("rollback",)}, 60)
        end_gently(relay)
    require_exact(bridge, topic, 400)
    assert rows_left(engine) == 0


def page(port, path):
    return http.ask_if_there(urllib.request.Request(f"http://127.0.0.1:{port}{path}"))


def test_rows_that_cannot_be_delivered_stop_nobody_else(bridge, topic, url, engine):
    """A topic that does not exist, one with small records, a refused timestamp, and a row that nothing can hold."""
    small = bridge.create_topic("small", max_message_bytes="1000")
    missing = f"{bridge.namespace}.missing"
    box, port = Outbox(), free_port()
    in_a_week = round((time.time() + 7 * 86_400) * 1_000)
    with engine.begin() as connection:
        box.add(connection, Message(topic, b"late", b"k", timestamp=in_a_week))
        for number in range(20):
            box.add(
                connection,
                Message(missing, b"%d" % number, b"k"),
                Message(small, b"x" * 2_000 if number == 3 else b"%d" % number, b"k"),
                Message(topic, b"%d" % number, b"k"),
            )
        box.add(connection, Message(topic, b"x" * 2_000_000, b"k"))
        connection.execute(insert(outbox).values(topic="no topic", value=b"", created_at=1))
    bridge.worker()
    with relaying(bridge, url, "--metrics-port", str(port)) as relay:
        wait_relayed(bridge, topic, 20, relay)
        wait_relayed(bridge, small, 19, relay)
        eventually(lambda: rows_left(engine) == 2, 20)
        eventually(lambda: "txbridge_relay_rows_waiting 2.0" in page(port, "/metrics").text, 20)
        text = page(port, "/metrics").text
        assert "txbridge_relay_rows_refused 2.0" in text
        assert "txbridge_relay_rows_sent_total 61.0" in text
        assert page(port, "/readyz").status == 200
        # The worker holds what is sent.
        bridge.create_topic("missing")
        wait_relayed(bridge, missing, 20, relay, timeout=60)
        end_gently(relay)
    require_exact(bridge, missing, 20)
    require_exact(bridge, topic, 20)


def test_a_time_of_delivery_belongs_to_a_row(bridge, topic, url, engine):
    box = Outbox()
    bridge.worker()
    with relaying(bridge, url) as relay:
        add_rows(engine, topic, range(1))
        wait_relayed(bridge, topic, 1, relay)
        due = time.time() + 15
        with engine.begin() as connection:
            box.add(
                connection,
                Message(topic, b"3", b"k", deliver_at=round(due * 1000)),
                Message(topic, b"1", b"k"),
                Message(topic, b"4", b"k", deliver_at=round(due * 1000) + 500),
                Message(topic, b"2", b"k"),
            )
        wait_relayed(bridge, topic, 3, relay)
        assert {b"3", b"4"}.isdisjoint(bridge.visible(topic))
        wait_relayed(bridge, topic, 5, relay)
        assert time.time() > due
        end_gently(relay)
    require_exact(bridge, topic, 5)


def test_a_relay_that_comes_later_gets_lanes(bridge, topic, url, engine):
    ports = free_port(), free_port()
    bridge.worker()
    with ExitStack() as running:
        first, second = (running.enter_context(relaying(bridge, url, "--metrics-port", str(port))) for port in ports)
        eventually(lambda: all("txbridge_relay_lanes 1.0" in page(port, "/metrics").text for port in ports), 30)
        add_rows(engine, topic, range(200))
        wait_relayed(bridge, topic, 200, first)
        assert page(ports[1], "/readyz").status == 200
        second.send_signal(signal.SIGKILL)
        eventually(lambda: "txbridge_relay_lanes 2.0" in page(ports[0], "/metrics").text, 30)
        add_rows(engine, topic, range(200, 300))
        wait_relayed(bridge, topic, 300, first)
        end_gently(first)
    require_exact(bridge, topic, 300)


def test_a_notification_wakes_an_idle_relay(bridge, topic, url, engine):
    box = Outbox(notify=True)
    bridge.worker()
    with relaying(bridge, url) as relay:
        for number in range(5):
            time.sleep(0.7)
            with engine.begin() as connection:
                box.add(connection, Message(topic, b"%d" % number, b"k"))
        wait_relayed(bridge, topic, 5, relay)
        end_gently(relay)
    require_exact(bridge, topic, 5)


def answers(bridge):
    """Number of answers to checks in END."""
    return sum(("SOURCE", b"check") in record.headers() for record in bridge.read(bridge.names.end))


@pytest.mark.parametrize("point", [pytest.param("relay.half_stored", marks=pytest.mark.long), "relay.committed"])
def test_p2_p4_a_relay_of_another_database_in_the_same_group_decides_nothing(
    bridge, topic, url, engine, tmp_path, capfd, point
):
    """A mistake: it is asked about a batch of a relay that was killed, for longer than its patience of 2 s."""
    add_rows(engine, topic, range(20))
    bridge.worker(transaction_check_max=100)
    with relaying(bridge, url, fault=f"{point}@1") as relay:
        assert relay.wait(60) == -signal.SIGKILL
    other = f"sqlite:///{tmp_path}/other.db"
    make_outbox(other).dispose()
    with relaying(bridge, other) as relay:
        begun = time.monotonic()
        eventually(lambda: answers(bridge) >= 3 and time.monotonic() - begun > 5, 60)
        assert list(bridge.outcomes().values()) == []
        end_gently(relay)
    assert "check_for_another_database" in "".join(capfd.readouterr())
    with relaying(bridge, url) as relay:
        wait_relayed(bridge, topic, 20, relay)
        eventually(lambda: len(bridge.outcomes()) == len(bridge.read(bridge.names.half)), 60)
        end_gently(relay)
    assert {tuple(one) for one in bridge.outcomes().values()} <= {("commit",), ("rollback",)}
    require_exact(bridge, topic, 20)
    assert rows_left(engine) == 0


def test_the_doctor_knows_relays(bridge, topic, url, engine):
    flags = ("--bootstrap-servers", bridge.bootstrap_servers, "--namespace", bridge.namespace)
    flags += ("--relay", "--database-url", url, "--group", "relay", "--real-topic", topic, "--format", "json")

    def examined():
        findings = json.loads(run_txbridge("doctor", *flags).stdout)["findings"]
        return [(one["level"], one["text"]) for one in findings if one["check"] in {"relay", "rights"}]

    bridge.worker()
    has_rights = ("ok", "this user has the rights of the role relay")
    with relaying(bridge, url) as relay:
        add_rows(engine, topic, range(10))
        wait_relayed(bridge, topic, 10, relay)
        held, empty = "relays hold 2 lanes of txbridge_outbox, which are all", "no row waits in txbridge_outbox"
        assert examined() == [has_rights, ("ok", held), ("ok", empty)]
        end_gently(relay)
    add_rows(engine, topic, range(10, 13))
    rights, lanes, (level, rows) = examined()
    assert (rights, lanes) == (
        has_rights,
        ("problem", "no relay works on txbridge_outbox (nobody holds a lane): its rows are not sent"),
    )
    assert level == "problem"
    assert rows.startswith("rows that wait in txbridge_outbox: 3, the oldest for ")
    assert rows.endswith(" was not sent within 3s")


def test_another_table_is_described_in_python(bridge, topic, url, engine, tmp_path):
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE outboxevent (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregatetype text,"
            " aggregateid text, type text, payload jsonb, written bigint GENERATED ALWAYS AS IDENTITY)"
        )
        for number in range(50):
            connection.exec_driver_sql(
                "INSERT INTO outboxevent (aggregatetype, aggregateid, type, payload)"
                f" VALUES ('order', '{number % 5}', 'placed', '{number}')"
            )
    create_outbox(engine, OutboxTable.for_debezium())
    (tmp_path / "described.py").write_text(
        "from txbridge_sqlalchemy import OutboxTable\n"
        f"TABLE = OutboxTable(name='outboxevent', topic='{topic}', key='aggregateid', value='payload', "
        "header_columns={'id': 'id'}, order='written')\n"
    )
    bridge.worker()
    with relaying(bridge, url, "--table", "described:TABLE", cwd=tmp_path) as relay:
        wait_relayed(bridge, topic, 50, relay)
        end_gently(relay)
    require_exact(bridge, topic, 50)
