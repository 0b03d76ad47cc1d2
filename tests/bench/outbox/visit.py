"""Measurements of one way, whose service, relay and reader run meanwhile."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from tests.bench.beside import beside
from tests.bench.feed import PATIENCE_S
from tests.bench.measure import P50, P99, PER_SECOND, Found, percentiles
from tests.bench.outbox import figures
from tests.bench.outbox.announce import Service
from tests.bench.outbox.relays import Relay
from tests.bench.outbox.shop import Shop
from tests.bench.outbox.ways import LOADS, Load, Way
from tests.bench.reader_process import BenchProcess, ReaderProcess

CALL, VISIBLE = "call, ", "COMMIT to visible, "
TRANSACTIONS = "Kafka transactions of the worker, each order"
ALL_SEEN, DRAINED = "backlog, s from the start of the relay", "backlog, a second from first to last"
_MOST_CALLS = max(load.calls for load in LOADS.values())
#: A relay that has just worked is not idle yet (s).
_REST_S = 2.0


class Visit:
    """Numbers its orders from 0."""

    def __init__(self, shop: Shop, way: Way, relay: Relay, stack: ExitStack) -> None:
        self.shop, self.relay, self.way, self._stack = shop, relay, way, stack
        self._services: dict[str, BenchProcess] = {}
        self._reader: ReaderProcess | None = None
        self._next = 0

    def measure(self, load: Load, count: int) -> Found:
        """Place orders under this load, and wait until all are visible."""
        service = self._service(load.api)
        before, made = figures.count(self.shop, [service.pid], self.relay.pids), self.relay.transactions()
        done, seen = self._place(service, load, count)
        after = figures.count(self.shop, [service.pid], self.relay.pids)
        found = {PER_SECOND: count / (done["ended"] - done["began"])} if not load.rate else {}
        found |= _named(CALL, done["calls"])
        if seen:
            found |= _named(VISIBLE, [at - since for at, since in zip(seen, done["committed"], strict=True)])
        found |= figures.each_order(before, after, count)
        if (transactions := self.relay.transactions() - made) > 0:
            found[TRANSACTIONS] = transactions / count
        if parts := self.relay.parts:
            found[figures.MEMORY_ALONE] = figures.memory_mb(parts[0].pids)
        return {**found, figures.MEMORY: figures.memory_mb(self.relay.pids)}

    def idle(self, seconds: float) -> Found:
        """Processor time while nothing happens, in ms a second. It comes last: service and reader end before it.

        A JVM that has just started compiles what it needs, and that is not what idling costs.
        """
        self._stack.close()
        time.sleep(_REST_S)
        before, since = figures.count(self.shop, [], self.relay.pids), time.monotonic()
        time.sleep(seconds)
        return figures.a_second(before, figures.count(self.shop, [], self.relay.pids), time.monotonic() - since)

    def restart(self, load: Load, seconds: float, *, kill: bool) -> float:
        """The longest time from COMMIT to visible while the relay is ended and started again, at once (s)."""
        service = self._service(load.api)

        def work(_: Any) -> None:
            time.sleep(2)
            self.relay.kill() if kill else self.relay.stop()
            self.relay.start()

        with beside(work):
            done, seen = self._place(service, load, round(load.rate * seconds))
        committed: list[float] = done["committed"]
        return max(at - since for at, since in zip(seen, committed, strict=True))

    def drain(self, load: Load, count: int) -> Found:
        """A backlog that the relay finds at its start: how soon all of it is visible, and how fast it comes."""
        # Its first orders need the relay.
        service = self._service(load.api)
        self.relay.stop()
        started = 0.0

        def start() -> None:
            nonlocal started
            started = time.monotonic()
            self.relay.start()

        _, seen = self._place(service, load, count, then=start)
        found = {ALL_SEEN: max(seen) - started}
        # A single Kafka transaction of a worker may have all of it.
        return {**found, DRAINED: count / (max(seen) - min(seen))} if max(seen) > min(seen) else found

    def _place(
        self, service: BenchProcess, load: Load, count: int, then: Callable[[], None] = lambda: None
    ) -> tuple[Any, list[float]]:
        first, self._next = self._next, self._next + count
        if self.way.is_announced and self._reader is None:
            self._reader = self._stack.enter_context(ReaderProcess(self.shop.servers, self.shop.topic))
        if self._reader is not None:
            self._reader.expect_numbers(first, count)
        work = {"first": first, "count": count, "calls": load.calls, "rate": load.rate}
        done = json.loads(service.ask(json.dumps(work), PATIENCE_S))
        then()
        return done, [] if self._reader is None else self._reader.seen().times

    def _service(self, api: str) -> BenchProcess:
        if api not in self._services:
            process = self._services[api] = self._stack.enter_context(self.start_service(api))
            self._place(process, Load(_MOST_CALLS), self.way.warm_up)
        return self._services[api]

    def start_service(self, api: str) -> BenchProcess:
        """Start another process of the service."""
        shop = self.shop
        about = Service(shop.url, shop.servers, shop.topic, _MOST_CALLS, **self.relay.service)
        process = BenchProcess("outbox.service", self.way.announce, api, json.dumps(asdict(about)))
        assert process.answer() == "ready", "the service did not start; what it said stands above"
        return process


def _named(what: str, seconds: list[float]) -> Found:
    found = percentiles(seconds)
    return {f"{what}{P50}": found[P50], f"{what}{P99}": found[P99]}
