"""The entries of a report: each violation and finding with the coordinates of every record that is evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from txbridge.core.names import Names, short_id
from txbridge.text import iso_time, plain
from txbridge_audit.judge import fates, findings, violations
from txbridge_audit.judge.case import Case
from txbridge_audit.judge.facts import Facts, TopicPartition
from txbridge_audit.judge.findings import BATCH_OUT_OF_TURN, HALF_RANGE_GONE, OPEN_TRANSACTION, RIGHT_MISSING
from txbridge_audit.judge.table import KINDS, SAYS
from txbridge_audit.judge.transaction import AuditedTransaction
from txbridge_audit.judge.verdict import Verdict
from txbridge_audit.protocol.mentions import COMMIT, GIVE_UP, ROLLBACK, UNKNOWN, CopyMention, EndMention
from txbridge_audit.protocol.relay_records import digits_of


@dataclass(frozen=True, slots=True)
class Place:
    """Coordinates of one record that is evidence."""

    #: Role of the record: half, end, op, copy, discard, parked, check, open, progress, record. `claims` is the half
    #: message that a copy names although there is none. `gone` is one that HALF no longer holds.
    role: str
    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class OperatorAction:
    """What an operator did to a transaction. Anyone who can write to END can claim it: name and reason are escaped."""

    #: Append time, ms.
    at: int
    who: str
    #: commit, rollback, unknown, resume or abandon.
    what: str
    reason: str
    #: What the protocol made of it: `decided`, `unknown`, `resume`, `abandon`, or why it was refused.
    ruling: str

    def __str__(self) -> str:
        outcome = "" if self.ruling in {"decided", self.what} else f" ({self.ruling})"
        return f"{self.what} by {self.who or 'nobody named'}{outcome}: {self.reason or 'no reason given'}"


@dataclass(frozen=True, slots=True)
class Acceptance:
    """A violation that a person has accepted: it stays in every report, and does not fail the audit."""

    #: `Entry.id` of the violation; with a hash it must be about the same transaction id, too.
    id: str
    who: str
    why: str
    #: The last day (UTC) on which it is accepted, as 2026-12-31.
    until: str
    id_sha256: str = ""
    #: Whether that day is over.
    is_expired: bool = False

    def __str__(self) -> str:
        return f"{'no longer ' if self.is_expired else ''}accepted by {self.who} until {self.until}: {self.why}"


@dataclass(frozen=True, slots=True)
class Entry:
    """One violation or finding."""

    kind: str
    says: str
    #: First 8 characters of the transaction id; the whole id is the right to decide. None when there is none.
    transaction: str | None = None
    group: str | None = None
    real_topic: str | None = None
    evidence: tuple[Place, ...] = ()
    #: A hash of the whole transaction id, as in the ledger. It finds the row of a known id.
    id_sha256: str | None = None
    #: Append times of its half message, of the decision that won, and of the first OP record of a commit, ms.
    prepared_at: int | None = None
    decided_at: int | None = None
    delivered_at: int | None = None
    #: Of a BY_HAND: the first ones.
    actions: tuple[OperatorAction, ...] = ()
    accepted: Acceptance | None = None

    @property
    def id(self) -> str:
        """Identifies a violation: every audit that finds it gives it the same id."""
        at = self.evidence[0] if self.evidence else None
        # A record of the progress names many rows.
        row = f" {self.transaction}" if at is not None and at.role == "progress" and self.transaction else ""
        return self.kind if at is None else f"{self.kind} {at.topic}/{at.partition}@{at.offset}{row}"

    @property
    def times(self) -> dict[str, int]:
        """The times that are known, by what happened then."""
        found = {"prepared": self.prepared_at, "decided": self.decided_at, "recorded as delivered": self.delivered_at}
        return {what: ms for what, ms in found.items() if ms is not None}

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> Entry:
        """The entry of `dataclasses.asdict`, also if that was JSON meanwhile."""
        evidence = tuple(Place(**place) for place in told["evidence"])
        actions = tuple(OperatorAction(**action) for action in told.get("actions", ()))
        return cls(**{**told, "evidence": evidence, "actions": actions})


@dataclass(frozen=True, slots=True)
class Tally:
    """The number of entries by kind, and the first ones of each (`summary.VIOLATIONS_LISTED`, `FINDINGS_LISTED`)."""

    by_kind: Mapping[str, int] = field(default_factory=dict)
    listed: tuple[Entry, ...] = ()

    @property
    def total(self) -> int:
        return sum(self.by_kind.values())

    @property
    def accepted(self) -> Mapping[str, int]:
        """By kind, the number of listed entries that a person has accepted, until a day that is not over."""
        return Counter(entry.kind for entry in self.listed if entry.accepted and not entry.accepted.is_expired)


# From verdicts

#: Violations that a parked entry is evidence of.
_OF_PARKED = frozenset({violations.STUCK.name, violations.EXPIRED.name, violations.OVERDUE.name})

#: Violations that say how far a transaction has come.
_OF_STEPS = frozenset({fates.LOST.name, fates.PARTIAL.name, violations.OVERDUE.name, findings.HELD_LONG.name})

#: Records of a relay's row that are listed of each sort.
_EVIDENCE = 3

#: Actions of one transaction that are listed, and the length of a name or reason: enough for any person's work.
ACTIONS, REASON = 20, 300


def entry_of(names: Names, verdict: Verdict, kind: str) -> Entry:
    """The entry of a violation or finding of a transaction."""
    case = verdict.case
    if verdict.row is not None:
        return _row_entry(names, case.transaction, kind)
    # The parked entry describes a half message that is gone.
    own = case.last_parked if kind == violations.EXPIRED.name else case.message
    identity = None if own is None else own.id
    actions = tuple(_action(case, end) for end in case.by_hand[:ACTIONS]) if kind == findings.BY_HAND.name else ()
    says = verdict.says if kind == verdict.fate else SAYS[kind]
    progress = progress_of(case) if kind in _OF_STEPS else ""
    return Entry(
        kind,
        "; ".join(map(str, actions)) or ": ".join(filter(None, (says, progress))),
        transaction=None if identity is None else short_id(identity),
        group=None if own is None else own.group,
        real_topic=None if case.message is None else case.message.real_topic,
        evidence=tuple(_evidence(names, case, kind)),
        id_sha256=None if identity is None else sha256(identity.encode()).hexdigest(),
        prepared_at=None if own is None else own.born,
        decided_at=None if case.winner is None else case.winner.stamp,
        delivered_at=case.committed_at,
        actions=actions,
    )


#: What violations of a relay's row say.
_OF_A_ROW = {
    fates.LOST.name: "the progress of its relay names it, but it is not visible",
    fates.DUPLICATED.name: "more than one visible copy of a relay's row",
    violations.PHANTOM.name: "claims a batch of a relay whose progress does not name it",
}


def _row_entry(names: Names, one: AuditedTransaction, kind: str) -> Entry:
    digits = digits_of(one.half or 0)
    named = sorted({(row.place, row.at) for row in one.named})
    copies = sorted((row.topic, row.place, row.at) for row in one.rows)
    return Entry(
        kind,
        _OF_A_ROW.get(kind) or KINDS[kind].means,
        transaction=short_id(digits),
        id_sha256=sha256(digits.encode()).hexdigest(),
        real_topic=copies[0][0] if copies else one.named[0].topic,
        evidence=(
            *(Place("progress", names.outbox, *at) for at in named[:_EVIDENCE]),
            *(Place("copy", *at) for at in copies[:_EVIDENCE]),
        ),
    )


def out_of_turn(names: Names, facts: Facts) -> list[Entry]:
    """Records of relays' progress whose number is not the next one."""
    return [
        Entry(BATCH_OUT_OF_TURN.name, says, evidence=(Place("progress", names.outbox, outbox.place, at),))
        for _, outbox in sorted(facts.relays.items())
        for at, says in outbox.breaks
    ]


