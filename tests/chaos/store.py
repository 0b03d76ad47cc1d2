"""The application's own database, which all its processes share. Its decisions are the truth."""

from __future__ import annotations

import json
import sqlite3
import threading
from pathlib import Path
from typing import NamedTuple

#: A stopped process rarely holds the lock, since it takes it for microseconds. Disks can be slow.
_LOCK_TIMEOUT_S = 60.0


class Plan(NamedTuple):
    """The messages of a transaction that commits."""

    #: Topics of its messages, in their order.
    topics: tuple[str, ...]
    #: Earliest time at which those for the first topic become visible (ms). The others name none.
    due: int | None = None


class DecisionStore:
    """One row per transaction, written once: the first process decides. Safe for threads and for processes."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(path, _LOCK_TIMEOUT_S, check_same_thread=False, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode=WAL")
        # kill -9 of a process loses nothing without it, and the machine does not die here.
        self._connection.execute("PRAGMA synchronous=OFF")
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS decisions (id TEXT PRIMARY KEY, commits INTEGER, plan TEXT)"
        )

    def decide(self, transaction_id: str, *, commits: bool, plan: Plan | None = None) -> bool:
        """Decide unless there is a decision. Returns whether the transaction commits.

        So a check cannot answer "rolled back" for a transaction that a stopped process commits later.
        """
        with self._lock:
            row = (transaction_id, commits, json.dumps(plan))
            self._connection.execute("INSERT OR IGNORE INTO decisions VALUES (?, ?, ?)", row)
            query = "SELECT commits FROM decisions WHERE id = ?"
            return bool(self._connection.execute(query, (transaction_id,)).fetchone()[0])

    @property
    def count(self) -> int:
        """Number of decided transactions."""
        with self._lock:
            return int(self._connection.execute("SELECT count(*) FROM decisions").fetchone()[0])

    def decisions(self) -> dict[str, bool]:
        """Whether each transaction commits."""
        with self._lock:
            return {name: bool(commits) for name, commits, _ in self._connection.execute("SELECT * FROM decisions")}

    def plans(self) -> dict[str, Plan]:
        """The messages of each transaction that commits."""
        with self._lock:
            rows = self._connection.execute("SELECT id, plan FROM decisions WHERE commits").fetchall()
        found = ((name, json.loads(plan)) for name, plan in rows)
        return {name: Plan(tuple(plan[0]), plan[1]) for name, plan in found if plan is not None}

    def close(self) -> None:
        with self._lock:
            self._connection.close()
