"""Goals of txbridge beside the polled outbox: a table."""

from __future__ import annotations

from typing import NamedTuple

from tests.bench.measure import P50, P99, PER_SECOND, Figure, Ratio, Rounds
from tests.bench.outbox import figures
from tests.bench.outbox.visit import DRAINED, TRANSACTIONS, VISIBLE
from tests.bench.outbox.ways import EXACTLY_ONCE, FOUR, LOADS, OUTBOX, OUTBOX_NOTIFY, PACED, POLLED, TXBRIDGE
from tests.bench.report import CPU

#: Workloads that are no loads.
IDLE, RELAY = ", idle", ", relay"
SIGTERM, KILL = "s, longest wait, SIGTERM", "s, longest wait, kill -9"
#: A worker that is killed keeps its partitions for a session time-out, and the next one has this much more (s).
_KILLED_S = 6.0 + 1.5


class Goal(NamedTuple):
    """A figure of a workload, or its ratio to the same figure of another way."""

    workload: str
    what: str
    #: None if it is only reported.
    goal: float | None
    at_most: bool
    #: The other workload; empty if the figure itself is meant.
    to: str = ""

    def value(self, of: Figure) -> float:
        return of(self.workload, self.what) / (of(self.to, self.what) if self.to else 1)


def _to_polled(load: str, what: str, goal: float | None = None, *, at_most: bool = False) -> Goal:
    return Goal(f"{TXBRIDGE}, {load}", what, goal, at_most, f"{POLLED}, {load}")


def _of_relay(way: str) -> dict[str, Goal]:
    """Goals of a relay beside the polled one, which may show a message twice."""

    def to_polled(load: str, what: str, goal: float, *, at_most: bool = True) -> Goal:
        return Goal(f"{way}{load}", what, goal, at_most, f"{POLLED}{load}")

    full = [name for name, load in LOADS.items() if not load.rate]
    cost = {"200/s": 1.25, "20/s": 1.6, **dict.fromkeys(full, 1.1)}
    return {
        **{
            f"{way}: orders a second to polled, {load}": to_polled(f", {load}", PER_SECOND, 0.8, at_most=False)
            for load in full
        },
        **{
            f"{way}: processor time in all to polled, {load}": to_polled(f", {load}", figures.IN_ALL, goal)
            for load, goal in cost.items()
        },
        f"{way}: COMMIT to visible to polled, median": to_polled(", 200/s", f"{VISIBLE}{P50}", 1.5),
        f"{way}: COMMIT to visible to polled, p99": to_polled(", 200/s", f"{VISIBLE}{P99}", 2),
        f"{way}: idle to polled": to_polled(IDLE, figures.IDLE, 1),
        f"{way}: MB to polled": to_polled(", 200/s", figures.MEMORY_ALONE, 2),
        f"{way}: longest wait, SIGTERM (s)": Goal(way + RELAY, SIGTERM, 1.5, True),
        f"{way}: longest wait, kill -9 (s)": Goal(way + RELAY, KILL, 1.5, True),
        f"{way}: drain to polled": to_polled(RELAY, DRAINED, 0.65, at_most=False),
        f"{way}: drain to {EXACTLY_ONCE}": Goal(way + RELAY, DRAINED, 5, False, EXACTLY_ONCE + RELAY),
    }


GOALS = {
    "orders a second to polled, 1 thread": _to_polled("1 thread", PER_SECOND),
    "orders a second to polled, 8 threads": _to_polled("8 threads", PER_SECOND, 0.5),
    "orders a second to polled, 32 threads": _to_polled("32 threads", PER_SECOND),
    "orders a second to polled, asyncio 100": _to_polled("asyncio 100", PER_SECOND, 0.5),
    "processor time of the app to polled, 8 threads": _to_polled("8 threads", f"{CPU}{figures.APP}", 1.4, at_most=True),
    "processor time in all to polled, 200/s": _to_polled("200/s", figures.IN_ALL, at_most=True),
    "processor time in all, 200/s (us)": Goal(f"{TXBRIDGE}, 200/s", figures.IN_ALL, 2_800, True),
    "processor time in all, 20/s (us)": Goal(f"{TXBRIDGE}, 20/s", figures.IN_ALL, 5_000, True),
    "processor time in all, 4 half partitions, 200/s (us)": Goal(f"{FOUR}, 200/s", figures.IN_ALL, None, True),
    "COMMIT to visible, median, 200/s (ms)": Goal(f"{TXBRIDGE}, 200/s", f"{VISIBLE}{P50}", 30, True),
    "idle worker and Kafka, 4 half partitions (ms a second)": Goal(f"{FOUR}{IDLE}", figures.IDLE, 25, True),
    "longest wait, SIGTERM of the only worker (s)": Goal(f"{TXBRIDGE}{RELAY}", SIGTERM, 2.5, True),
    "longest wait, kill -9 of the only worker (s)": Goal(f"{TXBRIDGE}{RELAY}", KILL, _KILLED_S, True),
    **{
        f"Kafka transactions an order, {load}": Goal(f"{PACED}, {load}", TRANSACTIONS, None, True)
        for load in ("20/s", "200/s", "1,000/s", "5,000/s")
    },
    **_of_relay(OUTBOX),
    **_of_relay(OUTBOX_NOTIFY),
}


def ratios(*all_rounds: Rounds) -> dict[str, Ratio]:
    """The goals whose figures were measured."""
    found = {}
    for name, one in GOALS.items():
        for rounds in all_rounds:
            if all(rounds.has_figure(workload, one.what) for workload in (one.workload, one.to or one.workload)):
                found[name] = rounds.ratio(one.value, one.goal, at_most=one.at_most)
    return found
