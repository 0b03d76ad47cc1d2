"""The mentions that were read, by the half coordinates that they name: in memory, and in SQLite if there are many."""

from __future__ import annotations

import itertools
import json
import sqlite3
import tempfile
from collections.abc import Iterator

from txbridge_audit.judge.transaction import AuditedTransaction, transaction_of
from txbridge_audit.protocol.mentions import Mention, from_row, to_row

#: Half partition and offset; -1 for records that name no offset, so that keys can be sorted, and are never null.
Key = tuple[int, int]

#: Mentions that are kept in memory. One takes some 300 bytes there.
MOST_IN_MEMORY = 2_000_000
#: Rows that are written at once.
_BATCH = 10_000


class MentionStore:
    """Mentions to be read as transactions: all are added first."""

    def __init__(self, most: int = MOST_IN_MEMORY) -> None:
        self._most, self._number = most, 0
        self._by_key: dict[Key, list[Mention]] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._database: sqlite3.Connection | None = None

    def add(self, mention: Mention) -> None:
        """Add a mention that names half coordinates."""
        self._by_key.setdefault(key_of(mention), []).append(mention)
        self._number += 1
        if self._number >= self._most:
            self._write(self._database or self._open())
            self._most = _BATCH

    def _open(self) -> sqlite3.Connection:
        self._folder = tempfile.TemporaryDirectory(prefix="txbridge-audit-")
        self._database = sqlite3.connect(f"{self._folder.name}/mentions.sqlite", isolation_level=None)
        # A file that is gone with the process needs no journal, and no write that waits for a disk.
        self._database.executescript(
            "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;"
            "CREATE TABLE mention (partition INTEGER, half INTEGER, row TEXT)"
        )
        return self._database

    def _write(self, database: sqlite3.Connection) -> None:
        rows = ((*key, json.dumps(to_row(one))) for key, mentions in self._by_key.items() for one in mentions)
        database.execute("BEGIN")
        database.executemany("INSERT INTO mention VALUES (?, ?, ?)", rows)
        database.execute("COMMIT")
        self._by_key.clear()
        self._number = 0

    def transactions(self) -> Iterator[AuditedTransaction]:
        """The transactions in the order of their coordinates. May be called more than once."""
        if self._database is None:
            for key in sorted(self._by_key):
                yield transaction_of(self._by_key[key])
            return
        self._write(self._database)
        # An index once costs less than sorting each time.
        self._database.execute("CREATE INDEX IF NOT EXISTS place ON mention (partition, half)")
        rows = self._database.execute("SELECT partition, half, row FROM mention ORDER BY partition, half")
        for _, of_one in itertools.groupby(rows, key=lambda row: row[:2]):
            yield transaction_of([from_row(json.loads(row)) for _, _, row in of_one])

    def close(self) -> None:
        """Release what the store holds."""
        self._by_key.clear()
        if self._database is not None:
            self._database.close()
        if self._folder is not None:
            self._folder.cleanup()


def key_of(mention: Mention) -> Key:
    """The key of a mention's transaction."""
    return mention.partition, -1 if mention.half is None else mention.half
