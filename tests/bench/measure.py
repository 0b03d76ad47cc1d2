"""Rounds, medians and ratios: machines are noisy, so what is compared is measured by turns, and the median counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import getloadavg
from statistics import median
from typing import Any

from tests.bench.feed import say

#: What one measurement has found: figures by what they are.
Found = Mapping[str, float]
#: The value of a workload, by what it is.
Figure = Callable[[str, str], float]
PER_SECOND = "per second"
P50, P99 = "ms, median", "ms, p99"


@dataclass(frozen=True)
class Ratio:
    """What is promised: `value` should be at least `goal`, or at most. Without a goal it is only told."""

    value: float
    goal: float | None = None
    at_most: bool = False
    #: What single rounds have found, where there were several.
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
        # Rounded to what a table shows; met by what was measured.
        return {"value": round(self.value, 2), "least": least, "most": most, "goal": goal, "met": self.is_met}


class Rounds:
    """What several measurements have found in all rounds."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, list[float]]] = {}

    def add(self, workload: str, found: Found) -> None:
        for what, value in found.items():
            self._found.setdefault(workload, {}).setdefault(what, []).append(value)

    def __contains__(self, workload: str) -> bool:
        return workload in self._found

    def median(self, workload: str, what: str) -> float:
        return median(self._found[workload][what])

    def ratio(self, of: Callable[[Figure], float], goal: float | None = None, *, at_most: bool = False) -> Ratio:
        """Of the medians. Each round has a ratio of its own, too: their least and most are the spread."""
        count = min(len(values) for found in self._found.values() for values in found.values())
        each = [of(lambda workload, what: self._found[workload][what][number]) for number in range(count)]  # noqa: B023
        return Ratio(of(self.median), goal, at_most, each)

    def steadiness(self, workload: str, what: str, goal: float | None = None) -> Ratio:
        """The least of all rounds to their median: a workload that is slow once in a while shows in no median."""
        return Ratio(min(self._found[workload][what]) / self.median(workload, what), goal)

    def report(self, suffix: str = "") -> dict[str, dict[str, dict[str, float]]]:
        """Workload, with this behind its name -> what -> median and spread."""
        return {
            f"{workload}{suffix}": {what: summary(values) for what, values in found.items()}
            for workload, found in self._found.items()
        }


def by_turns(rounds: int, measures: Mapping[str, Callable[[], Found]]) -> Rounds:
    """Each of these once in every round, after one round that warms everything up and does not count."""
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


def _rounded(value: float) -> float:
    return round(value) if abs(value) >= 1_000 else round(value, 3)
