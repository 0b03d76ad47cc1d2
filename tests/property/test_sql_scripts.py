"""Any SQL that an application may run: the listener answers COMMIT exactly when the application's rows are there.

Hypothesis writes scripts of statements that succeed or fail, of errors that are swallowed or raised, of savepoints, and
of transactions that end too early. Each runs on a real SQLite and on a real PostgreSQL, with the plain listener, the
asynchronous one and Django's. The rows that a fresh connection sees afterwards are compared with the answer, and with
the answer to a check.
"""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Column, ForeignKey, Integer, MetaData, String, Table, create_engine, event, insert, select, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, registry
from txbridge_sqlalchemy import LostTransactionError, create_table

from tests.support.django_work import DjangoError, DjangoListener, DjangoWork
from tests.support.mariadb import in_new_database
from tests.support.sql_application import COMMIT, ROLLBACK, UNKNOWN, in_new_schema, message
from tests.support.sql_service import SqlService
from txbridge import Rollback
from txbridge.client.listener import execute

tables = MetaData()
rows = Table("rows", tables, Column("id", Integer, primary_key=True), Column("owner", String(32), nullable=False))
lines = Table(
    "lines",
    tables,
    Column("id", Integer, primary_key=True),
    Column("row", Integer, ForeignKey("rows.id", deferrable=True, initially="DEFERRED")),
)
mapper = registry()


class Row:
    """The same table as a class of the ORM."""


mapper.map_imperatively(Row, rows)

#: A row that is there from the beginning, so that a second insert of it fails.
TAKEN = 1
_numbers = itertools.count(2)

#: The steps of a script. `text_...` sends the statement past SQLAlchemy; the others call its methods.
STEPS = (
    "place",
    "refused",
    "refused_or_rollback",
    "refused_in_savepoint",
    "savepoint_released",
    "savepoint_left_open",
    "savepoint_rolled_back",
    "line_without_row",
    "pending_object",
    "pending_object_refused",
    "text_commit",
    "text_rollback",
    "text_begin",
    "text_savepoint",
    "commit",
    "rollback",
    "close",
)
ENDS = ("None", "True", "False", "Rollback", "error")


#: What the application swallows.
ERRORS = (SQLAlchemyError, DjangoError)


class Boom(Exception):  # noqa: N818
    """The application's own error."""


@dataclass
class Script:
    steps: list[str]
    end: str
    swallows: bool
    owner: str = ""
    #: Number of the row that is inserted first, right after the listener's own row.
    marker: int = field(default_factory=lambda: next(_numbers))

    def run(self, work, placed, _):
        self._place(work, self.marker)
        for step in self.steps:
            with contextlib.suppress(*ERRORS if self.swallows else []):
                getattr(self, f"_{step}")(work)
        if self.end == "Rollback":
            raise Rollback
        if self.end == "error":
            raise Boom
        return {"None": None, "True": True, "False": False}[self.end]

    def _place(self, work, number=None):
        work.execute(insert(rows).values(id=next(_numbers) if number is None else number, owner=self.owner))

    def _refused(self, work):
        self._place(work, TAKEN)

    def _refused_or_rollback(self, work):
        statement = insert(rows).values(id=TAKEN, owner=self.owner)
        work.execute(statement.prefix_with("OR ROLLBACK", dialect="sqlite"))

    def _refused_in_savepoint(self, work):
        with contextlib.suppress(*ERRORS), work.begin_nested():
            self._place(work, TAKEN)

    def _savepoint_released(self, work):
        with work.begin_nested():
            self._place(work)
            with work.begin_nested():
                self._place(work)

    def _savepoint_left_open(self, work):
        work.begin_nested()
        self._place(work)

    def _savepoint_rolled_back(self, work):
        savepoint = work.begin_nested()
        self._place(work)
        savepoint.rollback()

    def _line_without_row(self, work):
        """Insert a row that makes COMMIT fail."""
        work.execute(insert(lines).values(row=0))

    def _pending_object(self, work, number=None):
        """Add an object that is inserted when the session is flushed, at the latest by the commit."""
        values = {"id": next(_numbers) if number is None else number, "owner": self.owner}
        if isinstance(work, DjangoWork):
            work.save(rows, values)
        elif isinstance(work, Session):
            row = Row()
            row.id, row.owner = values.values()
            work.add(row)

    def _pending_object_refused(self, work):
        self._pending_object(work, TAKEN)

    def _text_commit(self, work):
        work.execute(text("COMMIT"))

    def _text_rollback(self, work):
        work.execute(text("ROLLBACK"))

    def _text_begin(self, work):
        work.execute(text("BEGIN"))

    def _text_savepoint(self, work):
        work.execute(text("SAVEPOINT by_text"))

    def _commit(self, work):
        work.commit()

    def _rollback(self, work):
        work.rollback()

    def _close(self, work):
        work.close()


