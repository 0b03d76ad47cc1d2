"""Rounds, medians and ratios: machines are noisy, so what is compared is measured by turns, and the median counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import getloadavg
from statistics import median
from typing import Any

from tests.bench.feed import say


@dataclass(frozen=True)
class Ratio:
    """What is promised: `value` should be at least `goal`, or at most."""

    value: float
    goal: float
    at_most: bool = False

    @property
    def is_met(self) -> bool:
        return self.value <= self.goal if self.at_most else self.value >= self.goal

    def report(self) -> dict[str, Any]:
        bound = "at most" if self.at_most else "at least"
        return {"value": round(self.value, 2), "goal": f"{bound} {self.goal:g}", "met": self.is_met}


def by_turns(rounds: int, measures: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Each of these once in every round, after one round that warms everything up and does not count."""
    found: dict[str, list[float]] = {name: [] for name in measures}
    for number in range(rounds + 1):
        for name, measure in measures.items():
            value = measure()
            say(f"round {number} of {rounds}, load {getloadavg()[0]:.1f}: {name} {value:,.3f}")
            if number:
                found[name].append(value)
    return found


def summary(values: list[float]) -> dict[str, float]:
    """Median and spread, rounded to four digits or so."""
    return {"median": _rounded(median(values)), "least": _rounded(min(values)), "most": _rounded(max(values))}


def _rounded(value: float) -> float:
    return round(value) if value >= 1_000 else round(value, 3)
