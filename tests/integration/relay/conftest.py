"""An outbox and a topic for each test of a relay."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from tests.support import sql_application
from tests.support.harness import Bridge
from tests.support.relays import make_outbox


@pytest.fixture
def url(postgres_url: str, tmp_path) -> str:
    """SQLAlchemy URL of a schema of this test alone."""
    return sql_application.in_new_schema(postgres_url, f"r_{tmp_path.name}".lower())


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    """The database, with the tables of an outbox."""
    made = make_outbox(url)
    yield made
    made.dispose()


@pytest.fixture
def topic(bridge: Bridge) -> str:
    """A real topic."""
    return bridge.create_topic("orders")
