"""The audit on what the simulated worker writes, while it runs and at rest: it raises no false alarm.

The audit shares no code with the worker that wrote it. What is taken away from the real topics, or is there twice, is
noticed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

from txbridge_audit.judge.facts import AuditLimits, HalfFacts, RealTopicFacts
from txbridge_audit.judge.verdict import Verdict
from txbridge_audit.protocol.mentions import CopyMention
from txbridge_audit.protocol.record import KafkaRecord
from txbridge_audit.protocol.worker_records import AuditCheckpoint

from tests.simulator.simulation import Simulation
from tests.support.audit_judged import Judged, MemoryLog

SEEDS, STEPS = range(1, 61), 200
#: Steps of a run between two audits.
BETWEEN = 23

Place = tuple[str, int]
Change = Callable[[list[KafkaRecord]], list[KafkaRecord]]


class SimulatedLog(MemoryLog):
    """What an audit reads of a simulated Kafka, all of it at one moment."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__()
        self.names, self._cluster = simulation.names, simulation.world.cluster
        names = self.names
        self._internal = {names.half, names.end, names.op, names.offset, names.discard}
        #: Changes the records of a partition of a real topic: a corruption.
        self.change: Change = list

    def read(self, *topics: str) -> list[KafkaRecord]:
        wanted = {self._group_less(topic) for topic in topics}
        return [
            record
            for place in self._cluster.logs
            if self._group_less(place[0]) in wanted
            for record in self._records_of(place)
        ]

    def _group_less(self, topic: str) -> str:
        """MemoryLog names the check topic of one group: here it stands for those of all groups."""
        return self.names.check("") if topic.startswith(self.names.check("")) else topic

    def _records_of(self, place: Place) -> list[KafkaRecord]:
        log, is_real = self._cluster.logs[place], place[0] in self.real_topics
        stored, _ = log.visible(0, log.high_watermark + 1, committed=place[0] != self.names.half)
        records = [
            KafkaRecord(*place, one.offset, one.timestamp, is_real, one.key, one.value, one.headers) for one in stored
        ]
        return self.change(records) if is_real else records

    @property
    def real_topics(self) -> set[str]:
        checks = self.names.check("")
        return {
            topic for topic in self._cluster.partitions if topic not in self._internal and not topic.startswith(checks)
        }

    def is_settled(self, place: Place) -> bool:
        log = self._cluster.logs[place]
        return log.last_stable_offset == log.high_watermark


def audited(simulation: Simulation, log: SimulatedLog) -> Judged:
    cluster, policy, checkpoints = simulation.world.cluster, simulation.policy, log.checkpoints()
    partitions = []
    for number in range(simulation.partitions):
        seen, settled = checkpoints.get(number, AuditCheckpoint()), log.is_settled((log.names.op, number))
        partitions.append(
            HalfFacts(number, 0, seen.applied_to, seen.low, applied_entry=seen.applied_entry, op_settled=settled)
        )
    stamped = [log.names.half, log.names.end, log.names.op, log.names.offset]
    facts = log.facts(
        partitions=partitions,
        topics=[
            RealTopicFacts(
                topic, settled=all(map(log.is_settled, (place for place in cluster.logs if place[0] == topic)))
            )
            for topic in log.real_topics
            if cluster.exists(topic)
        ],
        before={place: one.last_stable_offset for place, one in cluster.logs.items()},
        now=max((record.timestamp for record in log.read(*stamped)), default=0),
        limits=AuditLimits(policy.transaction_check_max, policy.transaction_max_age),
    )
    return Judged(log, facts)


class AuditedSimulation(Simulation):
    """A run that is audited now and then. A lost tail is no false alarm: there the audit is right."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, STEPS)
        self.seen: Counter[str] = Counter()
        self._done = 0

    def step(self) -> None:
        super().step()
        self._done += 1
        if self._done % BETWEEN == 0:
            self.audit()

    def audit(self) -> None:
        if self.world.lost_tails:
            return
        judged = audited(self, SimulatedLog(self))
        assert (judged.broken(), judged.strays) == ({}, []), self.world.seed
        for verdict in judged.verdicts:
            self.seen[f"{verdict.fate}{' in steps' * (verdict.case.delivered_to >= 0)}"] += 1


def verdicts_with(simulation: Simulation, change: Change = list) -> list[Verdict]:
    log = SimulatedLog(simulation)
    log.change = change
    return audited(simulation, log).verdicts


def _is(record: KafkaRecord, copy: CopyMention) -> bool:
    return (record.topic, record.partition, record.offset) == (copy.topic, copy.place, copy.at)


def taking_away(copy: CopyMention) -> Change:
    return lambda records: [record for record in records if not _is(record, copy)]


def repeating(copy: CopyMention) -> Change:
    return lambda records: records + [record._replace(offset=10**6) for record in records if _is(record, copy)]


def test_it_raises_no_false_alarm_and_notices_what_is_taken_away_or_added() -> None:
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        simulation = AuditedSimulation(seed)
        assert simulation.run().violation is None
        simulation.audit()
        seen += simulation.seen
        copies = [copy for one in verdicts_with(simulation) if one.fate == "delivered" for copy in one.case.home]
        for copy in Random(seed).sample(copies, min(1, len(copies))):
            for change, fates in ((taking_away, {"LOST", "PARTIAL", "unverifiable"}), (repeating, {"DUPLICATED"})):
                found = {verdict.key: verdict.fate for verdict in verdicts_with(simulation, change(copy))}
                assert found[copy.partition, copy.half] in fates, seed
    assert {
        "delivered",
        "rolled_back",
        "discarded",
        "abandoned",
        "cancelled",
        "pending in steps",
        "delivered in steps",
    } <= set(seen)
