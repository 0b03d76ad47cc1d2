"""Plays scenarios on both sides at once, one after the other on each, and judges what became of them."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.differential.compare import Result, Verdict, judge
from tests.differential.rocketmq_side import rocketmq
from tests.differential.scenario import Fate, Scenario, Stage
from tests.differential.txbridge_side import txbridge

# Looking whether a side has ended; only so that Ctrl-C is noticed meanwhile.
_POLL_S = 0.5


@dataclass
class _Side:
    """What a side has played so far: the fates of a scenario, or the error that ended it."""

    name: str
    stages: Callable[[str], Stage]
    played: dict[str, Mapping[str, Fate] | Exception] = field(default_factory=dict)

    def play(self, scenarios: Sequence[Scenario], stop: threading.Event) -> None:
        for scenario in scenarios:
            if stop.is_set():
                return
            self.played[scenario.name] = outcome = self._play(scenario)
            shown = repr(outcome) if isinstance(outcome, Exception) else _shown(outcome)
            print(f"{time.strftime('%H:%M:%S')} {self.name}: {scenario.name}: {shown}", file=sys.stderr, flush=True)

    def _play(self, scenario: Scenario) -> Mapping[str, Fate] | Exception:
        """Whatever goes wrong is the outcome of this scenario, and the others are played all the same."""
        try:
            with contextlib.closing(self.stages(scenario.group)) as stage:
                scenario.play(stage)
                return stage.settled()
        except Exception as error:
            return error


def run(scenarios: Sequence[Scenario]) -> list[Result]:
    """Start both sides, play all, and end both.

    Raises:
        TxBridgeError: a side could not be started.

    """
    stop = threading.Event()
    with txbridge() as ours, rocketmq() as theirs:
        sides = [_Side("rocketmq", theirs), _Side("txbridge", ours)]
        # Daemons: after Ctrl-C the process must not wait for what they are playing.
        threads = [threading.Thread(target=side.play, args=(scenarios, stop), daemon=True) for side in sides]
        try:
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                time.sleep(_POLL_S)
        finally:
            stop.set()
    peer, own = sides
    return [
        one
        for scenario in scenarios
        for one in compare(scenario, peer.played[scenario.name], own.played[scenario.name])
    ]


def compare(
    scenario: Scenario, rocketmq: Mapping[str, Fate] | Exception, txbridge: Mapping[str, Fate] | Exception
) -> list[Result]:
    """The results of a scenario, one for each transaction that was expected."""
    results = []
    for name, expected in scenario.expected.items():
        their, error = (None, f"RocketMQ: {rocketmq!r}") if isinstance(rocketmq, Exception) else (rocketmq[name], "")
        our, own_error = (None, f"txbridge: {txbridge!r}") if isinstance(txbridge, Exception) else (txbridge[name], "")
        verdict = Verdict.FAILED if their is None or our is None else judge(their, our, expected)
        errors = "; ".join(filter(None, (error, own_error)))
        results.append(Result(scenario.name, name, their, our, expected, verdict, errors))
    return results


def _shown(fates: Mapping[str, Fate]) -> str:
    return "; ".join(f"{name}: {fate}" for name, fate in fates.items())
