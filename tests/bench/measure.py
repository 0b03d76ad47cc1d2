"""Rounds, medians and ratios. Machines are noisy, so each round measures all workloads, and the median counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import getloadavg
from statistics import median
from typing import Any

from tests.bench.feed import say

#: Results of one measurement: values by name.
Found = Mapping[str, float]
#: The value of a workload, by its name.
Figure = Callable[[str, str], float]
#: Options of a bench: the default, and what the value is.
Options = Mapping[str, tuple[Any, str]]
ROUNDS, SIZE = (5, "medians of so many"), (100, "bytes of each value")
PER_SECOND = "per second"
P50, P99 = "ms, median", "ms, p99"


@dataclass(frozen=True)
class Ratio:
    """A promised ratio: `value` should be at least `goal`, or at most. Without a goal it is only reported."""

    value: float
    goal: float | None = None
    at_most: bool = False
    #: Results of single rounds, if there were several.
    rounds: Sequence[float] = ()

    @property
    def is_met(self) -> bool | None:
        if self.goal is None:
            return None
        return self.value <= self.goal if self.at_most else self.value >= self.goal

    def report(self) -> dict[str, Any]:
        bound = "at most" if self.at_most else "at least"
        goal = None if self.goal is None else f"{bound} {self.goal:g}"
        least, most = (round(of(self.rounds), 2) if self.rounds else None for of in (min, max))
        # `value` is rounded for the table, `met` is computed from the exact value.
        return {"value": round(self.value, 2), "least": least, "most": most, "goal": goal, "met": self.is_met}


class Rounds:
    """Results of several measurements in all rounds."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, list[float]]] = {}

    def add(self, workload: str, found: Found) -> None:
        for what, value in found.items():
            self._found.setdefault(workload, {}).setdefault(what, []).append(value)

    def has_figure(self, workload: str, what: str) -> bool:
        return what in self._found.get(workload, ())

    def median(self, workload: str, what: str) -> float:
        return median(self._found[workload][what])

    def ratio(self, of: Callable[[Figure], float], goal: float | None = None, *, at_most: bool = False) -> Ratio:
        """The ratio of the medians. Each round has a ratio of its own, too: their least and most are the spread."""
        count = min(len(values) for found in self._found.values() for values in found.values())
        each = [of(lambda workload, what: self._found[workload][what][number]) for number in range(count)]  # noqa: B023
        return Ratio(of(self.median), goal, at_most, each)

    def steadiness(self, workload: str, what: str, goal: float | None = None) -> Ratio:
        """The least of all rounds to their median. The median does not show a workload that is slow now and then."""
        return Ratio(min(self._found[workload][what]) / self.median(workload, what), goal)

    def report(self, suffix: str = "") -> dict[str, dict[str, dict[str, float]]]:
        """The medians and spreads by workload, with `suffix` after its name, and by name of the value."""
        return {
            f"{workload}{suffix}": {what: summary(values) for what, values in found.items()}
            for workload, found in self._found.items()
        }


def by_turns(rounds: int, measures: Mapping[str, Callable[[], Found]]) -> Rounds:
    """Run each measurement once in every round, after a first round that warms everything up and does not count."""
    all_rounds = Rounds()
    for number in range(rounds + 1):
        for workload, measure in measures.items():
            found = measure()
            text = ", ".join(
                f"{what} {value:,.4g}" if value < 1_000 else f"{what} {value:,.0f}" for what, value in found.items()
            )
            say(f"round {number} of {rounds}, load {getloadavg()[0]:.1f}: {workload}: {text}")
            if number:
                all_rounds.add(workload, found)
    return all_rounds


def percentiles(seconds: Sequence[float]) -> Found:
    """Median and 99th percentile, in ms."""
    ordered = sorted(seconds)
    return {P50: ordered[len(ordered) // 2] * 1e3, P99: ordered[int(len(ordered) * 0.99)] * 1e3}


def summary(values: Sequence[float]) -> dict[str, float]:
    """Median and spread, rounded to four digits or so."""
    return {"median": _rounded(median(values)), "least": _rounded(min(values)), "most": _rounded(max(values))}


def once(found: Found) -> dict[str, dict[str, float]]:
    """Figures that were measured in one run, or counted."""
    return {what: summary([value]) for what, value in found.items()}


def _rounded(value: float) -> float:
    return round(value) if abs(value) >= 1_000 else round(value, 3)
