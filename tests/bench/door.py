"""The front door against a real RocketMQ, with the same Java client: transactions a second, and the time of a SEND.

A transaction counts when the client's call has returned. At that time its half message is acknowledged, its local
transaction has answered commit, and its END is sent, which the client does one-way on both sides. The time of a SEND is
from the call until the local transaction is called. A second rate counts until all are visible: in RocketMQ's queues,
and to a read_committed reader of Kafka. All processes run on one machine, which the door shares with Kafka, a worker
and a reader.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from txbridge_rocketmq.routes import broker_name

from tests.bench.measure import P50, P99, PER_SECOND, ROUNDS, SIZE, Found, Ratio, Rounds, by_turns
from tests.bench.rocketmq import TIMEOUT_S, RocketMQ, measure_peer, rocketmq
from tests.bench.stand import Stand, cpu_us_each, standing
from tests.peer.client import PeerClient
from tests.peer.jars import jar_folder
from tests.peer.server import Peer
from tests.support.harness import cpu_seconds
from tests.support.rocketmq_door import Door, topic_of
from txbridge.embedded import EmbeddedKafka
from txbridge.embedded.java import find_java

_DOOR, _PEER = "one door", "RocketMQ"
_PROGRAM, _HEAP = "DoorBench", "512m"
#: Least part of RocketMQ's rate, by the number of threads.
_GOALS = {8: 0.5, 32: 0.55}
#: Long enough that no late decision is checked: a check would add to the measured work (ms).
_NO_CHECKS = 60_000
#: Measures a number of transactions from a number of threads, with values of a size.
_Measure = Callable[[int, int, int], Found]

OPTIONS = {
    # Enough for some four seconds on each side.
    "transactions": (20_000, "per measurement; a third with one thread"),
    "size": SIZE,
    "threads": ([1, 8, 32, 64], "of the client"),
    "rounds": ROUNDS,
}


def run(options: argparse.Namespace) -> dict[str, Any]:
    with (
        EmbeddedKafka(jvm_profile="throughput", heap="1g") as kafka,
        standing(kafka, check_after=_NO_CHECKS, make_topic=topic_of) as stand,
        contextlib.ExitStack() as stack,
    ):
        sides: dict[str, _Measure] = {_DOOR: stack.enter_context(_front_door(stand))}
        # RocketMQ with its own defaults.
        sides[_PEER] = partial(_measure_native, stack.enter_context(rocketmq({}, _PROGRAM, _HEAP)))
        measures = {
            # One thread is slower by about this factor.
            _workload(name, threads): partial(
                measure, options.transactions // 3 if threads == 1 else options.transactions, threads, options.size
            )
            for threads in options.threads
            for name, measure in sides.items()
        }
        found = by_turns(options.rounds, measures)
    return {"figures": found.report(), "ratios": _ratios(options, found)}


def _found(
    sent: Mapping[str, Any], count: int, visible: float, before: Mapping[str, float], after: Mapping[str, float]
) -> Found:
    return {
        PER_SECOND: count / (sent["sent"] - sent["since"]),
        **dict(zip((P50, P99), sent["send_ms"], strict=True)),
        "visible per second": count / (visible - sent["since"]),
        **cpu_us_each(before, after, count),
    }


def _measure_native(peer: RocketMQ, count: int, threads: int, size: int) -> Found:
    with peer.going():
        total = int(peer.client.ask("visible")) + count
        before = peer.cpu_seconds()
        sent = measure_peer(peer.client, count, threads, size)
        visible = float(peer.client.ask("wait_visible", timeout=TIMEOUT_S, total=total))
        return _found(sent, count, visible, before, peer.cpu_seconds())


@contextlib.contextmanager
def _front_door(stand: Stand) -> Iterator[_Measure]:
    """A door, and a client that knows it."""
    with contextlib.ExitStack() as stack:
        door = stack.enter_context(Door(stand.bridge))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="txbridge-bench-")))
        name = broker_name(door.address)
        as_peer = Peer(find_java(), jar_folder(), door.address, door.address, folder, broker_name=name)
        client = stack.enter_context(PeerClient(as_peer, _PROGRAM, stand.real_topic, 0, heap=_HEAP))

        def cpu() -> dict[str, float]:
            return {**stand.cpu_seconds(), "client": cpu_seconds(client.pid), "door": cpu_seconds(door.pid)}

        def measure(number: int, threads: int, size: int) -> Found:
            stand.reader.expect(number)
            before = cpu()
            sent = measure_peer(client, number, threads, size)
            return _found(sent, number, stand.reader.last_seen(), before, cpu())

        yield measure


def _ratios(options: argparse.Namespace, found: Rounds) -> dict[str, Ratio]:
    def to(name: str, base: str, threads: int, what: str, goal: float | None = None) -> Ratio:
        return found.ratio(lambda of: of(_workload(name, threads), what) / of(_workload(base, threads), what), goal)

    ratios = {}
    for threads in options.threads:
        suffix = _threads(threads)
        ratios[f"{_DOOR} to RocketMQ, {suffix}"] = to(_DOOR, _PEER, threads, PER_SECOND, _GOALS.get(threads))
        ratios[f"SEND through {_DOOR} to RocketMQ, median, {suffix}"] = to(_DOOR, _PEER, threads, P50)
    return ratios


def _threads(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"


def _workload(side: str, threads: int) -> str:
    return f"{side}, {_threads(threads)}"
