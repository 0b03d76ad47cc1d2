"""The sums over all verdicts, and the first entries of each kind: plain data from which every form of a report is made.

Every verdict is added exactly once, whatever the options of an audit are. So no option can change a number.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from txbridge.core.names import Names
from txbridge_audit.judge import table
from txbridge_audit.judge.facts import Facts
from txbridge_audit.judge.fates import ABANDONED, CANCELLED
from txbridge_audit.judge.findings import COPY, MALFORMED, UNREADABLE_OP
from txbridge_audit.judge.lacking import BY_DESIGN, HALF_GONE
from txbridge_audit.judge.strays import OtherNamespaces, label
from txbridge_audit.judge.verdict import Verdict
from txbridge_audit.protocol.mentions import ROLLBACK, AsideMention, CopyMention, HalfMention, UnreadableMention
from txbridge_audit.report.entries import entry_of, stray_entry
from txbridge_audit.report.entry import Entry, Place

#: Entries listed of each kind (the counts are exact): enough to act on, little enough for any terminal or mail.
VIOLATIONS_LISTED, FINDINGS_LISTED = 10_000, 1_000


def most_listed(kind: str) -> int:
    """The number of entries that are listed of a kind."""
    return VIOLATIONS_LISTED if kind in table.VIOLATIONS else FINDINGS_LISTED


@dataclass(slots=True)
class Entries:
    """Violations or findings: how many of each kind, and the first ones."""

    by_kind: Counter[str] = field(default_factory=Counter)
    listed: dict[str, list[Entry]] = field(default_factory=dict)

    def has_room(self, kind: str) -> bool:
        """Whether another entry of the kind would be listed."""
        return len(self.listed.get(kind, ())) < most_listed(kind)

    def add(self, entry: Entry) -> None:
        """Count an entry, and list it if there is room."""
        self.by_kind[entry.kind] += 1
        if self.has_room(entry.kind):
            self.listed.setdefault(entry.kind, []).append(entry)

    def explain_kind(self, kind: str, better: Callable[[Sequence[Entry]], list[Entry]]) -> None:
        """Replace the listed entries of a kind by better ones."""
        if kind in self.listed:
            self.listed[kind] = better(self.listed[kind])

    def add_all(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self.add(entry)


class Contribution(NamedTuple):
    """What one verdict adds to the sums. Millions of transactions share some dozens."""

    fate: str | None
    pending_state: str | None = None
    is_doubled: bool = False
    is_rolled_back_but_visible: bool = False
    is_answered_by_check: bool = False
    #: Violations and findings.
    kinds: tuple[str, ...] = ()
    #: See Verdict.reach.
    reach: tuple[tuple[str, str], ...] = ()
    #: Of one that was given up: its messages that were delivered before.
    delivered_before: int = 0

    @classmethod
    def of(cls, verdict: Verdict) -> Contribution:
        """The contribution of a verdict."""
        case = verdict.case
        if verdict.fate is None:
            return cls(None, kinds=verdict.kinds)
        is_given_up = verdict.fate in {ABANDONED.name, CANCELLED.name}
        rolled_back = case.is_decided(ROLLBACK) or (case.is_named("rollback") and not case.is_named("commit"))
        return cls(
            verdict.fate,
            verdict.pending_state,
            case.copies > 1,
            rolled_back and case.is_visible,
            case.winner is not None and case.winner.source == "check",
            verdict.kinds,
            tuple(verdict.reach.items()),
            sum(time <= case.delivered_to for time in case.times) if is_given_up else 0,
        )

    @classmethod
    def from_json(cls, text: str) -> Contribution:
        """The contribution of `to_json`."""
        # That of an earlier release has no last field.
        fate, state, doubled, visible, by_check, kinds, reach, *more = json.loads(text)
        why = tuple((kind, reason) for kind, reason in reach)
        return cls(fate, state, doubled, visible, by_check, tuple(kinds), why, *more)

    def to_json(self) -> str:
        """The same text for equal contributions."""
        return json.dumps(self)


@dataclass(slots=True)
class Sums:
    """Sums over verdicts. They are added in the order of half coordinates, so that the first ones are listed."""

    names: Names
    fates: Counter[str] = field(default_factory=Counter)
    pending_states: Counter[str] = field(default_factory=Counter)
    entries: Entries = field(default_factory=Entries)
    delivered_more_than_once: int = 0
    rolled_back_but_visible: int = 0
    answered_by_check: int = 0
    delivered_before_given_up: int = 0
    #: Transactions that each kind of violation was judged for; and could not be, by reason.
    judged: Counter[str] = field(default_factory=Counter)
    unjudged: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: Visible records that match no half message. They are labelled when all is read (`add_strays`).
    strays: list[CopyMention] = field(default_factory=list)

    def add_verdict(self, verdict: Verdict) -> None:
        """Add a verdict."""
        told = Contribution.of(verdict)
        self.count_alike(told)
        for kind in told.kinds:
            # Evidence is only put together for what is listed.
            if self.entries.has_room(kind):
                self.entries.listed.setdefault(kind, []).append(entry_of(self.names, verdict, kind))
        self.strays += verdict.case.strays

    def count_alike(self, told: Contribution, number: int = 1) -> None:
        """Add the contribution of so many verdicts."""
        self.entries.by_kind.update(dict.fromkeys(told.kinds, number))
        if told.fate is None:
            return
        self.fates[told.fate] += number
        if told.pending_state is not None:
            self.pending_states[told.pending_state] += number
        self.delivered_more_than_once += number * told.is_doubled
        self.rolled_back_but_visible += number * told.is_rolled_back_but_visible
        self.answered_by_check += number * told.is_answered_by_check
        self.delivered_before_given_up += number * told.delivered_before
        for kind, reason in told.reach:
            self._count(kind, reason, number)

    def add_strays(self, facts: Facts, others: OtherNamespaces) -> list[tuple[CopyMention, str]]:
        """Label the strays, and add them. Returns them with their kinds."""
        ordered = sorted(self.strays, key=lambda copy: (copy.topic, copy.place, copy.at))
        found = [(copy, kind) for copy in ordered if (kind := label(copy, facts, others)) is not None]
        self.entries.add_all(stray_entry(self.names, copy, kind) for copy, kind in found)
        self.strays.clear()
        return found

    def add_records(self, facts: Facts) -> None:
        """Add what has no transaction to the reach of the rules: visible records, and entries of half messages gone."""
        # LEAKED asks about every visible transaction, whether it can judge it or not.
        visible = self.judged["LEAKED"] + sum(n for (kind, _), n in self.unjudged.items() if kind == "LEAKED")
        gone = self.entries.by_kind[HALF_GONE] + self.entries.by_kind["HALF_GONE_ELSEWHERE"]
        for kind in ("PHANTOM", "ALTERED"):
            # The records of visible transactions were judged. There are hardly more records than transactions.
            self.judged[kind] += visible
            self._count(kind, HALF_GONE, gone)
        for fact in facts.partitions:
            reason = "CHECKPOINT_GONE" if fact.checkpoint_gone else "PARKED_GONE" if fact.parked_since >= 0 else ""
            self._count("EXPIRED", reason, fact.log_start)

    def add_emptied(self, lost: int) -> None:
        """HALF holds nothing any more of `lost` half messages: no rule could judge one of them."""
        for kind in table.VIOLATIONS:
            self._count(kind, HALF_GONE, lost)

    def _count(self, kind: str, reason: str, number: int) -> None:
        if reason:
            self.unjudged[kind, reason] += number
        else:
            self.judged[kind] += number

    def unjudged_by_kind(self) -> dict[str, dict[str, int]]:
        """By kind and reason, the number of transactions that were not judged."""
        found: dict[str, dict[str, int]] = {}
        for (kind, reason), number in sorted(self.unjudged.items()):
            if number:
                found.setdefault(kind, {})[reason] = number
        return found

    def blind(self) -> dict[str, dict[str, int]]:
        """The kinds that judged none of the transactions that they should have judged, with the reasons."""
        return {
            kind: reasons
            for kind, reasons in self.unjudged_by_kind().items()
            if not self.judged[kind] and reasons.keys() - BY_DESIGN
        }


@dataclass(slots=True)
class OddRecords:
    """Malformed records, copies of half messages, and records of OP that cannot be read.

    A record is malformed by our own reading, by that of the worker (it is in the discard topic), or by both. The
    worker's text is preferred.
    """

    names: Names
    faults: dict[tuple[str, int, int], str] = field(default_factory=dict)
    asides: dict[tuple[str, int, int], list[AsideMention]] = field(default_factory=dict)
    unreadable_op: list[UnreadableMention] = field(default_factory=list)

    def add_record(self, mention: HalfMention | UnreadableMention | AsideMention) -> None:
        """Take a half message that may have a fault, a record that cannot be read, or one of the discard topic."""
        if isinstance(mention, AsideMention):
            self.asides.setdefault((mention.source_topic, mention.partition, mention.half), []).append(mention)
        elif isinstance(mention, HalfMention):
            if mention.fault is not None:
                self.faults[self.names.half, mention.partition, mention.half] = mention.fault
        elif mention.topic == self.names.op:
            self.unreadable_op.append(mention)
        else:
            self.faults[mention.topic, mention.partition, mention.at] = mention.fault

    def make_entries(self) -> Iterable[Entry]:
        """The findings."""
        # A record of the discard topic that no worker wrote may name any topic: its role is "record".
        roles = {self.names.half: "half", self.names.end: "end"}
        for place in sorted(self.faults.keys() | self.asides.keys()):
            asides = self.asides.get(place, [])
            told = next((aside.error for aside in asides if aside.error is not None), None)
            aside = min(((aside.place, aside.at) for aside in asides), default=None)
            yield Entry(
                COPY.name if any(aside.is_copy for aside in asides) else MALFORMED.name,
                told or self.faults.get(place) or "set aside by the worker",
                evidence=(
                    Place(roles.get(place[0], "record"), *place),
                    *(() if aside is None else (Place("discard", self.names.discard, *aside),)),
                ),
            )
        for mention in sorted(self.unreadable_op, key=lambda mention: (mention.partition, mention.at)):
            yield Entry(
                UNREADABLE_OP.name, mention.fault, evidence=(Place("op", self.names.op, mention.partition, mention.at),)
            )
