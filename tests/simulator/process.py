"""A worker's process in the simulation: the real owner of a partition in an actor, with simulated clients and time."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any, cast

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from tests.simulator.actors import Actor
from tests.simulator.kafka_readers import SimulatedAdmin, SimulatedBrokers, SimulatedConsumer
from tests.simulator.kafka_writer import SimulatedProducer
from tests.simulator.partition_log import Stored
from tests.simulator.witness import Witness
from tests.simulator.world import World
from txbridge.core.check_policy import CheckPolicy
from txbridge.core.decision_record import DecisionEvent
from txbridge.core.fresh_halves import Run
from txbridge.core.names import Names
from txbridge.core.plan.choice import Limits
from txbridge.core.plan.draft import Draft
from txbridge.core.plan.effects import MalformedRecord
from txbridge.kafka.admin import KafkaCluster
from txbridge.kafka.environment import Outside
from txbridge.kafka.group_membership import GroupMembership
from txbridge.kafka.log_ends import LogEnds
from txbridge.worker.observe.metrics import WorkerMetrics
from txbridge.worker.partition_context import PartitionContext
from txbridge.worker.partitions import PartitionOwner

#: The protocol's own transaction.timeout.ms.
COMMIT_TIMEOUT_MS = 10_000
_KAFKA = {"bootstrap.servers": "simulated:9092"}


@functools.cache
def _metrics() -> WorkerMetrics:
    """The metrics of all processes. Making them takes longer than most small schedules, and nobody reads them."""
    return WorkerMetrics()


class _Metrics:
    """Metrics of one process, which also count commits in the world."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Any:
        return getattr(_metrics(), name)

    def note_commit(self, draft: Draft, malformed: Iterable[MalformedRecord], seconds: float, now: int) -> None:
        runs = [run for run in draft.parts if isinstance(run, Run)]
        for run in runs:
            self._world.count("run of fresh half messages")
            if len(run.record.entries) > 1:
                self._world.count("run of several fresh half messages")
            if run.rollbacks:
                self._world.count("run that rolls back")
            if len(run.topics) > 1:
                self._world.count("run for several real topics")
        for part, behind in pairwise(draft.parts):
            if isinstance(behind, Run) and not isinstance(part, Run):
                self._world.count("run behind decisions one by one")
            if isinstance(part, Run) and not isinstance(behind, Run):
                self._world.count("decisions one by one behind a run")
        if len(runs) > 1:
            self._world.count("several runs in one transaction")
        _metrics().note_commit(draft, malformed, seconds, now)


class _SimulatedOutside(Outside):
    """The world as one process sees it."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process
        self._names = 0

    def producer(self, config: Mapping[str, Any]) -> Producer:
        return cast(Producer, SimulatedProducer(self._world, self._process.actor, config))

    def consumer(self, config: Mapping[str, Any]) -> Consumer:
        return cast(Consumer, SimulatedConsumer(self._world, self._process.actor, config))

    def monotonic(self) -> float:
        return self._world.now / 1000

    def now(self) -> int:
        return self._process.now()

    def wait(self, event: threading.Event, seconds: float) -> None:
        if not self._process.owner.status.serving:
            self._world.starts_anew(self._process.name)
        if not event.is_set():
            self._process.actor.wait(max(1, int(seconds * 1000)), event.is_set)

    def wait_for_change(self, condition: threading.Condition, seconds: float) -> None:
        # The scheduler offers events meanwhile.
        self._process.was_poked = False
        condition.release()
        try:
            self._process.actor.wait(max(1, int(seconds * 1000)), self._process.is_poked)
        finally:
            condition.acquire()

    def owner_name(self) -> str:
        self._names += 1
        return f"{self._process.name}.{self._names}"

    def uniform(self, least: float, most: float) -> float:
        return self._world.random.uniform(least, most)


class Process:
    """A worker that owns, or believes to own, one partition."""

    def __init__(
        self,
        world: World,
        names: Names,
        policy: CheckPolicy,
        partition: int,
        name: str,
        check_rate: int = 1_000,
        largest: Limits | None = None,
        payload_memory: int = 300,
        commit_interval: float = 0,
        next_event: Callable[[], int | None] = lambda: None,
    ) -> None:
        self.name = name
        self.partition = partition
        #: Error of its machine's clock (ms).
        self.skew = 0
        #: Time of its last pause (ms of the world).
        self.paused_at = 0
        self.witness = Witness(world.now, lambda: world.now)
        self.was_poked = False
        #: Whether the group has assigned the partition to it.
        self.is_assigned = True
        self._world = world
        outside = _SimulatedOutside(world, self)
        # The actor's clients need the actor. None of them runs before the scheduler starts it.
        brokers = SimulatedBrokers(world, self)
        context = PartitionContext(
            kafka=_KAFKA,
            cluster=KafkaCluster(lambda: cast(AdminClient, SimulatedAdmin(world, self))),
            membership=GroupMembership(lambda: cast(AdminClient, SimulatedAdmin(world, self)), outside),
            brokers=brokers,
            ends=LogEnds(brokers, outside),
            names=names,
            policy=policy,
            commit_timeout_ms=COMMIT_TIMEOUT_MS,
            payload_memory=payload_memory,
            check_rate=check_rate,
            commit_interval=commit_interval,
            largest=largest or Limits(),
            metrics=cast(WorkerMetrics, _Metrics(world)),
            next_event=lambda _partition: next_event(),
            outside=outside,
        )
        self.owner = PartitionOwner(context, partition, lambda _: self._confirm())
        self.actor = Actor(name, world, self.owner.run)

    def now(self) -> int:
        """The time on its machine (ms)."""
        return self._world.now + self.skew

    def jump(self, milliseconds: int) -> None:
        """Let its machine's clock jump."""
        self.skew += milliseconds

    def is_poked(self) -> bool:
        return self.was_poked

    def poke(self) -> None:
        """Wake the owner that waits for its inbox."""
        self.was_poked = True

    def tell(self, offset: int, stored: Stored) -> None:
        """Hand an END event over, as Faust does."""
        self.owner.inbox.offer_event(DecisionEvent(offset, stored.key, stored.value, stored.headers))
        self.poke()

    def miss_events(self) -> None:
        """Say that END events were skipped, as Faust's consumer does."""
        self.owner.inbox.unlevel()
        self.poke()

    def stop(self) -> None:
        """Tell it to end after the current Kafka transaction."""
        self.owner.stop()
        self.poke()

    def _confirm(self) -> bool:
        self.actor.io()
        return self.is_assigned
