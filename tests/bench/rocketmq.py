"""A real RocketMQ with its own Java client, stopped for as long as it is not measured."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from tests.peer.client import PeerClient
from tests.peer.server import Peer, peer
from tests.support.harness import cpu_seconds

#: A measurement of 5.5.0 at a few hundred a second, which a loaded machine has shown, ends within it.
_TIMEOUT_S = 600.0
_QUEUES = 8
#: Threads that send timer messages, each of which waits for its acknowledgement.
_SENDERS = 8


class RocketMQ:
    """Measures with PeerBench.java; the servers go on only meanwhile.

    Idle, 5.5.0 keeps one core busy: https://github.com/apache/rocketmq/issues/10966.
    """

    def __init__(self, running: Peer, client: PeerClient) -> None:
        self._running = running
        self._client = client

    def measure(self, count: int, threads: int, size: int, **more: object) -> Mapping[str, Any]:
        """Transactions of values of `size` bytes by so many threads; see PeerBench.java for more."""
        with self._running.going():
            # After a pause of its servers a consumer may wait for an answer that is lost, or has to be heard of again:
            # that is no part of a measurement.
            self.warm_up()
            return self._ask(count, threads, size, **more)

    def timers(self, count: int, rate: float, size: int, ahead_s: float) -> list[float]:
        """How late (s) plain timer messages were received; `rate` of them are due a second, the first in `ahead_s`."""
        with self._running.going():
            self.warm_up()
            late: list[float] = []
            # The first ones warm the timer up.
            for number, of_rate, ahead in ((1_000, 1_000.0, 5.0), (count, rate, ahead_s)):
                late = self._client.ask(
                    "timer",
                    timeout=_TIMEOUT_S,
                    count=number,
                    threads=_SENDERS,
                    size=size,
                    rate=of_rate,
                    ahead_ms=int(ahead * 1_000),
                )
        return [one / 1e3 for one in late]

    def warm_up(self) -> None:
        """A few transactions, until they are seen: whoever can do that is ready."""
        self._ask(count=100, threads=1, size=100)

    def cpu_seconds(self) -> dict[str, float]:
        """Processor time so far, by process group; the client's is with its consumer."""
        return {
            "RocketMQ": sum(cpu_seconds(server.pid) for server in self._running.servers),
            "client": cpu_seconds(self._client.pid),
        }

    def _ask(self, count: int, threads: int, size: int, **more: object) -> Mapping[str, Any]:
        done: Mapping[str, Any] = self._client.ask(
            "measure", timeout=_TIMEOUT_S, count=count, threads=threads, size=size, **more
        )
        return done


@contextlib.contextmanager
def rocketmq(options: Mapping[str, object]) -> Iterator[RocketMQ]:
    """Start servers and client; `options` are the broker's, by RocketMQ's names."""
    with peer(options, heap="1g") as running, PeerClient(running, "PeerBench", "bench", _QUEUES, heap="1g") as client:
        made = RocketMQ(running, client)
        # The program is ready when it answers: until then it needs the servers, for its topic and its route.
        made.warm_up()
        running.pause()
        try:
            yield made
        finally:
            running.go_on()
