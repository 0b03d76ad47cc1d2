"""`txbridge doctor --relay` on SQLite and a real PostgreSQL: each finding, after its cause was made."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event
from types import SimpleNamespace

import psycopg
import pytest
from sqlalchemy import create_engine, insert
from sqlalchemy.exc import DBAPIError
from txbridge_sqlalchemy import Outbox, OutboxRows, create_outbox
from txbridge_sqlalchemy.forwarding import SqlForwarding
from txbridge_sqlalchemy.outbox_table import outbox

from tests.support.harness import eventually
from tests.support.postgres import Postgres
from txbridge import Message, UsageError
from txbridge.cli import relay_examination
from txbridge.cli.relay_examination import OutboxExamination
from txbridge.kafka.admin import FoundTopic

HALF = FoundTopic("RMQ_SYS_TRANS_HALF_TOPIC", "id", 2, 1, 0, {"max.message.bytes": "1048576"})
NOBODY = ("problem", "no relay works on txbridge_outbox (nobody holds a lane): its rows are not sent")
HELD = ("ok", "relays hold 2 lanes of txbridge_outbox, which are all")
EMPTY = ("ok", "no row waits in txbridge_outbox")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(relay_examination, "_LOOK_AGAIN_S", 0.1)
    monkeypatch.setattr(relay_examination, "_GATE_PAUSE_S", 0.02)


def found(engine, half=HALF, table="txbridge_outbox"):
    """Levels and texts. Each finding that is not good says what to do."""
    address = engine if isinstance(engine, str) else engine.url.render_as_string(hide_password=False)
    findings = list(OutboxExamination(address, table).list_findings(half, 1_000))
    assert all(one.do or one.level.value == "ok" for one in findings)
    # A busy machine takes its time.
    return [(one.level.value, re.sub(r" for \d+s", " for 0s", one.text)) for one in findings]


@pytest.fixture
def lanes(postgres):
    """A relay that holds all lanes, and sends nothing."""
    rows = OutboxRows(postgres, lanes=2)
    rows.take_lanes(2)
    yield rows
    rows.close()


def add(engine, *messages):
    with engine.begin() as connection:
        Outbox().add(connection, *messages)


def test_relays_that_work_and_those_that_are_not_there(postgres, lanes):
    assert found(postgres) == [HELD, EMPTY]
    assert found(postgres, half=None) == [HELD, EMPTY]
    lanes.give_lanes_back([1])
    assert found(postgres) == [("problem", "nobody holds the lanes 1 of 2 of txbridge_outbox"), EMPTY]
    lanes.close()
    assert found(postgres) == [NOBODY, EMPTY]
    # The examination has held no lane back.
    assert lanes.take_lanes(2) == {0, 1}


def test_lanes_that_relays_do_not_know_yet(postgres, lanes):
    """HALF has got partitions since they were started."""
    assert found(postgres, replace(HALF, partitions=3)) == [
        ("problem", "nobody holds the lanes 2 of 3 of txbridge_outbox"),
        EMPTY,
    ]


def test_a_row_that_nobody_sends(engine):
    add(engine, Message("t", b"1"), Message("t", b"2"))
    *_, (level, text) = found(engine)
    assert level == "problem"
    assert text.startswith("rows that wait in txbridge_outbox: 2, the oldest for 0s; row 1 was not sent within 0s")


def test_rows_that_are_sent_meanwhile(postgres, lanes, monkeypatch):
    add(postgres, Message("t", b"1"), Message("t", b"2"))
    statement = outbox.delete().where(outbox.c.id == 1)

    def send_one(_seconds):
        with postgres.begin() as connection:
            connection.execute(statement)

    monkeypatch.setattr(relay_examination, "time", SimpleNamespace(sleep=send_one))
    assert found(postgres)[1:] == [("ok", "rows that wait in txbridge_outbox: 1, the oldest for 0s; they are sent")]


def test_rows_that_cannot_be_sent_are_named_and_delay_no_other(engine):
    add(engine, Message("t", b"x" * 1_040_000), Message("t", b"later", delay=3_600))
    with engine.begin() as connection:
        connection.execute(insert(outbox).values(topic="no topic", value=b"secret", created_at=1))
    *_, (level, refused), rows = found(engine)
    assert level == "warning"
    assert refused.startswith("rows of txbridge_outbox that cannot be sent: 3, such as ")
    assert "secret" not in refused
    assert rows == ("ok", "no other row waits in txbridge_outbox")


def test_a_transaction_that_holds_rows_up_is_named():
    with Postgres(max_prepared_transactions="1") as server:
        engine = create_engine(server.url)
        create_outbox(engine)
        lanes = OutboxRows(engine, lanes=2)
        lanes.take_lanes(2)
        with (
            psycopg.connect(conninfo(server.url)) as elsewhere,
            psycopg.connect(conninfo(server.url), application_name="report") as holding,
        ):
            elsewhere.execute("CREATE TABLE written (id int)")
            holding.execute("INSERT INTO txbridge_outbox (topic, created_at) VALUES ('t', 1)")
            add(engine, Message("t", b"1"))
            *_, (level, text) = found(engine)
            assert level == "warning"
            assert text.startswith(
                "rows that wait in txbridge_outbox: 1, the oldest for 0s; none can be sent before a transaction ends "
                "that has written to it: process "
            )
            assert text.endswith("report, idle in transaction), open for 0s")
            holding.execute("PREPARE TRANSACTION 'held up'")
        *_, (_, text) = found(engine)
        assert text.endswith("that has written to it: the prepared transaction held up, open for 0s")
        with psycopg.connect(conninfo(server.url), autocommit=True) as holding:
            holding.execute("ROLLBACK PREPARED 'held up'")
        *_, (level, text) = found(engine)
        assert level == "problem"
        assert "; row 2 was not sent" in text
        lanes.close()
        engine.dispose()


def test_a_transaction_without_an_xid_that_holds_rows_up_is_named(postgres, lanes):
    """It has found no row to delete, and could still add one."""
    with psycopg.connect(conninfo(postgres.url.render_as_string(hide_password=False))) as holding:
        holding.execute("DELETE FROM txbridge_outbox WHERE id = -1")
        add(postgres, Message("t", b"1"))
        assert lanes.read_rows(0) == []
        *_, (level, text) = found(postgres)
        assert level == "warning"
        assert f"that has written to it: process {holding.info.backend_pid} (" in text


def test_a_row_that_nobody_sends_is_found_while_transactions_follow_one_another(postgres, lanes, monkeypatch):
    """At each look one of them is open, and each could still add a row before the newest one."""
    # A busy machine may keep one open for a second.
    monkeypatch.setattr(relay_examination, "_GATE_PAUSE_S", 0.5)
    ended = Event()

    def write(wait):
        with postgres.connect() as connection:
            while not ended.wait(wait):
                with connection.begin():
                    Outbox().add(connection, Message("t", b"1"))
                    time.sleep(0.03)

    with ThreadPoolExecutor(2) as pool:
        writing = [pool.submit(write, wait) for wait in (0.0, 0.001)]
        eventually(lambda: lanes.count_waiting().rows > 2)
        *_, (level, text) = found(postgres)
        ended.set()
    assert [one.result() for one in writing] == [None, None]
    assert level == "problem"
    assert "; row 1 was not sent" in text


@pytest.fixture
def as_relay(postgres):
    """The URL of a user with the rights that docs/relay.md names."""
    user = f"r{time.time_ns()}"
    with postgres.begin() as connection:
        schema = connection.exec_driver_sql("SELECT current_schema()").scalar_one()
        connection.exec_driver_sql(
            f"CREATE ROLE {user} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {user};"
            f"GRANT SELECT, DELETE ON txbridge_outbox TO {user};"
            f"GRANT SELECT, INSERT, UPDATE ON txbridge_outbox_lanes TO {user}"
        )
    yield postgres.url.set(username=user)
    with postgres.begin() as connection:
        connection.exec_driver_sql(f"DROP OWNED BY {user}; DROP ROLE {user}")


POLICY = "ALTER TABLE txbridge_outbox ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON txbridge_outbox USING (topic = 'x')"
VIEW = (
    "ALTER TABLE txbridge_outbox RENAME TO o; CREATE VIEW txbridge_outbox AS TABLE o;"
    "GRANT ALL ON txbridge_outbox TO {user}"
)
#: What hides rows from a relay or keeps them, and what it says.
BLIND = {
    POLICY: "if row-level security hides rows from it, the right is BYPASSRLS",
    VIEW: "txbridge_outbox is a view, which may hide rows",
    "REVOKE SELECT ON txbridge_outbox FROM {user}": "permission denied for table txbridge_outbox; give this user",
    "REVOKE DELETE ON txbridge_outbox FROM {user}": "permission denied for table txbridge_outbox; give this user",
    "REVOKE UPDATE ON txbridge_outbox_lanes FROM {user}": "permission denied for table txbridge_outbox_lanes; give",
    # As on a standby.
    "ALTER ROLE {user} SET default_transaction_read_only = on": "in a read-only transaction",
}


@pytest.mark.parametrize(("cause", "said"), BLIND.items())
def test_who_does_not_see_all_rows_or_cannot_delete_them_takes_no_outbox_for_empty(postgres, as_relay, cause, said):
    add(postgres, *(Message("t", b"%d" % number) for number in range(5)))
    *_, (_, text) = found(engine := create_engine(as_relay))
    assert "rows that wait in txbridge_outbox: 5" in text
    running = OutboxRows(engine)
    assert len(running.read_rows(0)) == 5
    with postgres.begin() as connection:
        connection.exec_driver_sql(cause.format(user=as_relay.username))
    if cause == POLICY:
        # One that runs already does not overlook it, and neither does a service that stores and forwards.
        with pytest.raises(DBAPIError, match="row-level security"):
            running.read_rows(0)
        with engine.connect() as connection, pytest.raises(DBAPIError, match="row-level security"):
            SqlForwarding(Outbox(), None).verify(connection)
    [(level, text)] = found(engine)
    assert level == "problem"
    assert said in text
    running.close()
    engine.dispose()
    if cause == POLICY:
        with postgres.begin() as connection:
            connection.exec_driver_sql(f"ALTER ROLE {as_relay.username} BYPASSRLS")
        *_, (_, text) = found(engine)
        assert "rows that wait in txbridge_outbox: 5" in text


def conninfo(url):
    return url.replace("+psycopg", "")


def test_what_is_missing_or_wrong_gets_a_sentence(url, tmp_path):
    [(level, text)] = found(url)
    assert level == "problem"
    assert "txbridge_outbox" in text
    assert "`txbridge relay --ddl` prints" in text
    nowhere = "postgresql+psycopg://me:s3cret@127.0.0.1:1/db"
    [(level, text)] = found(nowhere)
    assert level == "unknown"
    assert text.startswith("the outbox in postgresql+psycopg://me:***@127.0.0.1:1/db cannot be used: ")
    with pytest.raises(UsageError, match="--database-url cannot be used"):
        OutboxExamination("no url", "txbridge_outbox")
    with pytest.raises(UsageError, match="is not found"):
        OutboxExamination(f"sqlite:///{tmp_path}/x.db", "nowhere:TABLE")


def test_the_outbox_is_examined_where_no_worker_is_installed(sqlite_url):
    """In the image of a relay there is no Faust and no aiokafka."""
    engine = create_engine(sqlite_url)
    create_outbox(engine)
    engine.dispose()
    program = "import sys; sys.modules['aiokafka'] = None; from txbridge.cli.app import app; app()"
    flags = ("--bootstrap-servers", "127.0.0.1:1", "--relay", "--database-url", sqlite_url, "--format", "json")
    done = subprocess.run(
        [sys.executable, "-c", program, "doctor", *flags], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    found = [(one["check"], one["level"], one["text"]) for one in json.loads(done.stdout)["findings"]]
    why = "the examination connects as a worker does, through aiokafka: pip install 'txbridge[worker]'"
    assert found == [("connection", "unknown", f"Kafka is not examined: {why}"), ("relay", *EMPTY)]
