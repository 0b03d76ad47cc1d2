"""The database that a command is given by its URL, and the frame of a process that works with it and Kafka."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from prometheus_client import CollectorRegistry
from sqlalchemy import Engine, Executable, Table, create_engine, select
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from txbridge_sqlalchemy.row import ask, first_line

from txbridge.backoff import keep_trying
from txbridge.config.worker import WorkerSettings
from txbridge.errors import DatabaseUnreachableError, LocalProblemError, UsageError
from txbridge.interrupts import AT_START, end_on_signal
from txbridge.proof import PROOF_EVERY_S, ProofOfLife
from txbridge.web.web_server import serving

#: Seconds that the end waits for lookups, ENDs and answers. docs/operations.md asks for 25 s between SIGTERM and
#: SIGKILL.
CLOSE_S = 15.0
#: Seconds of an attempt to start a client, which takes one if Kafka answers.
START_S = 10.0
_EXAMPLE = "it is written like postgresql+psycopg://user:password@host/database or sqlite:////path/to/file"


def make_engine(url: str, size: int) -> Engine:
    """An engine with so many connections. Raises UsageError and LocalProblemError."""
    try:
        # Without the ping, a check would fail on a connection that the database has closed meanwhile.
        engine = create_engine(url, pool_pre_ping=True, pool_size=size, max_overflow=2)
    except ModuleNotFoundError as error:
        raise LocalProblemError(f"the database's driver is not installed: {error.name}") from None
    except (ArgumentError, TypeError, ValueError) as error:
        # The error's text is left out: it could show the password.
        raise UsageError(f"--database-url cannot be used ({type(error).__name__}): {_EXAMPLE}") from None
    if engine.dialect.is_async:
        raise UsageError(f"--database-url names {engine.dialect.driver}, an asynchronous driver: {_EXAMPLE}")
    if engine.url.password and "@" in f"{engine.url.host}{engine.url.database}":
        # The rest of the password would be a part of the host, which errors name.
        raise UsageError("--database-url has more than one @: write those of user and password as %40")
    return engine


@contextmanager
def asking(engine: Engine, problem: str) -> Iterator[None]:
    """Raise DatabaseUnreachableError for an error of a database that gives no connection, or LocalProblemError.

    `problem` says what cannot be done, with braces for the database.
    """
    try:
        yield
    except SQLAlchemyError as error:
        kind = LocalProblemError if _answers(engine) else DatabaseUnreachableError
        raise kind(f"{problem.format(engine.url.render_as_string())}: {first_line(error)}") from None


def _answers(engine: Engine) -> bool:
    try:
        with engine.connect() as connection:
            connection.execute(select(1))
    except SQLAlchemyError:
        return False
    return True


class DatabaseWatch:
    """Whether `question` is answered, in a thread of its own: a database that hangs must not hold up an answer."""

    def __init__(self, engine: Engine, question: Executable) -> None:
        self._engine = engine
        self._question = question
        self._answered = ProofOfLife()
        self._error = ""

    def start(self) -> None:
        threading.Thread(target=self._watch_table, name="txbridge-database", daemon=True).start()

    def list_problems(self) -> list[str]:
        if not self._error and self._answered.is_fresh:
            return []
        return [f"the database does not answer: {self._error or f'silent for {self._answered.age:.0f} s'}"]

    def _watch_table(self) -> None:
        while True:
            try:
                with self._engine.connect() as connection:
                    ask(connection, self._question).first()
            except SQLAlchemyError as error:
                self._error = first_line(error)
            else:
                self._error = ""
                self._answered.renew()
            time.sleep(PROOF_EVERY_S)


@contextmanager
def service(
    settings: WorkerSettings,
    engine: Engine,
    table: Table,
    verify: Callable[[], object],
    registry: CollectorRegistry,
    obstacles: Callable[[], list[str]],
    log: Any,
) -> Iterator[tuple[ExitStack, Callable[[], list[str]]]]:
    """Wait for the database. Gives what is closed at the end, and a function that says why the process is not ready.

    `verify` makes sure that `table` can be used, and `obstacles` says why the work does not get on. A signal ends the
    process at once, until the block hands over.

    Raises UsageError and LocalProblemError.
    """
    database = DatabaseWatch(engine, select(*table.primary_key).limit(1))

    def why_not_ready() -> list[str]:
        return obstacles() + database.list_problems()

    with end_on_signal(AT_START), ExitStack() as at_last:
        at_last.callback(engine.dispose)
        database.start()
        questions = {"/livez": list[str], "/readyz": why_not_ready}
        at_last.enter_context(serving(settings.metrics_host, settings.metrics_port, registry, questions))
        verify = asking(engine, f"the table {table.name} in {{}} cannot be used")(verify)
        keep_trying(verify, log, engine.url.render_as_string())
        yield at_last, why_not_ready
