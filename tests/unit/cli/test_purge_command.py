"""`txbridge purge` as a process: what it deletes and reports."""

from __future__ import annotations

import json
import os
import time

import pytest
from sqlalchemy import create_engine, insert, select
from txbridge_sqlalchemy import create_inbox_table, transactions
from txbridge_sqlalchemy.inbox_table import inbox

from tests.support import sql_application
from tests.support.command_line import run_txbridge

DAY_MS = 86_400_000


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    """A database with txbridge's tables: rows of 40, 9, 3 and 0 days, one of 40 days in the inbox."""
    made = f"sqlite:///{tmp_path}/app.db"
    if request.param == "postgresql":
        server = request.getfixturevalue("postgres_url")
        made = sql_application.in_new_schema(server, f"p{time.time_ns()}")
    engine, now = sql_application.create(made), time.time_ns() // 1_000_000
    with engine.begin() as connection:
        young = ("E", "committed", 0)
        rows = [("A", "committed", 40), ("B", "committed", 9), ("C", "rolled back", 9), ("D", "committed", 3), young]
        values = [{"id": name * 32, "state": state, "created_at": now - days * DAY_MS} for name, state, days in rows]
        connection.execute(insert(transactions), values)
        connection.execute(insert(inbox).values(consumer="c", source="s", number=1, created_at=now - 40 * DAY_MS))
    engine.dispose()
    return made


def run(*words, **more):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TXBRIDGE_")}
    return run_txbridge("purge", *words, env={**environment, **more}, timeout=120)


def left(url):
    """First letters of the rows of transactions, and the number of rows of the inbox."""
    engine = create_engine(url)
    with engine.connect() as connection:
        ids = sorted(one[0] for one in connection.execute(select(transactions.c.id)).scalars() if one != "purged")
        rows = len(connection.execute(select(inbox)).all())
    engine.dispose()
    return "".join(ids), rows


def test_the_default_is_eight_days_and_leaves_the_inbox(url):
    done = run(TXBRIDGE_DATABASE_URL=url)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("txbridge_transactions: 2 rows deleted, older than 20")
    assert left(url) == ("CDE", 1)
    assert run("--database-url", url).stdout.startswith("txbridge_transactions: 0 rows deleted, ")


def test_both_tables_with_ages_as_json(url):
    words = ("--database-url", url, "--older-than", "2d", "--inbox-older-than", "39d", "--format", "json")
    counted = json.loads(run(*words, "--dry-run").stdout)
    assert counted["dry_run"] is True
    assert left(url) == ("ABCDE", 1)
    deleted = json.loads(run(*words, "--batch", "1").stdout)
    assert [(one["table"], one["rows"]) for one in deleted["tables"]] == [
        ("txbridge_transactions", 3),
        ("txbridge_inbox", 1),
    ]
    assert [one["rows"] for one in counted["tables"]] == [3, 1]
    assert left(url) == ("CE", 0)


def test_a_dry_run_leaves_no_mark(url):
    assert run("--database-url", url, "--dry-run").stdout.startswith("txbridge_transactions: 2 rows would be deleted, ")
    engine = create_engine(url)
    with engine.connect() as connection:
        assert connection.execute(select(transactions.c.id).where(transactions.c.id == "purged")).first() is None
    engine.dispose()


def test_a_consumer_has_an_inbox_alone(tmp_path):
    url = f"sqlite:///{tmp_path}/consumer.db"
    engine = create_engine(url)
    create_inbox_table(engine)
    engine.dispose()
    done = run("--database-url", url, "--inbox-older-than", "30d")
    assert done.stdout.startswith("txbridge_inbox: 0 rows deleted, ")
    assert done.returncode == 0


def test_a_database_that_refuses_is_named(url, tmp_path):
    """Here the table is another one, and has no column created_at."""
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE txbridge_transactions")
        connection.exec_driver_sql("CREATE TABLE txbridge_transactions (id VARCHAR(32), state VARCHAR(16))")
    engine.dispose()
    done = run("--database-url", url)
    assert done.returncode == 2
    assert "could not be purged: " in done.stderr
    assert "created_at" in done.stderr
    assert "Traceback" not in done.stderr
