"""Relays that lose database sessions, or are paused for longer than every time-out, while others go on."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack

import pytest
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import OffsetSpec
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


@pytest.mark.parametrize("point", ["commit.committed@2", "relay.confirming"])
def test_p3_sessions_that_end_while_a_batch_is_visible_and_its_rows_are_there(bridge, topic, url, engine, point, capfd):
    add_rows(engine, topic, range(50))
    with relaying(bridge, named(url), fault=f"{point}/SIGSTOP") as relay:
        wait_stopped(relay, 60)
        assert terminate(engine) >= 1
        relay.send_signal(signal.SIGCONT)
        wait_relayed(bridge, topic, 50, relay)
        end_gently(relay)
    # A line, and no trace.
    said = "".join(capfd.readouterr())
    assert "relay_waits" in said
    assert "raised" not in said
    require_exact(bridge, topic, 50)


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


@pytest.mark.long
def test_p14_a_lone_relay_that_stands_still_until_kafka_has_ended_its_transaction(bridge, topic, url, engine, capfd):
    """Kafka fences it as another relay would, and nobody has copied its database."""
    add_rows(engine, topic, range(50))
    with relaying(bridge, url, fault="commit.flushed@2/SIGSTOP") as relay:
        wait_stopped(relay, 60)
        where, latest = TopicPartition(topic, 0), OffsetSpec.latest()

        def end(level):
            return bridge.admin.list_offsets({where: latest}, isolation_level=level)[where].result(120).offset

        eventually(lambda: end(IsolationLevel.READ_COMMITTED) == end(IsolationLevel.READ_UNCOMMITTED), 60)
        relay.send_signal(signal.SIGCONT)
        wait_relayed(bridge, topic, 50, relay)
        end_gently(relay)
    assert "relay_stopped" not in "".join(capfd.readouterr())
    require_exact(bridge, topic, 50)


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
