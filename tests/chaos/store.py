"""The application's own database, shared by all its processes: the truth of what was decided."""

from __future__ import annotations

import json
import sqlite3
import threading
from pathlib import Path
from typing import NamedTuple

#: A process that is stopped holds the lock with little luck, since it takes it for microseconds; disks can be slow.
_LOCK_TIMEOUT_S = 60.0


class Plan(NamedTuple):
    """What a transaction sends when it commits."""

    #: Of its messages, in their order.
    topics: tuple[str, ...]
    #: When they become visible, at the earliest (ms).
    due: int | None = None


class DecisionStore:
    """One row per transaction, written once: whoever comes first decides. Thread-safe, and between processes too."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(path, _LOCK_TIMEOUT_S, check_same_thread=False, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode=WAL")
        # kill -9 of a process is survived without it; the machine does not die here.
        self._connection.execute("PRAGMA synchronous=OFF")
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS decisions (id TEXT PRIMARY KEY, commits INTEGER, plan TEXT)"
        )

    def decide(self, transaction_id: str, *, commits: bool, plan: Plan | None = None) -> bool:
        """Decide unless it is decided; returns whether the transaction commits.

        A check thus cannot say "rolled back" of a transaction that a stopped process commits later.
        """
        with self._lock:
            row = (transaction_id, commits, json.dumps(plan))
            self._connection.execute("INSERT OR IGNORE INTO decisions VALUES (?, ?, ?)", row)
            query = "SELECT commits FROM decisions WHERE id = ?"
            return bool(self._connection.execute(query, (transaction_id,)).fetchone()[0])

    @property
    def count(self) -> int:
        """How many are decided."""
        with self._lock:
            return int(self._connection.execute("SELECT count(*) FROM decisions").fetchone()[0])

    def decisions(self) -> dict[str, bool]:
        """Whether each transaction commits."""
        with self._lock:
            return {name: bool(commits) for name, commits, _ in self._connection.execute("SELECT * FROM decisions")}

    def plans(self) -> dict[str, Plan]:
        """What each transaction that commits sends."""
        with self._lock:
            rows = self._connection.execute("SELECT id, plan FROM decisions WHERE commits").fetchall()
        found = ((name, json.loads(plan)) for name, plan in rows)
        return {name: Plan(tuple(plan[0]), plan[1]) for name, plan in found if plan is not None}

    def close(self) -> None:
        with self._lock:
            self._connection.close()
