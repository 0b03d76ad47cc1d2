"""SqlTransactionListener on SQLite and a real PostgreSQL: the data and every answer agree, even with faults between."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from sqlalchemy import create_engine, event, insert, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker
from txbridge_sqlalchemy import LostTransactionError, SqlTransactionListener, create_table, transactions

from tests.support import sql_application
from tests.support.harness import eventually
from tests.support.listeners import answer_of
from tests.support.sql_application import (
    COMMIT,
    ROLLBACK,
    UNKNOWN,
    message,
    number,
    orders,
    place,
    place_async,
    state_of,
)
from tests.support.sql_service import SqlService
from tests.support.stopped import wait_stopped
from txbridge import Rollback, UsageError
from txbridge.client import listener as client
from txbridge.client.answers import RolledBackByCheck

ID = "0123456789ABCDEF" * 2
MESSAGE = message(ID)


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    transaction_id: Mapped[str]


@pytest.fixture
def listener(engine):
    return SqlTransactionListener(engine, place, check_wait=0.3)


def rows(engine, table=orders):
    with engine.connect() as connection:
        return connection.execute(select(table).order_by(table.c.id)).all()


class Running:
    """A local transaction that stays in its function until the test ends it. None commits, an exception is raised."""

    def __init__(self, engine):
        self._entered, self._end = threading.Event(), threading.Event()
        self._how = None
        self._listener = SqlTransactionListener(engine, self._run)
        self._pool = ThreadPoolExecutor(1)
        self._answer = self._pool.submit(answer_of, self._listener.execute_local_transaction, MESSAGE, 1)
        assert self._entered.wait(120)

    def _run(self, connection, placed, arg):
        place(connection, placed, arg)
        self._entered.set()
        assert self._end.wait(120)
        if self._how is not None:
            raise self._how

    def end(self, how=None):
        self._how = how
        self._end.set()
        self._pool.shutdown()
        return self._answer.result(0)


@pytest.fixture(params=["connection", "session", "asyncio"])
def make(request, url, engine):
    """Make listeners of each form."""
    made = []

    def make(function=place, **options):
        made.append(SqlService(url, request.param, function, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_data_and_answer_are_committed_together(engine, make, listener):
    service = make()
    assert service.execute_local_transaction(MESSAGE, 1) is COMMIT
    assert rows(engine) == [(1, ID)]
    (identity, (transaction_id, state, created_at)) = sorted(rows(engine, transactions), reverse=True)
    assert (identity.id, identity.created_at) == ("barrier", 2**63 - 1)
    # The row is as old as its message.
    assert (transaction_id, state, created_at) == (ID, "committed", MESSAGE.born_timestamp) == (ID, "committed", 2)
    assert service.check_local_transaction(MESSAGE) is COMMIT
    # All forms read the same table.
    assert listener.check_local_transaction(MESSAGE) is COMMIT
    # It is executed once.
    assert service.execute_local_transaction(MESSAGE, 2) is COMMIT
    assert rows(engine) == [(1, ID)]


@pytest.mark.parametrize("binds", [{}, {Order: None}], ids=["one", "by class"])
def test_a_session_is_given_when_a_sessionmaker_was(engine, binds):
    def place_order(session, placed, arg):
        session.add(Order(id=arg, transaction_id=placed.transaction_id))
        return True

    made = sessionmaker(engine, binds=dict.fromkeys(binds, engine))
    listener = SqlTransactionListener(made, place_order)
    assert listener.execute_local_transaction(MESSAGE, 1) is COMMIT
    assert rows(engine) == [(1, ID)]
    assert listener.check_local_transaction(MESSAGE) is COMMIT


@pytest.mark.parametrize("how", ["False", "Rollback"])
def test_the_function_can_roll_back_with_a_reason(engine, make, how, caplog):
    def refuse(work, placed, arg):
        place(work, placed, arg)
        if how == "Rollback":
            raise Rollback("sold out")
        return False

    service = make(refuse)
    with pytest.raises(Rollback, match="^sold out$" if how == "Rollback" else "^$"):
        service.execute_local_transaction(MESSAGE, 1)
    assert rows(engine) == []
    assert state_of(engine, ID) is None
    assert caplog.records == []
    assert service.check_local_transaction(MESSAGE) is ROLLBACK
    assert state_of(engine, ID) == "rolled back"
    with pytest.raises(RolledBackByCheck, match="a check was first"):
        service.execute_local_transaction(MESSAGE, 1)
    assert rows(engine) == []
    assert [(record.event, record.levelname) for record in caplog.records] == [("check_was_first", "WARNING")]


def test_a_function_that_could_not_be_called_is_refused(engine):
    with pytest.raises(UsageError, match="a coroutine function"):
        SqlTransactionListener(engine, place_async)
    with pytest.raises(UsageError, match=r"cannot be called with \(connection, message, arg\)"):
        SqlTransactionListener(engine, lambda message, arg: None)
    with pytest.raises(UsageError, match="has no function for its local transactions"):
        SqlTransactionListener(engine).execute_local_transaction(MESSAGE, 1)


def outcome_of(listener, placed=MESSAGE):
    """What the client makes of the local transaction: its answer, and the class of the exception."""
    outcome = client.execute(listener.execute_local_transaction, placed, 1)
    return outcome.state, type(outcome.exception)


def test_another_exception_gets_out_after_the_rollback_which_is_the_answer(engine, make):
    def fail(work, placed, arg):
        place(work, placed, arg)
        raise ZeroDivisionError

    service = make(fail)
    with pytest.raises(ZeroDivisionError):
        service.execute_local_transaction(MESSAGE, 1)
    assert rows(engine) == []
    assert outcome_of(service) == (ROLLBACK, ZeroDivisionError)
    assert state_of(engine, ID) is None
    assert service.check_local_transaction(MESSAGE) is ROLLBACK


def test_the_functions_own_conflict_is_an_exception_like_any_other(engine, make):
    with engine.begin() as connection:
        connection.execute(insert(orders).values(id=1, transaction_id="other"))
    assert outcome_of(make()) == (ROLLBACK, IntegrityError)
    assert rows(engine) == [(1, "other")]


def test_a_pool_without_a_connection_is_a_rollback(url, engine):
    full = create_engine(url, pool_size=1, max_overflow=0, pool_timeout=0.1)
    listener = SqlTransactionListener(full, place)
    listener.verify()
    with full.connect():
        assert outcome_of(listener) == (ROLLBACK, PoolTimeoutError)
    full.dispose()


@pytest.mark.parametrize("asks", [True, False], ids=["", "table out of reach"])
@pytest.mark.parametrize("end", ["KeyError", "COMMIT, KeyError", "COMMIT, Rollback"])
def test_only_what_the_function_may_have_committed_is_no_rollback(engine, make, end, asks):
    def refuse(*_):
        raise OperationalError("no connection", {}, Exception())

    def run(work, placed, arg):
        place(work, placed, arg)
        if end.startswith("COMMIT"):
            work.execute(text("COMMIT"))
        if not asks:
            event.listen(getattr(service.engine, "sync_engine", service.engine), "checkout", refuse)
        raise Rollback if end.endswith("Rollback") else KeyError(arg)

    service = make(run)
    state, error = outcome_of(service)
    assert rows(engine) == ([] if end == "KeyError" else [(1, ID)])
    if end == "KeyError":
        assert (state, error) == (ROLLBACK, KeyError)
    elif asks and end.endswith("Rollback"):
        assert (state, error) == (COMMIT, type(None))
    else:
        assert (state, error) == (UNKNOWN, KeyError if asks else OperationalError)


@pytest.mark.parametrize("form", ["connection", "asyncio"])
@pytest.mark.parametrize("where", ["function", "COMMIT", "after COMMIT"])
def test_an_interrupted_transaction_is_rolled_back_before_its_commit_is_sent(url, engine, form, where):
    """KeyboardInterrupt, or a task that is cancelled: the client then asks for what is known, and waits for nothing."""

    def run(work, placed, arg):
        place(work, placed, arg)
        if where == "function":
            raise KeyboardInterrupt

    service, placed = SqlService(url, form, run), message(ID)
    service.verify()
    dialect = getattr(service.engine, "sync_engine", service.engine).dialect
    send = dialect.do_commit.args[0]

    def commit(pooled):
        if where == "after COMMIT":
            send(pooled)
        raise KeyboardInterrupt

    if where != "function":
        dialect.do_commit = partial(dialect.do_commit.func, commit)
    with pytest.raises(KeyboardInterrupt):
        service.execute_local_transaction(placed, 1)
    outcome = client.execution_failed(placed, KeyboardInterrupt())
    assert (outcome.state, outcome.exception) == (ROLLBACK if where == "function" else UNKNOWN, None)
    assert len(rows(engine)) == (where == "after COMMIT")
    service.close()


@pytest.mark.parametrize("answer", [COMMIT, ROLLBACK, 0, "no"])
def test_an_answer_that_may_be_a_mistake_is_rolled_back(engine, answer):
    def place_order(connection, placed, arg):
        place(connection, placed, arg)
        return answer

    with pytest.raises(UsageError, match="returns None or True to commit and False to roll back"):
        SqlTransactionListener(engine, place_order).execute_local_transaction(MESSAGE, 1)
    assert rows(engine) == []
    assert state_of(engine, ID) is None


both = pytest.mark.parametrize("factory", [lambda engine: engine, sessionmaker], ids=["connection", "session"])


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_an_error_that_an_event_of_the_session_swallows_is_no_commit(engine):
    """The error comes after all work of the function, right before the COMMIT."""
    factory = sessionmaker(engine)

    def swallow(session):
        with contextlib.suppress(DBAPIError):
            session.execute(text("SELECT 1/0"))

    def place_order(session, placed, arg):
        place(session, placed, arg)
        event.listen(session, "before_commit", swallow)

    with pytest.raises(LostTransactionError):
        SqlTransactionListener(factory, place_order).execute_local_transaction(MESSAGE, 1)
    assert rows(engine) == []

    # If the check's own row cannot be committed either, it raises an error instead of rolling back.
    event.listen(factory, "before_commit", swallow)
    with pytest.raises(LostTransactionError, match="the database has rolled the transaction back"):
        SqlTransactionListener(factory, place).check_local_transaction(message("0" * 32))
    assert state_of(engine, "0" * 32) is None


@pytest.mark.parametrize("by_cursor", [False, True], ids=["by SQLAlchemy", "by the driver"])
def test_a_handler_of_commit_that_ends_the_transaction_is_no_commit(engine, make, by_cursor):
    """It was registered after the listener, so it runs when all handlers before it have found nothing wrong."""
    ending = []

    def end(connection):
        if ending:
            ending.clear()
            if by_cursor:
                connection.connection.cursor().execute("ROLLBACK")
            else:
                connection.exec_driver_sql("ROLLBACK")

    service = make()
    service.verify()
    event.listen(getattr(service.engine, "sync_engine", service.engine), "commit", end)
    ending.append(True)
    with pytest.raises(LostTransactionError):
        service.execute_local_transaction(MESSAGE, 1)
    assert rows(engine) == []
    assert service.check_local_transaction(MESSAGE) is ROLLBACK


@pytest.mark.parametrize("open_one", [True, False], ids=["left open", "rolled back"])
def test_a_savepoint_that_is_left_open_is_committed_with_the_rest(engine, make, open_one):
    def place_order(work, placed, arg):
        place(work, placed, arg)
        savepoint = work.begin_nested()
        place(work, placed, arg + 1)
        if not open_one:
            savepoint.rollback()

    assert make(place_order).execute_local_transaction(MESSAGE, 1) is COMMIT
    assert rows(engine) == ([(1, ID), (2, ID)] if open_one else [(1, ID)])


@both
@pytest.mark.parametrize("itself", [False, True], ids=["our commit", "its own commit"])
def test_a_constraint_that_fails_at_commit_is_a_rollback(url, factory, itself):
    engine = create_engine(url)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", lambda dbapi, _: dbapi.execute("PRAGMA foreign_keys = ON"))
    create_table(engine)
    sql_application.tables.create_all(engine)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE lines (id INTEGER REFERENCES orders (id) DEFERRABLE INITIALLY DEFERRED)"))

    def place_line(work, placed, arg):
        work.execute(text("INSERT INTO lines (id) VALUES (5)"))
        if itself:
            work.commit()

    listener = SqlTransactionListener(factory(engine), place_line)
    assert outcome_of(listener) == (ROLLBACK, IntegrityError)
    # Also on the connection that was used: SQLite's transaction would still be open.
    with engine.connect() as connection:
        assert connection.execute(text("SELECT id FROM lines")).all() == []
    assert listener.check_local_transaction(MESSAGE) is ROLLBACK
    with engine.connect() as connection:
        assert connection.execute(text("SELECT id FROM lines")).all() == []
    engine.dispose()


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_a_serialization_failure_at_commit_is_a_rollback(url, engine):
    """Two transactions read each other's writes. The second one to commit is refused."""
    strict = create_engine(url, isolation_level="SERIALIZABLE")

    def read_and_place(connection, placed, arg):
        connection.execute(select(orders)).all()
        place(connection, placed, arg)
        with strict.begin() as other:
            other.execute(select(orders)).all()
            other.execute(insert(orders).values(id=2, transaction_id="other"))

    listener = SqlTransactionListener(strict, read_and_place)
    outcome = client.execute(listener.execute_local_transaction, MESSAGE, 1)
    assert (outcome.state, "could not serialize" in str(outcome.exception)) == (ROLLBACK, True)
    assert rows(engine) == [(2, "other")]
    assert listener.check_local_transaction(MESSAGE) is ROLLBACK
    strict.dispose()


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_our_row_makes_serializable_transactions_no_less_likely_to_commit(url, engine):
    """The listener does not read anything that other transactions write."""
    strict = create_engine(url, isolation_level="SERIALIZABLE", pool_size=4)
    listener = SqlTransactionListener(strict, lambda *_: None)
    listener.verify()
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE txbridge_transactions"))
    together = threading.Barrier(4)

    def run(number):
        answers = []
        for one in range(50):
            together.wait(60)
            answers.append(listener.execute_local_transaction(message(f"{one:031X}{number}"), 1))
        return answers

    with ThreadPoolExecutor(4) as pool:
        assert {answer for answers in pool.map(run, range(4)) for answer in answers} == {COMMIT}
    strict.dispose()


