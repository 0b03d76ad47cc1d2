"""Mistakes in the options of the commands that work with a database: each gets a sentence that says what to do."""

from __future__ import annotations

import os

import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError
from txbridge_sqlalchemy import transactions

from tests.support.command_line import MARK, run_txbridge
from txbridge.cli.database import asking
from txbridge.errors import DatabaseUnreachableError

#: What each command needs besides. Nobody listens there.
NEEDED = {
    "purge": [],
    "relay": ["--bootstrap-servers", "127.0.0.1:1"],
    "answer-checks": ["--bootstrap-servers", "127.0.0.1:1", "--group", "a"],
}
NO_URL = "--database-url (or TXBRIDGE_DATABASE_URL) is missing"


@pytest.mark.parametrize(
    ("command", "url", "words", "said"),
    [
        ("purge", "", [], NO_URL),
        ("relay", "", [], f"{NO_URL}: name the database of the outbox"),
        ("answer-checks", "", [], NO_URL),
        ("purge", f"no url {MARK}", [], "--database-url cannot be used (ArgumentError)"),
        ("relay", f"nosuch://u:{MARK}@h/d", [], "--database-url cannot be used"),
        ("answer-checks", f"mysql+mysqldb://u:{MARK}@h/d", [], "driver is not installed: MySQLdb"),
        ("purge", "sqlite+aiosqlite:///x", [], "names aiosqlite, an asynchronous driver"),
        ("purge", f"postgresql+psycopg://u:a@{MARK}@h/d", [], "more than one @: write those of user and password as"),
        ("purge", f"postgresql+psycopg://u:{MARK}@127.0.0.1:1/d?a={MARK}", [], "u:***@127.0.0.1:1/d?*** could not be"),
        ("purge", "{empty}", [], "has no table txbridge_transactions: `create_table`"),
        ("relay", "{empty}", [], "no such table: txbridge_outbox"),
        ("answer-checks", "{empty}", [], "no such table: txbridge_transactions"),
        ("relay", "{empty}", ["--table", "nowhere:TABLE"], "No module named 'nowhere'"),
        ("relay", "{empty}", ["--table", "os:sep"], "names no OutboxTable but str"),
        ("answer-checks", "{half}", ["--group", "a b"], "cannot be a producer group"),
        ("purge", "{empty}", ["--older-than", "8"], "--older-than takes a number and a unit"),
        ("purge", "{empty}", ["--older-than", "0d"], "--older-than must be longer than 0d"),
        ("purge", "{empty}", ["--older-than", "59m"], "--older-than must be 1h at least, not 59m"),
        ("purge", "{empty}", ["--older-than", "999999999d"], "has no table"),
        ("purge", "{empty}", ["--inbox-older-than", "x"], "--inbox-older-than takes a number"),
        ("purge", "{half}", ["--inbox-older-than", "9d"], "has no table txbridge_inbox"),
        ("purge", "{empty}", ["--batch", "0"], "--batch"),
    ],
)
def test_a_mistake_gets_a_sentence(tmp_path, command, url, words, said):
    engine = create_engine(f"sqlite:///{tmp_path}/half.db")
    transactions.create(engine)
    engine.dispose()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TXBRIDGE_")}
    filled = url.format(empty=f"sqlite:///{tmp_path}/empty.db", half=f"sqlite:///{tmp_path}/half.db")
    given = [*NEEDED[command], *(["--database-url", filled] if url else []), *words]
    done = run_txbridge(command, *given, env=environment, timeout=120)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert MARK not in done.stderr


def test_answer_checks_needs_a_group():
    assert "--group is missing: name a producer group" in run_txbridge("answer-checks", timeout=120).stderr


def test_a_connection_that_breaks_while_a_table_is_looked_at_is_no_mistake():
    with pytest.raises(DatabaseUnreachableError), asking(create_engine("sqlite://"), "{}"):
        raise OperationalError("SELECT 1", {}, Exception("terminating connection"), connection_invalidated=True)
