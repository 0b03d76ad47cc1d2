"""The demo's local transaction: a row in SQLite, as an application with a database of its own would write it."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import Any

from flights.data import Flight
from txbridge import LocalTransactionState, MessageExt, TransactionListener


class FlightLog(TransactionListener):
    """Writes departed flights. A cancelled one is rolled back; one without an air time is left for the check."""

    def __init__(self, database: Path) -> None:
        # One connection for all threads: SQLite has one writer anyway, and waiting for a lock of ours is cheaper than
        # for the file's.
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(database, check_same_thread=False, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode=WAL")
        # The demo is about Kafka's durability; the database survives a crash of the process, not of the machine.
        self._connection.execute("PRAGMA synchronous=OFF")
        self._connection.execute(
            "CREATE TABLE departures (transaction_id TEXT PRIMARY KEY, carrier TEXT, flight TEXT, departed_at TEXT)",
        )
        self.checks = 0

    def execute_local_transaction(self, message: MessageExt, arg: Any) -> LocalTransactionState:
        """Insert the flight. `arg` is the Flight."""
        flight: Flight = arg
        with self._lock:
            self._connection.execute("BEGIN")
            self._connection.execute(
                "INSERT INTO departures VALUES (?, ?, ?, ?)",
                (message.transaction_id, flight.carrier, flight.flight, flight.row["time_hour"]),
            )
            self._connection.execute("COMMIT" if flight.departed else "ROLLBACK")
        if not flight.departed:
            return LocalTransactionState.ROLLBACK_MESSAGE
        if not flight.has_air_time:
            # As if the application did not know yet: it will be asked.
            return LocalTransactionState.UNKNOW
        return LocalTransactionState.COMMIT_MESSAGE

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        """The row is there exactly if the local transaction was committed."""
        with self._lock:
            self.checks += 1
            row = self._connection.execute(
                "SELECT 1 FROM departures WHERE transaction_id = ?",
                (message.transaction_id,),
            ).fetchone()
        return LocalTransactionState.COMMIT_MESSAGE if row else LocalTransactionState.ROLLBACK_MESSAGE

    def close(self) -> None:
        with self._lock:
            self._connection.close()
