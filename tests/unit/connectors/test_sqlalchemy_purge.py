"""The purge of a barrier table: what goes, what stays, and no check that rolls back for a row that is gone."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import count

import pytest
from sqlalchemy import create_engine, event, insert, select
from sqlalchemy.exc import IntegrityError
from txbridge_sqlalchemy import async_purge, purge, transactions

from tests.support.async_engine import async_twin
from tests.support.checked_message import ID, checked_message
from tests.support.listeners import answer_of
from tests.support.sql_application import COMMIT, ROLLBACK, UNKNOWN, message, order_ids, place, purge_all, state_of
from tests.support.sql_service import SqlService
from txbridge import Message, MessageExt, Rollback, UsageError
from txbridge.client import barrier_purge

FORMS = ("connection", "session", "asyncio", "asyncio-session")
DAY_MS, HOUR_MS = 86_400_000, 3_600_000
#: `created_at` of the rows that belong to the table itself.
NEVER = 2**63 - 1
#: Birth of the messages of `message`, and of those of `checked_message` (ms).
SENT_BORN, CHECKED_BORN = 2, 1_000_000


@pytest.fixture
def service(request, engine, url):
    """Make services, and close them at the end."""
    made = []

    def make(form="connection", **options):
        made.append(SqlService(url, form, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def write(engine, *rows):
    with engine.begin() as connection:
        connection.execute(
            insert(transactions), [dict(zip(("id", "state", "created_at"), row, strict=True)) for row in rows]
        )


def ids(engine):
    at = transactions.c.created_at
    with engine.connect() as connection:
        return list(connection.execute(select(transactions.c.id).where(at < NEVER - 1).order_by(at)).scalars())


def born_ago(ms):
    """A time of birth (ms)."""
    return time.time_ns() // 1_000_000 - ms


def young():
    """A row of now."""
    return ("E" * 32, "committed", born_ago(0))


def asked(born, transaction_id=ID):
    """The message of a check, ten minutes after this birth (ms), as the worker sends it."""
    made = checked_message(600.0, transaction_id=transaction_id)
    fields = {**made.__dict__, "born_timestamp": born, "check_timestamp": born + 600_000}
    again = MessageExt.__new__(MessageExt)
    again.__dict__.update(fields)
    return again


def test_rows_go_eight_days_after_the_birth_of_their_messages(engine):
    """The half topic keeps bodies for 7 days, and one day is for requests under way."""
    ages = [37 * DAY_MS] * 25 + [8 * DAY_MS + 60_000] + [8 * DAY_MS - 60_000, DAY_MS, 0]
    write(engine, *((f"{n:032X}", "committed", born_ago(age) - n % 25) for n, age in enumerate(ages)))
    deleted = []

    @event.listens_for(engine, "after_cursor_execute")
    def remember(_connection, cursor, statement, *_):
        if statement.startswith("DELETE"):
            deleted.append(cursor.rowcount)

    assert purge(engine, batch=10) == 26
    assert sum(deleted) == 26
    assert max(deleted) == 10
    assert sorted(int(one, 16) for one in ids(engine)) == [26, 27, 28]
    assert purge(engine) == 0
    assert purge(engine, timedelta(hours=1)) == 2


def test_rows_of_rollbacks_stay_for_36_days(engine, service):
    """A sender that is paused for so long must not commit what a check has rolled back."""
    sender, rolled_back = service(), born_ago(35 * DAY_MS)
    write(engine, ("A" * 32, "rolled back", rolled_back), ("B" * 32, "committed", rolled_back))
    write(engine, ("C" * 32, "rolled back", born_ago(37 * DAY_MS)))
    assert purge_all(engine) == 2
    assert ids(engine) == ["A" * 32]
    with pytest.raises(Rollback):
        sender.execute_local_transaction(message("A" * 32), 1)


def test_a_longer_age_counts_for_rollbacks_too(engine):
    write(engine, ("A" * 32, "rolled back", born_ago(50 * DAY_MS)), ("B" * 32, "rolled back", born_ago(61 * DAY_MS)))
    write(engine, young())
    assert purge(engine, timedelta(days=60)) == 1
    assert ids(engine) == ["A" * 32, "E" * 32]


def test_more_rows_of_one_millisecond_than_a_batch_go_together(engine):
    write(engine, *((f"{n:032X}", "committed", 5 if n < 30 else 6) for n in range(40)), young())
    assert purge(engine, batch=10) == 40


@pytest.mark.parametrize("arguments", [{"older_than": timedelta(minutes=n)} for n in (-1, 0, 59)] + [{"batch": 0}])
def test_what_would_delete_everything_or_nothing_is_refused(engine, arguments):
    write(engine, (ID, "committed", 1), young())
    with pytest.raises(UsageError, match=r"must be (positive|an hour)"):
        purge(engine, **arguments)
    assert state_of(engine, "purged") is None


def test_an_age_before_the_epoch_deletes_nothing(engine):
    write(engine, (ID, "committed", 1))
    assert purge(engine, timedelta(days=100_000)) == 0


@pytest.mark.parametrize("driver", ["aiosqlite", "psycopg", "asyncpg"])
def test_asynchronous_engines_purge_in_the_same_way(request, driver):
    url = request.getfixturevalue("sqlite_url" if driver == "aiosqlite" else "postgresql_url")

    async def on_loop():
        twin = async_twin(url, driver)
        async with twin.begin() as connection:
            await connection.run_sync(transactions.metadata.create_all)
            for row_id, born in ((ID, 1), ("E" * 32, born_ago(0))):
                await connection.execute(insert(transactions).values(id=row_id, state="committed", created_at=born))
        deleted = await async_purge(twin), await async_purge(twin)
        await twin.dispose()
        return deleted

    assert asyncio.run(on_loop()) == (1, 0)


@pytest.mark.parametrize("form", FORMS)
def test_p2_a_check_never_rolls_back_a_message_whose_row_a_purge_may_have_deleted(engine, service, form, caplog):
    one = service(form)
    assert one.execute_local_transaction(message(ID), 1) is COMMIT
    assert purge_all(engine) == 1
    assert one.check_local_transaction(checked_message(600.0)) is UNKNOWN
    assert one.check_local_transaction(checked_message(660.0)) is UNKNOWN
    assert ids(engine) == []
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert {record.event for record in errors} == {"check_after_purge"}
    assert "txbridge resolve" in errors[0].fields["hint"]
    assert ID not in str(errors[0].fields)


@pytest.mark.parametrize("form", FORMS)
def test_p4_a_crashed_attempt_that_is_younger_than_the_mark_is_rolled_back(engine, service, form):
    one = service(form)
    write(engine, ("D" * 32, "committed", 1), young())
    assert purge(engine, timedelta(hours=2)) == 1
    mark = int(state_of(engine, "purged"))
    assert one.check_local_transaction(asked(mark + 5_000)) is ROLLBACK
    assert one.check_local_transaction(asked(mark - 5_000, "B" * 32)) is UNKNOWN
    assert state_of(engine, ID) == "rolled back"
    assert state_of(engine, "B" * 32) is None


def test_rows_that_are_there_are_answered_after_a_purge_too(engine, service):
    one = service()
    write(engine, ("A" * 32, "rolled back", born_ago(DAY_MS)))
    purge_all(engine)
    # This one was paused, and has begun after the purge.
    assert one.execute_local_transaction(message(ID), 1) is COMMIT
    assert one.check_local_transaction(checked_message(600.0)) is COMMIT
    assert one.check_local_transaction(checked_message(600.0, transaction_id="A" * 32)) is ROLLBACK


def test_p2_a_worker_that_does_not_say_the_birth_gets_no_rollback_after_a_purge(engine, service):
    one = service()
    assert one.check_local_transaction(checked_message(transaction_id="A" * 32, has_birth=False)) is ROLLBACK
    write(engine, ("D" * 32, "committed", 1))
    assert purge(engine) == 1
    assert one.check_local_transaction(checked_message(has_birth=False)) is UNKNOWN


def test_p2_a_failed_commit_that_was_none_is_not_rolled_back_after_a_purge(engine, service):
    """COMMIT was not answered: the process takes its transaction for failed, and the database has committed it."""

    def place_and_fail(connection, placed, arg):
        place(connection, placed, arg)
        connection.exec_driver_sql("COMMIT")
        raise ZeroDivisionError

    one = service(function=place_and_fail)
    with pytest.raises(ZeroDivisionError):
        one.execute_local_transaction(message(ID), 1)
    assert state_of(engine, ID) == "committed"
    purge_all(engine)
    assert one.check_local_transaction(checked_message(6.0)) is UNKNOWN


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_p2_a_purge_between_the_steps_of_a_check(engine, url, service, level):
    """The check has found no row. Then its sender commits, and the row is purged, before the check writes its own."""
    sender, checking = service(), service(isolation_level=level)
    checking.verify()
    done = []

    @event.listens_for(checking.engine, "before_cursor_execute")
    def meanwhile(_connection, _cursor, statement, *_):
        if statement.startswith("INSERT") and not done:
            done.append(sender.execute_local_transaction(message(ID), 1))
            assert purge_all(engine) == 1

    assert checking.check_local_transaction(checked_message(600.0)) is UNKNOWN
    assert done == [COMMIT]
    assert state_of(engine, ID) is None


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_p2_a_check_answers_by_a_row_that_a_purge_is_deleting(engine, service):
    """The deletion is not committed, so the check still sees the row."""
    one = service()
    assert one.execute_local_transaction(message(ID), 1) is COMMIT
    with engine.connect() as connection:
        connection.execute(transactions.delete().where(transactions.c.id == ID))
        assert one.check_local_transaction(checked_message(600.0)) is COMMIT
        connection.rollback()


def test_the_mark_and_the_identity_outlive_every_purge_and_the_mark_only_rises(engine, service):
    identity = service().barrier_id()
    write(engine, *((f"{n:032X}", "committed", born_ago(n * DAY_MS)) for n in (0, 2, 4, 10)))
    before = int(time.time() * 1000)
    assert purge(engine, timedelta(days=3)) == 2
    mark = state_of(engine, "purged")
    assert before - 3 * DAY_MS + HOUR_MS - 60_000 < int(mark) <= time.time() * 1000 - 3 * DAY_MS + HOUR_MS
    write(engine, ("A" * 32, "committed", born_ago(9 * DAY_MS)))
    assert purge(engine, timedelta(days=8)) == 1
    assert state_of(engine, "purged") == mark
    assert purge(engine, timedelta(days=1)) == 1
    assert int(state_of(engine, "purged")) > int(mark)
    assert state_of(engine, "barrier") == identity


@pytest.mark.parametrize("days", [2, 40])
def test_p2_a_row_and_a_check_may_have_times_of_different_clocks(engine, service, days):
    """The row has that of its sender, as an earlier release wrote it, and the broker's clock was 59 minutes ahead."""
    its = born_ago(days * DAY_MS + 60_000)
    write(engine, (ID, "committed", its), young())
    assert purge(engine, timedelta(days=days)) == 1
    assert service().check_local_transaction(asked(its + HOUR_MS - 60_000)) is UNKNOWN


