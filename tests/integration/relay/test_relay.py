"""`txbridge relay` with a real Kafka and PostgreSQL, and no worker: each row once and in order, whatever dies when."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack

import pytest
from txbridge_sqlalchemy import Outbox

from tests.support.harness import at_this_load
from tests.support.relays import (
    add_rows,
    end_gently,
    page,
    relaying,
    require_exact,
    rows_left,
    wait_metric,
    wait_relayed,
)
from txbridge import Message
from txbridge.embedded.ports import free_port


def test_p3_p14_rows_become_messages_once_and_in_order(bridge, topic, url, engine):
    add_rows(engine, topic, range(500))
    port = free_port()
    with relaying(bridge, url, "--metrics-port", str(port)) as relay:
        wait_relayed(bridge, topic, 500, relay)
        add_rows(engine, topic, range(500, 600))
        wait_relayed(bridge, topic, 600, relay)
        wait_metric(port, "rows_sent_total 600.0")
        wait_metric(port, "rows_waiting 0.0")
        assert page(port, "/readyz").status == 200
        end_gently(relay)
    require_exact(bridge, topic, 600)
    assert rows_left(engine) == 0
    # Who comes next knows that nothing is on its way.
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT owner FROM txbridge_outbox_relay").scalar_one() is None


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_another_relay_goes_on_at_once(bridge, topic, url, engine, end):
    ports = free_port(), free_port()
    with ExitStack() as running:
        first = running.enter_context(relaying(bridge, url, "--metrics-port", str(ports[0])))
        wait_metric(ports[0], "working 1.0")
        second = running.enter_context(relaying(bridge, url, "--metrics-port", str(ports[1])))
        add_rows(engine, topic, range(200))
        wait_relayed(bridge, topic, 200, first)
        wait_metric(ports[1], "ready 1.0")
        wait_metric(ports[1], "working 0.0")
        first.send_signal(end)
        began = time.monotonic()
        add_rows(engine, topic, range(200, 210))
        wait_relayed(bridge, topic, 210, second)
        took = time.monotonic() - began
        print(f"rows go on {took:.1f} s after {end.name}")
        assert took < at_this_load(10)
        end_gently(second)
    require_exact(bridge, topic, 210)


def test_a_row_with_a_time_of_delivery_waits_for_it_and_for_nothing_else(bridge, topic, url, engine):
    """Not for a backlog, nor for a transaction that stays open, which holds up rows without a time."""
    box, due, seen = Outbox(), time.time() + 8, {}
    with relaying(bridge, url) as relay, engine.connect() as open_one:
        box.add(open_one, Message(topic, b"not yet", b"open"))
        with engine.begin() as connection:
            times = [round(due * 1000) + 500 * number for number in range(5)]
            box.add(connection, *(Message(topic, b"%d" % one, b"k", deliver_at=one) for one in times))
        add_rows(engine, bridge.create_topic("backlog"), range(20_000), a_transaction=1_000)
        while len(seen) < 5:
            assert relay.poll() is None
            seen |= {int(value): seen.get(int(value), time.time()) for value in bridge.visible(topic)}
        open_one.rollback()
    late = [seen[one] - one / 1000 for one in times]
    print(f"seconds after the time of delivery: {[round(one, 2) for one in late]}")
    assert min(late) > 0
    # 1.5 s on a quiet machine.
    assert max(late) < at_this_load(10)
    assert [int(record.value()) for record in bridge.read(topic) if record.key() == b"k"] == times
