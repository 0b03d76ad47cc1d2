"""The rule by which a barrier table answers a check. The listeners for SQLAlchemy and Django share it."""

from __future__ import annotations

import hashlib
import logging
import math
import secrets
import threading
from collections import OrderedDict
from typing import Any

from txbridge.client.answers import LocalTransactionState
from txbridge.client.base.log import report
from txbridge.client.message import MessageExt, now_ms
from txbridge.errors import UsageError

#: The states of a row.
COMMITTED = "committed"
ROLLED_BACK = "rolled back"
ANSWERS = {COMMITTED: LocalTransactionState.COMMIT_MESSAGE, ROLLED_BACK: LocalTransactionState.ROLLBACK_MESSAGE}
#: SQLSTATEs of a conflict with another transaction: a lock or statement time-out, a deadlock, a serialization failure.
#: For SQLite, the names of its error codes. For MySQL and MariaDB, their numbers.
_BUSY_STATES = frozenset({"55P03", "57014", "40P01", "40001"})
_BUSY_NAMES = ("SQLITE_BUSY", "SQLITE_LOCKED")
_BUSY_NUMBERS = (1205, 1213, 1020, 1969, 3024)
#: psycopg and psycopg2: in a transaction, or in one that has failed.
_IN_TRANSACTION = (2, 3)
#: Id of the row whose state is the identity of the table. It is in the table itself, so that a table whose rows are
#: deleted loses its identity with them.
BARRIER_ROW = "barrier"
#: Id of the row whose state is the mark of the purge (ms): rows of messages born before it may be gone.
PURGED_ROW = "purged"
#: `created_at` of these two rows (ms): no purge reaches them.
NEVER_PURGED = 2**63 - 1
#: Most failed local transactions that are remembered. One that is forgotten is rolled back after `patience`.
_MOST_FAILED = 10_000


class PurgedError(Exception):
    """The row of the transaction may have been there, and may have been deleted by a purge."""


def refuse_purged(born: int | None, mark: str | None) -> None:
    """Raise PurgedError if the row of a message of this birth (ms) may be gone. `mark` is the state of PURGED_ROW."""
    if mark is not None and (born is None or born < int(mark)):
        raise PurgedError


def creation_time(born: int | None) -> int:
    """The value of `created_at`: the birth of the message (ms), or now if the worker has not sent it."""
    return now_ms() if born is None else born


def new_barrier_id() -> str:
    """A random identity for a table: 64 bits, as many as a state has room for."""
    return secrets.token_hex(8)


def once_row_id(group: str, key: str | None) -> str | None:
    """The id of the row of a key (`announce(once=...)`). Its state is half of the transaction's id."""
    if key is None:
        return None
    if not isinstance(key, str) or not key:
        raise UsageError(f"once takes the text that names a request, not {key!r}")
    # A group has no space. 104 bits are what an id has room for.
    digest = hashlib.blake2b(f"{group} {key}".encode(errors="surrogatepass"), digest_size=13)
    return f"once-{digest.hexdigest()}"


def is_busy(error: Any) -> bool:
    """Whether an error of a driver for PostgreSQL, SQLite or MySQL is a conflict with another transaction."""
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    name = getattr(error, "sqlite_errorname", None) or ""
    number = getattr(error, "errno", None) or next(iter(getattr(error, "args", ())), None)
    return state in _BUSY_STATES or str(name).startswith(_BUSY_NAMES) or number in _BUSY_NUMBERS


def is_in_transaction(driver: Any) -> bool | None:
    """Whether a driver's connection is in a transaction, as the server has last said; this asks nothing.

    None for a driver that does not report it, and on MySQL and MariaDB without autocommit, where the next statement
    begins one. With autocommit it is False, also after BEGIN: a deadlock would end that transaction unnoticed.
    """
    # psycopg. Its `info` says the same, but is made anew each time, which takes ten times as long.
    if (libpq := getattr(driver, "pgconn", None)) is not None:
        return libpq.transaction_status in _IN_TRANSACTION
    if hasattr(driver, "is_in_transaction"):
        return bool(driver.is_in_transaction())
    if hasattr(driver, "in_transaction"):
        return bool(driver.in_transaction)
    if hasattr(driver, "get_autocommit"):
        return False if driver.get_autocommit() else None
    status = getattr(getattr(driver, "info", None), "transaction_status", None)
    return None if status is None else status in _IN_TRANSACTION


class Barrier:
    """What a listener knows of its barrier table, and the rule for its checks. Thread-safe.

    Attributes:
        id: identity of the table when it was last read; None before that.

    """

    def __init__(self, patience: float) -> None:
        """`patience` is in seconds. Raises UsageError if it is negative or no number."""
        if not isinstance(patience, int | float) or not 0 <= patience < math.inf:
            raise UsageError(f"patience must be a number of seconds, 0 or more, not {patience!r}")
        self.id: str | None = None
        self._patience = patience
        self._failed: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    def note_failed(self, transaction_id: str) -> None:
        """Note that the local transaction has ended in this process with an error: its row comes now or never."""
        with self._lock:
            self._failed[transaction_id] = None
            if len(self._failed) > _MOST_FAILED:
                self._failed.popitem(last=False)

    def answer(self, message: MessageExt, state: str | None, barrier_id: str | None) -> LocalTransactionState | None:
        """The answer to a check by the row of its transaction. None: write "rolled back", then answer rollback.

        `state` is that of the row, and `barrier_id` the identity of the table, both as just read; None if there is no
        such row.
        """
        # A process that runs while its table is emptied or replaced sends the new identity from now on.
        self.id = barrier_id
        if state == COMMITTED:
            # The row was committed with the data. That also holds for a row that came here with a copy of the table.
            return LocalTransactionState.COMMIT_MESSAGE
        if message.barrier_id is not None and message.barrier_id != barrier_id:
            # The row may be in the other table. A rollback would lose the message of a committed transaction.
            report(
                logging.ERROR,
                "check_for_another_database",
                once_for=message.barrier_id,
                **message.log_fields,
                barrier_of_message=message.barrier_id,
                barrier_here=barrier_id or "none",
                next="answered unknown; the worker asks again, and may ask another process",
                hint="this process has another table txbridge_transactions than the sender: give all processes of the "
                "producer group the same database, or each service a group of its own",
            )
            return LocalTransactionState.UNKNOWN
        if state is not None:
            return ANSWERS[state]
        age = message.age
        if age is not None and age < self._patience and message.transaction_id not in self._failed:
            # Its sender, in another process, may wait for a connection or a lock.
            report(logging.DEBUG, "check_waits_for_a_row", **message.log_fields, age_s=age, patience_s=self._patience)
            return LocalTransactionState.UNKNOWN
        return None