def progress_of(case: Case) -> str:
    """Of messages with different times of delivery: how many were delivered, and when the next ones are due."""
    if not case.is_stepwise:
        return ""
    done = sum(time <= case.recorded_to for time in case.times)
    rest = f", the next at {iso_time(case.next_time)}" if case.next_time else ""
    return f"{done} of {len(case.times)} messages{rest}"


def _action(case: Case, end: EndMention) -> OperatorAction:
    what = {COMMIT: "commit", ROLLBACK: "rollback", UNKNOWN: "unknown"}[end.decision]
    return OperatorAction(
        end.stamp,
        plain(end.client or "", REASON),
        what if end.source == "operator" else end.source,
        plain(end.remark_text or "", REASON),
        case.ruling_of(end),
    )


def _evidence(names: Names, case: Case, kind: str) -> Iterator[Place]:
    """Every record that the verdict rests on. Of refused ENDs it is the one that the kind is about."""
    partition, half = case.transaction.partition, case.transaction.half
    if half is not None:
        if case.half is not None:
            yield Place("half", names.half, partition, half)
        if kind == violations.EXPIRED.name:
            yield Place("gone", names.half, partition, half)
    ends = {end.at for end in (case.winner, case.contrary) if end is not None}
    if kind == findings.BY_HAND.name:
        ends |= {end.at for end in case.by_hand[:ACTIONS]}
    # Of requests of its group to give it up, the last one.
    given_up = max((end.at for end in case.ours if end.source in GIVE_UP), default=None)
    ends |= {at for at in (_refused(case, kind), given_up) if at is not None}
    yield from (Place("end", names.end, partition, at) for at in sorted(ends))
    outcomes = (case.op(name) for name in ("commit", "rollback", "discard", "abandon"))
    yield from (Place("op", names.op, partition, at) for at in sorted(at for at in outcomes if at is not None))
    discards = sorted((discard.place, discard.at) for discard in case.discards)
    yield from (Place("discard", names.discard, *place) for place in discards)
    if kind in _OF_PARKED and case.last_parked is not None:
        yield Place("parked", names.offset, partition, case.last_parked.at)
    if kind == violations.CHECKED_AFTER_DECISION.name and case.last_check is not None:
        yield Place("check", case.last_check.topic, case.last_check.place, case.last_check.at)
    yield from (Place("copy", *place) for place in sorted(_copies(case, kind)))


