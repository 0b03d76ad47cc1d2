"""Judges what RocketMQ and a side of ours did with a transaction against what was written down before."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tests.differential.scenario import Expected, Fate


class Verdict(StrEnum):
    SAME = "same"
    #: Another fate, as the row of the parity table says.
    BETTER = "better"
    #: We did something else than we promise.
    OURS_IS_WRONG = "TXBRIDGE IS WRONG"
    #: RocketMQ did something that is not written down.
    UNEXPECTED = "UNEXPECTED DIFFERENCE"
    #: RocketMQ did as we do, where the parity table says that it does not.
    MISSING = "DIFFERENCE NOT FOUND"
    #: A step of the script could not be played on one side.
    FAILED = "NOT PLAYED"


GOOD = frozenset({Verdict.SAME, Verdict.BETTER})


@dataclass(frozen=True)
class Result:
    """One transaction of one scenario on RocketMQ and on one side of ours."""

    scenario: str
    transaction: str
    #: "txbridge", by its own client, or "door", by RocketMQ's.
    side: str
    rocketmq: Fate | None
    ours: Fate | None
    expected: Expected
    verdict: Verdict
    #: The error of the side that failed.
    error: str = ""

    @property
    def good(self) -> bool:
        return self.verdict in GOOD


def judge(rocketmq: Fate, ours: Fate, expected: Expected) -> Verdict:
    """Ours must be as it is written; RocketMQ's as ours, or one of those that are written."""
    if ours != expected.txbridge:
        return Verdict.OURS_IS_WRONG
    if rocketmq in (expected.rocketmq or (expected.txbridge,)):
        return Verdict.SAME if rocketmq == ours else Verdict.BETTER
    return Verdict.MISSING if rocketmq == ours else Verdict.UNEXPECTED
