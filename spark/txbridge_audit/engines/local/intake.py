"""The intake: each record becomes mentions, and each mention goes to its transaction or to the records without one.

The store keeps them by the half coordinates that they name: in memory, and in SQLite if there are many.
"""

from __future__ import annotations

import itertools
import json
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping

from txbridge.core.names import Names
from txbridge_audit.cluster.cuts import Range
from txbridge_audit.cluster.kafka_config import KafkaSettings
from txbridge_audit.cluster.reader import read
from txbridge_audit.engines import records
from txbridge_audit.judge.facts import TopicPartition
from txbridge_audit.judge.transaction import AuditedTransaction, SetAside, transaction_of
from txbridge_audit.protocol import client_records, worker_records
from txbridge_audit.protocol.mentions import AsideMention, HalfMention, Mention, UnreadableMention, from_row, to_row
from txbridge_audit.protocol.record import KafkaRecord
from txbridge_audit.protocol.relay_records import Numbering, ProgressStep, numbered
from txbridge_audit.protocol.worker_records import AuditCheckpoint
from txbridge_audit.report.sums import OddRecords

Spans = Mapping[TopicPartition, Range]
#: Half partition and offset; -1 for records that name no offset, so that keys can be sorted, and are never null.
Key = tuple[int, int]

#: Mentions that are kept in memory. One takes some 300 bytes there.
MOST_IN_MEMORY = 2_000_000
#: Rows that are written at once.
_BATCH = 10_000


class LocalIntake:
    """Takes records topic by topic (see engines/gather.py), and puts each mention into a store.

    Raises CouldNotAuditError when a record of a worker has a version that is not known.
    """

    def __init__(self, settings: KafkaSettings, names: Names, put: Callable[[Mention], None]) -> None:
        self._settings, self._names, self._put = settings, names, put
        self.odd = OddRecords(names)
        self.asides = SetAside(names)
        #: The last checkpoint of each partition.
        self.checkpoints: dict[int, AuditCheckpoint] = {}
        #: Real topics that well-formed half messages, and relays, name.
        self.named: set[str] = set()
        self.relays: dict[int, Numbering] = {}

    def _read(self, spans: Spans, *, committed: bool = True, may_vanish: bool = False) -> Iterable[KafkaRecord]:
        return read(self._settings, spans, committed=committed, may_vanish=may_vanish)

    def take_halves(self, spans: Spans) -> None:
        for half in map(client_records.half_mention, self._read(spans, committed=False)):
            self._take_mention(half)
            self.named.update(records.real_topics_of(half))

    def take_offsets(self, spans: Spans) -> None:
        self._take_all(records.offset_mentions(self._names, self.checkpoints, self._read(spans)))

    def take_progress(self, spans: Spans) -> None:
        steps: list[ProgressStep] = []
        self._take_all(records.progress_mentions(steps, self.named, self._read(spans)))
        for step in steps:
            self.relays |= numbered(self.relays, step)

    def take_discards(self, spans: Spans) -> None:
        self._take_all(filter(None, map(worker_records.discard_mention, self._read(spans))))

    def take_others(self, spans: Spans, counts: Mapping[str, int], *, exactly: bool) -> None:
        self._take_all(records.other_mentions(self._names, counts, self.asides, exactly, self._read(spans)))

    def take_checks(self, spans: Spans) -> None:
        self._take_all(filter(None, map(worker_records.check_mention, self._read(spans, may_vanish=True))))

    def _take_all(self, found: Iterable[Mention]) -> None:
        for mention in found:
            self._take_mention(mention)

    def _take_mention(self, mention: Mention) -> None:
        if isinstance(mention, UnreadableMention):
            records.refuse_unknown_version(mention)
            self.odd.add_record(mention)
            return
        if isinstance(mention, AsideMention):
            self.asides.add_record(mention)
            self.odd.add_record(mention)
            if mention.source_topic != self._names.half:
                return
        elif isinstance(mention, HalfMention) and mention.fault is not None:
            self.odd.add_record(mention)
        self._put(mention)


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
