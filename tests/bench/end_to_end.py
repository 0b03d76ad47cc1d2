"""The whole path (client, Kafka, worker, reader) against a real RocketMQ: from the first prepare until all is seen."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.bench.bare import produce_and_wait
from tests.bench.client_processes import client_processes
from tests.bench.measure import PER_SECOND, ROUNDS, Figure, Found, Ratio, Rounds, by_turns
from tests.bench.rocketmq import RocketMQ, rocketmq
from tests.bench.stand import Stand, cpu_us_each, standing
from txbridge.embedded import EmbeddedKafka

#: Number of client processes, and goals: our rates as multiples of RocketMQ's best one (at least).
_PROCESSES = 2
_PIPELINED, _ASYNCIO, _IN_PROCESSES = "pipelined", "asyncio", "pipelined, two client processes"
_TO_THE_BEST = {_PIPELINED: 5, _ASYNCIO: 3.5, _IN_PROCESSES: 6}
#: Goal of blocking clients: the lower of this multiple of RocketMQ's rate with as many threads and this part of Kafka's
#: own.
_TO_THE_SAME, _OF_BARE = 1.2, 0.75
#: Our slowest round as a part of the median of our rounds (at least).
_STEADY = 0.6
_BLOCKING, _BARE, _PEER = "blocking", "bare produce and wait", "RocketMQ"

OPTIONS = {
    # Enough for some four seconds on each side, so that start and end of a round weigh the same for both.
    "transactions": (120_000, "pipelined and asyncio"),
    "blocking": (30_000, "of blocking clients and bare; a third with one thread"),
    "peer": (30_000, "of RocketMQ; a third with one thread"),
    "sizes": ([100, 1_000], "bytes of values"),
    "threads": ([1, 8, 32, 64], "of blocking clients"),
    "rounds": ROUNDS,
}


def run(options: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    ratios: dict[str, Ratio] = {}
    # RocketMQ with its own defaults: time-out 6 s, check interval 30 s, OP batch 3 s.
    with rocketmq({}) as peer, EmbeddedKafka(jvm_profile="throughput", heap="1g") as kafka:
        for size in options.sizes:
            with standing(kafka) as stand, client_processes(stand, _PROCESSES) as in_processes:
                measures = _measures(options, size, stand, peer)
                measures[_IN_PROCESSES] = partial(in_processes, options.transactions, size)
                found = by_turns(options.rounds, measures)
            figures |= found.report(f", {size:,} B")
            ratios |= {f"{name}, {size:,} B": ratio for name, ratio in _ratios(options, found).items()}
    return {"figures": figures, "ratios": ratios}


def _measures(options: argparse.Namespace, size: int, stand: Stand, peer: RocketMQ) -> dict[str, Callable[[], Found]]:
    clients = stand.clients

    def by_peer(threads: int) -> Found:
        count = _of_threads(options.peer, threads)
        before = peer.cpu_seconds()
        done = peer.measure(count, threads, size)
        return {PER_SECOND: count / done["seconds"], **cpu_us_each(before, peer.cpu_seconds(), count)}

    measures: dict[str, Callable[[], Found]] = {
        _PIPELINED: partial(stand.measure, clients.pipelined, options.transactions, size),
        _ASYNCIO: partial(stand.measure, clients.asyncio, options.transactions, size),
    }
    for threads in options.threads:
        count = _of_threads(options.blocking, threads)
        measures[_with(threads, _BLOCKING)] = partial(stand.measure, clients.blocking(threads), count, size)
        measures[_with(threads, _BARE)] = partial(produce_and_wait, stand.bridge, threads, count, size)
        measures[_with(threads, _PEER)] = partial(by_peer, threads)
    return measures


def _ratios(options: argparse.Namespace, found: Rounds) -> dict[str, Ratio]:
    def to_the_best(name: str, of: Figure) -> float:
        return of(name, PER_SECOND) / max(of(_with(threads, _PEER), PER_SECOND) for threads in options.threads)

    def to_the_goal(threads: int, of: Figure) -> float:
        ours, bare, peer = (of(_with(threads, name), PER_SECOND) for name in (_BLOCKING, _BARE, _PEER))
        return ours / min(_TO_THE_SAME * peer, _OF_BARE * bare)

    ratios = {
        f"{name} to RocketMQ at its best": found.ratio(partial(to_the_best, name), goal)
        for name, goal in _TO_THE_BEST.items()
    }
    for threads in options.threads:
        name = _with(threads, f"blocking to the lower of {_TO_THE_SAME} RocketMQ and {_OF_BARE} bare")
        ratios[name] = found.ratio(partial(to_the_goal, threads), 1)
    for name in (*_TO_THE_BEST, *(_with(threads, _BLOCKING) for threads in options.threads)):
        ratios[f"slowest round to the median, {name}"] = found.steadiness(name, PER_SECOND, _STEADY)
    return ratios


def _of_threads(count: int, threads: int) -> int:
    """The number for one thread, which is slower by about this factor."""
    return count // 3 if threads == 1 else count


def _with(threads: int, what: str) -> str:
    return f"{what}, 1 thread" if threads == 1 else f"{what}, {threads} threads"
