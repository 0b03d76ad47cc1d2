"""All partitions of one worker process: an owner for each partition that the group assigns, and no other."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from txbridge.broker.inbox import EndEvent
from txbridge.broker.owner import OwnerStatus, PartitionOwner
from txbridge.broker.state import PartitionContext

#: All owners end after the Kafka transaction at hand, which its commit time-out bounds (10 s by default).
STOP_TIMEOUT_S = 15.0
#: A healthy coordinator answers in milliseconds; five seconds span its election.
_ANSWER_TIMEOUT_S = 5.0


class Worker:
    """Starts and stops owners as the group's assignment changes. `client_id` is unique to this process in the group."""

    def __init__(self, context: PartitionContext, group: str, client_id: str) -> None:
        self._context = context
        self._group = group
        self._client_id = client_id
        self._lock = threading.Lock()
        self._owners: dict[int, PartitionOwner] = {}

    def assign(self, partitions: Iterable[int]) -> None:
        """The group assigns exactly these partitions. Owners that stay keep their state: the fence proves ownership.

        Returns at once: take-overs run in the owners' threads.
        """
        wanted = set(partitions)
        with self._lock:
            gone = [self._owners.pop(partition) for partition in self._owners.keys() - wanted]
            for owner in gone:
                owner.stop()
            for partition in wanted - self._owners.keys():
                owner = PartitionOwner(self._context, partition, self.is_assigned)
                self._owners[partition] = owner
                owner.start()

    def offer(self, partition: int, event: EndEvent) -> None:
        """An END event of Faust's."""
        owner = self._owners.get(partition)
        if owner is not None:
            owner.inbox.offer(event)

    def is_assigned(self, partition: int) -> bool:
        """Whether the group's coordinator says that this process has the partition.

        Raises KafkaException, TimeoutError.
        """
        answer = self._context.membership.ask([self._group])[self._group]
        end = self._context.names.end
        return any(
            member.client_id == self._client_id
            and any(tp.topic == end and tp.partition == partition for tp in member.assignment.topic_partitions)
            for member in answer.result(_ANSWER_TIMEOUT_S).members
        )

    def status(self) -> list[OwnerStatus]:
        with self._lock:
            return [owner.status for _, owner in sorted(self._owners.items())]

    def stop(self) -> None:
        """Stop all owners and wait for the Kafka transactions at hand."""
        with self._lock:
            owners = list(self._owners.values())
            self._owners.clear()
        for owner in owners:
            owner.stop()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for owner in owners:
            owner.join(max(0.0, deadline - time.monotonic()))