def test_p2_no_row_above_the_mark_goes_when_the_clock_moves_meanwhile(engine, monkeypatch):
    write(engine, *((f"{n:032X}", "committed", born_ago((n - 2) * DAY_MS)) for n in (0, 41, 43)))
    readings = count(born_ago(-DAY_MS), 5 * DAY_MS)
    monkeypatch.setattr(barrier_purge, "now_ms", lambda: next(readings))
    assert purge(engine, timedelta(days=41)) == 1


@pytest.mark.parametrize("has_rows", [True, False])
def test_p4_a_purge_whose_clock_is_ahead_leaves_crashed_attempts_to_checks(engine, service, monkeypatch, has_rows):
    if has_rows:
        write(engine, ("A" * 32, "committed", born_ago(9 * DAY_MS)), young())
    monkeypatch.setattr(barrier_purge, "now_ms", lambda: born_ago(-400 * DAY_MS))
    assert purge(engine) == int(has_rows)
    assert service().check_local_transaction(asked(born_ago(60_000))) is ROLLBACK


def test_the_mark_is_committed_before_the_first_row_goes(engine):
    """A purge that is killed between the two has lost nothing."""
    write(engine, (ID, "committed", CHECKED_BORN), young())

    @event.listens_for(engine, "before_cursor_execute")
    def die(_connection, _cursor, statement, *_):
        if statement.startswith("DELETE"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        purge(engine)
    event.remove(engine, "before_cursor_execute", die)
    assert int(state_of(engine, "purged")) > CHECKED_BORN
    assert ids(engine) == [ID, "E" * 32]
    assert purge(engine) == 1


def test_many_purges_at_once_delete_each_row_once(engine, url):
    write(engine, *((f"{n:032X}", "committed", n) for n in range(3_000)), young())
    engines = [create_engine(url.replace("timeout=0.3", "timeout=60")) for _ in range(4)]
    together = threading.Barrier(4)

    def run(one):
        together.wait(60)
        return purge(one, batch=100)

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(run, engines)) == 3_000
    assert ids(engine) == ["E" * 32]
    for one in engines:
        one.dispose()


