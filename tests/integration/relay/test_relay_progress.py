"""Relays whose database and progress do not fit together: they recover, or stop and say what to do."""

from __future__ import annotations

import re
import signal
from contextlib import ExitStack

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tests.support import sql_application
from tests.support.harness import eventually
from tests.support.relays import (
    add_rows,
    end_gently,
    make_outbox,
    make_progress,
    page,
    relaying,
    require_exact,
    rows_left,
    wait_relayed,
    wait_unready,
)
from tests.support.stopped import wait_stopped
from txbridge.embedded.ports import free_port

STATE = "txbridge_outbox_relay"
#: A step at which the rows of the first batch are visible, and still there.
VISIBLE = "commit.committed@2"


@pytest.fixture
def port():
    return free_port()


@pytest.fixture
def started(bridge, url, port):
    """Starts a relay with metrics."""
    return lambda **more: relaying(bridge, url, "--metrics-port", str(port), **more)


def ask(engine, statement):
    with engine.begin() as connection:
        result = connection.exec_driver_sql(statement)
        return result.all() if result.returns_rows else []


def accept(engine, said):
    """Do what a relay says."""
    command = re.search(r"UPDATE \S+ SET owner = NULL, topic_id = NULL WHERE batch = \d+ AND position = \d+", said)
    assert command, said
    ask(engine, command[0])


def wait_ready(port):
    eventually(lambda: page(port, "/readyz").status == 200, 30)


def let_die(started, engine, topic, rows, fault=VISIBLE):
    """A relay is killed while these rows are visible, and nobody knows."""
    add_rows(engine, topic, rows)
    with started(fault=fault) as relay:
        assert relay.wait(120) == -signal.SIGKILL


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "paused"])
def test_p3_ids_that_are_given_again_while_a_batch_is_on_its_way(bridge, topic, engine, started, is_killed):
    """Of ten rows with the same ids, and of those that are the same rows put back, only the latter are deleted."""
    add_rows(engine, topic, range(20))
    kept = "CREATE TABLE kept AS SELECT * FROM txbridge_outbox WHERE id <= 10"
    again = "TRUNCATE txbridge_outbox RESTART IDENTITY"
    put_back = "INSERT INTO txbridge_outbox SELECT * FROM kept"
    skip = "SELECT setval('txbridge_outbox_id_seq', 10)"

    def change():
        for statement in (kept, again, put_back, skip):
            ask(engine, statement)
        add_rows(engine, topic, range(20, 40))

    with ExitStack() as running:
        relay = running.enter_context(started(fault=VISIBLE + ("" if is_killed else "/SIGSTOP")))
        if is_killed:
            assert relay.wait(120) == -signal.SIGKILL
            change()
            relay = running.enter_context(started())
        else:
            wait_stopped(relay, 60)
            change()
            relay.send_signal(signal.SIGCONT)
        wait_relayed(bridge, topic, 40, relay)
        eventually(lambda: rows_left(engine) == 0, 30)
        end_gently(relay)
    require_exact(bridge, topic, 40)


def test_p3_a_copy_of_the_database_with_the_same_identity(bridge, topic, postgres_url, url, engine, started, port):
    """The relay of the first one is fenced. It stops by name, and deletes nothing that was not sent."""
    copy_url, copy_port = sql_application.in_new_schema(postgres_url, f"copy_{bridge.namespace[-4:]}"), free_port()
    copy, elsewhere = make_outbox(copy_url), bridge.create_topic("copy")
    with started() as relay:
        add_rows(engine, topic, range(20))
        wait_relayed(bridge, topic, 20, relay)
        eventually(lambda: rows_left(engine) == 0, 30)
        [row] = ask(engine, f"SELECT * FROM {STATE}")
        ask(copy, f"INSERT INTO {STATE} VALUES {tuple(row)}")
        add_rows(copy, elsewhere, range(30))
        with relaying(bridge, copy_url, "--metrics-port", str(copy_port)) as other:
            wait_relayed(bridge, elsewhere, 30, other)
            add_rows(engine, topic, range(20, 40))
            said = wait_unready(port, "another database has the identity of this outbox")
            assert (rows_left(engine), len(bridge.visible(topic))) == (20, 20)
            end_gently(other)
        end_gently(relay)
    [command] = re.findall(r"UPDATE \S+ SET identity = '\w+', owner = NULL", said)
    ask(copy, command)
    with started() as relay, relaying(bridge, copy_url) as other:
        wait_relayed(bridge, topic, 40, relay)
        add_rows(copy, elsewhere, range(30, 40))
        wait_relayed(bridge, elsewhere, 40, other)
        add_rows(engine, topic, range(40, 50))
        wait_relayed(bridge, topic, 50, relay)
        end_gently(relay)
        end_gently(other)
    copy.dispose()
    require_exact(bridge, topic, 50)
    require_exact(bridge, elsewhere, 40)


