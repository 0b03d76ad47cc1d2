"""All partitions of one worker process: an owner for each partition that the group assigns, and no other."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from confluent_kafka import ConsumerGroupState

from txbridge.worker.ingest.end_inbox import EndEvent
from txbridge.worker.observe.metrics import PartitionFacts
from txbridge.worker.owner import OwnerStatus, PartitionOwner
from txbridge.worker.partition_counts import PartitionCounts
from txbridge.worker.partition_state import PartitionContext

#: All owners end after the Kafka transaction at hand, which its commit time-out bounds (10 s by default).
STOP_TIMEOUT_S = 15.0
#: A healthy coordinator answers in milliseconds; five seconds span its election.
_ANSWER_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Assignment:
    """What the group's coordinator says of this process."""

    #: Whether the group has settled who has what.
    stable: bool
    member: bool
    partitions: frozenset[int]


class Worker:
    """Starts and stops owners as the group's assignment changes. `client_id` is unique to this process in the group."""

    def __init__(self, context: PartitionContext, group: str, client_id: str) -> None:
        self._context = context
        self._group = group
        self._client_id = client_id
        self._lock = threading.Lock()
        self._owners: dict[int, PartitionOwner] = {}
        #: Whether the internal topics still fit together.
        self.partition_counts = PartitionCounts(context.requests, context.names, context.metrics)
        #: Whether the group has assigned anything yet, be it nothing.
        self.was_assigned = False
        self.stopped = False

    def assign(self, partitions: Iterable[int]) -> None:
        """The group assigns exactly these partitions. Owners that stay keep their state: the fence proves ownership.

        Returns at once: take-overs run in the owners' threads.
        """
        wanted = set(partitions)
        with self._lock:
            if self.stopped:
                return
            gone = [self._owners.pop(partition) for partition in self._owners.keys() - wanted]
            for owner in gone:
                owner.stop()
            for partition in wanted - self._owners.keys():
                owner = PartitionOwner(self._context, partition, self.is_assigned)
                self._owners[partition] = owner
                owner.start()
            self.was_assigned = True

    def offer(self, partition: int, event: EndEvent) -> None:
        """An END event of Faust's."""
        owner = self._owners.get(partition)
        if owner is not None:
            owner.inbox.offer(event)

    def applied(self, partition: int) -> int | None:
        """END is applied up to this offset; None when this worker can not tell."""
        owner = self._owners.get(partition)
        return None if owner is None else owner.applied

    def assignment(self) -> Assignment:
        """What the group's coordinator says. Raises KafkaException, TimeoutError."""
        answer = self._context.membership.ask([self._group])[self._group].result(_ANSWER_TIMEOUT_S)
        end = self._context.names.end
        members = [member for member in answer.members if member.client_id == self._client_id]
        return Assignment(
            stable=answer.state == ConsumerGroupState.STABLE,
            member=bool(members),
            partitions=frozenset(
                tp.partition for member in members for tp in member.assignment.topic_partitions if tp.topic == end
            ),
        )

    def is_assigned(self, partition: int) -> bool:
        """Whether the group's coordinator says that this process has the partition.

        Raises KafkaException, TimeoutError.
        """
        return partition in self.assignment().partitions

    def owners(self) -> list[PartitionOwner]:
        """By partition; none once it was told to stop."""
        with self._lock:
            return [] if self.stopped else [owner for _, owner in sorted(self._owners.items())]

    @property
    def partitions_total(self) -> int:
        """Half partitions of the namespace, whoever has them."""
        return self._context.metrics.partitions_found

    def ask_groups(self, groups: Iterable[str]) -> dict[str, Future[Any]]:
        """Kafka's descriptions of consumer groups, in time; never waits. Raises KafkaException."""
        return self._context.membership.ask(groups)

    @property
    def end_topic(self) -> str:
        return self._context.names.end

    def check_group(self, group: str) -> str:
        """The consumer group that answers the checks of this producer group."""
        return self._context.names.check(group)

    def visible_groups(self) -> list[str]:
        """Producer groups that have a check topic; one request. Raises KafkaException."""
        prefix = self._context.names.check("")
        topics = self._context.admin.list_topics(timeout=_ANSWER_TIMEOUT_S).topics
        return sorted(topic.removeprefix(prefix) for topic in topics if topic.startswith(prefix))

    def status(self) -> list[OwnerStatus]:
        return [owner.status for owner in self.owners()]

    def facts(self) -> list[PartitionFacts]:
        """For the metrics."""
        return [owner.facts() for owner in self.owners()]

    def stop(self) -> None:
        """Stop all owners and wait for the Kafka transactions at hand. `applied` can still be asked."""
        with self._lock:
            self.stopped = True
            owners = list(self._owners.values())
        for owner in owners:
            owner.stop()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for owner in owners:
            owner.join(max(0.0, deadline - time.monotonic()))
