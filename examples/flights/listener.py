"""The demo's local transaction: a row in SQLite, as an application with its own database would write it."""

from __future__ import annotations

import asyncio
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from flights.data import Flight
from txbridge import AsyncTransactionListener, LocalTransactionState, MessageExt

#: A row of departures.
Row = tuple[str, str, str, str]


class FlightLog(AsyncTransactionListener):
    """Stores departed flights. A cancelled one is rolled back; one without an air time is left to the check.

    Local transactions that run at the same time share one transaction of the database: while one is being committed,
    the rows of the next gather. Each of them is decided only when its row is committed.
    """

    def __init__(self, database: Path) -> None:
        # One connection in one thread: SQLite has one writer anyway.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="demo-sqlite")
        self._connection = sqlite3.connect(database, check_same_thread=False, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode=WAL")
        # The demo is about Kafka's durability; the database survives a crash of the process, not of the machine.
        self._connection.execute("PRAGMA synchronous=OFF")
        self._connection.execute(
            "CREATE TABLE departures (transaction_id TEXT PRIMARY KEY, carrier TEXT, flight TEXT, departed_at TEXT)"
        )
        self._waiting: list[tuple[Row, asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None
        #: Number of database transactions.
        self.commits = 0

    async def execute_local_transaction(self, message: MessageExt, arg: Any) -> LocalTransactionState:
        """Insert the flight. `arg` is the Flight."""
        flight: Flight = arg
        if not flight.departed:
            return LocalTransactionState.ROLLBACK_MESSAGE
        await self._insert((message.transaction_id, flight.carrier, flight.flight, flight.row["time_hour"]))
        if not flight.has_air_time:
            # Stands for an application that does not know the result yet, so that a check asks again.
            return LocalTransactionState.UNKNOWN
        return LocalTransactionState.COMMIT_MESSAGE

    async def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        """Commit exactly if the row is there."""
        loop = asyncio.get_running_loop()
        is_there = await loop.run_in_executor(self._thread, self._is_there, message.transaction_id)
        return LocalTransactionState.COMMIT_MESSAGE if is_there else LocalTransactionState.ROLLBACK_MESSAGE

    def close(self) -> None:
        self._thread.shutdown()
        self._connection.close()

    async def _insert(self, row: Row) -> None:
        """Return when the row is committed. Raises SQLite's error about this row or another of the same transaction."""
        committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((row, committed))
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write())
        await committed

    async def _write(self) -> None:
        try:
            while self._waiting:
                together, self._waiting = self._waiting, []
                rows = [row for row, _ in together]
                try:
                    await asyncio.get_running_loop().run_in_executor(self._thread, self._commit, rows)
                except sqlite3.Error as error:
                    for _, committed in together:
                        if not committed.done():
                            committed.set_exception(error)
                else:
                    for _, committed in together:
                        if not committed.done():
                            committed.set_result(None)
        finally:
            self._writing = None

    def _commit(self, rows: list[Row]) -> None:
        self._connection.execute("BEGIN")
        try:
            self._connection.executemany("INSERT INTO departures VALUES (?, ?, ?, ?)", rows)
            self._connection.execute("COMMIT")
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self.commits += 1

    def _is_there(self, transaction_id: str) -> bool:
        found = self._connection.execute("SELECT 1 FROM departures WHERE transaction_id = ?", (transaction_id,))
        return found.fetchone() is not None
