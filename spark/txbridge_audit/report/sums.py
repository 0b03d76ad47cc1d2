"""The sums over all verdicts, and the first entries of each kind: plain data from which every form of a report is made.

Every verdict is added exactly once, whatever the options of an audit are. So no option can change a number.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Self

from txbridge.core.names import Names
from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.judge import table
from txbridge_audit.judge.facts import Facts
from txbridge_audit.judge.fates import ABANDONED, CANCELLED
from txbridge_audit.judge.findings import BLIND, COPY, MALFORMED, UNREADABLE_OP
from txbridge_audit.judge.lacking import BY_DESIGN, HALF_GONE
from txbridge_audit.judge.verdict import Verdict
from txbridge_audit.protocol.mentions import (
    ROLLBACK,
    AsideMention,
    CopyMention,
    HalfMention,
    Mention,
    UnreadableMention,
)
from txbridge_audit.protocol.record import HIDDEN
from txbridge_audit.report.entries import Entry, Place, Tally, entry_of, stray_entry
from txbridge_audit.report.overview import OverviewSums

#: Entries listed of each kind (the counts are exact): enough to act on, little enough for any terminal or mail.
VIOLATIONS_LISTED, FINDINGS_LISTED = 10_000, 1_000


def most_listed(kind: str) -> int:
    """The number of entries that are listed of a kind."""
    return VIOLATIONS_LISTED if kind in table.VIOLATIONS else FINDINGS_LISTED


#: Name of a counter: what is counted, and of which kind.
CounterName = tuple[str, ...]
#: The counters that one verdict adds 1 to. Millions of transactions share some dozens.
Contribution = tuple[CounterName, ...]
#: Half partition and offset: the order of entries. Those of no transaction come behind, as they were added.
Order = tuple[int, int]
_BEHIND = 2**63, 0


def contribution_of(verdict: Verdict) -> Contribution:
    """The contribution of a verdict."""
    case, fate = verdict.case, verdict.fate
    found: list[CounterName] = [("kind", kind) for kind in verdict.kinds]
    # See Verdict.reach.
    found += [("unjudged", kind, why) if why else ("judged", kind) for kind, why in verdict.reach.items()]
    if verdict.row is not None:
        found.append(("row", verdict.row))
    if fate is None:
        return tuple(found)
    found.append(("fate", fate))
    if verdict.pending_state is not None:
        found.append(("pending", verdict.pending_state))
    if case.copies > 1:
        found.append(DOUBLED)
    if case.is_visible and (case.is_decided(ROLLBACK) or (case.is_named("rollback") and not case.is_named("commit"))):
        found.append(ROLLED_BACK_BUT_VISIBLE)
    if case.winner is not None and case.winner.source == "check":
        found.append(BY_CHECK)
    if fate in {ABANDONED.name, CANCELLED.name}:
        found += [DELIVERED_BEFORE] * sum(time <= case.delivered_to for time in case.times)
    return tuple(found)


#: Transactions to several topics that `--only-topic` leaves out. Those of any fate with more than one copy, with one
#: though rolled back, and decided in answer to a check; and messages of those given up that were delivered before.
LEFT_OUT, DOUBLED, ROLLED_BACK_BUT_VISIBLE, BY_CHECK, DELIVERED_BEFORE = (
    (name,)
    for name in ("left_out", "doubled", "rolled_back_but_visible", "answered_by_check", "delivered_before_given_up")
)


def from_json(text: str) -> Contribution:
    """The contribution that `json.dumps` has made this of."""
    return tuple(map(tuple, json.loads(text)))


@dataclass(slots=True)
class Sums:
    """Sums over the verdicts of a task, of all tasks, or of all steps. Those of different verdicts can be added."""

    names: Names
    counts: Counter[CounterName] = field(default_factory=Counter)
    #: By kind, the first entries that each task has met.
    listed: dict[str, list[tuple[Order, Entry]]] = field(default_factory=dict)
    #: Visible records that match no half message, before they are labelled.
    strays: list[CopyMention] = field(default_factory=list)
    #: Empty unless somebody asked for it.
    overview: OverviewSums = field(default_factory=OverviewSums)

    def __iadd__(self, others: Sums) -> Self:
        self.counts.update(others.counts)
        for kind, entries in others.listed.items():
            self.listed.setdefault(kind, []).extend(entries)
        self.strays += others.strays
        self.overview += others.overview
        return self

    def count_alike(self, told: Contribution, number: int = 1) -> None:
        """Add the contribution of so many verdicts."""
        for name in told:
            self.counts[name] += number

    def take_verdict(self, verdict: Verdict) -> None:
        """Add a verdict with its entries."""
        self.count_alike(contribution_of(verdict))
        partition, half = verdict.key
        for kind in verdict.kinds:
            order = partition, -1 if half is None else half
            self.list_entry(kind, partial(entry_of, self.names, verdict, kind), order)

    def list_entry(self, kind: str, make: Callable[[], Entry], order: Order = _BEHIND) -> None:
        """List a counted entry. It is made if there is room."""
        there = self.listed.setdefault(kind, [])
        if len(there) < most_listed(kind):
            there.append((order, make()))

    def add_entries(self, entries: Iterable[Entry]) -> None:
        """Count and list entries that belong to no transaction."""
        for entry in entries:
            self.counts["kind", entry.kind] += 1
            self.list_entry(entry.kind, lambda made=entry: made)  # type: ignore[misc]

    def tally(self, kinds: Collection[str], *, with_zeros: bool = False) -> Tally:
        """The numbers and the first entries of these kinds."""
        by_kind = {kind: self.counts["kind", kind] for kind in kinds if with_zeros or self.counts["kind", kind]}
        listed = (sorted(self.listed.get(kind, ()), key=itemgetter(0))[: most_listed(kind)] for kind in kinds)
        return Tally(by_kind, tuple(entry for some in listed for _, entry in some))

    def by_name(self, what: str, names: Iterable[str]) -> dict[str, int]:
        """The counts of one sort."""
        return {name: self.counts[what, name] for name in names}

    def add_strays(self, strays: Iterable[tuple[CopyMention, str]]) -> None:
        """Add visible records that match no half message, with their kinds."""
        for copy, kind in strays:
            self.counts["kind", kind] += 1
            self.list_entry(kind, partial(stray_entry, self.names, copy, kind))

    def add_records(self, facts: Facts) -> None:
        """Add what has no transaction to the reach of the rules: visible records, and entries of half messages gone."""
        # LEAKED asks about every visible transaction, whether it can judge it or not.
        visible = sum(
            n for name, n in self.counts.items() if name[:2] in {("judged", "LEAKED"), ("unjudged", "LEAKED")}
        )
        gone = self.counts["kind", HALF_GONE] + self.counts["kind", "HALF_GONE_ELSEWHERE"]
        for kind in ("PHANTOM", "ALTERED"):
            # The records of visible transactions were judged. There are hardly more records than transactions.
            self.counts["judged", kind] += visible
            self.counts["unjudged", kind, HALF_GONE] += gone
        for fact in facts.partitions:
            reason = "CHECKPOINT_GONE" if fact.checkpoint_gone else "PARKED_GONE" if fact.parked_since >= 0 else ""
            self.counts[("unjudged", "EXPIRED", reason) if reason else ("judged", "EXPIRED")] += fact.log_start

    def unjudged_by_kind(self) -> dict[str, dict[str, int]]:
        """By kind and reason, the number of transactions that were not judged."""
        found: dict[str, dict[str, int]] = {}
        for name, number in sorted(self.counts.items()):
            if name[0] == "unjudged" and number:
                found.setdefault(name[1], {})[name[2]] = number
        return found

    def blind(self) -> dict[str, dict[str, int]]:
        """The kinds that judged none of the transactions that they should have judged, with the reasons."""
        return {
            kind: reasons
            for kind, reasons in self.unjudged_by_kind().items()
            if not self.counts["judged", kind] and reasons.keys() - BY_DESIGN
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

    def add_record(self, mention: Mention) -> None:
        """Take a record if it is odd: any mention may be given.

        Raises CouldNotAuditError for one that only workers write, of another version of the protocol.
        """
        if isinstance(mention, AsideMention):
            self.asides.setdefault((mention.source_topic, mention.partition, mention.half), []).append(mention)
        elif isinstance(mention, HalfMention) and mention.fault is not None:
            self.faults[self.names.half, mention.partition, mention.half] = mention.fault
        elif isinstance(mention, UnreadableMention):
            if mention.version is not None:
                raise CouldNotAuditError(
                    f"{mention.topic}/{mention.partition}@{mention.at} has TXB_V={mention.version[:20]}, which this "
                    "audit does not know: a newer worker wrote it, and its meaning for the verdict is not known; use "
                    "the audit of that version"
                )
            self.faults[mention.topic, mention.partition, mention.at] = mention.fault

    def make_entries(self) -> Iterable[Entry]:
        """The findings."""
        # A record of the discard topic that no worker wrote may name any topic: its role is "record".
        roles = {self.names.half: "half", self.names.end: "end", self.names.op: "op"}
        for place in sorted(self.faults.keys() | self.asides.keys()):
            asides = self.asides.get(place, [])
            told = next((aside.error for aside in asides if aside.error is not None), None)
            aside = min(((aside.place, aside.at) for aside in asides), default=None)
            kind = UNREADABLE_OP if place[0] == self.names.op and place in self.faults else MALFORMED
            kind = BLIND if self.faults.get(place) == HIDDEN else kind
            yield Entry(
                COPY.name if any(aside.is_copy for aside in asides) else kind.name,
                told or self.faults.get(place) or "set aside by the worker",
                evidence=(
                    Place(roles.get(place[0], "record"), *place),
                    *(() if aside is None else (Place("discard", self.names.discard, *aside),)),
                ),
            )