def _refused(case: Case, kind: str) -> int | None:
    """The END offset that a refusal is about."""
    if kind == findings.LATE.name:
        return case.late[0].at
    if kind == findings.REPEAT.name:
        return case.decisions[-1].at
    if kind == findings.WRONG_TRANSACTION_ID.name:
        return min(end.at for end in case.wrong_ids)
    if kind == findings.WRONG_GROUP.name:
        return min(end.at for end in case.wrong_groups)
    if kind == findings.NO_HALF_MESSAGE.name:
        return min(end.at for end in case.transaction.ends)
    return None


def _copies(case: Case, kind: str) -> set[tuple[str, int, int]]:
    """The first and the last copy at home and elsewhere: of more than two these are enough evidence."""
    places: set[tuple[str, int, int]] = set()
    for copies in (case.home, case.foreign):
        if there := [copy.visible_at for copy in copies]:
            places |= {min(there), max(there)}
    special = {
        violations.ALTERED.name: case.altered_at,
        violations.MISPLACED.name: case.misplaced_at,
        violations.OUT_OF_ORDER.name: case.out_of_order_at,
    }.get(kind)
    return places if special is None else places | {special}


def stray_entry(names: Names, copy: CopyMention, kind: str) -> Entry:
    """The entry of a visible record without a half message."""
    claimed = () if copy.half is None else (Place("claims", names.half, copy.partition, copy.half),)
    return Entry(
        kind,
        "visible without a half message" if kind == violations.PHANTOM.name else KINDS[kind].means,
        transaction=None if copy.id is None else short_id(copy.id),
        id_sha256=None if copy.id is None else sha256(copy.id.encode()).hexdigest(),
        real_topic=copy.topic,
        evidence=(Place("copy", *copy.visible_at), *claimed),
    )


# Findings that come from cuts and log starts


def open_transactions(internal: Collection[str], stayed: Iterable[tuple[TopicPartition, int, int]]) -> list[Entry]:
    """Kafka transactions that `stayed` open: each partition with its stable offset and high watermark."""
    return [
        Entry(
            OPEN_TRANSACTION.name,
            f"{OPEN_TRANSACTION.means}: {topic}/{partition} from {stable} to {target}",
            real_topic=None if topic in internal else topic,
            evidence=(Place("open", topic, partition, stable),),
        )
        for (topic, partition), stable, target in sorted(stayed)
    ]


def ranges_gone(names: Names, facts: Facts) -> list[Entry]:
    """Half partitions whose HALF begins above the low watermark: what was between them is not known."""
    return [
        Entry(
            HALF_RANGE_GONE.name,
            f"{HALF_RANGE_GONE.means}: {names.half}/{fact.partition} from {fact.low} to {fact.log_start}",
            evidence=(Place("half", names.half, fact.partition, fact.log_start),),
        )
        for fact in facts.partitions
        if fact.low is not None and fact.low < fact.log_start
    ]


def missing_rights(facts: Facts) -> list[Entry]:
    """Real topics whose `cleanup.policy` we may not see."""
    return [
        Entry(RIGHT_MISSING.name, f"{RIGHT_MISSING.means}: DESCRIBE_CONFIGS on {fact.topic}", real_topic=fact.topic)
        for fact in facts.topics
        if not fact.policy_known
    ]
