"""The cases of tests/support/audit_cases.py in a real Kafka: many of each at random places, among plain transactions.

It shares the names with the worker, and none of the worker's code.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

from confluent_kafka.admin import NewTopic
from greenlet import getcurrent, greenlet

from tests.support.audit_cases import CASES, HOURS_AGO, TAIL, Case, deliver, parked
from tests.support.audit_log import KafkaLog
from tests.support.audit_terms import COMMIT, ORDERS, PARTITIONS, PASSED, PLAIN, ROLLBACK, Half, Record

#: Transactions of one batch, which go on side by side.
_BATCH = 5_000
#: Entries of one record of END or OP, where those of many transactions go together.
_ENTRIES = 1_000
#: All ENDs of such offsets count once, and not at all where retention has removed half messages.
_NOT_HERE = "end_whose_half_offset_no_log_can_have"
#: Per partition: half messages that retention removes in the end, and those of them that were still open.
_AGED, _EXPIRED = 40, 10
#: What a transaction writes next, in the order in which the wishes of a batch are met.
_OUTSIDE, _DECIDED, _ABORTED, _COMMITTED = range(4)


@dataclass
class Truth:
    """Everything that was planted. The audit must find this and nothing else."""

    fates: Counter[str] = field(default_factory=Counter)
    #: Violations and findings: kind and the first 8 characters of the transaction id.
    says: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: Kinds of those that belong to no transaction that was planted.
    strays: Counter[str] = field(default_factory=Counter)

    def add_case(self, case: Case, half: Half | None) -> None:
        self.fates.update(case.fates)
        self.strays.update(case.strays)
        if half is not None:
            self.says.update((kind, half.id[:8]) for kind in {*case.findings, *filter(str.isupper, case.fates[:1])})

    @property
    def kinds(self) -> set[str]:
        return {kind for kind, _ in self.says} | set(self.strays)

    def count_kind(self, kind: str) -> int:
        return self.strays[kind] + sum(count for (named, _), count in self.says.items() if named == kind)


class Writer(KafkaLog):
    """Plants `transactions` of them: `each` of every case, at random places that the seed chooses.

    With `each` 0 all transactions are as they should be, and retention has removed nothing.
    """

    def __init__(
        self,
        servers: str,
        namespace: str,
        seed: int,
        batch: int = _BATCH,
        between: Callable[[], object] = lambda: None,
        topics: int = 2,
    ) -> None:
        """`between` is called after each Kafka transaction. `topics`: of the plain transactions."""
        super().__init__(servers, namespace=namespace)
        self.truth = Truth()
        self.topics = [f"{namespace}.real{number}" for number in range(topics)]
        #: Real topic whose beginning retention has removed.
        self._aged = f"{namespace}.aged"
        self.create(*(NewTopic(topic, PARTITIONS, 1) for topic in (*self.topics, self._aged)))
        self._random, self._size, self._between = Random(seed), batch, between
        #: END offsets below which the checkpoints so far have applied the decisions.
        self._applied = dict(self.end_position)
        #: Low watermarks. That of PLAIN has passed only what retention has removed.
        self._low = dict.fromkeys(range(PARTITIONS), 0)
        self._half_end = 0

    def plant(self, transactions: int, each: int) -> None:
        if each:
            self._plant_aged()
            self._play([partial(self._case, CASES[name]) for name in HOURS_AGO])
        lives = [partial(self._case, case) for name, case in CASES.items() for _ in range(each) if name != _NOT_HERE]
        if len(lives) > transactions:
            raise ValueError(f"{transactions} transactions cannot hold {len(lives)} that are not plain")
        lives += self._plain_ones(transactions - len(lives))
        self._random.shuffle(lives)
        for at in range(0, len(lives), self._size):
            self._play(lives[at : at + self._size])
            self._checkpoint()
        self._play([partial(self._case, case) for case in TAIL.values() for _ in range(each)])

    def more(self, transactions: int) -> int:
        """Plant more plain transactions, and return their number."""
        self._play(self._plain_ones(transactions))
        self._checkpoint()
        return transactions

    # What is planted

    def _case(self, case: Case) -> None:
        self.truth.add_case(case, case.plant(self))

    def _plain_ones(self, number: int) -> list[partial[None]]:
        """Plain transactions: four of five are committed, and half of them are in each half partition."""
        places = ((self.topics[at % len(self.topics)], at // len(self.topics) % PARTITIONS) for at in range(number))
        return [partial(self._plain_one, *place, self._random.randrange(5) > 0) for place in places]

    def _plain_one(self, topic: str, partition: int, is_committed: bool) -> None:
        half = self.half(topic, partition, key=self._random.randbytes(4))
        self._wish(_DECIDED, self.decision(half, COMMIT if is_committed else ROLLBACK))
        if is_committed:
            applied = f"{self._applied[partition]}:0-{self.end_position[partition]}:0"
            copy = self.copy(half, partition=murmur2(half.key) % PARTITIONS)
            self.transaction(copy, self.op("commit", half, ends=applied))
        else:
            self.transaction(self.op("rollback", half))
        self.truth.fates.update(["delivered" if is_committed else "rolled_back"])

    def _plant_aged(self) -> None:
        """Plant what retention removes: the first half messages, and the copies of others whose half messages stay."""

        def plant(partition: int, topic: str, finding: str) -> None:
            half = self.half(topic, partition)
            if finding == "EXPIRED":
                self.transaction(*parked("pending")(self, half))
            else:
                self.end(half, COMMIT)
                deliver(self, half)
            if finding:
                self.truth.says[finding, half.id[:8]] += 1

        for topic, findings in (
            (ORDERS, ["HALF_GONE"] * (_AGED - _EXPIRED) + ["EXPIRED"] * _EXPIRED),
            (self._aged, [""] * _AGED),
        ):
            self._play([partial(plant, p, topic, finding) for finding in findings for p in (PLAIN, PASSED)])
        self.truth.fates["unverifiable"] += _AGED * PARTITIONS
        for partition in range(PARTITIONS):
            self._low[partition] = _AGED
            self.delete_records(self.names.half, partition, _AGED)
            # -1 deletes all records.
            self.delete_records(self._aged, partition, -1)

    def _checkpoint(self) -> None:
        """The worker has applied everything that was written. In PASSED nothing is open but what is parked."""
        self._low[PASSED] = self._half_end
        records = [self.progress(partition, self._low[partition]) for partition in range(PARTITIONS)]
        KafkaLog.transaction(self, *records)
        self._applied = dict(self.end_position)
        self._between()

    # How it is written

    def write(self, record: Record) -> None:
        self._wish(_OUTSIDE, record)

    def transaction(self, *records: Record) -> None:
        self._wish(_COMMITTED, *records)

    def aborted(self, *records: Record) -> None:
        self._wish(_ABORTED, *records)

    @staticmethod
    def _wish(kind: int, *records: Record) -> None:
        """Let the others go on until these records are written together with theirs."""
        parent = getcurrent().parent
        assert parent is not None
        parent.switch((kind, records))

    def _play(self, lives: Iterable[Callable[[], object]]) -> None:
        """Let these lives go on side by side: what they write next is written together."""
        waiting = [(one, one.switch()) for one in map(greenlet, lives)]
        while waiting := [(one, wish) for one, wish in waiting if not one.dead]:
            kind = min(kind for _, (kind, _) in waiting)
            self._write_all(kind, [record for _, (wished, some) in waiting if wished == kind for record in some])
            waiting = [(one, one.switch() if wish[0] == kind else wish) for one, wish in waiting]

    def _write_all(self, kind: int, records: Sequence[Record]) -> None:
        if kind == _ABORTED:
            KafkaLog.aborted(self, *records)
        elif kind == _COMMITTED:
            # One record of OP for all half messages with the same outcome, as a worker writes it.
            outcomes = [one for one in records if one.topic == self.names.op and (one.value or b"").isdigit()]
            known = set(map(id, outcomes))
            KafkaLog.transaction(self, *(one for one in records if id(one) not in known), *_joined(outcomes, b","))
        else:
            self._write_outside(records if kind == _OUTSIDE else _joined(records, b"\n"))
            return
        self._between()

    def _write_outside(self, records: Sequence[Record]) -> None:
        for record in records:
            self._send(self._plain, record)
        self._plain.flush()
        for record in records:
            if record.topic == self.names.end:
                self.end_position[record.partition] = record.offset + 1
            elif record.topic == self.names.half and record.partition == PASSED:
                self._half_end = record.offset + 1


def _joined(records: Sequence[Record], glue: bytes) -> list[Record]:
    """One record for the values of many that differ in nothing else."""
    alike: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        alike[str((record.partition, record.headers, record.dated))].append(record)
    return [
        replace(some[0], value=glue.join(one.value or b"" for one in some[at : at + _ENTRIES]), at=[], stamped=[])
        for some in alike.values()
        for at in range(0, len(some), _ENTRIES)
    ]


def murmur2(key: bytes) -> int:
    """Kafka's hash of a key, without its sign bit."""
    factor, word, whole = 0x5BD1E995, 0xFFFFFFFF, len(key) // 4 * 4
    found = 0x9747B28C ^ len(key)
    for at in range(0, whole, 4):
        mixed = int.from_bytes(key[at : at + 4], "little") * factor & word
        found = found * factor & word ^ (mixed ^ mixed >> 24) * factor & word
    if key[whole:]:
        found = (found ^ int.from_bytes(key[whole:], "little")) * factor & word
    found = (found ^ found >> 13) * factor & word
    return (found ^ found >> 15) & 0x7FFFFFFF
