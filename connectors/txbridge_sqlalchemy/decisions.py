"""Common parts of both listeners: the longest wait of a check, and mistakes."""

from __future__ import annotations

from sqlalchemy import Connection, select

from txbridge.errors import UsageError
from txbridge_sqlalchemy.row import ask
from txbridge_sqlalchemy.table import transactions


class DecidedError(Exception):
    """Only the table has the outcome: the id has a row already, or the function has ended the transaction by itself."""


class Waits:
    """The longest wait of a check for the lock of a transaction that still runs."""

    def __init__(self, check_wait: float) -> None:
        if check_wait <= 0:
            raise UsageError(f"check_wait must be positive, not {check_wait}")
        self._ms = max(1, round(check_wait * 1000))

    def set_time_limits(self, connection: Connection) -> None:
        """Limit the waits of the current transaction."""
        if connection.dialect.name == "postgresql":
            # An insert waits for an open transaction that has inserted the same id, and every statement waits for a
            # migration of the table. Without a bound these would block the checks. LOCAL: until the transaction ends.
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = {self._ms}")
            connection.exec_driver_sql(f"SET LOCAL statement_timeout = {2 * self._ms}")

    def states_of(self, connection: Connection, *ids: str) -> dict[str, str]:
        """The states in the table by id. An id without a row is left out."""
        self.set_time_limits(connection)
        found = select(transactions.c.id, transactions.c.state).where(transactions.c.id.in_(ids))
        return {row.id: row.state for row in ask(connection, found)}

    def isolation_level(self, connection: Connection) -> str | None:
        """The isolation level; None if the dialect does not report it."""
        self.set_time_limits(connection)
        try:
            return connection.get_isolation_level()
        except NotImplementedError:
            return None


def refuse_dirty_reads(level: str | None) -> None:
    """Raise UsageError if a check could read uncommitted rows."""
    if level == "READ UNCOMMITTED":
        raise UsageError(
            "the isolation level is READ UNCOMMITTED: a check could see a transaction that is rolled back later. "
            "Give the listener an engine with READ COMMITTED or more",
        )


def refuse_mistakes(returned: object) -> None:
    """Raise UsageError if the value that the application's function returned is no decision."""
    if returned is not None and not isinstance(returned, bool):
        raise UsageError(
            "the function of a SqlTransactionListener returns None or True to commit and False to roll back, "
            f"not {type(returned).__name__}: rolled back",
        )
