"""`txbridge doctor --relay` on SQLite and a real PostgreSQL: each finding, after its cause was made."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from types import SimpleNamespace

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError
from txbridge_sqlalchemy import Outbox, create_outbox
from txbridge_sqlalchemy.batch_writer import RowRefusal
from txbridge_sqlalchemy.forwarding import SqlForwarding
from txbridge_sqlalchemy.outbox_rows import OutboxRows
from txbridge_sqlalchemy.outbox_state import OutboxState
from txbridge_sqlalchemy.outbox_table import outbox

from tests.support.harness import eventually
from tests.support.postgres import Postgres
from txbridge import Message, UsageError
from txbridge.cli import relay_examination
from txbridge.cli.relay_examination import OutboxExamination
from txbridge.client.message import now_ms
from txbridge.kafka.errors import UnansweredError

NOBODY = ("problem", "no relay works on txbridge_outbox (nobody has its lock): its rows are not sent")
WORKS = ("ok", "a relay works on txbridge_outbox")
EMPTY = ("ok", "no row waits in txbridge_outbox")


#: What Kafka says about topics.
REFUSALS = {"gone": RowRefusal("topic gone does not exist", whole_topic=True), "small": RowRefusal("it is too large")}


class FakeWriter:
    """Judges rows by what Kafka would say, which the integration tests ask."""

    def __init__(self, kafka, _names):
        self.kafka = kafka

    def list_refusals(self, rows):
        if not self.kafka:
            raise UnansweredError("no answer in time")
        found = {row.id: RowRefusal(row.reason) for row in rows if row.message is None}
        return found | {row.id: REFUSALS[row.topic] for row in rows if row.topic in REFUSALS}


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(relay_examination, "BatchWriter", FakeWriter)
    monkeypatch.setattr(relay_examination, "_LOOK_AGAIN_S", 0.1)
    monkeypatch.setattr(relay_examination, "_GATE_PAUSE_S", 0.02)


def found(engine, table="txbridge_outbox", kafka="there"):
    """Levels and texts. Each finding that is not good says what to do."""
    address = engine if isinstance(engine, str) else engine.url.render_as_string(hide_password=False)
    findings = list(OutboxExamination(address, table).list_findings(kafka, ""))
    assert all(one.do or one.level.value == "ok" for one in findings)
    # A busy machine takes its time.
    return [(one.level.value, re.sub(r" for \d+s", " for 0s", one.text)) for one in findings]


@pytest.fixture
def relay(postgres):
    """The rows of a relay that has the outbox, and sends nothing."""
    rows = taken(postgres)
    yield rows
    rows.close()


def taken(engine):
    rows = OutboxRows(engine)
    state = OutboxState(engine, rows)
    state.take_outbox(state.read_state(), "me", ("topic", 0, 0))
    assert rows.try_lock()
    return rows


def add(engine, *messages):
    with engine.begin() as connection:
        Outbox().add(connection, *messages)


def test_a_relay_that_works_and_one_that_does_not(postgres):
    assert found(postgres) == [NOBODY, EMPTY]
    rows = taken(postgres)
    assert found(postgres) == [WORKS, EMPTY]
    OutboxState(postgres, rows).leave_outbox("me")
    stuck = ("problem", "a relay has the lock of txbridge_outbox, and has not taken it over: its rows are not sent")
    assert found(postgres) == [stuck, EMPTY]
    rows.close()
    assert found(postgres) == [NOBODY, EMPTY]
    # The examination has not kept the lock.
    assert rows.try_lock()
    rows.close()


def test_a_row_that_nobody_sends(engine):
    add(engine, Message("t", b"1"), Message("t", b"2"))
    *_, (level, text) = found(engine)
    assert level == "problem"
    assert text.startswith("rows that wait in txbridge_outbox: 2, the oldest for 0s; row 1 was not sent within 0s")


def test_rows_that_are_sent_meanwhile(postgres, relay, monkeypatch):
    add(postgres, Message("t", b"1"), Message("t", b"2"))
    statement = outbox.delete().where(outbox.c.id == 1)

    def send_one(_seconds):
        with postgres.begin() as connection:
            connection.execute(statement)

    monkeypatch.setattr(relay_examination, "time", SimpleNamespace(sleep=send_one))
    assert found(postgres)[1:] == [("ok", "rows that wait in txbridge_outbox: 1, the oldest for 0s; they are sent")]


def test_rows_that_cannot_be_sent_are_named_and_delay_no_other(engine):
    messages = [Message("gone", b"secret"), Message("gone", b"secret"), Message("small", b"secret", key=b"k")]
    add(engine, *messages, Message("small", b"secret", key=b"k"), Message("t", b"later", delay=3_600))
    with engine.begin() as connection:
        connection.execute(outbox.insert().values(topic="t", value=b"secret", headers="no list", created_at=now_ms()))
    *_, (level, blocked), rows = found(engine)
    assert level == "warning"
    assert blocked.startswith(
        "3 rows of txbridge_outbox cannot be sent, and later rows of the same topic or key wait for them: 1 (topic "
        "gone does not exist), 3 (it is too large), 6 ("
    )
    assert "secret" not in blocked
    waiting = "rows that wait in txbridge_outbox: 6, the oldest for 0s"
    assert rows == ("ok", f"{waiting}; none of them can be sent now, or is due")
    # Without an answer of Kafka's only rows are known that no relay could read.
    *_, (_, blocked), (level, text) = found(engine, kafka="")
    assert blocked.startswith("1 row of txbridge_outbox cannot be sent")
    assert (level, text) == ("problem", f"{waiting}; row 1 was not sent within 0s")
    add(engine, Message("t", b"1"))
    *_, (level, text) = found(engine)
    assert level == "problem"
    assert text.endswith("; row 7 was not sent within 0s")


def test_a_transaction_that_holds_rows_up_is_named():
    with Postgres(max_prepared_transactions="1") as server:
        engine = create_engine(server.url)
        create_outbox(engine)
        relay = taken(engine)
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
        relay.close()
        engine.dispose()


def test_a_transaction_without_an_xid_that_holds_rows_up_is_named(postgres, relay):
    """It has found no row to delete, and could still add one."""
    with psycopg.connect(conninfo(postgres.url.render_as_string(hide_password=False))) as holding:
        holding.execute("DELETE FROM txbridge_outbox WHERE id = -1")
        add(postgres, Message("t", b"1"))
        assert relay.read_rows() == []
        *_, (level, text) = found(postgres)
        assert level == "warning"
        assert f"that has written to it: process {holding.info.backend_pid} (" in text


def test_a_row_that_nobody_sends_is_found_while_transactions_follow_one_another(postgres, relay, monkeypatch):
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
        eventually(lambda: relay.count_waiting().rows > 2)
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
            f"GRANT SELECT, INSERT, UPDATE ON txbridge_outbox_relay TO {user}"
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
    "REVOKE UPDATE ON txbridge_outbox_relay FROM {user}": "permission denied for table txbridge_outbox_relay; give",
    # As on a standby.
    "ALTER ROLE {user} SET default_transaction_read_only = on": "in a read-only transaction",
}


@pytest.mark.parametrize(("cause", "said"), BLIND.items())
def test_who_does_not_see_all_rows_or_cannot_delete_them_takes_no_outbox_for_empty(postgres, as_relay, cause, said):
    add(postgres, *(Message("t", b"%d" % number) for number in range(5)))
    *_, (_, text) = found(engine := create_engine(as_relay))
    assert "rows that wait in txbridge_outbox: 5" in text
    running = OutboxRows(engine)
    assert len(running.read_rows()) == 5
    with postgres.begin() as connection:
        connection.exec_driver_sql(cause.format(user=as_relay.username))
    if cause == POLICY:
        # One that runs already does not overlook it, and neither does a service that stores and forwards.
        with pytest.raises(DBAPIError, match="row-level security"):
            running.read_rows()
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


def test_the_outbox_is_examined_without_kafka_where_no_worker_is_installed(sqlite_url):
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
    kafka, outbox = [(one["check"], one["level"], one["text"]) for one in json.loads(done.stdout)["findings"]]
    assert kafka[:2] == ("connection", "unknown")
    assert kafka[2].startswith("Kafka cannot be reached")
    assert outbox == ("relay", *EMPTY)
