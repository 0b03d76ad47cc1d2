"""Runner of the scenarios. All sides play at the same time, each one scenario after the other."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.differential.compare import Result, Verdict, judge
from tests.differential.door_side import door
from tests.differential.rocketmq_side import rocketmq
from tests.differential.scenario import Fate, Scenario, Stage
from tests.differential.txbridge_side import txbridge
from txbridge.embedded import EmbeddedKafka

#: The sides of txbridge: through its own client, and through the front door with RocketMQ's client.
OURS = {"txbridge": txbridge, "door": door}

# Interval of the looks at the threads. Without them Ctrl-C would not be noticed.
_POLL_S = 0.5


@dataclass
class _Side:
    """All that a side has played so far: per scenario its fates, or the error that ended it."""

    name: str
    stages: Callable[[str], Stage]
    played: dict[str, Mapping[str, Fate] | Exception] = field(default_factory=dict)

    def play(self, scenarios: Sequence[Scenario], stop: threading.Event) -> None:
        for scenario in scenarios:
            if stop.is_set():
                return
            if self.name == "txbridge" and scenario.only_rocketmqs_client:
                continue
            self.played[scenario.name] = outcome = self._play(scenario)
            shown = repr(outcome)
            if not isinstance(outcome, Exception):
                shown = "; ".join(f"{name}: {fate}" for name, fate in outcome.items())
            print(f"{time.strftime('%H:%M:%S')} {self.name}: {scenario.name}: {shown}", file=sys.stderr, flush=True)

    def _play(self, scenario: Scenario) -> Mapping[str, Fate] | Exception:
        """Play a scenario. An error becomes its outcome, so that the others are played nevertheless."""
        try:
            with contextlib.closing(self.stages(scenario.group)) as stage:
                for step in scenario.steps:
                    step(stage)
                return stage.settled()
        except Exception as error:
            return error


def run(scenarios: Sequence[Scenario], sides: Sequence[str] = tuple(OURS)) -> list[Result]:
    """Start RocketMQ and the chosen sides of txbridge, play all scenarios, and end them.

    Raises:
        TxBridgeError: a side could not be started.

    """
    stop = threading.Event()
    with contextlib.ExitStack() as stack:
        kafka = stack.enter_context(EmbeddedKafka())
        ours = [_Side(name, stack.enter_context(OURS[name](kafka))) for name in sides]
        peer = _Side("rocketmq", stack.enter_context(rocketmq()))
        # Daemon threads: after Ctrl-C the process must not wait for the scenarios at hand.
        threads = [threading.Thread(target=side.play, args=(scenarios, stop), daemon=True) for side in (peer, *ours)]
        try:
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                time.sleep(_POLL_S)
        finally:
            stop.set()
    return [
        one
        for scenario in scenarios
        for side in ours
        if scenario.name in side.played
        for one in compare(scenario, side.name, peer.played[scenario.name], side.played[scenario.name])
    ]


def compare(
    scenario: Scenario, side: str, rocketmq: Mapping[str, Fate] | Exception, ours: Mapping[str, Fate] | Exception
) -> list[Result]:
    """Results of a scenario, one for each expected transaction."""
    results = []
    for name, expected in scenario.expected.items():
        their, error = (None, f"RocketMQ: {rocketmq!r}") if isinstance(rocketmq, Exception) else (rocketmq[name], "")
        our, own_error = (None, f"{side}: {ours!r}") if isinstance(ours, Exception) else (ours[name], "")
        verdict = Verdict.FAILED if their is None or our is None else judge(their, our, expected)
        errors = "; ".join(filter(None, (error, own_error)))
        results.append(Result(scenario.name, name, side, their, our, expected, verdict, errors))
    return results
