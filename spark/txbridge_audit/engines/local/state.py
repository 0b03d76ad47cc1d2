"""The state of a continued audit: one SQLite database in the ledger's folder.

It holds every mention of the transactions whose half messages HALF still holds, so a record may name a transaction no
matter how late, and the transaction is judged again. A step is one transaction of the database: it counts completely or
not at all. One process at a time has the database: SQLite locks it, and a crash releases the lock.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.judge.evidence import ENOUGH, Anchor, Evidence
from txbridge_audit.judge.facts import TopicPartition
from txbridge_audit.judge.transaction import AuditedTransaction, transaction_of
from txbridge_audit.judge.violations import PHANTOM
from txbridge_audit.ledger.place import STATE, cannot_keep
from txbridge_audit.protocol.mentions import (
    MENTIONS,
    AsideMention,
    CopyMention,
    EndMention,
    HalfMention,
    Mention,
    NamedMention,
    RowMention,
    from_row,
    to_row,
)
from txbridge_audit.report.sums import most_listed

#: Half partition and offset; -1 for records that name no offset, so that keys can be sorted, and are never null.
Key = tuple[int, int]

#: Version of the database: raised when an older audit could misread it.
FORMAT = 4
#: The database in the folder of the state.
FILE = "audit.sqlite"

#: Transactions that are kept in memory until they are closed: most are read and judged in one step or two. One takes
#: some 2 KiB, so these take 100 MiB at most.
MOST_LOADED = 50_000

_END, _ASIDE, _HALF, _COPY, _NAMED, _ROW = (
    MENTIONS.index(kind) for kind in (EndMention, AsideMention, HalfMention, CopyMention, NamedMention, RowMention)
)


def _place_of(name: str, kind: type[Mention]) -> int:
    """The place of a field in the row of a mention, behind the number of its kind."""
    return 1 + [field.name for field in fields(kind)].index(name)


#: The topic has the same place in a copy and in a relay's row.
_ID, _TOPIC, _BATCH = _place_of("id", HalfMention), _place_of("topic", CopyMention), _place_of("batch", NamedMention)
_SCHEMA = f"""
BEGIN EXCLUSIVE;
CREATE TABLE fact (name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE mention (partition INTEGER, half INTEGER, kind INTEGER, at INTEGER, row TEXT);
CREATE INDEX mention_of ON mention (partition, half);
CREATE INDEX end_at ON mention (partition, at) WHERE kind = {_END};
-- Records that cannot be read, and what the discard topic says of malformed ones and copies.
CREATE TABLE odd (topic TEXT, partition INTEGER, at INTEGER, row TEXT, PRIMARY KEY (topic, partition, at, row))
WITHOUT ROWID;
-- What verdicts add to the sums, and how many add the same.
CREATE TABLE sum (id INTEGER PRIMARY KEY, told TEXT UNIQUE, n INTEGER);
CREATE TABLE verdict (
    partition INTEGER, half INTEGER, sum INTEGER, is_open INTEGER, waits INTEGER, is_doubtful INTEGER, written INTEGER,
    PRIMARY KEY (partition, half)
) WITHOUT ROWID;
CREATE INDEX open_ones ON verdict (partition, half) WHERE is_open;
CREATE INDEX doubtful_ones ON verdict (partition, half) WHERE is_doubtful;
CREATE INDEX unwritten_ones ON verdict (partition, half) WHERE NOT written;
-- Violations and findings: of a transaction (topic is empty, place and at are its key), or of a visible record without
-- one. One that no longer holds has no row. It stays, so that it is not raised again.
CREATE TABLE entry (kind TEXT, topic TEXT, place INTEGER, at INTEGER, row TEXT, PRIMARY KEY (kind, topic, place, at))
WITHOUT ROWID;
CREATE INDEX entry_of ON entry (topic, place, at);
-- Phantoms that the ledger does not have yet.
CREATE TABLE phantom (row TEXT);
-- What transactions prove about others (judge/evidence.py).
CREATE TABLE anchor (
    partition INTEGER, topic TEXT, place INTEGER, op INTEGER, at INTEGER, stamp INTEGER, half INTEGER,
    PRIMARY KEY (partition, topic, place, op, at)
) WITHOUT ROWID;
CREATE INDEX anchor_of ON anchor (partition, half);
CREATE TABLE unexplained (partition INTEGER, id TEXT, half INTEGER, PRIMARY KEY (partition, half, id)) WITHOUT ROWID;
CREATE TRIGGER added AFTER INSERT ON verdict BEGIN
    UPDATE sum SET n = n + 1 WHERE id = new.sum;
END;
CREATE TRIGGER changed AFTER UPDATE OF sum ON verdict BEGIN
    UPDATE sum SET n = n - 1 WHERE id = old.sum;
    UPDATE sum SET n = n + 1 WHERE id = new.sum;
END;
CREATE TRIGGER removed AFTER DELETE ON verdict BEGIN
    UPDATE sum SET n = n - 1 WHERE id = old.sum;
    DELETE FROM mention WHERE partition = old.partition AND half = old.half;
    DELETE FROM entry WHERE topic = '' AND place = old.partition AND at = old.half;
    DELETE FROM anchor WHERE partition = old.partition AND half = old.half;
    DELETE FROM unexplained WHERE partition = old.partition AND half = old.half;
END;
"""  # noqa: S608  (the numbers are ours)


class StateStore:
    """The database, and the transactions that a step works on."""

    def __init__(self, ledger: Path) -> None:
        """Open the state of the ledger in this folder, or begin one.

        Raises CouldNotAuditError when another audit has it open, or an unknown version has written it.
        """
        self.ledger = ledger
        #: Transactions that this process has begun or read, as long as they are open.
        self._loaded: dict[Key, AuditedTransaction] = {}
        #: The transactions about which this step has learnt something.
        self.touched: set[Key] = set()
        folder = ledger / STATE
        try:
            # Unlike the rest of a ledger, it has whole ids: the right to decide what is open.
            folder.mkdir(0o700, parents=True, exist_ok=True)
            self._database = sqlite3.connect(folder / FILE, isolation_level=None, timeout=0)
            self._prepare()
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise cannot_keep(self.ledger, error) from error
            raise CouldNotAuditError(
                f"another audit continues the ledger in {ledger} at this time: let one run at a time"
            ) from error
        except (sqlite3.Error, OSError) as error:
            raise cannot_keep(self.ledger, error) from error
        if self.read_fact("format") != FORMAT:
            raise CouldNotAuditError(
                f"the state of the ledger has the form {self.read_fact('format')}, which this audit does not know: "
                "use the audit that wrote it, or begin a new ledger"
            )

    def _prepare(self) -> None:
        """Take the lock, which lasts until the database is closed, and make the tables of a new database."""
        self._database.execute("PRAGMA locking_mode = EXCLUSIVE")
        self._database.execute("BEGIN EXCLUSIVE")
        is_new = self._database.execute("SELECT 1 FROM sqlite_master").fetchone() is None
        self._database.execute("COMMIT")
        if is_new:
            # The name of the audit identifies the alarms of a first step that fails.
            known = f"('format', '{FORMAT}'), ('audit', '\"{secrets.token_hex(8)}\"')"
            self._database.executescript(f"{_SCHEMA} INSERT INTO fact VALUES {known}; COMMIT;")  # noqa: S608

    def close(self) -> None:
        self._database.close()

    @contextmanager
    def one_step(self) -> Iterator[None]:
        """All changes meanwhile are kept in the end, or none of them if there is an exception or a crash."""
        self.touched.clear()
        if len(self._loaded) >= MOST_LOADED:
            self._loaded.clear()
        try:
            self._database.execute("BEGIN EXCLUSIVE")
            yield
            self._database.execute("COMMIT")
        except BaseException as error:
            self._loaded.clear()
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error | OSError):
                raise cannot_keep(self.ledger, error) from error
            raise

    def read_fact(self, name: str, default: Any = None) -> Any:
        """A fact that was kept, as JSON gives it back."""
        found = self._database.execute("SELECT value FROM fact WHERE name = ?", (name,)).fetchone()
        return default if found is None else json.loads(found[0])

    def keep_fact(self, name: str, value: Any) -> None:
        self._database.execute("INSERT OR REPLACE INTO fact VALUES (?, ?)", (name, json.dumps(value)))

    def add(self, mention: Mention) -> None:
        """Add a mention that names half coordinates."""
        key, row = key_of(mention), to_row(mention)
        is_first = isinstance(mention, HalfMention) and len(self._loaded) < MOST_LOADED
        if is_first and not self._is_mentioned(key):
            self._loaded[key] = AuditedTransaction(*key)
        if key in self._loaded:
            self._loaded[key].add(mention)
        self.touched.add(key)
        values = (*key, row[0], mention.at, json.dumps(row))
        self._database.execute("INSERT INTO mention VALUES (?, ?, ?, ?, ?)", values)

    def _is_mentioned(self, key: Key) -> bool:
        """Whether a record has claimed these coordinates before."""
        found = self._database.execute("SELECT 1 FROM mention WHERE partition = ? AND half = ? LIMIT 1", key)
        return found.fetchone() is not None

    def add_odd(self, topic: str, partition: int, at: int, mention: Mention) -> None:
        """Add what is said about a record that may have no transaction."""
        values = (topic, partition, at, json.dumps(to_row(mention)))
        self._database.execute("INSERT OR IGNORE INTO odd VALUES (?, ?, ?, ?)", values)

    def read_odd(self) -> list[Mention]:
        rows = self._database.execute("SELECT row FROM odd ORDER BY topic, partition, at, row")
        return [from_row(json.loads(row)) for (row,) in rows]

    def take_ends(self, partition: int, *, at: int | None = None, half: int | None = None) -> list[EndMention]:
        """Remove the entries of the END record `at`, or those that name `half`, and return them."""
        where, place = ("at = ?", at) if half is None else ("half = ?", half)
        rows = self._database.execute(
            f"DELETE FROM mention WHERE kind = {_END} AND partition = ? AND {where} RETURNING row",  # noqa: S608  (ours)
            (partition, place),
        )
        found = (from_row(json.loads(row)) for (row,) in rows.fetchall())
        ends = [end for end in found if isinstance(end, EndMention)]
        for end in ends:
            self._loaded.pop(key_of(end), None)
            self.touched.add(key_of(end))
        return ends

    def transaction(self, key: Key, *, keep: bool = True) -> AuditedTransaction | None:
        """The transaction at these coordinates, for a verdict (`keep`); None when nothing mentions them any more."""
        if key not in self._loaded:
            rows = self._database.execute("SELECT row FROM mention WHERE partition = ? AND half = ?", key)
            mentions = [from_row(json.loads(row)) for (row,) in rows]
            if not mentions:
                return None
            transaction = transaction_of(mentions)
            if not keep or len(self._loaded) >= MOST_LOADED:
                return transaction
            self._loaded[key] = transaction
        return self._loaded[key]

    def open_ones(self) -> list[Key]:
        """Those whose verdict may change without a new record."""
        return self._database.execute("SELECT partition, half FROM verdict WHERE is_open").fetchall()

    def doubtful_ones(self) -> list[Key]:
        """Those that are closed, and that proofs of losses would change."""
        return self._database.execute("SELECT partition, half FROM verdict WHERE is_doubtful").fetchall()

    def halves_of(self, partition: int, identity: str) -> list[Key]:
        """Those with this transaction id. Looks at all of the partition."""
        return self._database.execute(
            f"SELECT partition, half FROM mention WHERE kind = {_HALF} AND partition = ? "  # noqa: S608  (ours)
            f"AND json_extract(row, '$[{_ID}]') = ?",
            (partition, identity),
        ).fetchall()

    def count_unwritten(self) -> int:
        """The number of those that were judged since the ledger was written."""
        return int(self._database.execute("SELECT count(*) FROM verdict WHERE NOT written").fetchone()[0])

    def unwritten_ones(self) -> list[Key]:
        """Those that were judged since the ledger was written. From now on they count as written."""
        found = self._database.execute("SELECT partition, half FROM verdict WHERE NOT written ORDER BY 1, 2").fetchall()
        self._database.execute("UPDATE verdict SET written = 1 WHERE NOT written")
        return found

    def put(self, key: Key, told: str, *, is_open: bool, waits: bool, is_doubtful: bool) -> None:
        """Remember what a transaction adds to the sums, in place of what it added before.

        `waits`: OFFSET holds it open. It is kept though HALF loses its half message.
        """
        if not is_open:
            self._loaded.pop(key, None)
        self._database.execute(
            "INSERT INTO verdict VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET sum = excluded.sum, is_open = "
            "excluded.is_open, waits = excluded.waits, is_doubtful = excluded.is_doubtful, written = excluded.written",
            # The ledger has no rows of relays.
            (*key, self._sum_of(told), is_open, waits, is_doubtful, key[0] < -1),
        )

    def _sum_of(self, told: str) -> int:
        self._database.execute("INSERT OR IGNORE INTO sum (told, n) VALUES (?, 0)", (told,))
        (number,) = self._database.execute("SELECT id FROM sum WHERE told = ?", (told,)).fetchone()
        return int(number)

    def told_of(self, key: Key) -> str | None:
        """What a transaction adds to the sums; None if it was never judged."""
        found = self._database.execute(
            "SELECT told FROM verdict JOIN sum ON sum.id = verdict.sum WHERE partition = ? AND half = ?", key
        ).fetchone()
        return None if found is None else str(found[0])

    def remove(self, key: Key) -> None:
        """Forget a transaction that nothing mentions any more."""
        self._database.execute("DELETE FROM verdict WHERE partition = ? AND half = ?", key)

    def put_entries(self, key: Key, rows: Mapping[str, str]) -> set[str]:
        """List the violations and findings of a transaction in place of the last ones.

        Returns the kinds that were never listed before.
        """
        known = self._database.execute("SELECT kind FROM entry WHERE topic = '' AND place = ? AND at = ?", key)
        before = {kind for (kind,) in known.fetchall()}
        if before:
            self._database.execute("UPDATE entry SET row = NULL WHERE topic = '' AND place = ? AND at = ?", key)
        listed = ((kind, *key, row) for kind, row in rows.items())
        self._database.executemany("INSERT OR REPLACE INTO entry VALUES (?, '', ?, ?, ?)", listed)
        return rows.keys() - before

    def put_stray(self, copy: CopyMention, kind: str, told: str, row: str) -> None:
        """Count a visible record that matches no half message, and list it if there is room.

        That is final. So the record is no longer one of the transaction whose coordinates it claims.
        """
        key, mention = key_of(copy), json.dumps(to_row(copy))
        counted = self._database.execute("UPDATE sum SET n = n + 1 WHERE id = ? RETURNING n", (self._sum_of(told),))
        if counted.fetchall()[0][0] <= most_listed(kind):
            values = (kind, copy.topic, copy.place, copy.at, row)
            # Of a topic that was deleted and created again, another record had these coordinates.
            self._database.execute("INSERT OR REPLACE INTO entry VALUES (?, ?, ?, ?, ?)", values)
        if kind == PHANTOM.name:
            self._database.execute("INSERT INTO phantom VALUES (?)", (mention,))
        self._loaded.pop(key, None)
        self._database.execute("DELETE FROM mention WHERE partition = ? AND half = ? AND row = ?", (*key, mention))
        if not self._is_mentioned(key):
            self.remove(key)

    def take_phantoms(self) -> list[CopyMention]:
        """The phantoms found since the ledger was written. From now on they count as written."""
        rows = self._database.execute("DELETE FROM phantom RETURNING row").fetchall()
        found = (from_row(json.loads(row)) for (row,) in rows)
        return [copy for copy in found if isinstance(copy, CopyMention)]

    def sums(self) -> list[tuple[str, int]]:
        """What transactions and strays add to the sums, and how many add the same."""
        return self._database.execute("SELECT told, n FROM sum WHERE n > 0").fetchall()

    def entries(self, kind: str, most: int) -> list[str]:
        """The first entries of a kind, by coordinates."""
        rows = self._database.execute(
            "SELECT row FROM entry WHERE kind = ? AND row IS NOT NULL ORDER BY topic, place, at LIMIT ?", (kind, most)
        )
        return [row for (row,) in rows]

    def put_evidence(self, key: Key, evidence: Evidence) -> set[int]:
        """Remember what a transaction proves about others, in place of what it proved before.

        Returns the OP offsets of delivered records that are new, or that prove nothing any more.
        """
        after = {(*place[1:], *anchor) for place, anchors in evidence.anchors.items() for anchor in anchors}
        rows = self._database.execute(
            "DELETE FROM anchor WHERE partition = ? AND half = ? RETURNING topic, place, op, at, stamp", key
        )
        changed = after.symmetric_difference(rows.fetchall())
        values = [(key[0], *anchor, key[1]) for anchor in after]
        self._database.executemany("INSERT OR REPLACE INTO anchor VALUES (?, ?, ?, ?, ?, ?, ?)", values)
        self._database.execute("DELETE FROM unexplained WHERE partition = ? AND half = ?", key)
        for partition, identity in evidence.unexplained:
            self._database.execute("INSERT INTO unexplained VALUES (?, ?, ?)", (partition, identity, key[1]))
        return {op for _, _, op, _, _ in changed}

    def oldest_anchors(
        self, partition: int, topic: str, starts: Mapping[TopicPartition, int]
    ) -> dict[int, list[Anchor]]:
        """By partition of a real topic, the oldest delivered records of a half partition that are still there."""
        return {
            place: self._database.execute(
                "SELECT op, at, stamp FROM anchor WHERE partition = ? AND topic = ? AND place = ? AND at >= ? "
                "ORDER BY op, at LIMIT ?",
                (partition, topic, place, start, ENOUGH),
            ).fetchall()
            for (name, place), start in starts.items()
            if name == topic
        }

    def forget_topic(self, topic: str) -> None:
        """Forget what was read of a real topic that was deleted and created again since.

        Verdicts stay as they are until something new is read about a transaction. A record that somebody has put back
        is then its only copy.
        """
        self._database.execute("DELETE FROM anchor WHERE topic = ?", (topic,))
        copies = f"kind IN ({_COPY}, {_ROW}) AND json_extract(row, '$[{_TOPIC}]') = ?"
        self._database.execute(f"DELETE FROM mention WHERE {copies}", (topic,))  # noqa: S608  (ours)
        self._loaded.clear()

    def read_unexplained(self) -> dict[tuple[int, str], set[int]]:
        """See Facts.unexplained."""
        found: dict[tuple[int, str], set[int]] = {}
        for partition, identity, half in self._database.execute("SELECT partition, id, half FROM unexplained"):
            found.setdefault((partition, identity), set()).add(half)
        return found

    def expire_rows(self, writer: int, edge: int) -> int:
        """Forget the rows of relays that the progress names below this offset. Returns their last batch, -1 if none."""
        below = f"FROM mention WHERE kind = {_NAMED} AND partition = ? AND at < ?"
        (last,) = self._database.execute(
            f"SELECT max(json_extract(row, '$[{_BATCH}]')) {below}", (writer, edge)
        ).fetchone()
        if last is None:
            return -1
        self._database.execute(
            f"DELETE FROM verdict WHERE partition = ? AND half IN (SELECT half {below})",  # noqa: S608  (ours)
            (writer, writer, edge),
        )
        self._loaded.clear()
        return int(last)

    def expire(self, partition: int, start: int, edges: Iterable[tuple[str, int]]) -> None:
        """Forget what HALF no longer holds, except messages that OFFSET still holds open.

        `edges` are HALF, END and OP with their log starts: odd records below them are forgotten, too.
        """
        for topic, edge in edges:
            self._database.execute(
                "DELETE FROM odd WHERE topic = ? AND partition = ? AND at < ?", (topic, partition, edge)
            )
        below, place = "partition = ? AND half >= 0 AND half < ?", (partition, start)
        removed = self._database.execute(
            f"DELETE FROM verdict WHERE {below} AND NOT waits RETURNING partition, half",  # noqa: S608  (ours)
            place,
        ).fetchall()
        left = self._database.execute(f"SELECT partition, half FROM verdict WHERE {below}", place).fetchall()  # noqa: S608
        for key in (*removed, *left):
            self._loaded.pop(key, None)
        self._database.executemany(
            f"DELETE FROM mention WHERE kind IN ({_HALF}, {_ASIDE}) AND partition = ? AND half = ?",  # noqa: S608  (ours)
            left,
        )
        self.touched |= set(left)


def key_of(mention: Mention) -> Key:
    """The key of a mention's transaction."""
    return mention.partition, -1 if mention.half is None else mention.half
