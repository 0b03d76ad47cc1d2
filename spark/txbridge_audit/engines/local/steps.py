"""The steps of a continued audit by the local engine: each reads what is new, and judges what that can have changed.

A step takes the same cuts as a full audit. It judges the transactions that new records name, and those that are open:
the checkpoint or time alone may change their verdicts. Of the closed ones some change with others: a delivered record
that comes late may prove a loss, or a half message may turn out to have a twin (`_touch_others`). All others say what
they said. So the report after a step is that of a full audit at its cuts. It has more facts where retention or
compaction has removed records since they were read.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from txbridge_audit.cluster.cuts import Ends
from txbridge_audit.cluster.facts import check_partitions
from txbridge_audit.cluster.plan import Plan, Seen, edges_of
from txbridge_audit.engines import tasks
from txbridge_audit.engines.gather import AuditedTopics, AuditIntake, Reading, gather
from txbridge_audit.engines.local.local_rows import LocalReader
from txbridge_audit.engines.local.state import Key, StateStore
from txbridge_audit.engines.other_namespaces import other_namespaces
from txbridge_audit.engines.run import EXPLAINED, report_on, with_differences
from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.judge import fates, table
from txbridge_audit.judge.evidence import Evidence
from txbridge_audit.judge.facts import Facts, LossProof, TopicPartition
from txbridge_audit.judge.strays import labelled
from txbridge_audit.judge.verdict import Verdict, judge
from txbridge_audit.judge.violations import ALTERED
from txbridge_audit.ledger.rows import batches_of, phantom_row, row_of, write_batches
from txbridge_audit.protocol.mentions import AsideMention, CopyMention, HalfMention, UnreadableMention
from txbridge_audit.protocol.relay_records import Numbering
from txbridge_audit.protocol.worker_records import AuditCheckpoint
from txbridge_audit.report.entries import Entry, entry_of, stray_entry
from txbridge_audit.report.model import AuditReport, AuditStep, Raise
from txbridge_audit.report.sums import OddRecords, Sums, contribution_of, from_json, most_listed

#: Fates that a proof of a loss decides.
_DOUBTFUL = frozenset(
    one.name for one in (fates.UNVERIFIABLE, fates.LOST, fates.PARTIAL, fates.ABANDONED, fates.CANCELLED)
)


#: Seconds between two writes of the ledger: each makes a file for every day.
LEDGER_EVERY = 600.0
#: Rows that wait no longer: no violation is raised while they are written, at some 80 us each.
LEDGER_ROWS = 10_000


class _StoredProofs:
    """Proofs that are looked up in the state when a rule asks for one: most steps ask for none."""

    def __init__(self, state: StateStore, reading: Reading) -> None:
        self._state, self._reading = state, reading
        self._known: dict[tuple[int, str], LossProof | None] = {}

    def get(self, place: tuple[int, str], /) -> LossProof | None:
        """See LossProofs."""
        if place not in self._known:
            oldest = self._state.oldest_anchors(*place, self._reading.starts)
            evidence = Evidence({(*place, number): anchors for number, anchors in oldest.items()})
            self._known[place] = evidence.find_proofs(self._reading.truncated).get(place)
        return self._known[place]


class _StateRows(LocalReader):
    """The rows of a step: the mentions in them go into the state."""

    def __init__(self, source: AuditedTopics, state: StateStore) -> None:
        super().__init__(source.settings)
        self._state, self.odd = state, OddRecords(source.names)

    def _keep_row(self, what: str, _: int, __: int, packed: bytes) -> None:
        for mention in tasks.mentions_in(what, packed):
            if what != tasks.ODD:
                self._state.add(mention)
            if what == tasks.ODD or isinstance(mention, HalfMention):
                self.odd.add_record(mention)


class LocalSteps:
    """The steps of one ledger."""

    def __init__(self, source: AuditedTopics, state: StateStore) -> None:
        """Continue the ledger of this state. Raises CouldNotAuditError when it is about another namespace."""
        self._source, self.state = source, state
        #: Altered records whose differences this process has looked for.
        self._explained = 0
        namespace = self._progress.get("namespace", source.names.namespace)
        if namespace != source.names.namespace:
            raise CouldNotAuditError(
                f"the ledger is about the namespace {namespace!r}, not {source.names.namespace!r}: check --namespace, "
                "or give --ledger another folder"
            )

    @property
    def audit(self) -> str:
        """The name of this sequence of steps: alarms carry it."""
        return str(self.state.read_fact("audit"))

    @property
    def _progress(self) -> dict[str, Any]:
        """What the last step has kept; empty before the first."""
        progress: dict[str, Any] = self.state.read_fact("progress", {})
        return progress

    @property
    def alarms(self) -> Mapping[TopicPartition, int]:
        """Offsets of the violations topic below which no later step writes an alarm."""
        return _offsets(self._progress.get("alarms", ()))

    def is_ledger_due(self, now: float) -> bool:
        """Whether a step that begins at `now` (seconds since 1970) is to write the ledger, if nobody asks for it."""
        waited = now - float(self.state.read_fact("written_at", 0.0))
        return waited > LEDGER_EVERY or self.state.count_unwritten() > LEDGER_ROWS

    def has_news(self) -> bool:
        """Whether since the last step a known topic was written to or deleted, or a check topic created."""
        source, known = self._source, _offsets(self._progress.get("positions", ()))
        source.cluster.forget_leaders()
        there = source.cluster.partition_counts()
        if any(topic not in there for topic, _ in known):
            return True
        internal = (key for keys in source.partitions.values() for key in keys)
        keys = {*known, *internal, *check_partitions(source.names, there)}
        # Not the stable offsets: records that an open Kafka transaction hides are news, too.
        return any(known.get(key) != end for key, end in source.cluster.high_watermarks(keys).items())

    def make_step(self, plan: Plan, raise_all: Raise | None = None, *, ledger: Path | None = None) -> AuditStep:
        """Make one step. With `ledger` it writes the rows that have changed into a folder there.

        Raises CouldNotAuditError. Then the step does not count.
        """
        source, state = self._source, self.state
        with state.one_step():
            progress = self._progress
            number = progress.get("step", 0) + 1
            # Of a step that wrote its rows, and did not count.
            shutil.rmtree(state.ledger / f"step={number}", ignore_errors=True)
            seen = _seen(progress, self._positions_there(progress)) if progress else None
            rows = _StateRows(source, state)
            intake = AuditIntake(source.names, rows)
            for mention in state.read_odd():
                if isinstance(mention, AsideMention):
                    intake.asides.add_record(mention)
            reading = gather(source, plan, intake, seen)
            self._keep_odd(rows.odd)
            self._expire_halves(reading.starts)
            reading = dataclasses.replace(reading, facts=self._expire_rows(reading))
            facts = self._see_evidence(reading, progress)
            alarms = self._judge(facts)
            source.cluster.refuse_moved({*reading.spans, *facts.before})
            # Alarms come before the step counts. A step that is repeated raises none twice.
            raised_to = self.alarms if raise_all is None else raise_all(number, alarms)
            kept = self._progress_of(reading, seen, intake)
            state.keep_fact("progress", kept | {"step": number, "alarms": _triples(raised_to)})
            if ledger is not None:
                source.say("writing the ledger")
                self._write(ledger / f"step={number}", facts)
                state.keep_fact("written_at", plan.now / 1000)
            return AuditStep(self._report(plan, reading), alarms)

    def _positions_there(self, progress: Mapping[str, Any]) -> dict[TopicPartition, int]:
        """What was read of each topic, except of real topics that were deleted and created again since.

        Raises CouldNotAuditError for an internal one.
        """
        source, known = self._source, progress["topic_ids"]
        there = source.cluster.partition_counts()
        ids = source.cluster.topic_ids([topic for topic in known if topic in there])
        others = sorted(topic for topic, one in known.items() if ids.get(topic) != one)
        for topic in others:
            if topic in source.partitions:
                raise CouldNotAuditError(
                    f"{topic} was deleted and created again since the last audit: what the ledger says "
                    "belongs to other transactions; begin a new ledger"
                )
            self.state.forget_topic(topic)
        return {key: at for key, at in _offsets(progress["positions"]).items() if key[0] not in others}

    def _progress_of(self, reading: Reading, seen: Seen | None, intake: AuditIntake) -> dict[str, Any]:
        """The progress after this step, for `_seen` and `_touch_others`."""
        facts, positions = reading.facts, {key: span.end for key, span in reading.spans.items()}
        return {
            "namespace": self._source.names.namespace,
            "positions": _triples((dict(seen.positions) if seen else {}) | positions),
            "topic_ids": reading.topic_ids,
            "checkpoints": {p: dataclasses.astuple(checkpoint) for p, checkpoint in reading.checkpoints.items()},
            "edges": {fact.partition: edges_of(fact) for fact in facts.partitions},
            "checks_since": dict(facts.checks_since or {}),
            "named": sorted(intake.named | (seen.named if seen else frozenset())),
            "discards_cut": facts.discards_cut,
            "relays": {writer: dataclasses.astuple(outbox) for writer, outbox in facts.relays.items()},
            "compacted": _compacted(facts),
        }

    def _keep_odd(self, odd: OddRecords) -> None:
        """Keep the records that this step has found to be odd, and apply what they say about older ones."""
        state, names = self.state, self._source.names
        for (topic, partition, at), fault in odd.faults.items():
            state.add_odd(topic, partition, at, UnreadableMention(partition, None, at, topic, fault))
        for aside in (aside for asides in odd.asides.values() for aside in asides):
            state.add_odd(aside.source_topic, aside.partition, aside.half, aside)
            if aside.source_topic == names.end:
                state.take_ends(aside.partition, at=aside.half)
            if aside.first is not None:
                for end in state.take_ends(aside.partition, half=aside.half):
                    state.add(dataclasses.replace(end, half=aside.first))

    def _expire_halves(self, starts: Ends) -> None:
        names = self._source.names
        for topic, partition in starts:
            if topic == names.half:
                edges = [
                    (name, starts.get((name, partition), 0)) for name in (names.half, names.end, names.op, names.outbox)
                ]
                self.state.expire(partition, starts[topic, partition], edges)

    def _expire_rows(self, reading: Reading) -> Facts:
        """The facts without batches whose progress OUTBOX no longer holds, and without their rows."""
        relays = {}
        for writer, outbox in reading.facts.relays.items():
            edge = reading.starts[self._source.names.outbox, outbox.place]
            first = max(outbox.first, self.state.expire_rows(writer, edge) + 1)
            breaks = tuple(one for one in outbox.breaks if one[0] >= edge)
            relays[writer] = dataclasses.replace(outbox, first=first, breaks=breaks)
        return dataclasses.replace(reading.facts, relays=relays)

    def _see_evidence(self, reading: Reading, progress: Mapping[str, Any]) -> Facts:
        """The facts with what all transactions prove. Only those that new records name can prove anything new."""
        state, facts = self.state, reading.facts
        op_read = {p: at for topic, p, at in progress.get("positions", ()) if topic == self._source.names.op}
        before = state.read_unexplained() if facts.discards_cut else {}
        is_late = False
        for key in state.touched:
            evidence = Evidence()
            transaction = state.transaction(key)
            if transaction is not None:
                evidence.see_transaction(transaction)
            changed = state.put_evidence(key, evidence)
            is_late = is_late or any(op < op_read.get(key[0], 0) for op in changed)
        unexplained = state.read_unexplained() if facts.discards_cut else {}
        proved = is_late or not set(progress.get("compacted", ())) <= set(_compacted(facts))
        twins = {place for place in before.keys() | unexplained if before.get(place) != unexplained.get(place)}
        self._touch_others(twins, proved=proved)
        return dataclasses.replace(facts, proofs=_StoredProofs(state, reading), unexplained=unexplained)

    def _touch_others(self, twins: Collection[tuple[int, str]], *, proved: bool) -> None:
        """Judge closed transactions again that others may have changed.

        A closed one is judged with all evidence whose OP records were read by then. Only a delivered record that an
        older one of OP names, and that is read later, can prove more, or a second copy of it less. So can a topic that
        is no longer compacted, or whose policy we may see now.
        """
        if proved:
            self.state.touched.update(self.state.doubtful_ones())
        for partition, identity in twins:
            self.state.touched.update(self.state.halves_of(partition, identity))

    def _judge(self, facts: Facts) -> list[Entry]:
        """Judge what may have changed. Returns the violations that are new."""
        state = self.state
        alarms: list[Entry] = []
        strays: list[CopyMention] = []
        for key in sorted(state.touched.union(state.open_ones())):
            transaction = state.transaction(key)
            if transaction is None:
                state.remove(key)
                continue
            verdict = judge(transaction, facts)
            told = json.dumps(contribution_of(verdict))
            # Of those that only wait most say what they said.
            if key in state.touched or _is_closed(verdict) or told != state.told_of(key):
                alarms += self._put(key, verdict, told)
            strays += verdict.case.strays
        return alarms + self._put_strays(strays, facts)

    def _put(self, key: Key, verdict: Verdict, told: str) -> list[Entry]:
        """Count a verdict in place of the last one. Returns the violations that were never raised before."""
        names, is_closed = self._source.names, _is_closed(verdict)
        self.state.put(
            key,
            told,
            is_open=not is_closed,
            waits=verdict.case.parked in {"pending", "held", "scheduled"},
            is_doubtful=is_closed and (verdict.fate or verdict.row) in _DOUBTFUL,
        )
        entries = {kind: entry_of(names, verdict, kind) for kind in verdict.kinds}
        if ALTERED.name in entries and self._explained < EXPLAINED:
            self._explained += 1
            [entries[ALTERED.name]] = with_differences(self._source.settings, [entries[ALTERED.name]])
        new = self.state.put_entries(key, {kind: _json_of(entry) for kind, entry in entries.items()})
        return [entry for kind, entry in entries.items() if kind in new and kind in table.VIOLATIONS]

    def _put_strays(self, strays: Sequence[CopyMention], facts: Facts) -> list[Entry]:
        """Label visible records that match no half message. Returns the violations."""
        alarms = []
        for copy, kind in labelled(strays, facts, other_namespaces(self._source, strays, facts)):
            entry = stray_entry(self._source.names, copy, kind)
            self.state.put_stray(copy, kind, json.dumps([("kind", kind)]), _json_of(entry))
            if kind in table.VIOLATIONS:
                alarms.append(entry)
        return alarms

    def _write(self, folder: Path, facts: Facts) -> None:
        """Write the rows that have changed since the last time. A step that is repeated writes to the same place."""
        # Readers of the ledger pass over this name: if we are killed, no reader meets half of a file.
        unfinished = folder.with_name("_unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        there = (self.state.transaction(key, keep=False) for key in self.state.unwritten_ones())
        judged = (row_of(judge(one, facts)) for one in there if one is not None)
        phantoms = map(phantom_row, self.state.take_phantoms())
        write_batches(batches_of(row for row in chain(judged, phantoms) if row is not None), unfinished)
        if unfinished.exists():
            unfinished.rename(folder)

    def _report(self, plan: Plan, reading: Reading) -> AuditReport:
        names, state = self._source.names, self.state
        sums, odd = Sums(names), OddRecords(names)
        for told, number in state.sums():
            sums.count_alike(from_json(told), number)
        for kind in [name[1] for name in sums.counts if name[0] == "kind"]:
            for row in state.entries(kind, most_listed(kind)):
                sums.list_entry(kind, partial(Entry.from_dict, json.loads(row)), (0, 0))
        for mention in state.read_odd():
            odd.add_record(mention)
        return report_on(self._source, plan, reading, sums, odd, engine="local")


def _is_closed(verdict: Verdict) -> bool:
    """Whether only a new record could change it, or let a copy become a stray: those above the earlier cut may."""
    case = verdict.case
    return verdict.is_closed and all(copy in case.home or case.is_before(copy) for copy in case.transaction.copies)


def _json_of(entry: Entry) -> str:
    return json.dumps(dataclasses.asdict(entry))


def _compacted(facts: Facts) -> list[str]:
    return [topic.topic for topic in facts.topics if topic.compacted]


def _seen(progress: Mapping[str, Any], positions: Ends) -> Seen:
    """What the steps have read so far, as `_progress_of` makes it."""
    return Seen(
        positions=positions,
        checkpoints={int(p): AuditCheckpoint(*seen) for p, seen in progress["checkpoints"].items()},
        edges={int(p): tuple(edges) for p, edges in progress["edges"].items()},
        checks_since=progress["checks_since"],
        named=frozenset(progress["named"]),
        discards_cut=progress["discards_cut"],
        relays={
            int(writer): Numbering(place, first, last, tuple((at, says) for at, says in breaks))
            for writer, (place, first, last, breaks) in progress.get("relays", {}).items()
        },
    )


def _triples(offsets: Mapping[TopicPartition, int]) -> list[tuple[str, int, int]]:
    """Offsets by partition as JSON can hold them."""
    return [(topic, partition, offset) for (topic, partition), offset in offsets.items()]


def _offsets(triples: Iterable[tuple[str, int, int]]) -> dict[TopicPartition, int]:
    return {(topic, partition): offset for topic, partition, offset in triples}
