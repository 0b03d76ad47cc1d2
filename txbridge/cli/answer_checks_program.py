"""A process that answers the checks of producer groups from the table of their local transactions alone."""

from __future__ import annotations

import signal
import threading
from contextlib import ExitStack

from prometheus_client import CollectorRegistry, Gauge
from sqlalchemy import Engine, create_engine, select
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from txbridge_sqlalchemy import SqlTransactionListener, transactions

from txbridge import ClientMetrics, MessageExt, TransactionProducer
from txbridge.config.worker import WorkerSettings
from txbridge.errors import LocalProblemError, UsageError
from txbridge.interrupts import hand_over
from txbridge.log import get_logger
from txbridge.proof import PROOF_EVERY_S, ProofOfLife
from txbridge.web.web_server import WebServer

_log = get_logger("txbridge.answer_checks")

#: Seconds that the end waits for lookups and answers. docs/operations.md asks for 25 s between SIGTERM and SIGKILL.
_CLOSE_S = 15.0


def _nothing(_work: object, _message: MessageExt, _arg: object) -> None:
    """Stand-in for the application's function."""
    raise AssertionError("this process sends nothing")


def run(groups: list[str], database_url: str, patience: float, threads: int, settings: WorkerSettings) -> None:
    """Answer checks until a signal ends the process.

    Raises UsageError, LocalProblemError for the database, and what starting a client raises.
    """
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    engine = _engine(database_url, threads * len(groups))
    registry = CollectorRegistry()
    metrics, database = ClientMetrics(registry), _Database(engine, ended)
    listener = SqlTransactionListener(engine, _nothing, patience=patience)
    running: list[TransactionProducer] = []

    def why_not_ready() -> list[str]:
        reasons = [] if len(running) == len(groups) else ["the checks are not read yet"]
        reasons += [f"group {one.group}: no connection to Kafka" for one in running if not one.is_connected]
        return reasons + database.list_problems()

    with ExitStack() as at_last:
        at_last.callback(engine.dispose)
        _verify(listener, engine)
        threading.Thread(target=database.watch_table, name="txbridge-database", daemon=True).start()
        ready = Gauge("txbridge_answer_checks_ready", "Whether checks are answered", registry=registry)
        ready.set_function(lambda: not why_not_ready())
        if settings.metrics_port:
            questions = {"/livez": list[str], "/readyz": why_not_ready}
            web = WebServer(settings.metrics_host, settings.metrics_port, registry, questions)
            web.start()
            at_last.callback(web.close)
        for group in groups:
            producer = TransactionProducer(
                group,
                listener,
                settings.librdkafka,
                namespace=settings.namespace,
                check_thread_pool_max_size=threads,
                metrics=metrics,
            )
            at_last.callback(producer.close, _CLOSE_S)
            producer.start()
            running.append(producer)
        # Until here there is nothing to clean up, and a start may wait long for a Kafka that does not answer.
        hand_over(lambda *_: ended.set())
        _log.info("answer_checks_started", groups=groups, barrier=listener.barrier_id())
        ended.wait()
        _log.info("answer_checks_ending")


def _engine(url: str, size: int) -> Engine:
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
    return engine


_EXAMPLE = "it is written like postgresql+psycopg://user:password@host/database or sqlite:////path/to/file"


def _verify(listener: SqlTransactionListener, engine: Engine) -> None:
    try:
        listener.verify()
    except SQLAlchemyError as error:
        raise LocalProblemError(
            f"the table txbridge_transactions in {engine.url.render_as_string()} cannot be used: "
            f"{_first_line(error)}. It must be there, with the rights to SELECT, INSERT and DELETE"
        ) from None


class _Database:
    """Whether the table can be read, asked in a thread of its own: a database that hangs must not hold up an answer."""

    def __init__(self, engine: Engine, ended: threading.Event) -> None:
        self._engine = engine
        self._ended = ended
        self._answered = ProofOfLife()
        self._error = ""

    def watch_table(self) -> None:
        while not self._ended.is_set():
            try:
                with self._engine.connect() as connection:
                    connection.execute(select(transactions.c.state).where(transactions.c.id == "")).first()
            except SQLAlchemyError as error:
                self._error = _first_line(error)
            else:
                self._error = ""
                self._answered.renew()
            self._ended.wait(PROOF_EVERY_S)

    def list_problems(self) -> list[str]:
        if not self._error and self._answered.is_fresh:
            return []
        return [f"the database does not answer: {self._error or f'silent for {self._answered.age:.0f} s'}"]


def _first_line(error: SQLAlchemyError) -> str:
    return str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