@pytest.fixture
def other(tmp_path):
    """Another database."""
    made = create_engine(f"sqlite:///{tmp_path}/other.db")
    sql_application.tables.create_all(made)
    yield made
    made.dispose()


class TwoPhase(Session):
    def __init__(self, **options):
        super().__init__(**options)
        self.twophase = True


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (lambda other, _: {"binds": {Order: other}}, "bound to 2 engines"),
        (lambda _, connection: {"binds": {Order: connection}}, "bind it to an Engine"),
        (lambda _, connection: {"bind": connection}, "bind it to an Engine"),
        (lambda *_: {"twophase": True}, "twophase"),
        # A session shows it only when it is made.
        (lambda *_: {"class_": TwoPhase}, "twophase"),
    ],
    ids=["two engines", "connection for a class", "connection", "two-phase", "two-phase class"],
)
def test_sessions_that_can_not_commit_all_in_one_transaction_are_refused(engine, other, options, problem):
    with engine.connect() as connection:
        given = {"bind": engine, **options(other, connection)}
        with pytest.raises(UsageError, match=problem):
            SqlTransactionListener(sessionmaker(**given), place).check_local_transaction(MESSAGE)


@pytest.mark.parametrize("swallowed", [False, True])
def test_a_session_that_uses_a_second_database_is_rolled_back_in_both(engine, other, swallowed):
    class Routed(Session):
        def get_bind(self, mapper=None, clause=None, **_):
            return other if mapper is not None else engine

    def place_in_both(session, placed, arg):
        place(session, placed, arg)
        with contextlib.suppress(UsageError) if swallowed else contextlib.nullcontext():
            session.add(Order(id=arg, transaction_id=placed.transaction_id))
            session.flush()

    listener = SqlTransactionListener(sessionmaker(class_=Routed), place_in_both)
    with pytest.raises(UsageError, match="second database"):
        listener.execute_local_transaction(MESSAGE, 1)
    assert rows(engine) == rows(other) == []
    assert listener.check_local_transaction(MESSAGE) is ROLLBACK


