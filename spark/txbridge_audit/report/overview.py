"""The summaries that the page shows beside the verdict: a few hundred numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
    #: None when no transaction has it. See `derived.delivery_latency`.
    prepare_to_decision: Latency | None
    decision_to_delivery: Latency | None
    #: The group with the most checks is first.
    groups: tuple[GroupOverview, ...]
    #: The oldest one is first.
    oldest_pending: tuple[Waiting, ...]