def test_p3_a_progress_that_takes_no_record_as_large(bridge, topic, engine, started, port):
    """It sends nothing before somebody has mended that, and then goes on."""

    def let_take(size):
        config = ConfigResource(ResourceType.TOPIC, bridge.names.outbox)
        most = ConfigEntry("max.message.bytes", size, incremental_operation=AlterConfigOpType.SET)
        config.add_incremental_config(most)
        bridge.admin.incremental_alter_configs([config])[config].result(120)

    with started() as relay:
        add_rows(engine, topic, range(10))
        wait_relayed(bridge, topic, 10, relay)
        let_take("400")
        add_rows(engine, topic, range(10, 200), a_transaction=190)
        wait_unready(port, "max.message.bytes")
        assert len(bridge.visible(topic)) == 10
        let_take("2000000")
        wait_relayed(bridge, topic, 200, relay, 60)
        wait_ready(port)
        end_gently(relay)
    require_exact(bridge, topic, 200)


def test_p3_a_progress_that_was_made_again_is_refused_until_a_person_accepts_it(bridge, topic, engine, started, port):
    def delete_progress():
        bridge.admin.delete_topics([bridge.names.outbox])[bridge.names.outbox].result(120)
        make_progress.cache_clear()

    with started() as relay:
        add_rows(engine, topic, range(20))
        wait_relayed(bridge, topic, 20, relay)
        delete_progress()
        add_rows(engine, topic, range(20, 30))
        wait_unready(port, f"{bridge.names.outbox}: does not exist")
        make_progress(bridge.bootstrap_servers, bridge.namespace)
        said = wait_unready(port, "it was made again, or is another Kafka's")
        assert (rows_left(engine), len(bridge.visible(topic))) == (10, 20)
        accept(engine, said)
        wait_relayed(bridge, topic, 30, relay, 60)
        wait_ready(port)
        end_gently(relay)
    # A relay that has ended gently has nothing on its way.
    delete_progress()
    with started() as relay:
        add_rows(engine, topic, range(30, 40))
        wait_relayed(bridge, topic, 40, relay)
        end_gently(relay)
    require_exact(bridge, topic, 40)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (f"UPDATE {STATE} SET position = position + 1000", "has the offsets"),
        ("cut", "has the offsets"),
        (f"UPDATE {STATE} SET batch = batch - 1", "goes on with batch 3 behind 1: records of it are lost"),
    ],
    ids=["behind the database", "cut off", "a record is missing"],
)
def test_p3_a_progress_that_lacks_something(bridge, topic, engine, started, port, change, reason):
    with started() as relay:
        for first in (0, 10):
            add_rows(engine, topic, range(first, first + 10))
            wait_relayed(bridge, topic, first + 10, relay)
        eventually(lambda: rows_left(engine) == 0, 30)
        relay.kill()
    let_die(started, engine, topic, range(20, 30))
    [(partition,)] = ask(engine, f"SELECT partition FROM {STATE}")
    if change == "cut":
        bridge.delete_records(bridge.names.outbox, partition, bridge.bounds(bridge.names.outbox, partition)[1])
    else:
        ask(engine, change)
    with started() as relay:
        said = wait_unready(port, reason)
        assert (rows_left(engine), len(bridge.visible(topic))) == (10, 30)
        ask(engine, "DELETE FROM txbridge_outbox")
        accept(engine, said)
        add_rows(engine, topic, range(30, 40))
        wait_relayed(bridge, topic, 40, relay, 60)
        end_gently(relay)
    require_exact(bridge, topic, 40)
