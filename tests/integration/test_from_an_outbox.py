"""The page "From an outbox to txbridge": its files, and the switch between relays while an application writes rows."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from functools import partial

import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from tests.bench.beside import beside
from tests.bench.outbox import polled_relay
from tests.support import sql_application
from tests.support.command_line import run_txbridge
from tests.support.harness import eventually
from tests.support.relays import end_gently, relaying
from tests.support.source import listings, programs_of

PAGE = "how-to/from-an-outbox.md"
KEYS = 5
OUTBOX = "CREATE TABLE outbox (id bigserial PRIMARY KEY, topic text NOT NULL, key text, payload text)"
DEBEZIUM = """
    CREATE TABLE outboxevent (
        id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregatetype varchar(255) NOT NULL,
        aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL, payload jsonb
    )
"""
#: Holds each DELETE until its session ends.
HOLD = """
    CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(3600); RETURN NULL; END';
    CREATE TRIGGER hold BEFORE DELETE ON outbox FOR EACH STATEMENT EXECUTE FUNCTION hold()
"""


@pytest.fixture
def url(postgres_url, tmp_path):
    return sql_application.in_new_schema(postgres_url, f"f_{tmp_path.name}".lower())


@pytest.fixture
def database(url):
    with psycopg.connect(conninfo(url), autocommit=True) as connection:
        yield connection


@pytest.fixture
def relay(bridge, url, tmp_path, database):
    """Creates the tables as the page says, and returns a function that starts a relay with a module of the page."""

    def describe(module):
        (tmp_path / f"{module}.py").write_text(programs_of(PAGE)[f"{module}.py"])
        words = ("--table", f"{module}:TABLE")
        printed = run_txbridge("relay", "--database-url", url, *words, "--ddl", cwd=tmp_path)
        assert printed.returncode == 0, printed.stderr
        database.execute(printed.stdout)
        return partial(relaying, bridge, url, *words, cwd=tmp_path)

    return describe


def conninfo(url):
    return url.replace("+psycopg", "")


@contextmanager
def polling(bridge, url):
    """The old relay."""
    words = [sys.executable, polled_relay.__file__, conninfo(url), bridge.bootstrap_servers, "poll", "50"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@contextmanager
def writing(url, topic):
    """The application: a transaction for each row, in a thread of its own. Yields a function that ends it."""
    written = []

    def write(ended):
        with psycopg.connect(conninfo(url), autocommit=True) as connection:
            # Slowly, so that it lasts as long as the switch.
            while not ended.wait(0.005):
                add_row(connection, topic, len(written))
                written.append(len(written))

    with ExitStack() as running:
        running.enter_context(beside(write))

        def end():
            running.close()
            return len(written)

        yield end


def add_row(connection, topic, number):
    connection.execute(
        "INSERT INTO outbox (topic, key, payload) VALUES (%s, %s, %s)", (topic, str(number % KEYS), str(number))
    )


def numbers_in(database):
    return [int(payload) for (payload,) in database.execute("SELECT payload FROM outbox ORDER BY id").fetchall()]


def seen(bridge, topic):
    """The numbers of the old relay's records, and of the new one's, in the order of the log."""
    records = bridge.read(topic)
    is_ours = ["UNIQ_KEY" in dict(record.headers() or ()) for record in records]
    return tuple(
        [int(record.value()) for record, ours in zip(records, is_ours, strict=True) if ours is wanted]
        for wanted in (False, True)
    )


def require_order(numbers):
    for key in range(KEYS):
        of_key = [number for number in numbers if number % KEYS == key]
        assert of_key == sorted(of_key)


def kill_between_send_and_delete(old, database):
    """Its session ends, too, which the server would see to later."""
    database.execute(HOLD)
    holding = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
    eventually(lambda: database.execute(holding).fetchall(), 60)
    old.kill()
    old.wait(60)
    database.execute(f"SELECT pg_terminate_backend(pid) FROM ({holding}) AS one")
    eventually(lambda: not database.execute(holding).fetchall(), 60)
    database.execute("DROP FUNCTION hold() CASCADE")


@pytest.mark.parametrize("gently", [True, False], ids=["SIGTERM", "killed before its DELETE"])
def test_p3_p14_the_new_relay_takes_over_from_a_polled_one_and_gives_back(bridge, url, database, relay, gently):
    topic = bridge.create_topic("orders", 1)
    database.execute(OUTBOX)
    start = relay("described")
    with writing(url, topic) as end_writing:
        with polling(bridge, url) as old:
            eventually(lambda: len(seen(bridge, topic)[0]) >= 200, 60)
            if gently:
                old.send_signal(signal.SIGTERM)
                assert old.wait(60) == 0
            else:
                kill_between_send_and_delete(old, database)
        by_old, _ = seen(bridge, topic)
        in_both = set(by_old) & set(numbers_in(database))
        with start() as new:
            eventually(lambda: len(seen(bridge, topic)[1]) >= 200, 60)
            count = end_writing()
            eventually(lambda: len(set().union(*seen(bridge, topic))) == count, 120)
            end_gently(new)
    assert numbers_in(database) == []
    by_old_still, by_new = seen(bridge, topic)
    assert by_old_still == by_old == list(range(len(by_old)))
    assert bool(in_both) is not gently
    # Each that the old relay had not sent, and its last batch once more.
    assert sorted(by_new) == [*sorted(in_both), *range(len(by_old), count)]
    require_order(by_new)
    for number in range(count, count + 100):
        add_row(database, topic, number)
    with polling(bridge, url):
        eventually(lambda: numbers_in(database) == [], 60)
    by_old_again, by_new_still = seen(bridge, topic)
    assert (by_old_again, by_new_still) == (by_old + list(range(count, count + 100)), by_new)


def test_p3_p14_beside_debezium_and_then_in_its_place(bridge, database, relay, tmp_path):
    kind = f"order-{bridge.namespace}"
    old, trial = f"outbox.event.{kind}", f"trial.{kind}"
    for created in bridge.admin.create_topics([NewTopic(old, 2), NewTopic(trial, 2)]).values():
        created.result(120)
    database.execute(f"{DEBEZIUM};{listings(PAGE, 'sql')[0]}")
    start = relay("trial")
    insert = "INSERT INTO outboxevent (aggregatetype, aggregateid, type, payload) VALUES (%s, %s, 'OrderPlaced', %s)"
    add = database.cursor().executemany
    add(insert, [(kind, str(number % KEYS), str(number)) for number in range(5_000)])
    # What Debezium would send, which repeats its last hundred after a crash.
    sent = database.execute("SELECT id::text, aggregateid, payload::text FROM outboxevent").fetchall()
    producer = Producer({"bootstrap.servers": bridge.bootstrap_servers})
    for row, key, payload in [*sent, *sent[-100:]]:
        producer.produce(old, payload, key, headers={"id": row})
    assert producer.flush(60) == 0
    with start(fault="commit.committed@2") as new:
        assert new.wait(120) == -signal.SIGKILL
    with start() as new:
        # All may be visible since the kill.
        eventually(lambda: not database.execute("SELECT id FROM outbox_trial").fetchall(), 60)
        end_gently(new)
    (tmp_path / "compare.py").write_text(programs_of(PAGE)["compare.py"])
    compare = [sys.executable, "compare.py", bridge.bootstrap_servers, old, trial]
    said = subprocess.run(compare, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    [shown] = [one for one in listings(PAGE, "console") if "compare.py" in one]
    assert shown.partition("\n")[2] == said
    require_order([int(record.value()) for record in bridge.read(trial)])
    # The switch: what Debezium has sent goes, then the relay sends what comes, to the same topic.
    database.execute("DROP TRIGGER outbox_trial ON outboxevent; DELETE FROM outboxevent")
    start = relay("debezium")
    add(insert, [(kind, str(number % KEYS), str(number)) for number in range(5_000, 5_010)])
    with start() as new:
        eventually(lambda: not database.execute("SELECT id FROM outboxevent").fetchall(), 60)
        end_gently(new)
    ours = [record for record in bridge.read(old) if "UNIQ_KEY" in dict(record.headers())]
    assert sorted(int(record.value()) for record in ours) == [*range(5_000, 5_010)]
    assert {dict(record.headers())["eventType"] for record in ours} == {b"OrderPlaced"}
