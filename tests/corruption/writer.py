"""Writer of topics as docs/protocol.md describes them.

It shares the names with the worker, and none of the worker's code.
"""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TypeVar

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.corruption.kinds import COMMITTED, CORRUPT, LEGAL, ROLLED_BACK, Kind, Round
from tests.support.harness import quiet
from tests.support.message_frames import Framed, delivered_id, write
from txbridge.core.names import Names

PARTITIONS = 2
#: Transactions of one batch. Each round of a batch is one Kafka transaction.
_BATCH = 5_000
#: Per partition: half messages that retention removes in the end, and those of them that were still open.
_AGED, _EXPIRED = 40, 10
_GROUPS = ("billing", "shipping", "mail")
_VALUE = bytes(100)

Headers = list[tuple[str, bytes]]
_T = TypeVar("_T")


@dataclass
class Truth:
    """Everything that was planted by hand. The audit must find this and nothing else."""

    fates: Counter[str] = field(default_factory=Counter)
    #: Violations and findings: kind and the first 8 characters of the transaction id.
    says: Counter[tuple[str, str]] = field(default_factory=Counter)


@dataclass
class _Transaction:
    kind: Kind
    id: str
    half: int
    group: str
    topic: str
    key: bytes
    #: Timestamp set by the user (ms).
    dated: int


