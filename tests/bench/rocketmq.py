"""A real RocketMQ with its own Java client, stopped outside of measurements."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from tests.peer.client import PeerClient
from tests.peer.server import Peer, peer
from tests.support.harness import cpu_seconds

#: A measurement of 5.5.0 at a few hundred a second, as on a loaded machine, ends within this time.
TIMEOUT_S = 600.0
_QUEUES = 8
#: Number of threads that send timer messages, each of which waits for its acknowledgement.
_SENDERS = 8


class RocketMQ:
    """Measures with PeerBench.java, or another program of tests/peer. The servers run only meanwhile.

    Idle, 5.5.0 keeps one core busy: https://github.com/apache/rocketmq/issues/10966.
    """

    def __init__(self, running: Peer, client: PeerClient) -> None:
        self._running = running
        self.client = client

    @contextlib.contextmanager
    def going(self) -> Iterator[None]:
        """Let the servers run inside this block."""
        with self._running.going():
            # After a pause of its servers, a consumer may wait for a lost answer or may have to register again. That is
            # not measured.
            self.warm_up()
            yield

    def measure(self, count: int, threads: int, size: int, **more: object) -> Mapping[str, Any]:
        """Measure transactions with values of `size` bytes from so many threads. PeerBench.java has the details."""
        with self.going():
            return measure_peer(self.client, count, threads, size, **more)

    def timers(self, count: int, rate: float, size: int, ahead_s: float) -> list[float]:
        """Measure how late (s) plain timer messages were received.

        `rate` of them are due a second, the first in `ahead_s`.
        """
        with self.going():
            late: list[float] = []
            # The first messages warm the timer up.
            for number, of_rate, ahead in ((1_000, 1_000.0, 5.0), (count, rate, ahead_s)):
                late = self.client.ask(
                    "timer",
                    timeout=TIMEOUT_S,
                    count=number,
                    threads=_SENDERS,
                    size=size,
                    rate=of_rate,
                    ahead_ms=int(ahead * 1_000),
                )
        return [one / 1e3 for one in late]

    def warm_up(self) -> None:
        """Send a few transactions and wait until they are seen: then client and servers are ready."""
        measure_peer(self.client, count=100, threads=1, size=100)

    def cpu_seconds(self) -> dict[str, float]:
        """Processor time so far, by process group. The client's includes its consumer's."""
        return {
            "RocketMQ": sum(cpu_seconds(server.pid) for server in self._running.servers),
            "client": cpu_seconds(self.client.pid),
        }


def measure_peer(client: PeerClient, count: int, threads: int, size: int, **more: object) -> Mapping[str, Any]:
    """Let RocketMQ's client send transactions, and return what it has measured."""
    done: Mapping[str, Any] = client.ask("measure", timeout=TIMEOUT_S, count=count, threads=threads, size=size, **more)
    return done


@contextlib.contextmanager
def rocketmq(options: Mapping[str, object], program: str = "PeerBench", heap: str = "1g") -> Iterator[RocketMQ]:
    """Start servers and client. `options` are the broker's, with RocketMQ's names."""
    with peer(options, heap="1g") as running, PeerClient(running, program, "bench", _QUEUES, heap=heap) as client:
        made = RocketMQ(running, client)
        # The program is ready when it answers. Until then it needs the servers, for its topic and its route.
        made.warm_up()
        running.pause()
        try:
            yield made
        finally:
            running.go_on()
