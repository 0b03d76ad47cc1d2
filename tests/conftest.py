"""Fixtures of all tests: one real Kafka and one Spark per pytest process, and a namespace of its own for each test."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import structlog

from tests.support import mariadb, own_threads, schedule
from tests.support.apis import APIS
from tests.support.class_data import make_class_data, use_class_data
from tests.support.harness import Bridge
from tests.support.kafka_proxy import EndTxnProxy
from tests.support.module_fixtures import IDLE
from tests.support.postgres import URL_VARIABLE, Postgres
from txbridge.client.base import log
from txbridge.embedded import EmbeddedKafka
from txbridge.embedded.ports import free_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from xdist.remote import Producer
    from xdist.scheduler import Scheduling

# A shell makes background processes ignore Ctrl-C, and nohup SIGHUP. All processes that a test starts would inherit
# this, but no handler.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, lambda *_: None)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


#: No test begins after this moment (s since the epoch): .ci/run ends in time on a slow machine, too.
_UNTIL = float(os.environ.get("TEST_UNTIL", "inf"))

#: Marks tests that start Spark, by the fixtures they use.
_SPARK_FIXTURES = {"spark", "running_spark"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that `make quick` and `make test` leave out, by the fixtures that they use."""
    with_spark = {
        item.path
        for item in items
        # A parameter that gets the fixture by its name has the mark.
        if _SPARK_FIXTURES & set(getattr(item, "fixturenames", ())) or item.get_closest_marker("spark")
    }
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if fixtures & _SPARK_FIXTURES:
            item.add_marker("spark")
        if item.path in with_spark:
            # py4j closes its sockets to the JVM in finalisers, which may run in another test of the file.
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
        if fixtures & {"kafka", "own_kafka"} and _api_of(item) not in {None, APIS[0]}:
            # All APIs share the client's side of Kafka, and unit tests have all of them.
            item.add_marker("long")
        name = getattr(_api_of(item), "__name__", None)
        if any(name in mark.args for mark in item.iter_markers("long_for")):
            item.add_marker("long")
    schedule.arrange(items)


def pytest_runtest_setup() -> None:
    if time.time() > _UNTIL:
        pytest.skip("it was not begun before TEST_UNTIL")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    asyncio.run(pyfuncitem.obj(**given))
    return True


def _api_of(item: pytest.Item) -> object:
    """The client API under test, for tests that run once for each API."""
    call = getattr(item, "callspec", None)
    return None if call is None else call.params.get("api")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    """The project's own scheduler for `--dist loadfile`."""
    return schedule.Schedule(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture(autouse=True)
def _nothing_of_another_test() -> Iterator[None]:
    """Ignore threads and logged exceptions of earlier tests, and undo a simulation's log settings after the test."""
    own_threads.remember()
    log.forget()
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session", autouse=True)
def _class_data() -> None:
    """Halve the processor time of every start of a Kafka."""
    use_class_data()


@pytest.fixture(scope="session")
def kafka() -> Iterator[EmbeddedKafka]:
    """A started Kafka that tests share. A test that stops or pauses a broker takes `own_kafka`."""
    make_class_data()
    with EmbeddedKafka(config=IDLE) as broker:
        yield broker


@pytest.fixture
def own_kafka() -> Iterator[EmbeddedKafka]:
    """A started Kafka for one test alone."""
    make_class_data()
    with EmbeddedKafka(config=IDLE) as broker:
        yield broker


@pytest.fixture(scope="module")
def proxy() -> Iterator[EndTxnProxy]:
    """A proxy that `proxied_servers` has in front of its Kafka."""
    with EndTxnProxy() as made:
        yield made


@pytest.fixture(scope="module")
def proxied_servers(proxy: EndTxnProxy) -> Iterator[str]:
    """A Kafka that all clients reach through the proxy only."""
    # The proxy listens before Kafka starts, so a client that waits for Kafka may already use the advertised port.
    port = free_port()
    proxy.connect_to(port)
    with EmbeddedKafka(port, config=IDLE | {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}"}):
        yield f"127.0.0.1:{proxy.port}"


@pytest.fixture
def bridge(kafka: EmbeddedKafka, request: pytest.FixtureRequest) -> Iterator[Bridge]:
    """Topics of a fresh namespace with two partitions, and ways to start workers, write and read."""
    with Bridge(kafka.bootstrap_servers, request.node.name) as made:
        yield made


@pytest.fixture(scope="session")
def running_spark() -> Iterator[SparkSession]:
    """The one Spark of this process. An audit in this process that gets no session uses it, too."""
    from tests.support import quick_spark  # The import takes a second, and most runs do not need it.

    with quick_spark.running_spark() as session:
        yield session


@pytest.fixture(scope="module")
def spark(running_spark: SparkSession) -> Iterator[SparkSession]:
    """A session for the tests of one file."""
    from tests.support import quick_spark

    with quick_spark.interpreting_session(running_spark) as session:
        yield session


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """SQLAlchemy URL of a PostgreSQL that all tests share. Each test makes a schema of its own."""
    if given := os.environ.get(URL_VARIABLE):
        yield given
        return
    with Postgres() as server:
        yield server.url


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[str]:
    """SQLAlchemy URL of a database in a MariaDB that all tests share."""
    if not mariadb.IS_THERE:
        pytest.skip("no MariaDB: Debian has it in mariadb-server-core and mariadb-client-core")
    with mariadb.running_mariadb() as url:
        yield url