class Writer:
    """Plants `transactions` of them: `each` of every special kind, at random places that the seed chooses.

    With `each` 0 all transactions are as they should be, and retention has removed nothing.
    """

    def __init__(
        self, servers: str, namespace: str, seed: int, batch: int = _BATCH, between: Callable[[], object] = lambda: None
    ) -> None:
        """`between` is called after each Kafka transaction, one of which holds a round of `batch` transactions."""
        self.names, self.truth, self._servers = Names(namespace), Truth(), servers
        self._size, self._between = batch, between
        self._random, self._now = Random(seed), time.time_ns() // 1_000_000
        self._admin = AdminClient(quiet(servers))
        self.topics = [f"{namespace}.orders", f"{namespace}.payments"]
        #: Real topic whose beginning retention has removed.
        self._aged = f"{namespace}.aged"
        settings = {**quiet(servers), "linger.ms": 20, "queue.buffering.max.messages": 1_000_000}
        self._plain = Producer({**settings, "enable.idempotence": True})
        self._worker = Producer({**settings, "transactional.id": f"{namespace}-corruption"})
        self._worker.init_transactions()
        self._half = dict.fromkeys(range(PARTITIONS), 0)
        self._end = dict.fromkeys(range(PARTITIONS), 0)
        #: END offsets below which the Kafka transactions so far have applied the decisions.
        self._applied = dict.fromkeys(range(PARTITIONS), 0)
        self._numbers = itertools.count(1)
        #: Timestamp of OP records (ms); 0: now.
        self._recorded = 0

    def plant(self, transactions: int, each: int) -> None:
        self.create_topics()
        if each:
            self._plant_aged()
        kinds = [kind for kind in (*LEGAL, *CORRUPT) for _ in range(each)]
        if len(kinds) > transactions:
            raise ValueError(f"{transactions} transactions cannot hold {len(kinds)} that are not plain")
        kinds += self._random.choices([COMMITTED, ROLLED_BACK], weights=[4, 1], k=transactions - len(kinds))
        self._random.shuffle(kinds)
        # Transactions before all others, so that a loss can be proved in every partition of every topic.
        first = [COMMITTED] * (8 * len(self.topics) * PARTITIONS)
        for chosen in (first, *(kinds[at : at + self._size] for at in range(0, len(kinds), self._size))):
            # Two hours ago: what OP does not name is only proved to be lost where older records are left.
            self._recorded = self._now - 7_200_000 if chosen is first else 0
            for partition in range(PARTITIONS):
                self._batch(partition, chosen[partition::PARTITIONS])
                self._transaction(partial(self._checkpoint, partition))
        self._strays(each)
        for partition in range(PARTITIONS):
            self._transaction(partial(self._checkpoint, partition))
        self._tail(each)

    def more(self, transactions: int) -> int:
        """Plant more plain transactions, half of them in each half partition; return their number."""
        kinds = self._random.choices([COMMITTED, ROLLED_BACK], weights=[4, 1], k=transactions)
        for partition in range(PARTITIONS):
            self._batch(partition, kinds[partition::PARTITIONS])
            self._transaction(partial(self._checkpoint, partition))
        return len(kinds)

    # Steps

    def create_topics(self) -> None:
        """Create the topics of the namespace and the real topics, all empty."""
        names, stamped = self.names, {"message.timestamp.type": "LogAppendTime"}
        topics = [NewTopic(name, PARTITIONS, 1, config=stamped) for name in (names.half, names.end)]
        topics.append(NewTopic(names.op, PARTITIONS, 1))
        topics.append(NewTopic(names.offset, PARTITIONS, 1, config=stamped | {"cleanup.policy": "compact"}))
        topics += [NewTopic(name, 1, 1, config=stamped) for name in (names.discard, *map(names.check, _GROUPS))]
        topics += [NewTopic(topic, PARTITIONS, 1) for topic in (*self.topics, self._aged)]
        for future in self._admin.create_topics(topics).values():
            future.result()

    def _plant_aged(self) -> None:
        """Plant what retention removes: the first half messages, and the copies of others whose half messages stay."""
        for partition in range(PARTITIONS):
            old = [self._new(partition, COMMITTED, self.topics[0]) for _ in range(_AGED - _EXPIRED)]
            for transaction in old:
                self._forget(transaction)
                self.truth.says["HALF_GONE", transaction.id[:8]] += 1
            self._play(partition, old)
            open_still = [self._new(partition, COMMITTED, self.topics[0]) for _ in range(_EXPIRED)]
            for transaction in open_still:
                self._forget(transaction)
                self.truth.says["EXPIRED", transaction.id[:8]] += 1
            parked = Round(parked=("pending", {}))
            self._transaction(partial(self._finish, partition, [(one, parked) for one in open_still]))
            self._play(partition, [self._new(partition, COMMITTED, self._aged) for _ in range(_AGED)])
            self.truth.fates["delivered"] -= _AGED
            self.truth.fates["unverifiable"] += _AGED
        ends = [TopicPartition(self.names.half, partition, _AGED) for partition in range(PARTITIONS)]
        # -1 deletes all records.
        ends += [TopicPartition(self._aged, partition, -1) for partition in range(PARTITIONS)]
        for future in self._admin.delete_records(ends).values():
            future.result()

    def _batch(self, partition: int, kinds: Sequence[Kind]) -> None:
        self._play(
            partition, [self._new(partition, kind, self.topics[at % len(self.topics)]) for at, kind in enumerate(kinds)]
        )

    def _strays(self, each: int) -> None:
        """Write visible records that have no half message, and records as other producers write them."""
        known = range(_AGED, min(self._half.values()))

        def write() -> None:
            for _ in range(each):
                for half in (self._random.randrange(10**12, 10**13), self._random.choice(known)):
                    phantom = self._id()
                    self.truth.says["PHANTOM", phantom[:8]] += 1
                    ours = {"UNIQ_KEY": phantom, "TXB_HALF": f"0:{half}"}
                    self._worker.produce(self.topics[0], _VALUE, partition=0, headers=_encoded(ours))
                self._worker.produce(self.topics[1], b"of somebody else", headers=[("UNIQ_KEY", b"theirs")])

        self._transaction(write)

    def _tail(self, each: int) -> None:
        """Write half messages and decisions that the worker has not read yet."""
        for partition in range(PARTITIONS):
            for decision in (None, 8, 12):
                for _ in range(each):
                    one = self._new(partition, Kind("unread", (), "pending"), self.topics[0])
                    if decision is not None:
                        self._send_ends(partition, {(one.group, "client"): [f"{one.half},{one.id},{decision}"]})
        self._plain.flush()

    # Transactions

    def _id(self) -> str:
        return self._random.randbytes(16).hex().upper()

    def _new(self, partition: int, kind: Kind, topic: str) -> _Transaction:
        identity = self._id()
        # This key belongs to partition 0, so that a copy in partition 1 has no explanation.
        key = b"foobar" if any(step.misplaced for step in kind.rounds) else identity[:4].encode()
        dated = self._now - self._random.randrange(60_000)
        one = _Transaction(kind, identity, self._half[partition], self._random.choice(_GROUPS), topic, key, dated)
        self._half[partition] += 1
        ours = {"TXB_V": "1", "TRAN_MSG": "true", "REAL_TOPIC": topic, "PGROUP": one.group, "UNIQ_KEY": one.id}
        ours["BORN_TIMESTAMP"] = str(dated)
        headers, value = [*self._user_headers(one), *_encoded(ours | dict(kind.half))], _VALUE
        if kind.messages:
            del ours["BORN_TIMESTAMP"]
            headers, value = _encoded(ours | {"TXB_MESSAGES": str(kind.messages)}), write(self._messages(one))
        self._produce(self._plain, self.names.half, value, key, partition, headers)
        self.truth.fates[kind.fate] += 1
        told = (kind.fate, *kind.says) if kind.fate.isupper() else kind.says
        self.truth.says.update((what, one.id[:8]) for what in told)
        return one

    def _forget(self, one: _Transaction) -> None:
        """Take a transaction out of the expected fates, because its half message will be gone."""
        self.truth.fates[one.kind.fate] -= 1

    def _play(self, partition: int, chosen: Sequence[_Transaction]) -> None:
        """Write all rounds of these transactions of one partition."""
        for number in range(max(len(one.kind.rounds) for one in chosen)):
            rounds = [(one, one.kind.rounds[number]) for one in chosen if number < len(one.kind.rounds)]
            ends: dict[tuple[str, str], list[str]] = defaultdict(list)
            for one, step in rounds:
                if step.end is not None:
                    decision, source = step.end
                    ends[one.group, source].append(f"{one.half},{self._id() if step.forged else one.id},{decision}")
            self._send_ends(partition, ends)
            self._plain.flush()
            aborted = [(one, Round(copies=step.aborted)) for one, step in rounds if step.aborted]
            if aborted:
                self._transaction(partial(self._finish, partition, aborted), commit=False)
            self._transaction(partial(self._finish, partition, rounds))
            self._applied[partition] = self._end[partition]

    def _finish(self, partition: int, rounds: Sequence[tuple[_Transaction, Round]]) -> None:
        named: dict[tuple[str, str | None], list[int]] = defaultdict(list)
        since, until = f"{self._applied[partition]}:0", f"{self._end[partition]}:0"
        for one, step in rounds:
            self._write(partition, one, step)
            if step.op is not None:
                # A held or scheduled commit was decided earlier and rightly comes late, so OP names it without a range.
                applies = step.end is not None if step.in_turn is None else True
                ends = f"{since}-{since if step.in_turn is False else until}"
                named[step.op, ends if applies and step.op == "commit" else None].append(one.half)
        for (outcome, applied), halves in named.items():
            for some in _sliced(halves, 5_000):
                ours = _encoded({"TXB_V": "1", "TAGS": "d", "OUTCOME": outcome})
                ours += [] if applied is None else _encoded({"TXB_ENDS": applied})
                value = ",".join(map(str, some)).encode()
                self._worker.produce(self.names.op, value, None, partition, headers=ours, timestamp=self._recorded)

    def _write(self, partition: int, one: _Transaction, step: Round) -> None:
        """Write everything of a round but END and OP."""
        names, where = self.names, f"{partition}:{one.half}"
        for _ in range(step.copies):
            self._copy(partition, one, step)
        for number in step.parts:
            self._part(partition, one, number)
        if step.op == "discard":
            ours = {"UNIQ_KEY": one.id, "TRANSACTION_CHECK_TIMES": "15", "TXB_HALF": where}
            ours |= {"TXB_END": str(self._end[partition]), "TXB_REASON": "MAX_CHECKS"}
            self._produce(self._worker, names.discard, _VALUE, None, 0, _encoded(ours))
        if step.op == "abandon":
            ours = {"UNIQ_KEY": one.id, "TRANSACTION_CHECK_TIMES": "0", "TXB_HALF": where}
            ours |= {"TXB_END": str(self._end[partition]), "TXB_REASON": "ABANDONED"}
            ours |= {"TXB_DELIVERED": str(step.delivered)} if step.delivered else {}
            self._produce(self._worker, names.discard, _VALUE, None, 0, _encoded(ours))
        if step.parked is not None:
            state, more = step.parked
            value = {"state": state, "id": one.id, "group": one.group, "topic": one.topic, "born": 1, "size": 100}
            value |= {"checks": 0, "next": 2**62, "end": self._end[partition], **more}
            text = None if state is None else json.dumps(value).encode()
            key = names.parked_key(partition, one.half)
            self._produce(self._worker, names.offset, text, key, partition, _encoded({"TXB_V": "1"}))
        if step.check:
            ours = {"TXB_V": "1", "UNIQ_KEY": one.id, "TXB_HALF": where, "TRANSACTION_CHECK_TIMES": "1"}
            ours |= {"TXB_END": str(self._end[partition])}
            self._produce(self._worker, names.check(one.group), _VALUE, None, 0, _encoded(ours))

    def _copy(self, partition: int, one: _Transaction, step: Round) -> None:
        key, value, users, dated = one.key, _VALUE, self._user_headers(one), one.dated
        if step.altered == "key":
            key += b"."
        elif step.altered == "value":
            value = value[:-1] + b"\x01"
        elif step.altered == "timestamp":
            dated += 1
        elif step.altered == "header":
            users = [("trace", b"another")]
        elif step.altered == "reserved header":
            users = [*users, ("TXB_FOO", b"1")]
        ours = _encoded({"UNIQ_KEY": one.id, "TXB_HALF": f"{partition}:{one.half}"})
        where = 1 if step.misplaced else murmur2(one.key) % PARTITIONS
        self._worker.produce(one.topic, value, key, where, headers=[*users, *ours], timestamp=dated)

    def _messages(self, one: _Transaction) -> list[Framed]:
        """Messages of a transaction that holds several, alternately for its own topic and the next."""
        first = self.topics.index(one.topic)
        topics = (self.topics[(first + number) % len(self.topics)] for number in range(one.kind.messages))
        times = one.kind.times or (-1,) * one.kind.messages
        return [
            Framed(topic, one.key, b"%d" % number, list(self._user_headers(one)), -1, one.dated + number, time)
            for number, (topic, time) in enumerate(zip(topics, times, strict=True))
        ]

    def _part(self, partition: int, one: _Transaction, number: int) -> None:
        message = self._messages(one)[number - 1]
        ours = {
            "UNIQ_KEY": delivered_id(one.id, one.kind.times),
            "TXB_HALF": f"{partition}:{one.half}",
            "TXB_MESSAGE": f"{number}/{one.kind.messages}",
        }
        headers = [*self._user_headers(one), *_encoded(ours)]
        where, given = murmur2(one.key) % PARTITIONS, message.timestamp
        self._worker.produce(message.topic, message.value, message.key, where, headers=headers, timestamp=given)

    @staticmethod
    def _user_headers(one: _Transaction) -> Headers:
        return [("trace", one.id[4:8].encode())]

    def _checkpoint(self, partition: int) -> None:
        value = {"half": self._half[partition], "end": self._end[partition], "op": 0, "owner": "w"}
        text = json.dumps(value | {"seq": next(self._numbers)}).encode()
        key = self.names.checkpoint_key(partition)
        self._produce(self._worker, self.names.offset, text, key, partition, _encoded({"TXB_V": "1"}))

    # Kafka

    def _send_ends(self, partition: int, ends: dict[tuple[str, str], list[str]]) -> None:
        for (group, source), entries in ends.items():
            for some in _sliced(entries, 1_000):
                ours = _encoded({"TXB_V": "1", "PGROUP": group, "SOURCE": source})
                self._produce(self._plain, self.names.end, "\n".join(some).encode(), None, partition, ours)
                self._end[partition] += 1

    def _transaction(self, write: Callable[[], object], *, commit: bool = True) -> None:
        self._worker.begin_transaction()
        write()
        if commit:
            self._worker.commit_transaction()
        else:
            self._worker.flush()
            self._worker.abort_transaction()
        self._between()

    @staticmethod
    def _produce(
        producer: Producer, topic: str, value: bytes | None, key: bytes | None, partition: int, headers: Headers
    ) -> None:
        producer.produce(topic, value, key, partition, headers=headers)


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


def _encoded(values: dict[str, str]) -> Headers:
    return [(name, value.encode()) for name, value in values.items()]


def _sliced(items: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    return (items[at : at + size] for at in range(0, len(items), size))
