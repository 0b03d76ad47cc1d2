"""A load of records that their topics refuse, beside commits for another topic: how long do those take?

One owner on a healthy Kafka. The time is that of the simulation, and a fence costs what it costs on a real Kafka.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import structlog

from tests.simulator.applications import COMMIT
from tests.simulator.kafka_writer import POISON
from tests.simulator.small_world import SmallWorld
from txbridge.core.message_frames import FramedMessage, encode_frames

_OTHER = "stock"
#: A request takes 3 ms and a new producer 60 ms, as measured on an idle machine with one broker.
_REQUEST_MS, _FENCE_MS = 3, 60
_GOOD = b"good"
#: Time between two commits for the other topic (ms).
_EVERY_MS = 200
#: Size of each message of a pair (bytes).
_PAIRED_SIZE = 100


@dataclass(frozen=True, slots=True)
class RefusedRecords:
    """The refused records of a run."""

    #: Topics that refuse records.
    topics: int = 1
    #: Refused records that are committed at once, and more of them in each second. As many good ones come with them.
    at_once: int = 0
    per_second: int = 0
    seconds: int = 20
    #: Transactions of two messages, committed at once. Their topic takes each one, and refuses both in one batch.
    pairs: int = 0


@dataclass(slots=True)
class Outcome:
    """Result of a run."""

    #: Milliseconds from commit to visible of each message for the other topic.
    delays: list[int] = field(default_factory=list)
    #: Good messages for the topics that refuse others, and how many of them are visible in the end.
    good: int = 0
    good_visible: int = 0


class RefusedRun:
    """One run. `shows_configs`: workers may see the configuration of topics, which does not explain these refusals."""

    def __init__(self, load: RefusedRecords, *, shows_configs: bool = True) -> None:
        self._load = load
        self._bad = [f"bad{number}" for number in range(load.topics)]
        self._small = SmallWorld(_OTHER, *self._bad, payload_memory=1_000_000)
        self._world = world = self._small.world
        world.cluster.shows_configs = shows_configs
        world.latency, world.fence_ms = _REQUEST_MS, _FENCE_MS
        world.max_batch = 2 * _PAIRED_SIZE - 1 if load.pairs else sys.maxsize
        self._process = self._small.start_owner()
        self._count = 0

    def run(self) -> Outcome:
        """Do the run. Raises Violation."""
        structlog.configure(processors=[_drop], cache_logger_on_first_use=False)
        world, outcome = self._world, Outcome()
        self._pass_time(2_000)
        began = world.now
        waiting: dict[int, int] = {}
        paired = FramedMessage(self._bad[0], b"key", _GOOD.ljust(_PAIRED_SIZE), ())
        for _ in range(self._load.pairs):
            self._commit(self._bad[0], encode_frames([paired, paired]), messages=2)
            outcome.good += 2
        for due, is_bad in self._arrivals():
            self._pass_time(began + due - world.now, waiting, outcome)
            if is_bad:
                topic = self._bad[self._count % len(self._bad)]
                self._commit(topic, b"%d" % self._count + POISON)
                self._commit(topic, _GOOD)
                outcome.good += 1
            else:
                waiting[self._commit(_OTHER, b"other")] = world.now
        self._pass_time(60_000, waiting, outcome)
        outcome.delays += [world.now - since for since in waiting.values()]
        delivered = ((record.value or b"").rstrip() for topic in self._bad for record in self._small.visible(topic))
        outcome.good_visible = sum(value == _GOOD for value in delivered)
        self._small.close()
        return outcome

    def _arrivals(self) -> Iterator[tuple[int, bool]]:
        """Times (ms) of commits, and whether they are for a topic that refuses records."""
        load = self._load
        arrivals = [(0, True)] * load.at_once
        arrivals += [(number * 1000 // load.per_second, True) for number in range(load.seconds * load.per_second)]
        arrivals += [(time, False) for time in range(1, load.seconds * 1000, _EVERY_MS)]
        yield from sorted(arrivals)

    def _commit(self, topic: str, value: bytes, *, messages: int = 1) -> int:
        """Store a half message and its commit. Returns its half offset."""
        self._count += 1
        transaction_id = f"{self._count:032X}"
        several = [("TXB_MESSAGES", b"%d" % messages)] if messages > 1 else []
        half = self._small.prepare(topic, transaction_id, value, several)
        self._small.decide(half, transaction_id, COMMIT, tell=self._process)
        return half

    def _pass_time(
        self, milliseconds: int, waiting: dict[int, int] | None = None, outcome: Outcome | None = None
    ) -> None:
        world, actor = self._world, self._process.actor
        until = world.now + milliseconds
        while world.now < until:
            markers = world.cluster.markers_due()
            if markers:
                world.cluster.write_marker(*markers[0])
            elif actor.is_runnable:
                actor.run(1)
            else:
                world.now = max(world.now + 1, min(until, actor.waits_until or until))
            if self._small.checker.violation is not None:
                raise self._small.checker.violation
            if waiting and outcome is not None:
                for offset in self._delivered() & waiting.keys():
                    outcome.delays.append(world.now - waiting.pop(offset))

    def _delivered(self) -> set[int]:
        return {int((dict(one.headers)["TXB_HALF"] or b"").split(b":")[1]) for one in self._small.visible(_OTHER)}


def _drop(*_: object) -> dict[str, object]:
    raise structlog.DropEvent
