"""The records of transactions by docs/protocol.md, without txbridge's code, except for its names.

A `Log` writes them: the unit tests keep it in memory, and the integration tests write it to Kafka.
"""

from __future__ import annotations

import itertools
import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.support.message_frames import Framed, delivered_id, write
from txbridge.core.names import Names

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0

#: Partitions of HALF: in the second one the low watermark has passed every half message of the cases.
PLAIN, PASSED = 0, 1
PARTITIONS = 2

#: Real topics: an ordinary one, one with compaction, one that does not exist, and the target of forwarded messages.
ORDERS, COMPACTED, ABSENT, FORWARDED = "orders", "orders.compacted", "orders.absent", "orders.forwarded"

Headers = list[tuple[str, bytes | None]]


@dataclass(frozen=True)
class Record:
    """A record to write. `offset` is known once it is written."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    #: Timestamp that the writer sets (ms). None: the writer sets none.
    dated: int | None = None
    at: list[int] = field(default_factory=list, compare=False)
    #: Timestamp of the stored record (ms), known once it is written.
    stamped: list[int] = field(default_factory=list, compare=False)

    @property
    def offset(self) -> int:
        return self.at[0]


@dataclass(frozen=True)
class Half:
    """A half message in the log."""

    partition: int
    offset: int
    id: str
    group: str
    topic: str
    #: Timestamp of the delivered record.
    dated: int | None = None
    key: bytes = b"key"
    #: Topics of its messages, if it holds several.
    topics: tuple[str, ...] = ()
    #: Their times of delivery (ms), if they have times of their own; -1 for none.
    times: tuple[int, ...] = ()

    def entry(self, decision: int, *, transaction_id: str | None = None, rest: str = "") -> str:
        return f"{self.offset},{transaction_id or self.id},{decision}{rest}"


def headers(**values: str | None) -> Headers:
    return [(name, None if value is None else value.encode()) for name, value in values.items()]


class Log(ABC):
    """All records of all cases, written with the terms of the protocol."""

    #: A recent time (ms): retention does not remove records with this timestamp as too old.
    recently: int

    def __init__(self, names: Names) -> None:
        self.names = names
        #: Next END offset of each partition.
        self.end_position = dict.fromkeys(range(PARTITIONS), 0)
        self._owner = itertools.count(1)

    def real(self, topic: str) -> str:
        """The real name of one of the cases' topics in this log."""
        return topic

    @abstractmethod
    def write(self, record: Record) -> None:
        """Write a record outside of Kafka transactions."""

    @abstractmethod
    def transaction(self, *records: Record) -> None:
        """Write all records in one Kafka transaction."""

    @abstractmethod
    def aborted(self, *records: Record) -> None:
        """Write the records in a Kafka transaction that is aborted. No reader may see them."""

    def half(
        self,
        topic: str = ORDERS,
        partition: int = PLAIN,
        group: str = "billing",
        key: bytes = b"key",
        **changed: str | None,
    ) -> Half:
        topic, transaction_id = self.real(topic), secrets.token_hex(16).upper()
        ours = {
            "TXB_V": "1",
            "TRAN_MSG": "true",
            "REAL_TOPIC": topic,
            "PGROUP": group,
            "UNIQ_KEY": transaction_id,
        } | changed
        record = Record(
            self.names.half,
            partition,
            key,
            b"\xff\x00 the user's bytes",
            [("trace", b"1"), ("trace", None), *headers(**ours)],
        )
        self.write(record)
        given = changed.get("BORN_TIMESTAMP") or ""
        dated = int(given) if given.isdigit() and int(given) else record.stamped[0]
        return Half(partition, record.offset, transaction_id, group, topic, dated, key)

    def several(
        self,
        *topics: str,
        partition: int = PLAIN,
        places: Sequence[int] = (),
        times: Sequence[int] = (),
        **changed: str | None,
    ) -> Half:
        """A half message that holds one message for each of these topics."""
        transaction_id, messages = secrets.token_hex(16).upper(), self.messages(topics, places)
        for message, time in zip(messages, times, strict=False):
            message.deliver_at = time
        ours = {
            "TXB_V": "1",
            "TRAN_MSG": "true",
            "REAL_TOPIC": messages[0].topic,
            "PGROUP": "billing",
            "UNIQ_KEY": transaction_id,
            "TXB_MESSAGES": str(len(messages)),
        } | changed
        record = Record(self.names.half, partition, messages[0].key, write(messages), headers(**ours))
        self.write(record)
        topic, dated = messages[0].topic, record.stamped[0]
        return Half(
            partition, record.offset, transaction_id, "billing", topic, dated, topics=topics, times=tuple(times)
        )

    def messages(self, topics: Sequence[str], places: Sequence[int] = ()) -> list[Framed]:
        """Messages that differ in their values. One has no key, no value and no headers, and one has a timestamp."""
        found = []
        for number, topic in enumerate(topics):
            told: Headers = [("trace", b"1"), ("trace", None)]
            one = Framed(self.real(topic), b"key", b"\xff\x00 number %d" % number, told)
            one.partition = places[number] if places else -1
            one.timestamp = self.recently if number == 2 else -1
            found.append(Framed(one.topic, None, None) if number == 1 else one)
        return found

    def copies(self, half: Half, places: Sequence[int] = ()) -> list[Record]:
        """All records that the worker delivers for a half message with several messages."""
        found = []
        for number, one in enumerate(self.messages(half.topics), 1):
            ours = {
                "UNIQ_KEY": delivered_id(half.id, half.times),
                "TXB_HALF": f"{half.partition}:{half.offset}",
                "TXB_MESSAGE": f"{number}/{len(half.topics)}",
            }
            place = places[number - 1] if places else 0
            dated = half.dated if one.timestamp < 0 else one.timestamp
            found.append(Record(one.topic, place, one.key, one.value, [*one.headers, *headers(**ours)], dated))
        return found

    def decision_record(self, value: bytes | None, partition: int = PLAIN, **changed: str | None) -> int:
        ours: dict[str, str | None] = {"TXB_V": "1", "PGROUP": "billing", "SOURCE": "client"}
        record = Record(self.names.end, partition, None, value, headers(**(ours | changed)))
        self.write(record)
        self.end_position[partition] = record.offset + 1
        return record.offset

    def decision(self, half: Half, decision: int) -> Record:
        """An END that another client writes in a Kafka transaction."""
        ours = headers(TXB_V="1", PGROUP=half.group, SOURCE="client")
        return Record(self.names.end, half.partition, None, half.entry(decision).encode(), ours)

    def end(self, half: Half, decision: int, source: str = "client", group: str | None = None, **entry: str) -> int:
        line = half.entry(decision, **entry)  # type: ignore[arg-type]
        return self.decision_record(line.encode(), half.partition, PGROUP=group or half.group, SOURCE=source)

    def copy(self, half: Half, topic: str | None = None, partition: int = 0, **changed: str | None) -> Record:
        ours = {"UNIQ_KEY": half.id, "TXB_HALF": f"{half.partition}:{half.offset}"} | changed
        told = [("trace", b"1"), ("trace", None), *headers(**ours)]
        where = self.real(topic or half.topic)
        return Record(where, partition, half.key, b"\xff\x00 the user's bytes", told, half.dated)

    def check(self, half: Half, end: int, times: int = 1, **changed: str | None) -> Record:
        """A check request of a worker that has applied every END below `end`."""
        ours = {
            "TXB_V": "1",
            "UNIQ_KEY": half.id,
            "TXB_HALF": f"{half.partition}:{half.offset}",
            "TXB_END": str(end),
            "TRANSACTION_CHECK_TIMES": str(times),
        } | changed
        return Record(self.names.check("billing"), 0, b"key", b"\xff\x00 the user's bytes", headers(**ours))

    def op(self, outcome: str, *halves: Half, ends: str | None = None, dated: int | None = None) -> Record:
        """An OP record. `ends`: the range of END entries that its Kafka transaction has applied. `dated`: its time."""
        value = ",".join(str(half.offset) for half in halves).encode()
        ours = headers(TXB_V="1", TAGS="d", OUTCOME=outcome) + ([] if ends is None else headers(TXB_ENDS=ends))
        return Record(self.names.op, halves[0].partition, None, value, ours, dated)

    def parked(self, half: Half, state: str | None, **more: object) -> Record:
        """A parked entry, or its tombstone."""
        value = {"state": state, "id": half.id, "group": half.group, "topic": half.topic, "checks": 0, **more}
        text = None if state is None else json.dumps(value).encode()
        return Record(
            self.names.offset,
            half.partition,
            self.names.parked_key(half.partition, half.offset),
            text,
            headers(TXB_V="1"),
        )

    def progress(self, partition: int, half: int, **more: object) -> Record:
        value = {
            "half": half,
            "end": self.end_position[partition],
            "op": 0,
            "owner": "w",
            "seq": next(self._owner),
            **more,
        }
        return Record(
            self.names.offset,
            partition,
            self.names.checkpoint_key(partition),
            json.dumps(value).encode(),
            headers(TXB_V="1"),
        )

    def discard(self, half: Half, end: int | None = None, reason: str = "MAX_CHECKS", **more: str) -> Record:
        position = self.end_position[half.partition] if end is None else end
        ours = {
            "UNIQ_KEY": half.id,
            "TRANSACTION_CHECK_TIMES": "15",
            "TXB_HALF": f"{half.partition}:{half.offset}",
            "TXB_END": str(position),
            "TXB_REASON": reason,
        } | more
        return Record(self.names.discard, 0, b"key", b"body", headers(**ours))

    def set_aside(
        self, topic: str, partition: int, offset: int, copied: Sequence[tuple[str, bytes | None]] = (), **changed: str
    ) -> Record:
        ours = {
            "TXB_V": "1",
            "TXB_REASON": "MALFORMED",
            "TXB_ERROR": "no good",
            "TXB_SOURCE": f"{topic}:{partition}:{offset}",
        } | changed
        return Record(self.names.discard, 0, None, b"as it was", [*copied, *headers(**ours)])

    def deliver(self, half: Half, *more: Record) -> Record:
        """The records of a Kafka transaction of the worker that delivers a commit."""
        copy = self.copy(half)
        self.transaction(copy, self.op("commit", half), *more)
        return copy
