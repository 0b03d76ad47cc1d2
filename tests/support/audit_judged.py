"""A log in memory, judged by the audit's own judge: no Spark, no Kafka."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from functools import cached_property

from txbridge_audit.judge.evidence import Evidence
from txbridge_audit.judge.facts import Facts, HalfFacts, RealTopicFacts, TopicPartition
from txbridge_audit.judge.strays import OtherNamespaces
from txbridge_audit.judge.transaction import AuditedTransaction, SetAside
from txbridge_audit.judge.verdict import Verdict, judge
from txbridge_audit.protocol import client_records, worker_records
from txbridge_audit.protocol.mentions import AsideMention, HalfMention, Mention, UnreadableMention
from txbridge_audit.protocol.record import KafkaRecord
from txbridge_audit.protocol.worker_records import AuditCheckpoint
from txbridge_audit.report.sums import OddRecords, Sums

from tests.support.audit_terms import COMPACTED, FORWARDED, ORDERS, PASSED, PLAIN, Half, Log, Record
from txbridge.core.names import Names

#: Timestamp of every half message (ms).
BORN = 1_700_000_000_000
DAY = 24 * 3_600_000
#: Partitions of the real topics.
COUNTS = {ORDERS: 2, FORWARDED: 1, COMPACTED: 1}


class MemoryLog(Log):
    """A log in memory. Kafka transactions are atomic here, so there are no markers. Aborted transactions leave gaps."""

    def __init__(self, namespace: str = "unit") -> None:
        super().__init__(Names(namespace))
        self.recently = BORN - 60_000
        self.records: list[Record] = []
        self._next: Counter[TopicPartition] = Counter()

    def write(self, record: Record) -> None:
        key = (record.topic, record.partition)
        record.at.append(self._next[key])
        record.stamped.append(BORN if record.dated is None else record.dated)
        self._next[key] += 1
        self.records.append(record)

    def transaction(self, *records: Record) -> None:
        for record in records:
            self.write(record)

    def aborted(self, *records: Record) -> None:
        for record in records:
            self._next[record.topic, record.partition] += 1

    def end_of(self, topic: str, partition: int = 0) -> int:
        """The offset of the next record."""
        return self._next[topic, partition]

    def read(self, *topics: str) -> list[KafkaRecord]:
        """The records of these topics as a client gives them."""
        return [raw_of(record) for record in self.records if record.topic in topics]

    @property
    def real_topics(self) -> set[str]:
        names = self.names
        internal = {names.half, names.end, names.op, names.offset, names.discard}
        return {record.topic for record in self.records} - internal - {names.check("billing")}

    def checkpoints(self) -> dict[int, AuditCheckpoint]:
        """The last checkpoint of each partition."""
        found = {}
        for record in self.read(self.names.offset):
            told = worker_records.offset_mention(record, self.names)
            if isinstance(told, AuditCheckpoint):
                found[record.partition] = told
        return found

    def mentions(self, *, exactly: bool = False) -> list[Mention]:
        """Every mention in the log, the entries of END at the half messages that they decide."""
        names = self.names
        found: list[Mention] = [client_records.half_mention(record) for record in self.read(names.half)]
        asides = SetAside(names)
        for record in self.read(names.discard):
            discard = worker_records.discard_mention(record)
            if isinstance(discard, AsideMention):
                asides.add_record(discard)
            found += [discard] if discard else []
        for record in self.read(names.end):
            ends = client_records.end_mentions(record, exactly=exactly)
            found += [ends] if isinstance(ends, UnreadableMention) else asides.entries_that_count(ends)
        for record in self.read(names.op):
            outcomes = worker_records.outcome_mentions(record)
            found += [outcomes] if isinstance(outcomes, UnreadableMention) else outcomes
        for record in self.read(names.offset):
            parked = worker_records.offset_mention(record, names)
            found += [parked] if isinstance(parked, Mention) else []
        for record in self.read(*self.real_topics):
            copy = worker_records.copy_mention(record, COUNTS.get(record.topic, 1))
            found += [copy] if copy else []
        for record in self.read(names.check("billing")):
            check = worker_records.check_mention(record)
            found += [check] if check else []
        return found

    def facts(self, **changed: object) -> Facts:
        """Facts of a fully applied log without removed records, with all real records below the earlier cut."""
        partitions = [HalfFacts(p, half_start=0, applied_to=self.end_position[p], low=0) for p in (PLAIN, PASSED)]
        known: dict[str, object] = {
            "partitions": partitions,
            "topics": [RealTopicFacts(ORDERS), RealTopicFacts(COMPACTED, compacted=True), RealTopicFacts(FORWARDED)],
            "before": {(r.topic, r.partition): 1_000_000 for r in self.records},
            "now": BORN + DAY,
        }
        return Facts(**(known | changed))  # type: ignore[arg-type]


def raw_of(record: Record) -> KafkaRecord:
    return KafkaRecord(
        record.topic,
        record.partition,
        record.offset,
        record.stamped[0],
        record.dated is not None,
        record.key,
        record.value,
        record.headers,
    )


def assembled(
    mentions: Iterable[Mention], names: Names
) -> tuple[dict[tuple[int, int | None], AuditedTransaction], OddRecords]:
    """The transactions by their half coordinates, and the records that belong to none."""
    found: dict[tuple[int, int | None], AuditedTransaction] = {}
    odd = OddRecords(names)
    for mention in mentions:
        if isinstance(mention, HalfMention | UnreadableMention | AsideMention):
            odd.add_record(mention)
        if isinstance(mention, UnreadableMention):
            continue
        if isinstance(mention, AsideMention) and mention.source_topic != names.half:
            continue
        key = mention.partition, mention.half
        found.setdefault(key, AuditedTransaction(*key)).add(mention)
    return found, odd


class Judged:
    """The verdicts on a log."""

    def __init__(
        self,
        log: MemoryLog,
        facts: Facts,
        truncated: Collection[TopicPartition] = (),
        others: OtherNamespaces | None = None,
    ) -> None:
        self.names = log.names
        transactions, self.odd = assembled(log.mentions(exactly=facts.discards_cut), log.names)
        evidence = Evidence()
        for transaction in transactions.values():
            evidence.see_transaction(transaction)
        self.facts = evidence.add_to(facts, truncated)
        ordered = sorted(transactions.values(), key=lambda one: (one.partition, -1 if one.half is None else one.half))
        self.verdicts: list[Verdict] = [judge(transaction, self.facts) for transaction in ordered]
        self._others = others or OtherNamespaces()

    @cached_property
    def sums(self) -> Sums:
        """The sums over the verdicts, without the records that have no transaction."""
        sums = Sums(self.names)
        for verdict in self.verdicts:
            sums.add_verdict(verdict)
        return sums

    @cached_property
    def strays(self) -> list[str]:
        sums = Sums(self.names, strays=[copy for verdict in self.verdicts for copy in verdict.case.strays])
        sums.add_strays(self.facts, self._others)
        return list(sums.entries.by_kind.elements())

    @property
    def unjudged(self) -> dict[tuple[str, tuple[int, int | None]], str]:
        """Rules and half messages that cannot be judged, and the reasons."""
        return {
            (kind, verdict.key): reason for verdict in self.verdicts for kind, reason in verdict.reach.items() if reason
        }

    def of(self, half: Half) -> Verdict:
        (verdict,) = [verdict for verdict in self.verdicts if verdict.key == (half.partition, half.offset)]
        return verdict

    def fate(self, half: Half) -> str:
        return str(self.of(half).fate)

    def broken(self) -> dict[str, set[tuple[int, int | None]]]:
        """The half messages that break a rule, by kind of violation."""
        found: dict[str, set[tuple[int, int | None]]] = {}
        for verdict in self.verdicts:
            if verdict.fate is not None:
                wrong = {verdict.fate} if verdict.fate.isupper() else set()
                for kind in wrong | set(verdict.violations):
                    found.setdefault(kind, set()).add(verdict.key)
        return found
