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
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from txbridge_rocketmq.routes import broker_name

from tests.bench.measure import P50, P99, PER_SECOND, Found, Ratio, Rounds, by_turns
from tests.bench.stand import Stand, cpu_us_each
from tests.peer.client import PeerClient
from tests.peer.jars import jar_folder
from tests.peer.server import Peer, peer
from tests.support.harness import cpu_seconds
from tests.support.rocketmq_door import Door, topic_of
from txbridge.embedded import EmbeddedKafka
from txbridge.embedded.java import find_java
from txbridge.embedded.ports import free_port

_PEER = "RocketMQ"
_VISIBLE = "visible per second"
_PROGRAM, _HEAP = "DoorBench", "512m"
#: The same number as in the other benches with RocketMQ.
_QUEUES = 8
#: The goal is for one door with this many threads.
_GOAL_THREADS, _GOAL = 32, 0.5
#: Long enough that no late decision is checked: a check would add to the measured work (ms).
_NO_CHECKS = 60_000
#: A measurement at a few hundred a second, as on a loaded machine, ends within this time.
_TIMEOUT_S = 600.0


def add_options(parser: argparse.ArgumentParser) -> None:
    # Enough for some four seconds on each side.
    parser.add_argument(
        "--transactions", type=int, default=20_000, help="per measurement; a third with one thread (default 20,000)"
    )
    parser.add_argument("--size", type=int, default=100, help="bytes of each value (default 100)")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 8, 32, 64], help="of the client")
    parser.add_argument(
        "--doors", type=int, nargs="+", default=[1], help="processes; `--doors 1 2` shows how it grows (default 1)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="medians of so many (default 5)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    with (
        EmbeddedKafka(jvm_profile="throughput", heap="1g") as kafka,
        Stand(kafka, check_after=_NO_CHECKS, make_topic=topic_of) as stand,
        contextlib.ExitStack() as stack,
    ):
        sides: dict[str, _Native | _Doors] = {
            _doors(count): stack.enter_context(_front_doors(stand, count)) for count in options.doors
        }
        # RocketMQ with its own defaults.
        sides[_PEER] = stack.enter_context(_native())
        found = by_turns(options.rounds, _measures(options, sides))
    return {
        "figures": found.report(),
        "ratios": {name: ratio.report() for name, ratio in _ratios(options, found).items()},
    }


class _Side:
    """A client with its servers."""

    def __init__(self, client: PeerClient) -> None:
        self._client = client

    def _send(self, count: int, threads: int, size: int) -> Mapping[str, Any]:
        done: Mapping[str, Any] = self._client.ask(
            "measure", timeout=_TIMEOUT_S, count=count, threads=threads, size=size
        )
        return done

    def _found(
        self,
        sent: Mapping[str, Any],
        count: int,
        visible: float,
        before: Mapping[str, float],
        after: Mapping[str, float],
    ) -> Found:
        return {
            PER_SECOND: count / (sent["sent"] - sent["since"]),
            **dict(zip((P50, P99), sent["send_ms"], strict=True)),
            _VISIBLE: count / (visible - sent["since"]),
            **cpu_us_each(before, after, count),
        }


class _Native(_Side):
    def __init__(self, running: Peer, client: PeerClient) -> None:
        super().__init__(client)
        self._running = running

    def measure(self, count: int, threads: int, size: int) -> Found:
        with self._running.going():
            # The client may have to connect again after the pause of its servers.
            self._send(100, 1, size)
            total = int(self._client.ask("visible")) + count
            before = self._cpu_seconds()
            sent = self._send(count, threads, size)
            visible = float(self._client.ask("wait_visible", timeout=_TIMEOUT_S, total=total))
            return self._found(sent, count, visible, before, self._cpu_seconds())

    def _cpu_seconds(self) -> dict[str, float]:
        return {
            "RocketMQ": sum(cpu_seconds(server.pid) for server in self._running.servers),
            "client": cpu_seconds(self._client.pid),
        }


class _Doors(_Side):
    def __init__(self, stand: Stand, doors: Sequence[Door], client: PeerClient) -> None:
        super().__init__(client)
        self._stand = stand
        self._doors = doors

    def measure(self, count: int, threads: int, size: int) -> Found:
        self._stand.reader.expect(count)
        before = self._cpu_seconds()
        sent = self._send(count, threads, size)
        return self._found(sent, count, self._stand.reader.last_seen(), before, self._cpu_seconds())

    def _cpu_seconds(self) -> dict[str, float]:
        return {
            **self._stand.cpu_seconds(),
            "client": cpu_seconds(self._client.pid),
            "doors": sum(cpu_seconds(door.pid) for door in self._doors),
        }


@contextlib.contextmanager
def _native() -> Iterator[_Native]:
    """A RocketMQ that is stopped outside of measurements, as tests/bench/rocketmq.py explains."""
    with peer({}, heap="1g") as running, PeerClient(running, _PROGRAM, "bench", _QUEUES, heap=_HEAP) as client:
        # It answers once it has its topic and its route, for which it needs the servers.
        client.ask("measure", count=100, threads=1, size=100)
        running.pause()
        try:
            yield _Native(running, client)
        finally:
            running.go_on()


@contextlib.contextmanager
def _front_doors(stand: Stand, count: int) -> Iterator[_Doors]:
    """This many doors that name each other, and a client that knows all of them."""
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(count)]
    advertised = f"--advertised={','.join(addresses)}"
    with contextlib.ExitStack() as stack:
        doors = [stack.enter_context(Door(stand.bridge, advertised, listen=address)) for address in addresses]
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="txbridge-bench-")))
        first, names = addresses[0], ";".join(addresses)
        as_peer = Peer(find_java(), jar_folder(), names, first, folder, broker_name=broker_name(first))
        client = stack.enter_context(PeerClient(as_peer, _PROGRAM, stand.real_topic, 0, heap=_HEAP))
        yield _Doors(stand, doors, client)


def _measures(options: argparse.Namespace, sides: Mapping[str, _Native | _Doors]) -> dict[str, Callable[[], Found]]:
    return {
        _workload(name, threads): partial(
            # One thread is slower by about this factor.
            side.measure,
            options.transactions // 3 if threads == 1 else options.transactions,
            threads,
            options.size,
        )
        for threads in options.threads
        for name, side in sides.items()
    }


def _ratios(options: argparse.Namespace, found: Rounds) -> dict[str, Ratio]:
    def to(name: str, base: str, threads: int, what: str, goal: float | None = None) -> Ratio:
        return found.ratio(lambda of: of(_workload(name, threads), what) / of(_workload(base, threads), what), goal)

    ratios = {}
    for threads in options.threads:
        suffix = _threads(threads)
        for count in options.doors:
            name = _doors(count)
            goal = _GOAL if (count, threads) == (1, _GOAL_THREADS) else None
            ratios[f"{name} to RocketMQ, {suffix}"] = to(name, _PEER, threads, PER_SECOND, goal)
            ratios[f"SEND through {name} to RocketMQ, median, {suffix}"] = to(name, _PEER, threads, P50)
            if count > 1 and 1 in options.doors:
                ratios[f"{name} to one, {suffix}"] = to(name, _doors(1), threads, PER_SECOND)
    return ratios


def _doors(count: int) -> str:
    return "one door" if count == 1 else f"{count} doors"


def _threads(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"


def _workload(side: str, threads: int) -> str:
    return f"{side}, {_threads(threads)}"
