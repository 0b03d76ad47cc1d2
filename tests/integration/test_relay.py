"""`txbridge relay` with a real Kafka, worker and PostgreSQL: each row once and in order, whatever dies when."""

from __future__ import annotations

import signal

import pytest

from tests.support import sql_application
from tests.support.harness import eventually
from tests.support.relays import (
    add_rows,
    end_gently,
    make_outbox,
    relaying,
    require_exact,
    rows_left,
    wait_relayed,
)
from txbridge.failpoints import POINTS

RELAY_POINTS = [point for point in POINTS if point.startswith("relay.")]


@pytest.fixture
def url(postgres_url, tmp_path):
    return sql_application.in_new_schema(postgres_url, f"r_{tmp_path.name}".lower())


@pytest.fixture
def engine(url):
    made = make_outbox(url)
    yield made
    made.dispose()


@pytest.fixture
def topic(bridge):
    return bridge.create_topic("orders")


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
@pytest.mark.parametrize("time", [1, 3])
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
