"""The records of relays by docs/protocol.md, without their code, and an outbox with breaks of all kinds."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from hashlib import sha256

from tests.support.audit_terms import ABSENT, COMPACTED, FORWARDED, ORDERS, Log, Record, headers


@dataclass(frozen=True)
class Outbox:
    """An outbox and its relay."""

    log: Log
    identity: str = "a1b2c3d4e5f60718"

    def row(self, number: int, batch: int, topic: str = ORDERS, partition: int = 0) -> Record:
        """The record that is delivered for a row."""
        name = sha256(f"{self.identity}/{number}".encode()).hexdigest()[:32].upper()
        ours = headers(trace="1", UNIQ_KEY=name, TXB_OUTBOX=f"{self.identity[:8]}:{batch}")
        return Record(self.log.real(topic), partition, b"key", b"row %d" % number, ours)

    def progress(self, batch: int, *rows: Record) -> Record:
        """The progress that names these rows."""
        topics = list(dict.fromkeys(row.topic for row in rows))
        named = [[number, _name_of(row)[:16], topics.index(row.topic)] for number, row in enumerate(rows)]
        return self.told({"batch": batch, "topics": topics, "rows": named})

    def owner(self, batch: int) -> Record:
        return self.told({"owner": "0" * 32, "batch": batch})

    def told(self, value: object) -> Record:
        where, key = self.log.names.outbox, self.identity.encode()
        return Record(where, 0, key, json.dumps(value).encode(), headers(TXB_V="1"))

    def send(self, batch: int, *rows: Record) -> None:
        """A batch as a relay sends it."""
        self.log.transaction(*rows, self.progress(batch, *rows))


def _name_of(row: Record) -> str:
    return str(dict(row.headers)["UNIQ_KEY"], "ascii")  # type: ignore[arg-type]


def again(record: Record, topic: str | None = None) -> Record:
    """The same record once more, in its topic or in another one."""
    return replace(record, topic=topic or record.topic, at=[], stamped=[])


def plant(log: Log) -> None:
    """Write an outbox in which everything is broken once, and some things are not."""
    outbox, other, first = Outbox(log), Outbox(log, "b" * 16), Outbox(log, "c" * 16)
    one, two = outbox.row(1, 1), outbox.row(2, 1)
    log.transaction(outbox.owner(0))
    outbox.send(1, one, two)
    outbox.send(2, outbox.row(3, 2, partition=1), outbox.row(4, 2, partition=1), outbox.row(5, 2, FORWARDED))
    # Row 6 is lost. Its batch is not the first, so that older rows prove it.
    lost, kept = outbox.row(6, 3), outbox.row(7, 3)
    log.transaction(kept, outbox.progress(3, lost, kept))
    # Row 1 is sent twice by a relay, row 2 by a stranger.
    outbox.send(4, outbox.row(1, 4))
    log.transaction(again(two))
    # Nothing names row 8: the progress of batch 5 cannot be read. So 6 seems to follow 4; and then it comes twice.
    log.transaction(outbox.row(8, 5), outbox.told({"batch": 5, "topics": []}))
    nine = outbox.row(9, 6)
    outbox.send(6, nine)
    outbox.send(6, outbox.row(10, 6))
    # A batch that does not name the row, and one that never was.
    log.transaction(outbox.row(11, 2), outbox.row(12, 99))
    # Neither is ours.
    log.transaction(replace(outbox.row(13, 6), headers=headers(UNIQ_KEY="D" * 32, TXB_OUTBOX="a1b2c3d4")))
    log.write(replace(outbox.owner(0), key=b"nobody"))
    # Somebody has forwarded row 9. Compaction may have removed row 14, and the topic of row 15 is deleted.
    log.transaction(again(nine, log.real(FORWARDED)))
    log.transaction(outbox.progress(7, outbox.row(14, 7, COMPACTED), outbox.row(15, 7, ABSENT)))
    # Retention has removed the progress of another outbox; and nothing proves the loss of the first row of a third one.
    log.transaction(other.row(1, 3))
    log.transaction(first.progress(1, first.row(1, 1)))


#: What an audit says of it, counted by hand.
ROWS = {"delivered": 6, "pending": 0, "unverifiable": 4, "LOST": 1, "DUPLICATED": 2, "PHANTOM": 3}
BROKEN = {"LOST": 1, "DUPLICATED": 2, "PHANTOM": 3}
FINDINGS = {"MALFORMED": 3, "BATCH_OUT_OF_TURN": 2, "FOREIGN_COPY": 1, "NOT_IN_TOPIC": 1}
UNJUDGED = {"LOST": {"REAL_TOPIC": 3}, "PHANTOM": {"OUTBOX_GONE": 1}}
