"""The summaries that the page shows beside the verdict: a few hundred numbers, however many transactions there are."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple, Self

from txbridge.core.names import short_id
from txbridge_audit.judge import fates
from txbridge_audit.judge.verdict import Verdict
from txbridge_audit.report.entries import progress_of

#: Columns of the chart over time: as many as a phone can show.
INTERVALS = 60
#: Rows of the tables: as many as a person can act on. The ledger has all of them.
GROUPS, OLDEST = 20, 20
QUANTILES = (0.5, 0.95, 0.99)
#: Starts of intervals that are told apart at most while verdicts are added: a year by seconds would fill the memory.
_STARTS = 10_000


class Latency(NamedTuple):
    """One latency of all transactions that have it, ms, rounded down to three digits."""

    #: By latency, the number of transactions.
    counts: Mapping[int, int]
    #: In the order of QUANTILES.
    quantiles: tuple[int, ...]
    most: int


class GroupOverview(NamedTuple):
    """The checks of one producer group."""

    name: str
    transactions: int
    checked: int
    checks: int
    answered: int
    discarded: int


class Waiting(NamedTuple):
    """One pending transaction."""

    #: Milliseconds since 1970-01-01 UTC.
    born: int
    partition: int
    half: int
    #: First 8 characters of its id.
    transaction: str
    group: str
    real_topic: str
    #: With messages of different times, how many were delivered, and when the next ones are due.
    state: str
    checks: int


@dataclass(frozen=True, slots=True)
class AuditOverview:
    """The summaries of one audit."""

    #: Length of an interval, ms.
    interval: int
    #: By start of an interval (ms) and fate, the number of transactions born in it.
    over_time: Mapping[int, Mapping[str, int]]
    #: None when no transaction has it. See `Case.delivery_latency`.
    prepare_to_decision: Latency | None
    decision_to_delivery: Latency | None
    #: The group with the most checks is first.
    groups: tuple[GroupOverview, ...]
    #: The oldest one is first.
    oldest_pending: tuple[Waiting, ...]


@dataclass(slots=True)
class OverviewSums:
    """What an overview is made of, verdict by verdict. Sums of different verdicts can be added."""

    #: Length of the intervals of `births`, ms: a power of two times a second.
    interval: int = 1_000
    #: By start of an interval (ms) and fate, the number of transactions born in it.
    births: Counter[tuple[int, str]] = field(default_factory=Counter)
    #: By latency (ms, rounded), the number of transactions.
    to_decision: Counter[int] = field(default_factory=Counter)
    to_delivery: Counter[int] = field(default_factory=Counter)
    #: By group the counts of GroupOverview, in its order.
    groups: dict[str, Counter[str]] = field(default_factory=dict)
    waiting: list[Waiting] = field(default_factory=list)

    def take_verdict(self, verdict: Verdict) -> None:
        """Add a verdict."""
        case, message = verdict.case, verdict.case.message
        if message is None or verdict.fate is None:
            return
        winner, checks, latency = case.winner, case.checks_sent, case.delivery_latency
        to_decision = () if winner is None else (winner.stamp - message.born,)
        self._add_alike(verdict, (message.born,), to_decision, () if latency is None else (latency,), (checks,))
        if verdict.pending_state is not None:
            state = ": ".join(filter(None, (verdict.pending_state, progress_of(case))))
            about = short_id(str(message.id)), str(message.group), str(message.real_topic), state, checks
            self.waiting.append(Waiting(message.born, message.partition, message.half, *about))
            if len(self.waiting) > 2 * OLDEST:
                self.waiting = sorted(self.waiting)[:OLDEST]

    def take_alike(
        self, verdict: Verdict, born: Sequence[int], decided: Sequence[int], op: Sequence[int], checks: Sequence[int]
    ) -> None:
        """Add plain transactions with the same verdict and group: their times (ms), and the checks they answered."""
        to_decision = (end - at for at, end in zip(born, decided, strict=True))
        is_delivered = verdict.fate == fates.DELIVERED.name
        to_delivery = (at - end for end, at in zip(decided, op, strict=True)) if is_delivered else ()
        self._add_alike(verdict, born, to_decision, to_delivery, checks)

    def _add_alike(
        self,
        verdict: Verdict,
        born: Sequence[int],
        to_decision: Iterable[int],
        to_delivery: Iterable[int],
        checks: Sequence[int],
    ) -> None:
        message, winner = verdict.case.message, verdict.case.winner
        assert message is not None  # It has a fate.
        self.births.update((at // self.interval * self.interval, str(verdict.fate)) for at in born)
        while len(self.births) > _STARTS:
            self._widen(2 * self.interval)
        # The append times may come from two brokers, whose clocks may make a short latency look negative.
        self.to_decision.update(_rounded(max(0, ms)) for ms in to_decision)
        self.to_delivery.update(_rounded(max(0, ms)) for ms in to_delivery)
        self.groups.setdefault(str(message.group), Counter()).update(
            transactions=len(born),
            checked=sum(number > 0 for number in checks),
            checks=sum(checks),
            answered=len(born) if winner is not None and winner.source == "check" else 0,
            discarded=len(born) if verdict.fate == fates.DISCARDED.name else 0,
        )

    def __iadd__(self, others: OverviewSums) -> Self:
        self._widen(max(self.interval, others.interval))
        others._widen(self.interval)
        self.births.update(others.births)
        self.to_decision.update(others.to_decision)
        self.to_delivery.update(others.to_delivery)
        for group, counts in others.groups.items():
            self.groups.setdefault(group, Counter()).update(counts)
        self.waiting = sorted([*self.waiting, *others.waiting])[:OLDEST]
        return self

    def overview(self) -> AuditOverview:
        """The overview of all verdicts that were added."""
        while self.births and (max(self.births)[0] - min(self.births)[0]) // self.interval >= INTERVALS:
            self._widen(2 * self.interval)
        over_time: dict[int, dict[str, int]] = {}
        for (start, fate), number in sorted(self.births.items()):
            over_time.setdefault(start, {})[fate] = number
        ranked = sorted(self.groups.items(), key=lambda one: (-one[1]["checks"], one[0]))
        return AuditOverview(
            interval=self.interval,
            over_time=over_time,
            prepare_to_decision=_latency(self.to_decision),
            decision_to_delivery=_latency(self.to_delivery),
            groups=tuple(
                GroupOverview(name, *(counts[what] for what in GroupOverview._fields[1:]))
                for name, counts in ranked[:GROUPS]
            ),
            oldest_pending=tuple(sorted(self.waiting)[:OLDEST]),
        )

    def _widen(self, interval: int) -> None:
        """Count births by longer intervals. Each begins where a shorter one does, in whatever order verdicts come."""
        births: Counter[tuple[int, str]] = Counter()
        for (start, fate), number in self.births.items():
            births[start // interval * interval, fate] += number
        self.births, self.interval = births, interval


def _rounded(ms: int) -> int:
    """Three digits are what the page shows. They keep the number of different latencies small."""
    unit = int("1" + "0" * (len(str(ms)) - 3))
    return ms // unit * unit


def _latency(counts: Counter[int]) -> Latency | None:
    if not counts:
        return None
    ordered: Sequence[int] = sorted(counts)
    # Up to each latency, the number of transactions that took no longer.
    reached = list(accumulate(counts[ms] for ms in ordered))
    places = (min(reached[-1] - 1, int(share * reached[-1])) for share in QUANTILES)
    quantiles = tuple(ordered[bisect_right(reached, place)] for place in places)
    return Latency(dict(counts), quantiles, ordered[-1])
