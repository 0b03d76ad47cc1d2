"""Time from a decision until its message is visible, at a fixed rate: ours, bare group commits, and RocketMQ."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Self

from tests.bench.group_commit import GroupCommits
from tests.bench.measure import P50, P99, Found, Ratio, Rounds, by_turns, percentiles
from tests.bench.paced import PacedClient
from tests.bench.reader_process import ReaderProcess
from tests.bench.rocketmq import rocketmq
from tests.bench.stages import STAGES, TRANSACTIONS, Stages, registrations
from tests.bench.stand import Stand
from txbridge import LocalTransactionState
from txbridge.embedded import EmbeddedKafka

_OURS, _BARE, _PEER = "txbridge", "bare group commits", "RocketMQ"
#: Enough for RocketMQ's blocking client to keep the pace: each call takes it 1 to 2 ms.
_PEER_THREADS = 16
#: Reported beside the rate of the goals, for half the time and without RocketMQ, which does not reach the second one.
_OTHER_RATES = (100, 10_000)
#: Long enough that no late commit is checked: a check would add to the measured work (ms).
_NO_CHECKS = 60_000


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rate", type=int, default=1_000, help="transactions a second (default 1,000)")
    parser.add_argument("--seconds", type=int, default=6, help="of each measurement (default 6)")
    parser.add_argument("--size", type=int, default=100, help="bytes of each value (default 100)")
    parser.add_argument("--rounds", type=int, default=5, help="medians of so many (default 5)")
    parser.add_argument(
        "--warm-up",
        type=int,
        default=0,
        help="seconds before the first round, for rounds too short to have Kafka's classes compiled (default 0)",
    )


def run(options: argparse.Namespace) -> dict[str, Any]:
    count = options.rate * options.seconds
    with (
        EmbeddedKafka(jvm_profile="throughput", heap="1g") as kafka,
        Stand(kafka, check_after=_NO_CHECKS, has_metrics=True) as stand,
        PacedClient(stand, LocalTransactionState.COMMIT_MESSAGE) as ours,
        _Bare(stand) as bare,
        rocketmq({}) as peer,
    ):

        def by_peer() -> Found:
            done = peer.measure(count, _PEER_THREADS, options.size, rate=options.rate)
            return dict(zip((P50, P99), done["visible_ms"], strict=True))

        if options.warm_up:
            _measured(ours, stand, options.rate, options.warm_up, options.size)
        found = by_turns(
            options.rounds,
            {
                _OURS: lambda: _measured(ours, stand, options.rate, options.seconds, options.size),
                _BARE: lambda: bare.measure(count, options.rate, options.size),
                _PEER: by_peer,
                **_at_other_rates(ours, bare, stand, options.seconds // 2, options.size),
            },
        )
    ratios = {
        "decision to visible, median, to bare group commits": _times(found, P50, _BARE, 1.5),
        "decision to visible, p99, to bare group commits": _times(found, P99, _BARE, 1.5),
        "decision to visible, median, to RocketMQ": _times(found, P50, _PEER),
        "decision to visible, p99, to RocketMQ": _times(found, P99, _PEER),
    }
    for rate in _OTHER_RATES:
        at_rate = _at(rate)
        for name, what in (("median", P50), ("p99", P99)):
            ratios[f"decision to visible, {name}, to bare group commits{at_rate}"] = _times(
                found, what, _BARE, at_rate=at_rate
            )
    return {
        "rate": options.rate,
        "stages": STAGES,
        "figures": found.report(),
        "ratios": {name: ratio.report() for name, ratio in ratios.items()},
    }


def _at(rate: int) -> str:
    return f", {rate:,} a second"


def _at_other_rates(
    ours: PacedClient, bare: _Bare, stand: Stand, seconds: int, size: int
) -> dict[str, Callable[[], Found]]:
    measures: dict[str, Callable[[], Found]] = {}
    for rate in _OTHER_RATES:
        measures[_OURS + _at(rate)] = partial(_measured, ours, stand, rate, seconds, size)
        measures[_BARE + _at(rate)] = partial(bare.measure, rate * seconds, rate, size)
    return measures


def _times(found: Rounds, what: str, whose: str, goal: float | None = None, at_rate: str = "") -> Ratio:
    return found.ratio(lambda of: of(_OURS + at_rate, what) / of(whose + at_rate, what), goal, at_most=True)


def _measured(client: PacedClient, stand: Stand, rate: int, seconds: int, size: int) -> Found:
    """Measure from the decision, which the local transaction makes."""
    stages, before = Stages(stand.bridge), stand.scraped()
    results, decided, seen = client.send(rate * seconds, rate, size)
    assert seen.copies == 0, f"{seen.copies} copies became visible"
    offsets = [future.result().half_offset for future in results]
    total = percentiles([at - since for since, at in zip(decided, seen.times, strict=True)])
    parts = stages.between(offsets, decided, seen.times)
    return {**total, **parts, **registrations(before, stand.scraped())}


class _Bare:
    """The same records at the same rate, with a reader of their own."""

    def __init__(self, stand: Stand) -> None:
        servers = stand.bridge.bootstrap_servers
        topic = stand.bridge.create_topic("bare", partitions=1)
        self._commits = GroupCommits(servers, topic)
        self._reader = ReaderProcess(servers, topic)
        self._next = 0

    def __enter__(self) -> Self:
        self._reader.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._commits.close()
        self._reader.__exit__(kind, error, trace)

    def measure(self, count: int, rate: float, size: int) -> Found:
        first, self._next = self._next, self._next + count
        self._reader.expect_numbers(first, count)
        arrived = self._commits.send(first, count, rate, size)
        seen = self._reader.seen()
        total = percentiles([at - since for since, at in zip(arrived, seen.times, strict=True)])
        return {**total, TRANSACTIONS: self._commits.committed / (max(seen.times) - arrived[0])}
