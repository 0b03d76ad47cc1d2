"""The summaries that the page shows beside the verdict: a few hundred numbers."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from itertools import accumulate
from typing import Any

from txbridge.core.names import short_id
from txbridge_audit.judge import fates
from txbridge_audit.judge.verdict import Verdict
from txbridge_audit.protocol.mentions import CopyMention

#: Points of the plot over time: as many as a phone can show.
INTERVALS = 60
#: Rows of the tables: as many as a person can act on. The ledger has all of them.
GROUPS, OLDEST = 20, 20
QUANTILES = (0.5, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Latency:
    """One latency of all transactions that have it, ms."""

    #: By n, the number of latencies below 2^n ms and not below half of that. n = 0 stands for 0 ms.
    by_power: Mapping[int, int]
    #: In the order of QUANTILES.
    quantiles: tuple[int, ...]
    most: int


@dataclass(frozen=True, slots=True)
class GroupOverview:
    """The checks of one producer group."""

    name: str
    transactions: int
    checked: int
    checks: int
    answered: int
    discarded: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """One pending transaction."""

    #: First 8 characters of its id.
    transaction: str
    group: str
    real_topic: str
    partition: int
    half: int
    state: str
    #: Milliseconds since 1970-01-01 UTC.
    born: int
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

    #: By time of birth (whole seconds, as ms) and fate, the number of transactions.
    births: Counter[tuple[int, str]] = field(default_factory=Counter)
    #: By latency (ms), the number of transactions.
    to_decision: Counter[int] = field(default_factory=Counter)
    to_delivery: Counter[int] = field(default_factory=Counter)
    #: By group the counts of GroupOverview, in its order.
    groups: dict[str, Counter[str]] = field(default_factory=dict)
    waiting: list[Waiting] = field(default_factory=list)

    def take_stray(self, copy: CopyMention, kind: str) -> None:
        """Nothing is summed up of records without a transaction."""

    def take_verdict(self, verdict: Verdict) -> None:
        """Add a verdict."""
        case, message = verdict.case, verdict.case.message
        if message is None or verdict.fate is None:
            return
        group, winner, checks = str(message.group), case.winner, case.checks_sent
        self.births[message.born // 1000 * 1000, verdict.fate] += 1
        # The append times may come from two brokers, whose clocks may make a short latency look negative.
        if winner is not None:
            self.to_decision[max(0, winner.stamp - message.born)] += 1
        if case.delivery_latency is not None:
            self.to_delivery[max(0, case.delivery_latency)] += 1
        self.groups.setdefault(group, Counter()).update(
            transactions=1,
            checked=int(checks > 0),
            checks=checks,
            answered=int(winner is not None and winner.source == "check"),
            discarded=int(verdict.fate == fates.DISCARDED.name),
        )
        if verdict.pending_state is not None:
            waits = Waiting(
                *(short_id(str(message.id)), group, str(message.real_topic), message.partition, message.half),
                *(verdict.pending_state, message.born, checks),
            )
            self.waiting.append(waits)
            if len(self.waiting) > 2 * OLDEST:
                self.waiting = _oldest(self.waiting)

    def add_sums(self, others: OverviewSums) -> None:
        """Add the sums of other verdicts."""
        self.births.update(others.births)
        self.to_decision.update(others.to_decision)
        self.to_delivery.update(others.to_delivery)
        for group, counts in others.groups.items():
            self.groups.setdefault(group, Counter()).update(counts)
        self.waiting = _oldest([*self.waiting, *others.waiting])

    def to_row(self) -> list[Any]:
        """Plain values, for an engine that sums up in several processes."""
        waiting = [astuple(waits) for waits in self.waiting]
        groups = {group: dict(counts) for group, counts in self.groups.items()}
        return [dict(self.births), dict(self.to_decision), dict(self.to_delivery), groups, waiting]

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> OverviewSums:
        """The sums of `to_row`."""
        births, to_decision, to_delivery, groups, waiting = row
        return cls(
            *(Counter(births), Counter(to_decision), Counter(to_delivery)),
            {group: Counter(counts) for group, counts in groups.items()},
            [Waiting(*waits) for waits in waiting],
        )

    def overview(self) -> AuditOverview:
        """The overview of all verdicts that were added."""
        interval, over_time = self._over_time()
        ranked = sorted(self.groups.items(), key=lambda one: (-one[1]["checks"], one[0]))
        return AuditOverview(
            interval=interval,
            over_time=over_time,
            prepare_to_decision=_latency(self.to_decision),
            decision_to_delivery=_latency(self.to_delivery),
            groups=tuple(
                GroupOverview(
                    name,
                    *(counts[what] for what in ("transactions", "checked", "checks", "answered", "discarded")),
                )
                for name, counts in ranked[:GROUPS]
            ),
            oldest_pending=tuple(_oldest(self.waiting)),
        )

    def _over_time(self) -> tuple[int, dict[int, dict[str, int]]]:
        if not self.births:
            return 1, {}
        first, last = min(self.births)[0], max(self.births)[0]
        interval = (last - first) // INTERVALS + 1
        found: dict[int, dict[str, int]] = {}
        for (born, fate), number in sorted(self.births.items()):
            in_interval = found.setdefault(first + (born - first) // interval * interval, {})
            in_interval[fate] = in_interval.get(fate, 0) + number
        return interval, found


def _oldest(waiting: Sequence[Waiting]) -> list[Waiting]:
    return sorted(waiting, key=lambda one: (one.born, one.partition, one.half))[:OLDEST]


def _latency(taken: Counter[int]) -> Latency | None:
    if not taken:
        return None
    by_power: Counter[int] = Counter()
    for ms, number in taken.items():
        by_power[ms.bit_length()] += number
    ordered = sorted(taken)
    # Up to each latency, the number of transactions that took no longer.
    reached = list(accumulate(taken[ms] for ms in ordered))
    places = (min(reached[-1] - 1, int(share * reached[-1])) for share in QUANTILES)
    quantiles = tuple(ordered[bisect_right(reached, place)] for place in places)
    return Latency(dict(sorted(by_power.items())), quantiles, ordered[-1])
