"""The whole path (client, Kafka, worker, reader) against a real RocketMQ: from the first prepare until all is seen."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tests.bench.measure import Ratio, by_turns, summary
from tests.bench.transactions import Mix, Stand
from tests.peer.client import PeerClient
from tests.peer.server import Peer, peer
from txbridge.embedded import EmbeddedKafka

#: A measurement of 5.5.0 at a few hundred a second, which a loaded machine has shown, ends within it.
_PEER_TIMEOUT_S = 600.0
_PEER_QUEUES = 8
_MIXES = {"100/0/0": Mix(), "90/5/5": Mix(rollback=5, unknown=5)}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--transactions", type=int, default=40_000, help="per measurement (default 40,000)")
    parser.add_argument("--blocking", type=int, default=10_000, help="the same of blocking clients (default 10,000)")
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1_000], help="bytes of values (default 100 1000)")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 8, 32, 64], help="of blocking clients")
    parser.add_argument("--rounds", type=int, default=5, help="medians of so many (default 5)")
    parser.add_argument("--mix", choices=_MIXES, default="100/0/0", help="commit/rollback/unknown (default 100/0/0)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {}
    ratios: dict[str, Any] = {}
    with _rocketmq() as rocketmq, EmbeddedKafka(jvm_profile="throughput", heap="1g") as kafka:
        for size in options.sizes:
            with Stand(kafka.bootstrap_servers) as stand:
                found = by_turns(options.rounds, _measures(options, size, stand, rocketmq))
            results[f"{size} B"] = {name: summary(values) for name, values in found.items()}
            for name, ratio in _ratios(options, results[f"{size} B"]).items():
                ratios[f"{name}, {size} B"] = ratio.report()
    return {"mix": options.mix, "per_second": results, "ratios": ratios}


@contextlib.contextmanager
def _rocketmq() -> Iterator[tuple[Peer, PeerClient]]:
    # With its own defaults: time-out 6 s, check interval 30 s, OP batch 3 s.
    with peer({}, heap="1g") as running, PeerClient(running, "PeerBench", "bench", _PEER_QUEUES, heap="1g") as client:
        # 5.5.0 keeps one core busy when it has nothing to do: https://github.com/apache/rocketmq/issues/10966.
        running.pause()
        try:
            yield running, client
        finally:
            running.go_on()


def _measures(
    options: argparse.Namespace, size: int, stand: Stand, rocketmq: tuple[Peer, PeerClient]
) -> dict[str, Callable[[], float]]:
    mix = _MIXES[options.mix]
    running, client = rocketmq

    def by_peer(threads: int) -> float:
        count = options.blocking if threads == 1 else options.transactions
        # Unknown ones would wait for RocketMQ's rounds of 30 s: they are rolled back there, in its favour.
        rollback = 100 - mix.committed(100) + (5 if options.mix == "90/5/5" else 0)
        with running.going():
            done = client.ask(
                "measure", timeout=_PEER_TIMEOUT_S, count=count, threads=threads, size=size, rollback=rollback
            )
        return count / float(done["seconds"])

    ours = {
        "pipelined": partial(stand.per_second, stand.pipelined, options.transactions, size, mix),
        "asyncio": partial(stand.per_second, stand.asyncio, options.transactions, size, mix),
    }
    for threads in options.threads:
        ours[f"blocking, {threads} threads"] = partial(
            stand.per_second, stand.blocking(threads), options.blocking, size, mix
        )
        ours[f"bare produce and wait, {threads} threads"] = partial(stand.bare, threads, options.blocking, size)
        ours[f"RocketMQ, {threads} threads"] = partial(by_peer, threads)
    return ours


def _ratios(options: argparse.Namespace, medians: dict[str, dict[str, float]]) -> dict[str, Ratio]:
    def of(name: str) -> float:
        return medians[name]["median"]

    best = max(of(f"RocketMQ, {threads} threads") for threads in options.threads)
    ratios = {"pipelined or asyncio to RocketMQ at its best": Ratio(max(of("pipelined"), of("asyncio")) / best, 5)}
    for threads in options.threads:
        bare = 0.75 * of(f"bare produce and wait, {threads} threads")
        wanted = min(of(f"RocketMQ, {threads} threads"), bare)
        ratios[f"blocking to the lower of RocketMQ and 0.75 bare, {threads} threads"] = Ratio(
            of(f"blocking, {threads} threads") / wanted, 1
        )
    return ratios
