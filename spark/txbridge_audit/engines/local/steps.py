"""The steps of a continued audit by the local engine: each reads what is new, and judges what that can have changed.

A step takes the same cuts as a full audit. It judges the transactions that new records name, and those that are not
closed: the checkpoint or time alone may change their verdicts. All others say what they said. So the report after a
step is that of a full audit at its cuts. It has more facts where retention or compaction has removed records since they
were read.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from txbridge_audit.cluster.cuts import Ends
from txbridge_audit.cluster.facts import check_partitions
from txbridge_audit.cluster.plan import Plan
from txbridge_audit.cluster.seen import Seen, edges_of
from txbridge_audit.engines.gather import AuditedTopics, Reading, gather, other_namespaces
from txbridge_audit.engines.local.intake import LocalIntake
from txbridge_audit.engines.local.state import Key, StateStore
from txbridge_audit.engines.reporting import EXPLAINED, report_on, with_differences
from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.judge import table
from txbridge_audit.judge.evidence import Evidence
from txbridge_audit.judge.facts import Facts, TopicPartition
from txbridge_audit.judge.strays import label
from txbridge_audit.judge.verdict import Verdict, judge
from txbridge_audit.judge.violations import ALTERED
from txbridge_audit.ledger.place import cannot_keep
from txbridge_audit.protocol.mentions import CopyMention, Mention, UnreadableMention, to_row
from txbridge_audit.protocol.worker_records import AuditCheckpoint
from txbridge_audit.report.alarms import AuditStep, Raise
from txbridge_audit.report.entries import entry_of, stray_entry
from txbridge_audit.report.entry import Entry
from txbridge_audit.report.model import AuditReport
from txbridge_audit.report.sums import Contribution, OddRecords, Sums, most_listed

#: Mentions that are written to the database at once.
_BATCH = 5_000


class _StoredProofs:
    """Proofs that are looked up in the state when a rule asks for one: most steps ask for none."""

    def __init__(self, state: StateStore, starts: Ends, truncated: Collection[TopicPartition]) -> None:
        self._state, self._starts, self._truncated = state, starts, truncated
        self._known: dict[tuple[int, str], int | None] = {}

    def find_above(self, partition: int, topic: str) -> int | None:
        """See LossProofs."""
        place = partition, topic
        if place not in self._known:
            evidence = Evidence()
            for number, anchors in self._state.oldest_anchors(partition, topic, self._starts).items():
                evidence.anchors[partition, topic, number] = anchors
            self._known[place] = evidence.find_proofs(self._truncated).get(place)
        return self._known[place]


@dataclass(slots=True)
class _Found:
    """What a step has found."""

    alarms: list[Entry] = dataclasses.field(default_factory=list)
    judged: int = 0


class LocalSteps:
    """The steps of one ledger."""

    def __init__(self, source: AuditedTopics, state: StateStore) -> None:
        """Continue the ledger of this state. Raises CouldNotAuditError when it is about another namespace."""
        self._source, self.state = source, state
        #: Altered records whose differences this process has looked for.
        self._explained = 0
        namespace = state.read_fact("namespace", source.names.namespace)
        if namespace != source.names.namespace:
            raise CouldNotAuditError(
                f"the ledger is about the namespace {namespace!r}, not {source.names.namespace!r}: check --namespace, "
                "or give --ledger another folder",
            )

    @property
    def audit(self) -> str:
        """The name of this sequence of steps: alarms carry it."""
        return str(self.state.read_fact("audit"))

    def has_news(self) -> bool:
        """Whether since the last step a known topic was written to or deleted, or a check topic created."""
        source, known = self._source, self._positions()
        source.cluster.forget_leaders()
        there = source.cluster.partition_counts()
        if any(topic not in there for topic, _ in known):
            return True
        internal = (key for keys in source.partitions.values() for key in keys)
        keys = {*known, *internal, *check_partitions(source.names, there)}
        # Not the stable offsets: records that an open Kafka transaction hides are news, too.
        return any(known.get(key) != end for key, end in source.cluster.high_watermarks(keys).items())

    def step(self, plan: Plan, alarm: Raise | None = None, *, ledger: Path | None = None) -> AuditStep:
        """Make one step. With `ledger` it writes the rows that have changed into a folder there.

        Raises CouldNotAuditError. Then the step does not count.
        """
        self.state.begin()
        try:
            step = self._make_step(plan, alarm, ledger)
            self.state.commit()
        except BaseException as error:
            self.state.rollback()
            if isinstance(error, sqlite3.Error | OSError):
                raise cannot_keep(self.state.ledger, error) from error
            raise
        return step

    def _make_step(self, plan: Plan, alarm: Raise | None, ledger: Path | None) -> AuditStep:
        source, state = self._source, self.state
        number = state.read_fact("step", 0) + 1
        # Of a step that wrote its rows, and did not count.
        shutil.rmtree(state.ledger / f"step={number}", ignore_errors=True)
        self._forget_topics_created_again()
        touched: set[Key] = set()
        waiting: list[Mention] = []

        def put(mention: Mention) -> None:
            waiting.append(mention)
            if len(waiting) >= _BATCH:
                flush()

        def flush() -> None:
            touched.update(state.add(waiting))
            waiting.clear()

        intake = LocalIntake(source.settings, source.names, put)
        for aside in state.asides():
            intake.asides.add_record(aside)
        reading = gather(source, plan, intake, self._read_progress() if number > 1 else None)
        flush()
        self._keep_odd(intake.odd, touched)
        for key, start in reading.starts.items():
            if key[0] == source.names.half:
                touched |= self._expire(key[1], start, reading.starts)
        facts = self._with_evidence(reading, touched)
        found = self._judge(touched, facts)
        source.cluster.refuse_moved({*reading.spans, *facts.before})
        # Alarms come before the step counts. A step that is repeated raises none twice.
        raised_to = dict(self._alarms()) if alarm is None else dict(alarm(number, found.alarms))
        self._remember(number, reading, intake, raised_to)
        if ledger is not None:
            source.say("writing the ledger")
            self._write(ledger / f"step={number}", facts)
            state.keep_fact("written_at", plan.now / 1000)
        return AuditStep(self._report(plan, reading, facts), found.alarms, found.judged)

    # What was read

    def _positions(self) -> dict[TopicPartition, int]:
        return _flat(self.state.read_fact("positions", {}))

    def _alarms(self) -> dict[TopicPartition, int]:
        return _flat(self.state.read_fact("alarms", {}))

    @property
    def written_at(self) -> float:
        """When the ledger was last written, seconds since 1970."""
        return float(self.state.read_fact("written_at", 0.0))

    @property
    def alarms(self) -> Mapping[TopicPartition, int]:
        """Offsets of the violations topic below which no later step writes an alarm."""
        return self._alarms()

    def _read_progress(self) -> Seen:
        state = self.state
        return Seen(
            positions=self._positions(),
            checkpoints={int(p): AuditCheckpoint(*seen) for p, seen in state.read_fact("checkpoints", {}).items()},
            edges={int(p): tuple(edges) for p, edges in state.read_fact("edges", {}).items()},
            checks_since=state.read_fact("checks_since", {}),
            named=frozenset(state.read_fact("named", ())),
        )

    def _remember(
        self, number: int, reading: Reading, intake: LocalIntake, alarms: Mapping[TopicPartition, int]
    ) -> None:
        state, facts = self.state, reading.facts
        positions = self._positions() | {key: span.end for key, span in reading.spans.items()}
        state.keep_fact("namespace", self._source.names.namespace)
        state.keep_fact("step", number)
        state.keep_fact("positions", _nested(positions))
        state.keep_fact("topic_ids", self._source.cluster.topic_ids({topic for topic, _ in reading.spans}))
        state.keep_fact("checkpoints", {p: dataclasses.astuple(seen) for p, seen in reading.checkpoints.items()})
        state.keep_fact("edges", {fact.partition: edges_of(fact) for fact in facts.partitions})
        state.keep_fact("checks_since", dict(facts.checks_since or {}))
        state.keep_fact("named", sorted({*intake.named, *state.read_fact("named", ())}))
        state.keep_fact("alarms", _nested(alarms))

    def _forget_topics_created_again(self) -> None:
        """Forget what was read of real topics that were deleted and created again since.

        Raises CouldNotAuditError for an internal one.
        """
        source, known = self._source, self.state.read_fact("topic_ids", {})
        there = source.cluster.partition_counts()
        ids = source.cluster.topic_ids([topic for topic in known if topic in there]) if known else {}
        for topic in sorted(topic for topic, one in known.items() if ids.get(topic) != one):
            if topic in source.partitions:
                raise CouldNotAuditError(
                    f"{topic} was deleted and created again since the last audit: what the ledger says "
                    "belongs to other transactions; begin a new ledger",
                )
            self.state.forget_topic(topic)
            self.state.keep_fact("positions", _nested({k: at for k, at in self._positions().items() if k[0] != topic}))

    def _keep_odd(self, odd: OddRecords, touched: set[Key]) -> None:
        """Keep the records that this step has found to be odd, and apply what they say about older ones."""
        state, names = self.state, self._source.names
        for (topic, partition, at), fault in odd.faults.items():
            state.put_fault(topic, partition, at, _row(UnreadableMention(partition, None, at, topic, fault)))
        for mention in odd.unreadable_op:
            state.put_fault(mention.topic, mention.partition, mention.at, _row(mention))
        for aside in (aside for asides in odd.asides.values() for aside in asides):
            state.add_aside(aside)
            if aside.source_topic == names.end:
                touched |= state.remove_end(aside.partition, aside.half)
            if aside.first is not None:
                touched |= state.move_ends(aside.partition, aside.half, aside.first)

    def _expire(self, partition: int, start: int, starts: Ends) -> set[Key]:
        names = self._source.names
        topics = names.half, names.end, names.op
        edges = tuple(starts.get((topic, partition), 0) for topic in topics)
        return self.state.expire(partition, start, topics, (edges[0], edges[1], edges[2]))

    # Evidence and verdicts

    def _with_evidence(self, reading: Reading, touched: Iterable[Key]) -> Facts:
        """The facts with what all transactions prove. Only those that new records name can prove anything new."""
        state = self.state
        for key in touched:
            transaction = state.transaction(key)
            state.remove_evidence(key)
            if transaction is None:
                continue
            evidence = Evidence()
            evidence.see_transaction(transaction)
            for place, anchors in evidence.anchors.items():
                for anchor in anchors:
                    state.put_anchor(place, anchor, key[1])
            for (partition, identity), halves in evidence.unexplained.items():
                for half in halves:
                    state.put_unexplained(partition, identity, half)
        proofs = _StoredProofs(state, reading.starts, reading.truncated)
        return dataclasses.replace(reading.facts, proofs=proofs, unexplained=state.read_unexplained())

    def _judge(self, touched: Collection[Key], facts: Facts) -> _Found:
        """Judge the transactions that new records name, and those that are not closed."""
        found, strays = _Found(), list[CopyMention]()
        for key in sorted({*touched, *self.state.open_keys()}):
            transaction = self.state.transaction(key)
            if transaction is None:
                continue
            verdict = judge(transaction, facts)
            found.judged += verdict.fate is not None
            told = Contribution.of(verdict).to_json()
            # Of those that only wait most say what they said.
            if key in touched or verdict.is_closed or told != self.state.told_of(key):
                found.alarms += self._put(key, verdict, told)
            strays += (
                copy for copy in verdict.case.strays if not self.state.is_known_stray(copy.topic, copy.place, copy.at)
            )
        found.alarms += self._put_strays(strays, facts)
        return found

    def _put(self, key: Key, verdict: Verdict, told: str) -> list[Entry]:
        """Count a verdict in place of the last one. Returns the violations that were never raised before."""
        names, case = self._source.names, verdict.case
        # A record above the earlier cut that claims its coordinates is judged when it lies below.
        is_closed = verdict.is_closed and all(
            case.is_before(copy) or copy in case.home for copy in case.transaction.copies
        )
        waits = case.parked in {"pending", "held", "scheduled"}
        self.state.put(key, told, is_closed=is_closed, waits=waits)
        alarms = []
        for kind in verdict.kinds:
            entry = entry_of(names, verdict, kind)
            if kind == ALTERED.name and self._explained < EXPLAINED:
                self._explained += 1
                [entry] = with_differences(self._source.settings, [entry])
            is_new = self.state.put_entry(key, kind, json.dumps(dataclasses.asdict(entry)))
            if is_new and kind in table.VIOLATIONS:
                alarms.append(entry)
        return alarms

    def _put_strays(self, strays: Sequence[CopyMention], facts: Facts) -> list[Entry]:
        claimed = {(copy.partition, copy.half) for copy in strays if copy.half is not None}
        others = other_namespaces(self._source, claimed)
        alarms = []
        for copy in sorted(strays, key=lambda copy: (copy.topic, copy.place, copy.at)):
            kind = label(copy, facts, others)
            if kind is None:
                continue
            entry = stray_entry(self._source.names, copy, kind)
            self.state.put_stray(copy, kind, json.dumps(dataclasses.asdict(entry)))
            if kind in table.VIOLATIONS:
                alarms.append(entry)
        return alarms

    def _write(self, folder: Path, facts: Facts) -> None:
        """Write the rows that have changed since the last time. A step that is repeated writes to the same place."""
        # Only here: it loads the library that writes Parquet.
        from txbridge_audit.ledger.parquet import ParquetLedger  # noqa: PLC0415

        # Readers of the ledger pass over this name: if we are killed, no reader meets half of a file.
        unfinished = folder.with_name("_unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        ledger = ParquetLedger(unfinished)
        for key in self.state.unwritten():
            transaction = self.state.transaction(key)
            if transaction is not None:
                ledger.take_verdict(judge(transaction, facts))
        for copy, kind in self.state.unwritten_strays():
            ledger.take_stray(copy, kind)
        ledger.write_rows()
        if unfinished.exists():
            unfinished.rename(folder)

    # The report

    def _report(self, plan: Plan, reading: Reading, facts: Facts) -> AuditReport:
        names, state = self._source.names, self.state
        sums, odd = Sums(names), OddRecords(names)
        for told, number in state.sums():
            sums.count_alike(Contribution.from_json(told), number)
        for kind in sums.entries.by_kind:
            sums.entries.listed[kind] = [
                Entry.from_dict(json.loads(row)) for row in state.entries(kind, most_listed(kind))
            ]
        for kind, number in state.strays().items():
            sums.entries.by_kind[kind] += number
            listed = sums.entries.listed.setdefault(kind, [])
            listed += (Entry.from_dict(json.loads(row)) for row in state.stray_entries(kind, most_listed(kind)))
        for fault in state.faults():
            if isinstance(fault, UnreadableMention):
                odd.add_record(fault)
        for aside in state.asides():
            odd.add_record(aside)
        return report_on(self._source, plan, reading, facts, sums, odd, engine="local")


def _row(mention: Mention) -> str:
    return json.dumps(to_row(mention))


def _nested(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in offsets.items():
        nested.setdefault(topic, {})[str(partition)] = offset
    return nested


def _flat(nested: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    return {(topic, int(partition)): offset for topic, of in nested.items() for partition, offset in of.items()}
