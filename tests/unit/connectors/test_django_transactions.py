"""Django's listener on SQLite and PostgreSQL: its connection, and functions that end the transaction by text."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine, insert, select, text
from txbridge_sqlalchemy import create_table

from tests.support.django_work import DjangoListener
from tests.support.sql_application import message, orders, tables
from txbridge import LocalTransactionState


@pytest.fixture
def engine(url):
    made = create_engine(url)
    create_table(made)
    tables.create_all(made)
    yield made
    made.dispose()


@pytest.fixture
def listener(engine):
    """Make a listener whose function is called as `run(arg, work, message, arg)`."""
    made = []

    def make(run):
        made.append(DjangoListener(engine, run))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_the_start_leaves_no_connection_to_forked_children(listener):
    """Web processes that shared it would read each other's answers."""
    listener(None).verify()
    from django.db import connections

    assert connections["scripts"].connection is None


@pytest.mark.parametrize("end", ["ROLLBACK", "COMMIT"])
def test_nothing_is_executed_after_the_end_of_the_transaction(engine, listener, end):
    def run(_, work, _message, __):
        work.execute(insert(orders).values(id=1))
        work.execute(text(end))
        work.execute(insert(orders).values(id=2))
        work.execute(text("COMMIT"))

    one = listener(run)
    from django.db.transaction import TransactionManagementError

    with pytest.raises(TransactionManagementError, match="nothing more can be executed"):
        one.execute_local_transaction(message("A" * 32), None)
    answer = one.check_local_transaction(message("A" * 32))
    assert (answer is LocalTransactionState.COMMIT_MESSAGE) is (end == "COMMIT")
    with engine.connect() as connection:
        assert list(connection.execute(select(orders.c.id)).scalars()) == ([1] if end == "COMMIT" else [])