def test_a_session_whose_class_binds_it_to_a_connection_is_refused(engine):
    """Its COMMIT would be part of another transaction, and would never be sent."""
    with engine.connect() as connection, connection.begin():

        class Bound(Session):
            def get_bind(self, *_, **__):
                return connection

        listener = SqlTransactionListener(sessionmaker(class_=Bound), place)
        for ask in (lambda: listener.execute_local_transaction(MESSAGE, 1), listener.verify):
            with pytest.raises(UsageError, match="bind it to an Engine"):
                ask()
    assert rows(engine) == []


def test_after_a_check_the_transaction_can_not_be_executed(engine):
    called = []
    listener = SqlTransactionListener(engine, lambda *arguments: called.append(arguments))
    assert listener.check_local_transaction(MESSAGE) is ROLLBACK
    with pytest.raises(Rollback):
        listener.execute_local_transaction(MESSAGE, 1)
    assert called == []
    assert state_of(engine, ID) == "rolled back"


@pytest.mark.parametrize("commits", [True, False])
def test_a_check_does_not_judge_what_still_runs(engine, listener, commits):
    listener.verify()
    running = Running(engine)
    begun = time.monotonic()
    assert listener.check_local_transaction(MESSAGE) is UNKNOWN
    assert 0.2 < time.monotonic() - begun < 60
    assert running.end(None if commits else Rollback()) is (COMMIT if commits else ROLLBACK)
    assert listener.check_local_transaction(MESSAGE) is (COMMIT if commits else ROLLBACK)
    assert len(rows(engine)) == commits


