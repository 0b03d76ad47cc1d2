"""A database for each test: a file of SQLite, and a schema of its own in a shared PostgreSQL."""

from __future__ import annotations

import time
from itertools import count

import pytest
from sqlalchemy import create_engine
from txbridge_sqlalchemy import create_outbox

from tests.support import mariadb, sql_application

_schemas = count(1)


@pytest.fixture
def sqlite_url(tmp_path):
    """SQLite gives up after 0.3 s of waiting for another writer."""
    return f"sqlite:///{tmp_path}/app.db?timeout=0.3"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request):
    """A database without tables."""
    return request.getfixturevalue(f"{request.param}_url")


@pytest.fixture
def engine(url):
    """An engine of this database, with all tables."""
    made = sql_application.create(url)
    create_outbox(made)
    yield made
    made.dispose()


@pytest.fixture
def postgresql_url(postgres_url):
    """A new schema."""
    return sql_application.in_new_schema(postgres_url, f"t{next(_schemas)}_{time.time_ns()}")


@pytest.fixture
def mariadb_url(mariadb_server):
    """A new database."""
    return mariadb.in_new_database(mariadb_server, f"t{next(_schemas)}")


@pytest.fixture
def postgres(postgresql_url):
    """An engine of a new schema in PostgreSQL, with an outbox."""
    made = create_engine(postgresql_url)
    create_outbox(made)
    yield made
    made.dispose()
