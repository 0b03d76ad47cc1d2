"""The mentions that were read, by the half coordinates that they name: in memory, or in SQLite if there are many."""

from __future__ import annotations

import itertools
import json
import sqlite3
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator

from txbridge_audit.judge.transaction import AuditedTransaction, transaction_of
from txbridge_audit.protocol.mentions import Mention, from_row, to_row

#: Half partition and offset; -1 for records that name no offset, so that keys can be sorted, and are never null.
Key = tuple[int, int]

#: Number of records up to which their mentions are kept in memory. One takes some 300 bytes there.
MOST_IN_MEMORY = 2_000_000
#: Rows that are written at once.
_BATCH = 10_000


class MentionStore(ABC):
    """Mentions to be read as transactions: all are added first."""

    @abstractmethod
    def add(self, mention: Mention) -> None:
        """Add a mention that names half coordinates."""

    @abstractmethod
    def transactions(self) -> Iterator[AuditedTransaction]:
        """The transactions in the order of their coordinates. May be called more than once."""

    @abstractmethod
    def close(self) -> None:
        """Release what the store holds."""


class MemoryStore(MentionStore):
    """Mentions in memory."""

    def __init__(self) -> None:
        self._by_key: dict[Key, list[Mention]] = {}

    def add(self, mention: Mention) -> None:
        self._by_key.setdefault(key_of(mention), []).append(mention)

    def transactions(self) -> Iterator[AuditedTransaction]:
        for key in sorted(self._by_key):
            yield transaction_of(self._by_key[key])

    def close(self) -> None:
        self._by_key.clear()


class SqliteStore(MentionStore):
    """Mentions in a temporary SQLite database."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="txbridge-audit-")
        self._database = sqlite3.connect(f"{self._folder.name}/mentions.sqlite", isolation_level=None)
        # A file that is gone with the process needs no journal, and no write that waits for a disk.
        self._database.executescript(
            "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;"
            "CREATE TABLE mention (partition INTEGER, half INTEGER, row TEXT)"
        )
        self._waiting: list[tuple[int, int, str]] = []

    def add(self, mention: Mention) -> None:
        self._waiting.append((*key_of(mention), json.dumps(to_row(mention))))
        if len(self._waiting) >= _BATCH:
            self._write()

    def _write(self) -> None:
        self._database.execute("BEGIN")
        self._database.executemany("INSERT INTO mention VALUES (?, ?, ?)", self._waiting)
        self._database.execute("COMMIT")
        self._waiting.clear()

    def transactions(self) -> Iterator[AuditedTransaction]:
        self._write()
        # An index once costs less than sorting each time.
        self._database.execute("CREATE INDEX IF NOT EXISTS place ON mention (partition, half)")
        rows = self._database.execute("SELECT partition, half, row FROM mention ORDER BY partition, half")
        for _, of_one in itertools.groupby(rows, key=lambda row: row[:2]):
            yield transaction_of([from_row(json.loads(row)) for _, _, row in of_one])

    def close(self) -> None:
        self._database.close()
        self._folder.cleanup()


def store_for(records: int) -> MentionStore:
    """The store for so many records."""
    return MemoryStore() if records <= MOST_IN_MEMORY else SqliteStore()


def key_of(mention: Mention) -> Key:
    """The key of a mention's transaction."""
    return mention.partition, -1 if mention.half is None else mention.half
