"""Comparison of the fates on RocketMQ and on a side of txbridge with the fates that were written down before."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tests.differential.scenario import Expected, Fate


class Verdict(StrEnum):
    SAME = "same"
    #: The fates differ as the row of the parity table says.
    BETTER = "better"
    #: txbridge did not do what it promises.
    OURS_IS_WRONG = "TXBRIDGE IS WRONG"
    #: RocketMQ did something that is not written down.
    UNEXPECTED = "UNEXPECTED DIFFERENCE"
    #: RocketMQ did the same as txbridge, where the parity table names a difference.
    MISSING = "DIFFERENCE NOT FOUND"
    #: A step of the script could not be played on one side.
    FAILED = "NOT PLAYED"


GOOD = frozenset({Verdict.SAME, Verdict.BETTER})


@dataclass(frozen=True)
class Result:
    """One transaction of one scenario, on RocketMQ and on one side of txbridge."""

    scenario: str
    transaction: str
    #: "txbridge": through its own client. "door": through RocketMQ's client.
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
    """Compare the fates: ours must be the written one; RocketMQ's must be the same, or one of those written for it."""
    if ours != expected.txbridge:
        return Verdict.OURS_IS_WRONG
    if rocketmq in (expected.rocketmq or (expected.txbridge,)):
        return Verdict.SAME if rocketmq == ours else Verdict.BETTER
    return Verdict.MISSING if rocketmq == ours else Verdict.UNEXPECTED
