"""The state of a continued audit by the local engine: one SQLite database in the ledger's folder.

It holds every mention of the transactions whose half messages HALF still holds, so a record may name a transaction no
matter how late, and the transaction is judged again. A step is one transaction of the database: it counts completely or
not at all. One process at a time has the database: SQLite locks it, and a crash releases the lock.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.judge.evidence import ENOUGH
from txbridge_audit.judge.facts import TopicPartition
from txbridge_audit.judge.transaction import AuditedTransaction, transaction_of
from txbridge_audit.ledger.place import STATE, cannot_keep
from txbridge_audit.protocol.mentions import (
    MENTIONS,
    AsideMention,
    CopyMention,
    EndMention,
    HalfMention,
    Mention,
    from_row,
    to_row,
)

#: Version of the database: raised when an older audit could misread it.
FORMAT = 1
#: The database in the folder of the state.
FILE = "audit.sqlite"

#: Half partition and offset; -1 for records that name no offset, so that the key is never null.
Key = tuple[int, int]

#: Transactions that are kept in memory from step to step, some KiB each.
MOST_LOADED = 50_000

_END, _ASIDE, _HALF = (MENTIONS.index(kind) for kind in (EndMention, AsideMention, HalfMention))
_SCHEMA = f"""
CREATE TABLE fact (name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE mention (partition INTEGER, half INTEGER, kind INTEGER, at INTEGER, row TEXT);
CREATE INDEX mention_of ON mention (partition, half);
CREATE INDEX end_at ON mention (partition, at) WHERE kind = {_END};
CREATE TABLE aside (
    topic TEXT, partition INTEGER, at INTEGER, row TEXT, PRIMARY KEY (topic, partition, at, row)
) WITHOUT ROWID;
CREATE TABLE fault (topic TEXT, partition INTEGER, at INTEGER, row TEXT, PRIMARY KEY (topic, partition, at));
CREATE TABLE sum (id INTEGER PRIMARY KEY, told TEXT UNIQUE, n INTEGER);
CREATE TABLE verdict (
    partition INTEGER, half INTEGER, sum INTEGER, closed INTEGER, waits INTEGER, written INTEGER,
    PRIMARY KEY (partition, half)
) WITHOUT ROWID;
CREATE INDEX open_ones ON verdict (partition, half) WHERE closed = 0;
CREATE INDEX unwritten ON verdict (partition, half) WHERE written = 0;
CREATE TABLE entry (kind TEXT, partition INTEGER, half INTEGER, row TEXT, PRIMARY KEY (kind, partition, half))
WITHOUT ROWID;
CREATE INDEX entry_of ON entry (partition, half);
CREATE TABLE stray (
    topic TEXT, place INTEGER, at INTEGER, kind TEXT, row TEXT, mention TEXT, written INTEGER,
    PRIMARY KEY (topic, place, at)
) WITHOUT ROWID;
CREATE INDEX unwritten_stray ON stray (topic, place, at) WHERE written = 0;
CREATE INDEX stray_of ON stray (kind, topic, place, at);
CREATE TABLE anchor (
    partition INTEGER, topic TEXT, place INTEGER, op INTEGER, at INTEGER, half INTEGER,
    PRIMARY KEY (partition, topic, place, op, at)
) WITHOUT ROWID;
CREATE INDEX anchor_of ON anchor (partition, half);
CREATE TABLE unexplained (partition INTEGER, id TEXT, half INTEGER, PRIMARY KEY (partition, half, id)) WITHOUT ROWID;
CREATE TABLE raised (kind TEXT, partition INTEGER, half INTEGER, PRIMARY KEY (partition, half, kind)) WITHOUT ROWID;
"""


class StateStore:
    """The database. All changes since `begin` are kept by `commit`, or lost with `rollback` or a crash."""

    def __init__(self, ledger: Path) -> None:
        """Open the state of the ledger in this folder, or begin one.

        Raises CouldNotAuditError when another audit has it open, or an unknown version has written it.
        """
        self.ledger = ledger
        folder = ledger / STATE
        #: Transactions that were read or begun, as long as they are open: most are judged in two steps, one after the
        #: other. With them those that the last step has closed.
        self._loaded: dict[Key, AuditedTransaction] = {}
        self._closed: set[Key] = set()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(folder / FILE, isolation_level=None, timeout=0)
            self._prepare()
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise cannot_keep(ledger, error) from error
            raise CouldNotAuditError(
                f"another audit continues the ledger in {ledger} at this time: let one run at a time"
            ) from error
        except (sqlite3.Error, OSError) as error:
            raise cannot_keep(ledger, error) from error
        if self.read_fact("format") != FORMAT:
            raise CouldNotAuditError(
                f"the state of the ledger has the form {self.read_fact('format')}, which this audit does not know: "
                "use the audit that wrote it, or begin a new ledger",
            )

    def _prepare(self) -> None:
        """Take the lock, and make the tables of a new database."""
        self._database.execute("PRAGMA locking_mode = EXCLUSIVE")
        self._database.execute("BEGIN EXCLUSIVE")
        if not self._database.execute("SELECT 1 FROM sqlite_master").fetchone():
            for statement in filter(str.strip, _SCHEMA.split(";")):
                self._database.execute(statement)
            self.keep_fact("format", FORMAT)
            # Its name identifies the alarms of a first step that fails.
            self.keep_fact("audit", secrets.token_hex(8))
        self.commit()

    def close(self) -> None:
        self._database.close()

    def begin(self) -> None:
        for key in self._closed:
            self._loaded.pop(key, None)
        self._closed.clear()
        if len(self._loaded) > MOST_LOADED:
            self._loaded.clear()
        self._database.execute("BEGIN EXCLUSIVE")

    def commit(self) -> None:
        self._database.execute("COMMIT")

    def rollback(self) -> None:
        self._loaded.clear()
        if self._database.in_transaction:
            self._database.execute("ROLLBACK")

    # Facts

    def read_fact(self, name: str, default: Any = None) -> Any:
        """A fact that was kept, as JSON gives it back."""
        found = self._database.execute("SELECT value FROM fact WHERE name = ?", (name,)).fetchone()
        return default if found is None else json.loads(found[0])

    def keep_fact(self, name: str, value: Any) -> None:
        self._database.execute("INSERT OR REPLACE INTO fact VALUES (?, ?)", (name, json.dumps(value)))

    # Mentions

    def add(self, mentions: Iterable[Mention]) -> set[Key]:
        """Add mentions that name half coordinates. Returns these."""
        keys = set()
        rows = []
        for mention in mentions:
            key, row = key_of(mention), to_row(mention)
            rows.append((*key, row[0], mention.at, json.dumps(row)))
            is_first = isinstance(mention, HalfMention) and key not in keys and key not in self._loaded
            if is_first and not self._is_mentioned(key):
                self._loaded[key] = AuditedTransaction(*key)
            keys.add(key)
            if key in self._loaded:
                self._loaded[key].add(mention)
        self._database.executemany("INSERT INTO mention VALUES (?, ?, ?, ?, ?)", rows)
        return keys

    def _is_mentioned(self, key: Key) -> bool:
        """Whether a record has claimed these coordinates before."""
        found = self._database.execute("SELECT 1 FROM mention WHERE partition = ? AND half = ? LIMIT 1", key)
        return found.fetchone() is not None

    def add_aside(self, aside: AsideMention) -> None:
        """Remember a record of the discard topic about a malformed record, or a copy."""
        values = (aside.source_topic, aside.partition, aside.half, json.dumps(to_row(aside)))
        self._database.execute("INSERT OR IGNORE INTO aside VALUES (?, ?, ?, ?)", values)

    def asides(self) -> list[AsideMention]:
        rows = self._database.execute("SELECT row FROM aside ORDER BY topic, partition, at, row")
        found = (from_row(json.loads(row)) for (row,) in rows)
        return [aside for aside in found if isinstance(aside, AsideMention)]

    def remove_end(self, partition: int, at: int) -> set[Key]:
        """Remove the entries of an END record that has no effect. Returns the coordinates that they named."""
        return self._take_ends("partition = ? AND at = ?", (partition, at))[0]

    def move_ends(self, partition: int, copy: int, first: int) -> set[Key]:
        """Give entries that name a copy to the first half message. Returns the coordinates of both."""
        keys, ends = self._take_ends("partition = ? AND half = ?", (partition, copy))
        moved = []
        for end in ends:
            row = to_row(end)
            row[2] = first
            moved.append(from_row(row))
        return keys | self.add(moved)

    def _take_ends(self, where: str, values: tuple[int, int]) -> tuple[set[Key], list[Mention]]:
        chosen = f"kind = {_END} AND {where}"
        rows = self._database.execute(f"SELECT partition, half, row FROM mention WHERE {chosen}", values).fetchall()  # noqa: S608
        self._database.execute(f"DELETE FROM mention WHERE {chosen}", values)  # noqa: S608  (the texts are ours)
        for partition, half, _ in rows:
            self._loaded.pop((partition, half), None)
        return {(p, half) for p, half, _ in rows}, [from_row(json.loads(row)) for _, _, row in rows]

    def transaction(self, key: Key) -> AuditedTransaction | None:
        """The transaction at these coordinates; None when nothing mentions them any more."""
        if key not in self._loaded:
            rows = self._database.execute("SELECT row FROM mention WHERE partition = ? AND half = ?", key)
            mentions = [from_row(json.loads(row)) for (row,) in rows]
            if not mentions:
                return None
            self._loaded[key] = transaction_of(mentions)
        return self._loaded[key]

    def open_keys(self) -> Iterator[Key]:
        """The coordinates of the transactions that are not closed."""
        return iter(self._database.execute("SELECT partition, half FROM verdict WHERE closed = 0").fetchall())

    def unwritten(self) -> list[Key]:
        """The transactions that were judged since the ledger was written. From now on they count as written."""
        keys = self._database.execute("SELECT partition, half FROM verdict WHERE written = 0 ORDER BY 1, 2").fetchall()
        self._database.execute("UPDATE verdict SET written = 1 WHERE written = 0")
        return keys

    # Verdicts

    def put(self, key: Key, told: str, *, is_closed: bool, waits: bool) -> None:
        """Remember what a transaction adds to the sums, in place of what it added before.

        `waits`: OFFSET holds it open. It is kept though HALF loses its half message.
        """
        self._forget(key)
        if is_closed:
            self._closed.add(key)
        self._database.execute("INSERT OR IGNORE INTO sum (told, n) VALUES (?, 0)", (told,))
        (number,) = self._database.execute("SELECT id FROM sum WHERE told = ?", (told,)).fetchone()
        self._database.execute("UPDATE sum SET n = n + 1 WHERE id = ?", (number,))
        self._database.execute("INSERT INTO verdict VALUES (?, ?, ?, ?, ?, 0)", (*key, number, is_closed, waits))

    def told_of(self, key: Key) -> str | None:
        """What a transaction adds to the sums; None if it was never judged."""
        found = self._database.execute(
            "SELECT told FROM verdict JOIN sum ON sum.id = verdict.sum WHERE partition = ? AND half = ?", key
        ).fetchone()
        return None if found is None else str(found[0])

    def _forget(self, key: Key) -> None:
        found = self._database.execute("SELECT sum FROM verdict WHERE partition = ? AND half = ?", key).fetchone()
        if found is not None:
            self._database.execute("UPDATE sum SET n = n - 1 WHERE id = ?", found)
            self._database.execute("DELETE FROM verdict WHERE partition = ? AND half = ?", key)
            self._database.execute("DELETE FROM entry WHERE partition = ? AND half = ?", key)

    def put_entry(self, key: Key, kind: str, row: str) -> bool:
        """List a violation or finding. Returns whether it was never raised before."""
        self._database.execute("INSERT OR REPLACE INTO entry VALUES (?, ?, ?, ?)", (kind, *key, row))
        return self._database.execute("INSERT OR IGNORE INTO raised VALUES (?, ?, ?)", (kind, *key)).rowcount > 0

    def sums(self) -> Iterator[tuple[str, int]]:
        """What transactions add to the sums, and how many add the same."""
        return iter(self._database.execute("SELECT told, n FROM sum WHERE n > 0").fetchall())

    def entries(self, kind: str, most: int) -> list[str]:
        """The first entries of a kind, by half coordinates."""
        rows = self._database.execute(
            "SELECT row FROM entry WHERE kind = ? ORDER BY partition, half LIMIT ?", (kind, most)
        )
        return [row for (row,) in rows]

    # Visible records without a half message: each is judged once

    def is_known_stray(self, topic: str, place: int, at: int) -> bool:
        found = self._database.execute(
            "SELECT 1 FROM stray WHERE topic = ? AND place = ? AND at = ?", (topic, place, at)
        )
        return found.fetchone() is not None

    def put_stray(self, copy: CopyMention, kind: str, row: str) -> None:
        """Remember one with its kind and its entry."""
        values = (copy.topic, copy.place, copy.at, kind, row, json.dumps(to_row(copy)))
        self._database.execute("INSERT INTO stray VALUES (?, ?, ?, ?, ?, ?, 0)", values)

    def unwritten_strays(self) -> list[tuple[CopyMention, str]]:
        """Those found since the ledger was written, with their kinds. From now on they count as written."""
        rows = self._database.execute("SELECT mention, kind FROM stray WHERE written = 0 ORDER BY topic, place, at")
        found = [(from_row(json.loads(row)), kind) for row, kind in rows.fetchall()]
        self._database.execute("UPDATE stray SET written = 1 WHERE written = 0")
        return [(copy, kind) for copy, kind in found if isinstance(copy, CopyMention)]

    def strays(self) -> dict[str, int]:
        """The number of each kind."""
        return dict(self._database.execute("SELECT kind, count(*) FROM stray GROUP BY kind").fetchall())

    def stray_entries(self, kind: str, most: int) -> list[str]:
        rows = self._database.execute(
            "SELECT row FROM stray WHERE kind = ? ORDER BY topic, place, at LIMIT ?", (kind, most)
        )
        return [row for (row,) in rows]

    # Records that cannot be read

    def put_fault(self, topic: str, partition: int, at: int, row: str) -> None:
        self._database.execute("INSERT OR REPLACE INTO fault VALUES (?, ?, ?, ?)", (topic, partition, at, row))

    def faults(self) -> list[Mention]:
        return [from_row(json.loads(row)) for (row,) in self._database.execute("SELECT row FROM fault")]

    # Evidence

    def put_anchor(self, place: tuple[int, str, int], anchor: tuple[int, int], half: int) -> None:
        """Remember a delivered record (see judge/evidence.py)."""
        self._database.execute("INSERT OR REPLACE INTO anchor VALUES (?, ?, ?, ?, ?, ?)", (*place, *anchor, half))

    def remove_evidence(self, key: Key) -> None:
        """Forget what a transaction proved about others, before it is seen again."""
        for table in ("anchor", "unexplained"):
            self._database.execute(f"DELETE FROM {table} WHERE partition = ? AND half = ?", key)  # noqa: S608

    def oldest_anchors(
        self, partition: int, topic: str, starts: Mapping[TopicPartition, int]
    ) -> dict[int, list[tuple[int, int]]]:
        """By partition of a real topic, the oldest delivered records of a half partition that are still there."""
        found = {}
        for place in [place for name, place in starts if name == topic]:
            rows = self._database.execute(
                "SELECT op, at FROM anchor WHERE partition = ? AND topic = ? AND place = ? AND at >= ? ORDER BY op, at "
                "LIMIT ?",
                (partition, topic, place, starts[topic, place], ENOUGH),
            ).fetchall()
            if rows:
                found[place] = rows
        return found

    def forget_topic(self, topic: str) -> None:
        """Forget what was read of a real topic that was deleted and created again since."""
        self._database.execute("DELETE FROM anchor WHERE topic = ?", (topic,))

    def put_unexplained(self, partition: int, identity: str, half: int) -> None:
        self._database.execute("INSERT OR IGNORE INTO unexplained VALUES (?, ?, ?)", (partition, identity, half))

    def read_unexplained(self) -> dict[tuple[int, str], set[int]]:
        """See Facts.unexplained."""
        found: dict[tuple[int, str], set[int]] = {}
        for partition, identity, half in self._database.execute("SELECT partition, id, half FROM unexplained"):
            found.setdefault((partition, identity), set()).add(half)
        return found

    # Retention

    def expire(
        self, partition: int, start: int, topics: tuple[str, str, str], starts: tuple[int, int, int]
    ) -> set[Key]:
        """Forget what HALF no longer holds, except messages that OFFSET still holds open: their coordinates.

        `topics` and `starts` are the names of HALF, END and OP, and their log starts: malformed records below them are
        forgotten, too.
        """
        run, place = self._database.execute, (partition, start)
        gone = "partition = ? AND half >= 0 AND half < ?"
        for topic, edge in zip(topics, starts, strict=True):
            for table in ("fault", "aside"):
                run(f"DELETE FROM {table} WHERE topic = ? AND partition = ? AND at < ?", (topic, partition, edge))  # noqa: S608
        if run(f"SELECT 1 FROM verdict WHERE {gone} LIMIT 1", place).fetchone() is None:  # noqa: S608
            return set()
        for key in [key for key in self._loaded if key[0] == partition and 0 <= key[1] < start]:
            del self._loaded[key]
        left = run(f"SELECT partition, half FROM verdict WHERE {gone} AND waits = 1", place).fetchall()  # noqa: S608
        less = run(f"SELECT sum, count(*) FROM verdict WHERE {gone} AND waits = 0 GROUP BY sum", place).fetchall()  # noqa: S608
        self._database.executemany("UPDATE sum SET n = n - ? WHERE id = ?", ((number, one) for one, number in less))
        for table in ("mention", "entry", "anchor", "raised", "unexplained"):
            of_row = f"v.partition = {table}.partition AND v.half = {table}.half AND v.waits = 1"
            waits = f"EXISTS (SELECT 1 FROM verdict AS v WHERE {of_row})"  # noqa: S608
            run(f"DELETE FROM {table} WHERE {gone} AND NOT {waits}", place)  # noqa: S608
        run(f"DELETE FROM verdict WHERE {gone} AND waits = 0", place)  # noqa: S608
        run(f"DELETE FROM mention WHERE kind IN ({_HALF}, {_ASIDE}) AND {gone}", place)  # noqa: S608
        return set(left)


def key_of(mention: Mention) -> Key:
    """The key of a mention's transaction."""
    return mention.partition, -1 if mention.half is None else mention.half
