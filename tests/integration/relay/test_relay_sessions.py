"""Relays that lose database sessions, or are paused for longer than every time-out, while others go on."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack

import pytest
from sqlalchemy import create_engine

from tests.support.harness import eventually
from tests.support.postgres import Postgres
from tests.support.relays import (
    add_rows,
    end_gently,
    make_outbox,
    relay_backends,
    relaying,
    require_exact,
    rows_left,
    terminate,
    wait_relayed,
)
from tests.support.stopped import wait_stopped


def named(url):
    """The URL for relays, whose sessions a test can tell from its own."""
    return f"{url}&application_name=relay"


def test_p3_a_commit_that_is_not_answered(bridge, topic):
    """PostgreSQL has committed and waits for a standby when its session is ended, so the relay only sees an error."""
    with Postgres() as server:
        engine = make_outbox(server.url)
        add_rows(engine, topic, range(50))
        with relaying(bridge, named(server.url), fault="relay.confirming/SIGSTOP") as relay:
            wait_stopped(relay, 60)
            settings = create_engine(server.url, isolation_level="AUTOCOMMIT")
            with settings.connect() as connection:
                connection.exec_driver_sql("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
                connection.exec_driver_sql("SELECT pg_reload_conf()")
                # PostgreSQL's checkpointer reads it and tells the others. Until then the relay would not wait.
                time.sleep(2)
                relay.send_signal(signal.SIGCONT)
                waiting = "wait_event = 'SyncRep'"
                eventually(lambda: relay_backends(engine, waiting), 30)
                connection.exec_driver_sql("ALTER SYSTEM SET synchronous_standby_names = ''")
                assert terminate(engine, waiting) >= 1
                connection.exec_driver_sql("SELECT pg_reload_conf()")
            settings.dispose()
            wait_relayed(bridge, topic, 50, relay)
            add_rows(engine, topic, range(50, 100))
            wait_relayed(bridge, topic, 100, relay)
            end_gently(relay)
        assert rows_left(engine) == 0
        engine.dispose()
    require_exact(bridge, topic, 100)


@pytest.mark.parametrize("point", ["commit.flushed@2", "relay.confirming"])
def test_p14_a_relay_that_is_paused_for_longer_than_every_time_out(bridge, topic, url, engine, point):
    """Another one works when the database has ended its silent session. Then the first one goes on, with another."""
    add_rows(engine, topic, range(100))
    with ExitStack() as running:
        paused = running.enter_context(relaying(bridge, named(url), fault=f"{point}/SIGSTOP"))
        wait_stopped(paused, 60)
        other = running.enter_context(relaying(bridge, named(url)))
        add_rows(engine, topic, range(100, 200))
        wait_relayed(bridge, topic, 200, other, timeout=60)
        paused.send_signal(signal.SIGCONT)
        add_rows(engine, topic, range(200, 300))
        wait_relayed(bridge, topic, 300, other)
        end_gently(other)
        add_rows(engine, topic, range(300, 400))
        wait_relayed(bridge, topic, 400, paused)
        end_gently(paused)
    require_exact(bridge, topic, 400)
    assert rows_left(engine) == 0