def test_purge_goes_on_beside_a_transaction(url, engine, service):
    """On SQLite it waits for the writer. On PostgreSQL the two do not conflict."""
    entered, end = threading.Event(), threading.Event()

    def place_slowly(connection, placed, arg):
        place(connection, placed, arg)
        entered.set()
        assert end.wait(120)

    write(engine, ("0" * 32, "committed", 1), young())
    sender, patient = service(function=place_slowly), create_engine(url.replace("timeout=0.3", "timeout=20"))
    with ThreadPoolExecutor(2) as pool:
        placed = pool.submit(sender.execute_local_transaction, message(ID), 1)
        assert entered.wait(120)
        purged = pool.submit(purge, patient)
        time.sleep(0.2)
        end.set()
        assert placed.result(120) is COMMIT
        assert purged.result(120) in {1, 2}
    patient.dispose()


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_p2_senders_checks_and_purges_in_any_order_never_lose_a_commit(engine, url, service):
    """Each transaction has a sender that may be late, and a check, beside purges of everything."""
    senders, checking, numbers = service(), service(patience=0), list(range(1, 151))
    ended = threading.Event()

    def keep_purging():
        while not ended.is_set():
            purge_all(engine)

    def check(asked_about):
        try:
            return checking.check_local_transaction(asked_about)
        except IntegrityError:
            # It has met the row, which was purged before it was read. The client counts an error as unknown.
            return UNKNOWN

    def run(number):
        transaction_id, born, late = f"{number:032X}", born_ago(random.randrange(3)), random.random() * 0.02
        sent = MessageExt.for_execution(Message("orders", b"v"), transaction_id, 0, 1, born)
        with ThreadPoolExecutor(1) as beside:
            answer = beside.submit(check, asked(born, transaction_id))
            time.sleep(late)
            return number, answer_of(senders.execute_local_transaction, sent, number), answer.result(120)

    with ThreadPoolExecutor(4) as pool, ThreadPoolExecutor(1) as purging:
        running = purging.submit(keep_purging)
        try:
            outcomes = list(pool.map(run, numbers))
        finally:
            ended.set()
        running.result(120)
    committed = set(order_ids(engine))
    assert {number for number, sent, _ in outcomes if sent is COMMIT} == committed
    print(Counter((sent.name, answer.name) for _, sent, answer in outcomes))
    lost = [number for number, sent, answer in outcomes if sent is COMMIT and answer is ROLLBACK]
    assert lost == []