@pytest.mark.parametrize("commits", [True, False])
def test_a_check_waits_for_a_transaction_that_is_about_to_end(url, engine, commits):
    patient = create_engine(url.replace("timeout=0.3", "timeout=20"))
    listener = SqlTransactionListener(patient, place, check_wait=20)
    listener.verify()
    running = Running(engine)
    with ThreadPoolExecutor(1) as pool:
        checked = pool.submit(listener.check_local_transaction, MESSAGE)
        time.sleep(0.3)
        assert not checked.done()
        assert running.end(None if commits else Rollback()) is (COMMIT if commits else ROLLBACK)
        assert checked.result(120) is (COMMIT if commits else ROLLBACK)
    patient.dispose()


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_a_strict_isolation_level_changes_no_answer(url, engine, level):
    strict = create_engine(url, isolation_level=level)
    listener = SqlTransactionListener(strict, place, check_wait=20)
    listener.verify()
    running = Running(strict)
    with ThreadPoolExecutor(1) as pool:
        checked = pool.submit(listener.check_local_transaction, MESSAGE)
        time.sleep(0.3)
        assert running.end() is COMMIT
        assert checked.result(120) in (COMMIT, UNKNOWN)
    assert listener.check_local_transaction(MESSAGE) is COMMIT
    strict.dispose()


