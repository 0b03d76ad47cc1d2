"""One real Kafka for the whole run; every test has a namespace of its own, so tests do not see each other."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
import structlog

from tests.support import own_threads
from tests.support.harness import Bridge
from tests.support.postgres import URL_VARIABLE, Postgres
from txbridge.client import log
from txbridge.embedded import EmbeddedKafka

# A shell ignores Ctrl-C for what it starts in the background, and so would everything that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _nothing_of_another_test() -> Iterator[None]:
    """Threads that run already are another test's, and what a simulation does with the logs ends with the test."""
    own_threads.remember()
    yield
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def _every_exception_is_logged() -> None:
    """A test that logs an exception must not keep another's from being logged in full."""
    log.forget()


@pytest.fixture(scope="session")
def kafka() -> Iterator[EmbeddedKafka]:
    """A started Kafka that tests share. A test that stops or pauses a broker takes `own_kafka`."""
    with EmbeddedKafka() as broker:
        yield broker


@pytest.fixture
def own_kafka() -> Iterator[EmbeddedKafka]:
    """A started Kafka for one test alone."""
    with EmbeddedKafka() as broker:
        yield broker


@pytest.fixture
def bridge(kafka: EmbeddedKafka, request: pytest.FixtureRequest) -> Iterator[Bridge]:
    """Topics of a fresh namespace with two partitions, and ways to start workers, write and read."""
    with Bridge(kafka.bootstrap_servers, request.node.name) as made:
        yield made


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A PostgreSQL that tests share, as SQLAlchemy names it; each test makes a schema of its own."""
    if given := os.environ.get(URL_VARIABLE):
        yield given
        return
    with Postgres() as server:
        yield server.url
