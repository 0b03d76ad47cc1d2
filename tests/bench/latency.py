"""Time from a decision until its message is visible, at a fixed rate: ours, bare group commits, and RocketMQ."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from tests.bench.group_commit import group_commits
from tests.bench.measure import P50, P99, ROUNDS, SIZE, Found, Ratio, Rounds, by_turns, percentiles
from tests.bench.paced import PacedClient
from tests.bench.rocketmq import rocketmq
from tests.bench.stand import standing
from txbridge import LocalTransactionState
from txbridge.embedded import EmbeddedKafka

_OURS, _BARE, _PEER = "txbridge", "bare group commits", "RocketMQ"
#: Enough for RocketMQ's blocking client to keep the pace: each call takes it 1 to 2 ms.
_PEER_THREADS = 16
#: Reported beside the rate of the goals, for half the time and without RocketMQ, which does not reach the second one.
_OTHER_RATES = (100, 10_000)
#: Long enough that no late commit is checked: a check would add to the measured work (ms).
_NO_CHECKS = 60_000

OPTIONS = {
    "rate": (1_000, "transactions a second"),
    "seconds": (6, "of each measurement"),
    "size": SIZE,
    "rounds": ROUNDS,
    "commit_interval": (0.0, "s, of worker and client; the goals are about 0"),
    "warm_up": (0, "seconds before the first round, for rounds too short to have Kafka's classes compiled"),
}


def run(options: argparse.Namespace) -> dict[str, Any]:
    count = options.rate * options.seconds
    with (
        EmbeddedKafka(jvm_profile="throughput", heap="1g") as kafka,
        standing(kafka, check_after=_NO_CHECKS, commit_interval=options.commit_interval) as stand,
        PacedClient(stand, LocalTransactionState.COMMIT_MESSAGE, options.commit_interval) as ours,
        group_commits(kafka.bootstrap_servers, stand.bridge.create_topic("bare", partitions=1)) as bare,
        rocketmq({}) as peer,
    ):

        def by_us(rate: int, seconds: int) -> Found:
            """Measure from the decision, which the local transaction makes."""
            _, decided, seen = ours.send(rate * seconds, rate, options.size)
            assert seen.copies == 0, f"{seen.copies} copies became visible"
            return percentiles([at - since for since, at in zip(decided, seen.times, strict=True)])

        def by_peer() -> Found:
            done = peer.measure(count, _PEER_THREADS, options.size, rate=options.rate)
            return dict(zip((P50, P99), done["visible_ms"], strict=True))

        if options.warm_up:
            by_us(options.rate, options.warm_up)
        measures = {
            _OURS: partial(by_us, options.rate, options.seconds),
            _BARE: partial(bare, count, options.rate, options.size),
            _PEER: by_peer,
        }
        for rate in _OTHER_RATES:
            seconds = options.seconds // 2
            measures[_OURS + _at(rate)] = partial(by_us, rate, seconds)
            measures[_BARE + _at(rate)] = partial(bare, rate * seconds, rate, options.size)
        found = by_turns(options.rounds, measures)
    ratios = {}
    for name, what in (("median", P50), ("p99", P99)):
        ratios[f"decision to visible, {name}, to bare group commits"] = _times(found, what, _BARE, 1.5)
        ratios[f"decision to visible, {name}, to RocketMQ"] = _times(found, what, _PEER)
        for rate in _OTHER_RATES:
            ratio = _times(found, what, _BARE, at_rate=_at(rate))
            ratios[f"decision to visible, {name}, to bare group commits{_at(rate)}"] = ratio
    return {"figures": found.report(), "ratios": ratios}


def _at(rate: int) -> str:
    return f", {rate:,} a second"


def _times(found: Rounds, what: str, whose: str, goal: float | None = None, at_rate: str = "") -> Ratio:
    return found.ratio(lambda of: of(_OURS + at_rate, what) / of(whose + at_rate, what), goal, at_most=True)