def test_threads_that_check_and_execute_agree(url, engine):
    """Many transactions, each executed by one thread and checked by two others at the same time."""
    waits = create_engine(url.replace("timeout=0.3", "timeout=20"))
    listener = SqlTransactionListener(waits, place)
    listener.verify()
    together, answers = threading.Barrier(3), {}

    def run(name, ask):
        for order in range(60):
            asked = message(f"{order:032X}")
            together.wait(60)
            answers[name, order] = ask(asked, order)

    with ThreadPoolExecutor(3) as pool:
        done = [
            pool.submit(run, "execute", partial(answer_of, listener.execute_local_transaction)),
            pool.submit(run, "check", lambda asked, _: listener.check_local_transaction(asked)),
            pool.submit(run, "again", lambda asked, _: listener.check_local_transaction(asked)),
        ]
        for one in done:
            one.result(60)
    written = {row.id for row in rows(engine)}
    for order in range(60):
        expected = COMMIT if order in written else ROLLBACK
        assert {answers[name, order] for name in ("execute", "check", "again")} <= {expected, UNKNOWN}, order
    assert UNKNOWN not in {answers["execute", order] for order in range(60)}
    waits.dispose()


def test_processes_that_check_and_execute_agree(url, engine):
    url = url.replace("timeout=0.3", "timeout=120")
    ids = [f"{order:032X}" for order in range(200)]
    patient = create_engine(url)
    listener = SqlTransactionListener(patient, place)
    with sql_application.running("local", url, "never", "KILL", *ids) as process:
        eventually(lambda: rows(patient), 30)
        # The checks begin at the other end, until both meet.
        checked = {one: listener.check_local_transaction(message(one)) for one in reversed(ids)}
        executed = dict(zip(ids, process.communicate(timeout=600)[0].split(), strict=True))
    written = {row.transaction_id for row in rows(patient)}
    assert {one for one in ids if executed[one] == "COMMIT_MESSAGE"} == written
    assert {one for one in ids if checked[one] is COMMIT} <= written
    assert {one for one in ids if checked[one] is ROLLBACK}.isdisjoint(written)
    assert len(Counter(executed.values())) == 2, "the two processes did not meet"
    patient.dispose()


