"""Identity and patience of a barrier table, which decide who may answer a check: on SQLite and PostgreSQL, all APIs."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import create_engine, delete, event, insert, select, update
from sqlalchemy.exc import IntegrityError
from txbridge_sqlalchemy import SqlTransactionListener, transactions

from tests.support import sql_application
from tests.support.checked_message import ID, checked_message
from tests.support.listeners import answer_of
from tests.support.sql_application import COMMIT, ROLLBACK, UNKNOWN, create, message, place, purge_all
from tests.support.sql_service import SqlService
from txbridge import UsageError

APIS = ["connection", "session", "asyncio"]


class Service(SqlService):
    """With the messages of these tests."""

    def execute(self, transaction_id=ID):
        return answer_of(self.execute_local_transaction, message(transaction_id), 1)

    def check(self, age_s=90.0, barrier_id=None, transaction_id=ID):
        return self.check_local_transaction(checked_message(age_s, barrier_id, transaction_id=transaction_id))


@pytest.fixture
def other_url(tmp_path):
    """Another database with the same tables."""
    made = f"sqlite:///{tmp_path}/other.db?timeout=0.3"
    create(made).dispose()
    return made


@pytest.fixture
def service(request, engine, url):
    """Make services, and close them at the end."""
    made = []

    def make(api, its_url=url, **options):
        made.append(Service(its_url, api, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def states(engine):
    """All rows of transactions."""
    with engine.connect() as connection:
        found = connection.execute(select(transactions.c.id, transactions.c.state))
        return {row.id: row.state for row in found if row.id != "barrier"}


@pytest.mark.parametrize("api", APIS)
def test_p4_a_sender_that_waits_before_its_row_is_not_rolled_back_by_another_process(engine, service, api):
    """The sender waits for a connection or a lock, and has no row. It commits after the check."""
    sender, another = service(api), service(api)
    assert another.check(6.0, sender.barrier_id()) is UNKNOWN
    assert another.check(36.0, sender.barrier_id()) is UNKNOWN
    assert states(engine) == {}
    assert sender.execute() is COMMIT
    assert another.check(66.0, sender.barrier_id()) is COMMIT


@pytest.mark.parametrize("api", APIS)
def test_p2_a_lost_commit_is_found_at_once(engine, service, api):
    sender, another = service(api), service(api)
    assert sender.execute() is COMMIT
    assert another.check(0.0, sender.barrier_id()) is COMMIT


@pytest.mark.parametrize("api", APIS)
def test_p4_an_attempt_that_crashed_before_its_row_is_rolled_back_after_patience(engine, service, api):
    sender, another = service(api), service(api, patience=2.5)
    assert another.check(2.4, sender.barrier_id()) is UNKNOWN
    assert states(engine) == {}
    assert another.check(2.5, sender.barrier_id()) is ROLLBACK
    assert states(engine) == {ID: "rolled back"}
    # It may have been paused, and not crashed.
    assert sender.execute() is ROLLBACK


@pytest.mark.parametrize("api", APIS)
def test_a_process_whose_transaction_failed_answers_for_itself_at_once(engine, service, api):
    """Its row comes no more. Another process cannot know that."""
    sender, another = service(api), service(api)
    with engine.begin() as connection:
        connection.execute(insert(sql_application.orders).values(id=1, transaction_id="taken"))
    with pytest.raises(IntegrityError):
        sender.execute()
    assert another.check(6.0, sender.barrier_id()) is UNKNOWN
    assert sender.check(6.0, sender.barrier_id()) is ROLLBACK
    assert another.check(6.0, sender.barrier_id()) is ROLLBACK


@pytest.mark.parametrize("api", APIS)
def test_a_patience_that_can_not_be_is_refused(service, api):
    with pytest.raises(UsageError, match="patience must be a number of seconds"):
        service(api, patience=-1)


@pytest.mark.parametrize("api", APIS)
def test_p2_a_process_with_another_database_does_not_answer_rollback(engine, service, other_url, api, caplog):
    """One group name, two databases. A commits and dies; B is asked."""
    sender, another = service(api), service(api, other_url)
    assert sender.execute() is COMMIT
    assert another.check(600.0, sender.barrier_id()) is UNKNOWN
    other = create_engine(other_url)
    assert states(other) == {}
    other.dispose()
    [error] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert error.event == "check_for_another_database"
    assert error.fields["barrier_of_message"] == sender.barrier_id()
    assert error.fields["barrier_here"] == another.barrier_id()
    assert service(api).check(600.0, sender.barrier_id()) is COMMIT


@pytest.mark.parametrize("api", APIS)
def test_all_processes_of_one_database_have_one_identity(engine, service, other_url, api):
    first, second, elsewhere = service(api), service(api), service(api, other_url)
    assert len(first.barrier_id()) == 16
    assert first.barrier_id() == second.barrier_id() == service("connection").barrier_id()
    assert elsewhere.barrier_id() != first.barrier_id()


def test_only_the_first_half_message_asks_the_database(engine):
    listener = SqlTransactionListener(engine, place)
    statements = []
    event.listen(engine, "before_cursor_execute", lambda _c, _cursor, statement, *_: statements.append(statement))
    first = listener.barrier_id()
    assert statements
    statements.clear()
    assert listener.barrier_id() == first
    assert statements == []


def test_processes_that_start_at_once_agree_on_the_identity(engine, service):
    services = [service("connection") for _ in range(4)]
    together = threading.Barrier(4)

    def ask(one):
        together.wait(60)
        while True:
            try:
                return one.barrier_id()
            except Exception as error:
                if "locked" not in str(error):
                    raise

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(ask, services))) == 1


def test_the_identity_outlives_every_purge(engine, service):
    before = service("connection").barrier_id()
    with engine.begin() as connection:
        connection.execute(insert(transactions).values(id=ID, state="committed", created_at=1))
    assert purge_all(engine) == 1
    assert service("connection").barrier_id() == before


@pytest.mark.parametrize("api", APIS)
def test_p2_a_table_that_was_emptied_does_not_answer_for_the_rows_it_had(engine, service, api):
    """TRUNCATE, or a restored database without this table: the rows are gone, and what they said is not known."""
    one = service(api)
    before = one.barrier_id()
    assert one.execute() is COMMIT
    with engine.begin() as connection:
        connection.execute(delete(transactions))
    assert one.check(600.0, before) is UNKNOWN
    assert one.check(600.0, before) is UNKNOWN
    assert states(engine) == {}
    # From now on the process sends the new identity, and answers for it.
    assert one.barrier_id() not in {None, before}
    assert one.check(600.0, one.barrier_id(), transaction_id="A" * 32) is ROLLBACK


@pytest.mark.parametrize("api", APIS)
def test_p2_a_copy_with_an_identity_of_its_own_answers_only_what_it_proves(engine, service, other_url, api):
    """A staging clone in which the recipe of docs/sqlalchemy.md was run."""
    sender = service(api)
    assert sender.execute() is COMMIT
    copy = create_engine(other_url)
    with engine.connect() as source, copy.begin() as target:
        for row in source.execute(select(transactions)).mappings():
            target.execute(insert(transactions).values(**row))
        target.execute(delete(transactions).where(transactions.c.id == "barrier"))
    clone = service(api, other_url)
    assert clone.barrier_id() != sender.barrier_id()
    # The row came with the copy. It was committed with the data.
    assert clone.check(600.0, sender.barrier_id()) is COMMIT
    # This one may have been committed after the copy.
    assert clone.check(600.0, sender.barrier_id(), transaction_id="B" * 32) is UNKNOWN
    assert states(copy) == {ID: "committed"}
    copy.dispose()


@pytest.mark.parametrize("api", APIS)
def test_a_message_without_an_identity_is_answered_as_before(engine, service, api):
    one = service(api)
    assert one.check(600.0, None) is ROLLBACK
    assert states(engine) == {ID: "rolled back"}


def test_the_identity_is_read_with_the_row(engine, service):
    """A table that is replaced under a running process, as by a fail-over to another database."""
    one = service("connection")
    before = one.barrier_id()
    with engine.begin() as connection:
        connection.execute(update(transactions).where(transactions.c.id == "barrier").values(state="replaced"))
    assert one.check(600.0, before) is UNKNOWN
    assert one.barrier_id() == "replaced"
