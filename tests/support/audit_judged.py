"""A log in memory, judged transaction by transaction: no Spark, no Kafka, and none of the tasks of the engines."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from types import SimpleNamespace
from typing import cast

from txbridge_audit.cluster.cuts import Range
from txbridge_audit.cluster.plan import Plan
from txbridge_audit.engines import tasks
from txbridge_audit.engines.gather import AuditedTopics, Reading
from txbridge_audit.engines.run import report_on
from txbridge_audit.judge.evidence import Evidence
from txbridge_audit.judge.facts import AuditLimits, AuditSelection, Facts, HalfFacts, RealTopicFacts, TopicPartition
from txbridge_audit.judge.strays import OtherNamespaces, labelled
from txbridge_audit.judge.transaction import AuditedTransaction, SetAside
from txbridge_audit.judge.verdict import Verdict, judge
from txbridge_audit.protocol.client_records import half_mention
from txbridge_audit.protocol.mentions import AsideMention, CopyMention, Mention, UnreadableMention
from txbridge_audit.protocol.record import KafkaRecord
from txbridge_audit.protocol.relay_records import Numbering, ProgressStep, numbered
from txbridge_audit.protocol.worker_records import AuditCheckpoint, check_mention, discard_mention
from txbridge_audit.report.model import AuditReport
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
        internal = {*names.internal, names.outbox}
        return {record.topic for record in self.records} - internal - {names.check("billing")}

    def checkpoints(self) -> dict[int, AuditCheckpoint]:
        """The last checkpoint of each partition."""
        found: dict[int, AuditCheckpoint] = {}
        deque(tasks.offset_mentions(self.names, found, self.read(self.names.offset)), maxlen=0)
        return found

    def mentions(self, *, exactly: bool = False) -> list[Mention]:
        """Every mention in the log, the entries of END at the half messages that they decide."""
        names, asides, real = self.names, SetAside(self.names), self.real_topics
        discards = [*filter(None, map(discard_mention, self.read(names.discard)))]
        for discard in discards:
            if isinstance(discard, AsideMention):
                asides.add_record(discard)
        counts = {topic: COUNTS.get(topic, 1) for topic in real}
        others = [*self.read(names.end), *self.read(names.op), *self.read(*real)]
        return [
            *map(half_mention, self.read(names.half)),
            *discards,
            *tasks.other_mentions(names, counts, asides, exactly, others),
            *tasks.offset_mentions(names, {}, self.read(names.offset)),
            *tasks.progress_mentions([], set(), self.read(names.outbox)),
            *filter(None, map(check_mention, self.read(names.check("billing")))),
        ]

    def relays(self) -> dict[int, Numbering]:
        """What the progress of relays tells of their batches."""
        steps: list[ProgressStep] = []
        deque(tasks.progress_mentions(steps, set(), self.read(self.names.outbox)), maxlen=0)
        found: dict[int, Numbering] = {}
        for step in steps:
            found |= numbered(found, step)
        return found

    def facts(self, **changed: object) -> Facts:
        """Facts of a fully applied log without removed records, with all real records below the earlier cut."""
        partitions = [HalfFacts(p, half_start=0, applied_to=self.end_position[p], low=0) for p in (PLAIN, PASSED)]
        known: dict[str, object] = {
            "partitions": partitions,
            "topics": [RealTopicFacts(ORDERS), RealTopicFacts(COMPACTED, compacted=True), RealTopicFacts(FORWARDED)],
            "before": {(r.topic, r.partition): 1_000_000 for r in self.records},
            "now": BORN + DAY,
            "relays": self.relays(),
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
            sums.take_verdict(verdict)
        return sums

    def labelled(self, others: OtherNamespaces) -> Iterator[tuple[CopyMention, str]]:
        return labelled((copy for verdict in self.verdicts for copy in verdict.case.strays), self.facts, others)

    @cached_property
    def strays(self) -> list[str]:
        return [kind for _, kind in self.labelled(self._others)]

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


def reported(log: MemoryLog, judged: Judged, starts: Mapping[TopicPartition, int] | None = None) -> AuditReport:
    """The report of all verdicts."""
    sums, half = judged.sums, log.names.half
    sums.add_strays(judged.labelled(OtherNamespaces()))
    spans = {(half, p): Range((starts or {}).get((half, p), 0), log.end_of(half, p)) for p in (PLAIN, PASSED)}
    settings, cluster = SimpleNamespace(bootstrap_servers=""), SimpleNamespace(cluster_id="")
    source = SimpleNamespace(names=log.names, settings=settings, cluster=cluster)
    plan = Plan(int(time.time() * 1000), AuditLimits(), AuditSelection(), frozenset(), settle_timeout=0)
    reading = Reading(judged.facts, {key: span.start for key, span in spans.items()}, (), {}, spans)
    return report_on(cast("AuditedTopics", source), plan, reading, sums, judged.odd, engine="local")
