"""txbridge beside what people run instead of it: a polled outbox, Debezium, a message sent after the commit.

One service places orders in PostgreSQL and announces each on Kafka. Its ways take turns, each with an own database and
topic. Visible means: from the end of COMMIT to a read_committed reader. Processor time is that of all processes: app,
PostgreSQL, Kafka and relay.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from os import getloadavg
from pathlib import Path
from typing import Any

from tests.bench.feed import say
from tests.bench.measure import PER_SECOND, Found, Rounds
from tests.bench.outbox.faults import kill_by_turns
from tests.bench.outbox.goals import IDLE, KILL, RELAY, SIGTERM, ratios
from tests.bench.outbox.relays import Settings
from tests.bench.outbox.shop import SETTINGS, new_shop, warm_up
from tests.bench.outbox.table import table
from tests.bench.outbox.visit import Visit
from tests.bench.outbox.ways import LOADS, WAYS, Load, Way
from tests.support.postgres import Postgres
from txbridge.embedded import EmbeddedKafka

#: The load during a restart, and that which makes a backlog.
_STEADY, _FAST = "200/s", "asyncio 100"
#: Orders of a load at full speed in the warm-up round, which finds out how many come in a second.
_FIRST = 500
#: Fewer would be a few ticks of processor time.
_FEWEST = 100

OPTIONS = {
    "rounds": (3, "medians of so many"),
    "seconds": (2.5, "of each load at a rate; half of it at full speed"),
    "idle": (2.0, "seconds without a message"),
    "restart": (4.0, "seconds of 200/s around each restart of a relay, 0: none"),
    # A relay makes up to 5,000 rows visible at once: of a few batches the first would count for too much.
    "backlog": (100_000, "orders of a backlog, 0: none"),
    "ways": ([""], f"names, or parts of names: {', '.join(WAYS)}; all by default"),
    "loads": ([""], f"names, or parts of names: {', '.join(LOADS)}; all by default"),
    "faults": (False, "only kill -9 of the service and of the relay in turn: what is lost, and what is visible twice"),
    "kills": (10, "of each, with --faults"),
    "rate": (200.0, "orders a second, with --faults"),
    "partitions": (1, "of HALF and END"),
    "commit_interval": (None, "of worker and client, in s; theirs by default"),
}


def run(options: argparse.Namespace) -> dict[str, Any]:
    ways = {name: WAYS[name] for name in _named(options.ways, WAYS)}
    found, relays = Rounds(), Rounds()
    with ExitStack() as stack:
        place = _Place(stack, Settings(options.partitions, options.commit_interval))
        if options.faults:
            for name, way in ways.items():
                if way.is_killed:
                    with place.visit(way) as visited:
                        _note(found, 1, f"{name}, kills", kill_by_turns(visited, options.kills, options.rate))
            return {"figures": found.report()}
        place.warm_up()
        counts: dict[str, int] = {}
        # The first round warms everything up, at full speed, and does not count. Kafka Connect warms up at each visit.
        for number in range(options.rounds + 1):
            # Each round begins with another way: a machine whose speed drifts would favour a place in the round.
            start = number * len(ways) // (options.rounds + 1)
            for name, way in [*ways.items()][start:] + [*ways.items()][:start]:
                if not number and way.postgres:
                    continue
                with place.visit(way) as visited:
                    for load in _named(options.loads, way.loads):
                        if number or not LOADS[load].rate:
                            workload = f"{name}, {load}"
                            _note(found, number, workload, _measure(options, counts, visited, workload, LOADS[load]))
                    if number and way.idle:
                        _note(found, number, name + IDLE, visited.idle(options.idle))
        for name, way in ways.items():
            if way.restarts:
                with place.visit(way) as visited:
                    _note(relays, 1, name + RELAY, _hardships(options, visited))
    print(table(found, relays), flush=True)
    return {"figures": found.report() | relays.report(), "ratios": ratios(found, relays)}


class _Place:
    """Kafka and PostgreSQL for all ways. Servers start when they are needed."""

    def __init__(self, stack: ExitStack, settings: Settings) -> None:
        self._stack, self._settings = stack, settings
        self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="txb-outbox-")))
        self._kafka = stack.enter_context(EmbeddedKafka(jvm_profile="throughput", heap="1g"))
        self._servers: list[tuple[Way, Postgres]] = []
        self._shared = self._stack.enter_context(Postgres(**SETTINGS))

    def warm_up(self) -> None:
        warm_up(self._kafka)

    @contextmanager
    def visit(self, way: Way) -> Iterator[Visit]:
        settings = self._settings
        if way.partitions is not None:
            settings = replace(settings, partitions=way.partitions)
        with (
            new_shop(self._kafka, self._server(way), self._folder) as shop,
            way.relay(shop, settings) as relay,
            ExitStack() as stack,
        ):
            relay.start()
            yield Visit(shop, way, relay, stack)

    def _server(self, way: Way) -> Postgres:
        if not way.postgres:
            return self._shared
        for owner, server in self._servers:
            if owner is way:
                return server
        self._servers.append((way, self._stack.enter_context(Postgres(**SETTINGS, **way.postgres))))
        return self._servers[-1][1]


def _named(wanted: Sequence[str], names: Iterable[str]) -> list[str]:
    """The names that were asked for. A text that is no name stands for all that contain it."""
    known = {*WAYS, *LOADS}
    return [name for name in names if any(part == name or (part not in known and part in name) for part in wanted)]


def _measure(options: argparse.Namespace, counts: dict[str, int], visited: Visit, workload: str, load: Load) -> Found:
    if load.rate:
        return visited.measure(load, max(_FEWEST, round(load.rate * options.seconds)))
    found = visited.measure(load, counts.get(workload, _FIRST))
    counts[workload] = max(_FIRST, round(found[PER_SECOND] * options.seconds / 2))
    return found


def _hardships(options: argparse.Namespace, visited: Visit) -> Found:
    """What happens to a relay, once each."""
    found: dict[str, float] = {}
    if options.restart:
        for what, kill in ((SIGTERM, False), (KILL, True)):
            found[what] = visited.restart(LOADS[_STEADY], options.restart, kill=kill)
    if options.backlog:
        found |= visited.drain(LOADS[_FAST], options.backlog)
    return found


def _note(rounds: Rounds, number: int, workload: str, found: Found) -> None:
    text = ", ".join(f"{what} {value:,.4g}" for what, value in found.items())
    say(f"round {number}, load {getloadavg()[0]:.1f}: {workload}: {text}")
    if number:
        rounds.add(workload, found)
