"""The whole path (client, Kafka, worker, reader) against a real RocketMQ: from the first prepare until all is seen."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.bench.bare import produce_and_wait
from tests.bench.client_processes import ClientProcesses
from tests.bench.load import Mix
from tests.bench.measure import PER_SECOND, Figure, Found, Ratio, Rounds, by_turns
from tests.bench.rocketmq import RocketMQ, rocketmq
from tests.bench.stand import Stand, cpu_us_each
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
_USUAL = "100/0/0"
MIXES = {_USUAL: Mix(), "90/5/5": Mix(rollback=5, unknown=5)}


def add_options(parser: argparse.ArgumentParser) -> None:
    # Enough for some four seconds on each side, so that start and end of a round weigh the same for both.
    parser.add_argument("--transactions", type=int, default=120_000, help="pipelined and asyncio (default 120,000)")
    parser.add_argument(
        "--blocking",
        type=int,
        default=30_000,
        help="of blocking clients and bare; a third with one thread (default 30,000)",
    )
    parser.add_argument(
        "--peer", type=int, default=30_000, help="of RocketMQ; a third with one thread (default 30,000)"
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1_000], help="bytes of values (default 100 1000)")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 8, 32, 64], help="of blocking clients")
    parser.add_argument("--rounds", type=int, default=5, help="medians of so many (default 5)")
    parser.add_argument("--mix", choices=MIXES, default=_USUAL, help=f"commit/rollback/unknown (default {_USUAL})")


def run(options: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    ratios: dict[str, Any] = {}
    # RocketMQ with its own defaults: time-out 6 s, check interval 30 s, OP batch 3 s.
    with rocketmq({}) as peer, EmbeddedKafka(jvm_profile="throughput", heap="1g") as kafka:
        for size in options.sizes:
            with Stand(kafka) as stand, ClientProcesses(stand, _PROCESSES) as processes:
                measures = _measures(options, size, stand, peer)
                if options.mix == _USUAL:
                    measures[_IN_PROCESSES] = partial(processes.measure, options.transactions, size)
                found = by_turns(options.rounds, measures)
            suffix = f", {size:,} B" + (f", {options.mix}" if options.mix != _USUAL else "")
            figures |= found.report(suffix)
            ratios |= {f"{name}{suffix}": ratio.report() for name, ratio in _ratios(options, found).items()}
    return {"mix": options.mix, "figures": figures, "ratios": ratios}


def _measures(options: argparse.Namespace, size: int, stand: Stand, peer: RocketMQ) -> dict[str, Callable[[], Found]]:
    mix, clients = MIXES[options.mix], stand.clients
    # Unknown ones would wait for RocketMQ's check rounds of 30 s. They are rolled back there, in its favour.
    rollback = mix.rollback + mix.unknown

    def by_peer(threads: int) -> Found:
        count = _of_threads(options.peer, threads)
        before = peer.cpu_seconds()
        done = peer.measure(count, threads, size, rollback=rollback)
        return {PER_SECOND: count / done["seconds"], **cpu_us_each(before, peer.cpu_seconds(), count)}

    measures: dict[str, Callable[[], Found]] = {
        _PIPELINED: partial(stand.measure, clients.pipelined, options.transactions, size, mix),
        _ASYNCIO: partial(stand.measure, clients.asyncio, options.transactions, size, mix),
    }
    for threads in options.threads:
        count = _of_threads(options.blocking, threads)
        measures[_blocking(threads)] = partial(stand.measure, clients.blocking(threads), count, size, mix)
        measures[_bare(threads)] = partial(produce_and_wait, stand.bridge, 1, threads, count, size)
        measures[_peer(threads)] = partial(by_peer, threads)
    return measures


def _ratios(options: argparse.Namespace, found: Rounds) -> dict[str, Ratio]:
    def to_the_best(name: str, of: Figure) -> float:
        return of(name, PER_SECOND) / max(of(_peer(threads), PER_SECOND) for threads in options.threads)

    def to_what_is_wanted(threads: int, of: Figure) -> float:
        wanted = min(_TO_THE_SAME * of(_peer(threads), PER_SECOND), _OF_BARE * of(_bare(threads), PER_SECOND))
        return of(_blocking(threads), PER_SECOND) / wanted

    to_best = {name: goal for name, goal in _TO_THE_BEST.items() if name in found}
    ratios = {
        f"{name} to RocketMQ at its best": found.ratio(partial(to_the_best, name), goal)
        for name, goal in to_best.items()
    }
    for threads in options.threads:
        name = f"blocking to the lower of {_TO_THE_SAME} RocketMQ and {_OF_BARE} bare, {_named(threads)}"
        ratios[name] = found.ratio(partial(to_what_is_wanted, threads), 1)
    for name in (*to_best, *map(_blocking, options.threads)):
        ratios[f"slowest round to the median, {name}"] = found.steadiness(name, PER_SECOND, _STEADY)
    return ratios


def _of_threads(count: int, threads: int) -> int:
    """The number for one thread, which is slower by about this factor."""
    return count // 3 if threads == 1 else count


def _named(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"


def _blocking(threads: int) -> str:
    return f"blocking, {_named(threads)}"


def _bare(threads: int) -> str:
    return f"bare produce and wait, {_named(threads)}"


def _peer(threads: int) -> str:
    return f"RocketMQ, {_named(threads)}"