@pytest.fixture(scope="module")
def engine(request, tmp_path_factory):
    if request.param == "sqlite":
        made = create_engine(f"sqlite:///{tmp_path_factory.mktemp('scripts')}/app.db?timeout=0.2")
        event.listen(made, "connect", check_foreign_keys)
    elif request.param == "mariadb":
        made = create_engine(in_new_database(request.getfixturevalue("mariadb_server"), "scripts"))
        with made.begin() as connection:  # it has no constraints that wait for COMMIT
            rows.create(connection)
            line = "id INTEGER PRIMARY KEY AUTO_INCREMENT, `row` INTEGER REFERENCES `rows` (id)"
            connection.exec_driver_sql(f"CREATE TABLE `lines` ({line})")
    else:
        made = create_engine(in_new_schema(request.getfixturevalue("postgres_url"), "scripts"))
    create_table(made)
    tables.create_all(made)
    with made.begin() as connection:
        connection.execute(insert(rows).values(id=TAKEN, owner=""))
    yield made
    made.dispose()


@pytest.fixture(scope="module")
def listener(request, engine):
    driver, _, opens = request.param.rpartition("-")
    if opens == "django":
        made = DjangoListener(engine, Script.run)
    else:
        form = {"": opens, "connection": "asyncio", "session": "asyncio-session"}[opens if driver else ""]
        url = engine.url.render_as_string(hide_password=False)
        made = SqlService(
            url, form, lambda *call: call[-1].run(*call), driver=driver, on_connect=check_foreign_keys, check_wait=0.3
        )
    made.verify()
    yield made
    made.close()


def check_foreign_keys(dbapi, _):
    """SQLite does not by itself."""
    if "sqlite" in type(dbapi).__module__:
        dbapi.execute("PRAGMA foreign_keys = ON")


#: The database, and the way in which the transaction is opened. Asynchronous drivers share most code.
CASES = [
    *itertools.product(("sqlite", "postgresql", "mariadb"), ("connection", "session", "django")),
    ("postgresql", "asyncpg-session"),
    *(
        pytest.param(database, f"{driver}-{opens}", marks=pytest.mark.long)
        for database, driver, opens in (
            ("postgresql", "asyncpg", "connection"),
            ("postgresql", "psycopg", "connection"),
            ("postgresql", "psycopg", "session"),
            ("sqlite", "aiosqlite", "connection"),
            ("sqlite", "aiosqlite", "session"),
            ("mariadb", "asyncmy", "connection"),
        )
    ),
]
_ids = itertools.count(1)


@pytest.mark.parametrize(("engine", "listener"), CASES, indirect=True)
@given(steps=st.lists(st.sampled_from(STEPS), max_size=5), end=st.sampled_from(ENDS), swallows=st.booleans())
def test_the_answer_is_commit_exactly_when_the_rows_are_there(engine, listener, steps, end, swallows):
    name = f"{next(_ids):032X}"
    script = Script(steps, end, swallows, owner=name)
    outcome = execute(listener.execute_local_transaction, message(name), script)
    # There is an error only from the function, from COMMIT, from a savepoint that was left open and that the database
    # has lost, or because the transaction was over.
    may_fail = {"line_without_row", "pending_object", "pending_object_refused", "savepoint_left_open"} & set(steps)
    expected = end == "error" or not swallows or may_fail
    assert outcome.exception is None or isinstance(outcome.exception, Rollback | LostTransactionError) or expected
    with engine.connect() as connection:
        found = set(connection.execute(select(rows.c.id).where(rows.c.owner == name)).scalars())
    if outcome.state is UNKNOWN:
        # The function has raised an error after a commit of its own.
        assert script.marker in found
        assert outcome.exception is not None
    else:
        assert outcome.state is (COMMIT if script.marker in found else ROLLBACK)
    if not {"text_commit", "commit", *(["text_begin"] if engine.dialect.name == "mysql" else [])} & set(steps):
        # All rows or none are there, unless the application itself committed some; on MySQL, BEGIN does.
        assert script.marker in found or not found
    # No transaction runs any more, so a check gets a definite answer.
    assert listener.check_local_transaction(message(name)) is (COMMIT if script.marker in found else ROLLBACK)