@pytest.mark.parametrize("point", sql_application.POINTS)
def test_a_process_that_stands_still_can_not_contradict_a_check(url, engine, listener, point):
    with sql_application.running("local", url, point, "STOP", ID) as process:
        wait_stopped(process)
        answer = listener.check_local_transaction(MESSAGE)
        process.send_signal(signal.SIGCONT)
        executed = process.communicate(timeout=300)[0].split()
    if point == "insert":
        assert (answer, executed) == (ROLLBACK, ["ROLLBACK_MESSAGE"])
    else:
        assert (answer, executed) == (COMMIT if point == "committed" else UNKNOWN, ["COMMIT_MESSAGE"])
    assert rows(engine) == ([] if point == "insert" else [(number(ID), ID)])
    assert listener.check_local_transaction(MESSAGE) is (ROLLBACK if point == "insert" else COMMIT)


@pytest.mark.parametrize("point", sql_application.POINTS)
def test_a_process_that_is_killed_is_judged_by_what_it_committed(url, engine, listener, point):
    with sql_application.running("local", url, point, "KILL", ID) as process:
        assert process.wait(120) == -signal.SIGKILL
    expected = COMMIT if point == "committed" else ROLLBACK
    # PostgreSQL needs a moment to see that its client is gone.
    eventually(lambda: listener.check_local_transaction(MESSAGE) is not UNKNOWN, 10)
    assert listener.check_local_transaction(MESSAGE) is expected
    assert len(rows(engine)) == (expected is COMMIT)


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("verified", [True, False])
def test_a_locked_table_does_not_hold_up_the_checks(engine, listener, verified):
    """A migration locks the table in this way."""
    if verified:
        listener.verify()
    with engine.begin() as connection:
        connection.execute(text("LOCK TABLE txbridge_transactions IN ACCESS EXCLUSIVE MODE"))
        begun = time.monotonic()
        assert listener.check_local_transaction(MESSAGE) is UNKNOWN
        assert time.monotonic() - begun < 60
    assert listener.check_local_transaction(MESSAGE) is ROLLBACK


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_a_connection_that_is_lost_in_the_transaction(engine):
    def lose(connection, placed, arg):
        place(connection, placed, arg)
        backend = connection.execute(text("SELECT pg_backend_pid()")).scalar()
        with engine.connect() as other:
            other.execute(text(f"SELECT pg_terminate_backend({backend}, 10000)"))

    listener = SqlTransactionListener(engine, lose)
    assert outcome_of(listener) == (ROLLBACK, OperationalError)
    assert listener.check_local_transaction(MESSAGE) is ROLLBACK
    assert rows(engine) == []


