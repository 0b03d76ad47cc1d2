"""A small world: one partition and its owners on a healthy Kafka, where no message falls due."""

from __future__ import annotations

import sys

from tests.simulator.checker import Checker
from tests.simulator.model import Times
from tests.simulator.partition_log import Stored
from tests.simulator.process import Process
from tests.simulator.records import Pairs, end_headers, half_headers
from tests.simulator.world import World
from txbridge.core.check_policy import CheckPolicy
from txbridge.core.names import Names

_HOUR = 3_600_000
_GROUP = "group"


class SmallWorld:
    """The world, the records that a test writes, and the owners that it starts."""

    def __init__(
        self,
        *real_topics: str,
        park_after_records: int = 100_000,
        payload_memory: int = 300,
        commit_interval: float = 0,
    ) -> None:
        self.world = world = World(0)
        self.names = names = Names()
        for topic in (names.half, names.end, names.op, names.offset, names.discard, *real_topics):
            world.cluster.create_topic(topic, 1)
        self.policy = CheckPolicy(transaction_timeout=_HOUR, park_after=_HOUR, park_after_records=park_after_records)
        self._payload_memory, self._commit_interval = payload_memory, commit_interval
        self.checker = Checker(world, names, 1, Times(_HOUR, _HOUR, 15, 100 * _HOUR, _HOUR, _HOUR))
        self.owners: list[Process] = []

    def start_owner(self) -> Process:
        """Start a worker beside those that run."""
        name = f"w{len(self.owners) + 1}"
        process = Process(
            self.world,
            self.names,
            self.policy,
            0,
            name,
            payload_memory=self._payload_memory,
            commit_interval=self._commit_interval,
        )
        self.checker.witnesses[name] = process.witness
        self.owners.append(process)
        return process

    def prepare(self, topic: str, transaction_id: str, value: bytes = b"value", more: Pairs | None = None) -> int:
        """Store a half message, and return its offset."""
        headers = half_headers(topic, _GROUP, transaction_id) + (more or [])
        return self.world.cluster.append_plain((self.names.half, 0), (b"key", value, headers, 0))

    def decide(self, half: int, transaction_id: str, decision: int, tell: Process | None = None) -> int:
        """Store a decision, and return its offset in END. Faust tells this worker of it, if any."""
        value = f"{half},{transaction_id},{decision}".encode()
        end = self.world.cluster.append_plain((self.names.end, 0), (None, value, end_headers(_GROUP), 0))
        if tell is not None:
            tell.tell(end, self.world.cluster.logs[self.names.end, 0].entries[end])
        return end

    def visible(self, topic: str) -> list[Stored]:
        """The records that a read_committed reader sees."""
        return self.world.cluster.logs[topic, 0].visible(0, sys.maxsize, committed=True)[0]

    def close(self) -> None:
        for process in self.owners:
            process.actor.crash()


def take_turn(world: World, process: Process, fuel: int) -> None:
    """Write all markers that are due, and let an owner go on, or time pass until it does."""
    for coordinated, place in world.cluster.markers_due():
        world.cluster.write_marker(coordinated, place)
    if process.actor.is_runnable:
        process.actor.run(fuel)
    else:
        world.now = max(world.now + 1, process.actor.waits_until or 0)
