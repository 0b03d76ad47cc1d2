"""The database that a command is given by its URL."""

from __future__ import annotations

import threading

from sqlalchemy import Engine, create_engine, select
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from txbridge_sqlalchemy import SqlTransactionListener, transactions
from txbridge_sqlalchemy.row import first_line

from txbridge.errors import LocalProblemError, UsageError
from txbridge.proof import PROOF_EVERY_S, ProofOfLife

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
    return engine


def verify_table(listener: SqlTransactionListener, engine: Engine) -> None:
    """Raise LocalProblemError unless the table of transactions can be used, UsageError as the listener does."""
    try:
        listener.verify()
    except SQLAlchemyError as error:
        raise LocalProblemError(
            f"the table txbridge_transactions in {engine.url.render_as_string()} cannot be used: "
            f"{first_line(error)}. It must be there, with the rights to SELECT, INSERT and DELETE"
        ) from None


class DatabaseWatch:
    """Whether the table can be read, asked in a thread of its own: a database that hangs must not hold up an answer."""

    def __init__(self, engine: Engine, ended: threading.Event) -> None:
        self._engine = engine
        self._ended = ended
        self._answered = ProofOfLife()
        self._error = ""

    def start(self) -> None:
        threading.Thread(target=self._watch_table, name="txbridge-database", daemon=True).start()

    def list_problems(self) -> list[str]:
        if not self._error and self._answered.is_fresh:
            return []
        return [f"the database does not answer: {self._error or f'silent for {self._answered.age:.0f} s'}"]

    def _watch_table(self) -> None:
        while not self._ended.is_set():
            try:
                with self._engine.connect() as connection:
                    connection.execute(select(transactions.c.state).where(transactions.c.id == "")).first()
            except SQLAlchemyError as error:
                self._error = first_line(error)
            else:
                self._error = ""
                self._answered.renew()
            self._ended.wait(PROOF_EVERY_S)