@pytest.mark.parametrize(
    "away",
    ["postgresql+psycopg://nobody@127.0.0.1:1/none?connect_timeout=2", "sqlite:////nowhere/at/all.db"],
    ids=["postgresql", "sqlite"],
)
def test_a_check_of_a_database_that_can_not_be_asked_is_unknown_and_no_rollback(away):
    engine = create_engine(away)
    listener = SqlTransactionListener(engine, place)
    assert outcome_of(listener) == (ROLLBACK, OperationalError)
    with pytest.raises(OperationalError):
        listener.check_local_transaction(MESSAGE)
    assert client.execute(listener.check_local_transaction, MESSAGE, failed=client.check_failed).state is UNKNOWN
    engine.dispose()


def test_a_database_that_goes_away_later_is_unknown_too(engine, listener):
    assert listener.execute_local_transaction(MESSAGE, 1) is COMMIT
    with engine.begin() as connection:
        transactions.drop(connection)
    outcome = client.execute(listener.check_local_transaction, MESSAGE, failed=client.check_failed)
    assert outcome.state is UNKNOWN
    # The id is the right to decide; it is shown neither to the worker nor in a log.
    assert ID not in outcome.remark
    outcome = client.execute(listener.execute_local_transaction, MESSAGE, 1)
    assert outcome.state is ROLLBACK
    assert ID not in outcome.remark


def test_a_missing_table_is_named(url):
    engine = create_engine(url)
    with pytest.raises(DBAPIError, match="txbridge_transactions"):
        SqlTransactionListener(engine, place).verify()
    engine.dispose()


def test_dirty_reads_are_refused(url, engine):
    dirty = create_engine(url, isolation_level="READ UNCOMMITTED")
    with pytest.raises(UsageError, match="READ UNCOMMITTED"):
        SqlTransactionListener(dirty, place).check_local_transaction(MESSAGE)
    assert rows(engine, transactions) == []
    dirty.dispose()


@pytest.mark.parametrize("database", ["sqlite://", None, Base])
def test_what_is_no_synchronous_database_is_refused(database):
    with pytest.raises(UsageError, match=f"an Engine or a sessionmaker, not {type(database).__name__}"):
        SqlTransactionListener(database, place)


def test_a_check_that_would_not_wait_is_refused(engine):
    with pytest.raises(UsageError, match="check_wait"):
        SqlTransactionListener(engine, place, check_wait=0)


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
@pytest.mark.usefixtures("engine")
def test_waits_of_the_application_are_left_alone(url):
    """A check's time limits end with it: a connection in the pool has the application's own."""
    one = create_engine(url, pool_size=1, max_overflow=0)
    listener = SqlTransactionListener(one, place, check_wait=0.3)
    assert listener.check_local_transaction(MESSAGE) is ROLLBACK
    with one.connect() as connection:
        assert connection.execute(text("SHOW lock_timeout")).scalar() == "0"
        assert connection.execute(text("SHOW statement_timeout")).scalar() == "0"
    one.dispose()


def test_a_file_in_the_way_of_sqlite_is_not_a_lock(tmp_path, sqlite_url):
    """SQLite's errors other than locks are raised, so that they are seen."""
    (tmp_path / "app.db").write_text("this is no database, but it is long enough to look like one" * 40)
    engine = create_engine(sqlite_url)
    with pytest.raises(DBAPIError) as caught:
        SqlTransactionListener(engine, place).check_local_transaction(MESSAGE)
    assert isinstance(caught.value.orig, sqlite3.DatabaseError)
    engine.dispose()
